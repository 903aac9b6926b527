//! When workers may run ahead of each other, and what they see of each other's gradients.
//!
//! A *synchrony* decides when what workers push becomes an update, and when a worker gets the parameters that result. It is chosen
//! beside the method, which decides what is pushed. Where there are servers, a [`Policy`] decides at each of them: a pure state
//! machine, events and the time in, actions out. [`Bsp`], [`Osp`](osp::Osp) and [`Local`](local::Local) also run over an all-reduce, where every worker does
//! what the server would.
//!
//! A new synchrony is one new file here, its `mod` and one line in [`SYNCHRONIES`].

mod bsp;
mod sgd;

use std::fmt::Debug;
use std::time::Duration;

pub use bsp::Bsp;
pub use sgd::Sgd;

/// Which part of a step's gradient is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// What a worker waits for before its next pass: Routine Synchronisation (OSP, §3.1). The whole gradient, but under OSP.
    Routine,
    /// What travels during the next pass: In-Computation Synchronisation (OSP, §3.1).
    Background,
}

/// What happens at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A worker has something to push and asks whether it may; only where the synchrony [grants](Synchrony::grants) pushes.
    Asks {
        /// The worker.
        worker: u32,
        /// Its step, counted from 0.
        step: u64,
    },
    /// All that a worker pushes in a stage of its step has come.
    Pushed {
        /// The worker.
        worker: u32,
        /// Its step, counted from 0.
        step: u64,
        /// Which part.
        stage: Stage,
    },
    /// A worker has ended, or has failed and the others go on without it.
    Left {
        /// The worker.
        worker: u32,
    },
}

/// What a server does, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// One step of the optimiser with what these workers pushed in a stage of these steps, added up in this order and divided by
    /// the number of workers of the job that are left.
    Apply {
        /// Which part.
        stage: Stage,
        /// Workers and their steps.
        pushes: Vec<(u32, u64)>,
    },
    /// The worker gets the present values of the parameters that it pushed in that stage of its step.
    Reply {
        /// The worker.
        worker: u32,
        /// Its step.
        step: u64,
        /// Which part.
        stage: Stage,
    },
    /// The worker may push its step.
    Grant {
        /// The worker.
        worker: u32,
        /// Its step.
        step: u64,
    },
}

/// What one server decides. Pure: the time is what it is told.
pub trait Policy: Debug + Send {
    /// Takes in what has happened, so long after the job began, and says what follows.
    fn handle(&mut self, event: Event, now: Duration) -> Vec<Action>;
}

/// A synchrony: which policy servers have, and how workers go about their steps.
pub trait Synchrony: Debug + Send + Sync {
    /// As `--synchrony` takes it, options included: `ssp/3`.
    fn name(&self) -> String;

    /// What it is and where it was published, in one line.
    fn summary(&self) -> &'static str;

    /// What a worker may see, and what takes the place of bit-identical updates.
    fn guarantee(&self) -> &'static str;

    /// The same with what stands behind a slash after the name; None where it takes nothing, or not this.
    fn with(&self, _value: &str) -> Option<Box<dyn Synchrony>> {
        None
    }

    /// What a server of so many workers decides. It is told of them by their ranks, from 0 on.
    fn policy(&self, workers: u32) -> Box<dyn Policy>;

    /// Whether it needs servers.
    fn needs_servers(&self) -> bool {
        true
    }

    /// Whether a worker waits to be granted its push.
    fn grants(&self) -> bool {
        false
    }
}

/// All of them, in the order in which they are listed to users.
pub static SYNCHRONIES: &[fn() -> Box<dyn Synchrony>] = &[|| Box::new(Bsp)];

/// The synchrony of this name, such as `bsp` or `ssp/3`.
///
/// # Errors
/// [`SynchronyError`].
pub fn named(text: &str) -> Result<Box<dyn Synchrony>, SynchronyError> {
    let (name, value) = text.split_once('/').map_or((text, None), |(name, value)| (name, Some(value)));
    let kind = |synchrony: &dyn Synchrony| synchrony.name().split('/').next().unwrap_or_default().to_owned();
    let mut all = SYNCHRONIES.iter().map(|synchrony| synchrony());
    let Some(synchrony) = all.find(|synchrony| kind(&**synchrony) == name) else {
        let known: Vec<String> = SYNCHRONIES.iter().map(|synchrony| kind(&*synchrony())).collect();
        return Err(SynchronyError::Unknown { name: name.into(), known: known.join(", ") });
    };
    match value {
        None => Ok(synchrony),
        Some(value) => {
            let error = SynchronyError::Value { synchrony: name.into(), value: value.into() };
            synchrony.with(value).ok_or(error)
        }
    }
}

/// A synchrony that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SynchronyError {
    /// No such synchrony.
    #[error("there is no synchrony '{name}'; choose one of {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A value that it does not take.
    #[error("synchrony {synchrony} takes no '{value}'")]
    Value {
        /// Its name.
        synchrony: String,
        /// What stood behind the slash.
        value: String,
    },
}
