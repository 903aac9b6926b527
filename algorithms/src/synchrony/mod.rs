//! When workers may run ahead of each other, and what they see of each other's gradients.
//!
//! A *synchrony* decides when what workers push becomes an update, and when a worker gets the parameters that result. It is
//! chosen beside the method, which decides what is pushed. Where there are servers, a [`Policy`] decides at each of them: a pure
//! state machine, events and the time in, actions out. [`Bsp`], [`Osp`] and [`Local`] also run over an all-reduce,
//! where every worker does what the server would.
//!
//! A new synchrony is one new file here, its `mod` and one line in [`SYNCHRONIES`].

mod asp;
mod bsp;
mod clocks;
mod dssp;
mod error;
mod late_sgd;
mod local;
pub mod osp;
mod r2sp;
mod sgd;
pub mod shards;
mod ssp;

use std::fmt::Debug;
use std::time::Duration;

pub use asp::Asp;
pub use bsp::Bsp;
pub use dssp::Dssp;
pub use error::{PolicyError, SynchronyError};
pub use late_sgd::LateSgd;
pub use local::Local;
pub use osp::Osp;
pub use r2sp::R2sp;
pub use sgd::{Sgd, SgdError};
pub use ssp::Ssp;

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
    /// All that a worker pushes to this server in a stage of its step has come, even if that is nothing.
    Pushed {
        /// The worker.
        worker: u32,
        /// Its step, counted from 0.
        step: u64,
        /// Which part.
        stage: Stage,
    },
    /// Nothing of the reply to this worker is left to be sent; only where the synchrony [grants](Synchrony::grants) pushes, which
    /// then sends no other reply before.
    Replied {
        /// The worker.
        worker: u32,
    },
    /// A worker has ended, or has failed and the others go on without it. What it pushed before still counts; its results
    /// afterwards does not.
    Left {
        /// The worker.
        worker: u32,
    },
}

/// What a server does, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// One step of the optimiser with what these workers pushed in a stage of these steps, added up in this order and divided by
    /// `workers`.
    Apply {
        /// Which part.
        stage: Stage,
        /// Workers and their steps.
        pushes: Vec<(u32, u64)>,
        /// The workers among whom the sum is a mean: those who are left, or those who pushed where they are more.
        workers: u32,
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

/// What one server decides. Pure: the time is an argument.
pub trait Policy: Debug + Send {
    /// Takes in what has happened, so long after the job began, and says what follows.
    ///
    /// # Errors
    /// A worker that does what it may not: a step that is past, one left out, a push before its last one is answered. The state
    /// is what it was before.
    fn handle(&mut self, event: Event, now: Duration) -> Result<Vec<Action>, PolicyError>;

    /// The workers that others wait for at this moment and that do not wait themselves, by rank; empty while no worker waits for another.
    fn awaited(&self) -> Vec<u32>;
}

/// A synchrony: which policy servers have, and how workers take their steps.
pub trait Synchrony: Debug + Send + Sync {
    /// As `--synchrony` takes it, options included: `ssp/3`.
    fn name(&self) -> String;

    /// What it is and where it was published, in one line.
    fn summary(&self) -> &'static str;

    /// What a worker may see, and what takes the place of bit-identical updates.
    fn guarantee(&self) -> &'static str;

    /// What stands behind a slash after the name, as the end of a sentence that begins with 'expected'.
    fn takes(&self) -> &'static str;

    /// The same with what stands behind a slash after the name; None where it takes nothing, or not this.
    fn with(&self, _value: &str) -> Option<Box<dyn Synchrony>> {
        None
    }

    /// What a server decides. For each worker, by rank, the step that it pushes first: 0, but in a job that is resumed.
    fn policy(&self, first: &[u64]) -> Box<dyn Policy>;

    /// Whether it needs servers.
    fn needs_servers(&self) -> bool {
        true
    }

    /// Whether a worker waits to be granted its push.
    fn grants(&self) -> bool {
        false
    }

    /// The options of OSP, if this is OSP: pushes have two stages.
    fn osp(&self) -> Option<&Osp> {
        None
    }

    /// The options of local steps, if this is that: what is pushed is the difference that several steps made.
    fn local(&self) -> Option<&Local> {
        None
    }
}

/// All of them, in the order in which they are listed to users.
pub static SYNCHRONIES: &[fn() -> Box<dyn Synchrony>] = &[
    || Box::new(Bsp),
    || Box::new(Asp),
    || Box::new(Ssp::default()),
    || Box::new(Dssp::default()),
    || Box::new(R2sp),
    || Box::new(Osp::default()),
    || Box::new(Local::default()),
];

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
    let Some(value) = value else { return Ok(synchrony) };
    let takes = synchrony.takes();
    synchrony.with(value).ok_or_else(|| SynchronyError::Value {
        synchrony: name.into(),
        value: value.into(),
        takes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synchronies_are_found_by_name() {
        for synchrony in SYNCHRONIES {
            let name = synchrony().name();
            assert_eq!(named(&name).unwrap().name(), name);
            let kind = name.split('/').next().unwrap();
            assert_eq!(format!("{:?}", named(kind).unwrap()), format!("{:?}", synchrony()), "{kind}");
        }
        let error = named("spp/3").unwrap_err().to_string();
        assert!(
            error.contains("'spp'") && error.contains("bsp, asp, ssp, dssp, r2sp, osp, local"),
            "{error}"
        );
    }

    #[test]
    fn what_a_name_does_not_take_is_reported_with_what_it_takes() {
        let refused = [
            ("bsp/1", "nothing"),
            ("asp/", "nothing"),
            ("r2sp/2", "nothing"),
            ("ssp/-1", "at least 0"),
            ("ssp/", "such as ssp/3"),
            ("ssp/1.5", "such as ssp/3"),
            ("ssp/99999999999999999999", "such as ssp/3"),
            ("dssp/3", "such as dssp/3-15"),
            ("dssp/4-3", "such as dssp/3-15"),
            ("dssp/-1-3", "such as dssp/3-15"),
            ("local/0", "at least 1"),
            ("local/-3", "such as local/8"),
            ("local/8,0", "above 0"),
            ("local/8,nan", "above 0"),
            ("local/8,1,1", "below 1"),
            ("local/8,1,-0.1", "below 1"),
            ("local/8,1,0.9,3", "such as local/8"),
            ("local/8,after=-1", "after="),
            ("local/8,after=1,after=2", "after="),
            ("osp/", "lgp="),
            ("osp/lgp", "lgp="),
            ("osp/lgp=maybe", "lgp="),
            ("osp/lgp=ema:1", "lgp=ema"),
            ("osp/lgp=off,lgp=on", "lgp="),
            ("osp/cap=1.1", "cap="),
            ("osp/cap=-0.1", "cap="),
            ("osp/budget=2", "budget="),
            ("osp/budget=inf", "budget="),
            ("osp/budget=200%", "budget="),
            ("osp/size=1", "budget="),
        ];
        for (text, part) in refused {
            let error = named(text).unwrap_err().to_string();
            let (name, value) = text.split_once('/').unwrap();
            assert!(error.contains(&format!("{name} takes no '{value}'; expected ")), "{text}: {error}");
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn options_are_read_and_written() {
        for name in [
            "ssp/0",
            "dssp/0-0",
            "dssp/2-7",
            "osp/lgp=off",
            "osp/lgp=ema:0.9,cap=1,budget=0.5",
            "osp/budget=bound",
            "local/1",
            "local/8,0.7",
            "local/8,0.7,0.9",
            "local/8,after=500",
            "local/500,0.7,0.9,after=1000",
        ] {
            assert_eq!(named(name).unwrap().name(), name);
        }
        for (long, short) in [
            ("osp/lgp=on,cap=0.8,budget=tuned", "osp"),
            ("osp/cap=1,lgp=off", "osp/lgp=off,cap=1"),
            ("local/8,1,0", "local/8"),
            ("local/8,after=0", "local/8"),
            // Numbers are written as in all options.
            ("ssp/1k", "ssp/1000"),
            ("dssp/1e1-1_000", "dssp/10-1000"),
            ("local/1k,0.7,90%,after=1M", "local/1000,0.7,0.9,after=1000000"),
            ("osp/lgp=ema:90%,cap=100%,budget=50%", "osp/lgp=ema:0.9,cap=1,budget=0.5"),
        ] {
            assert_eq!(named(long).unwrap().name(), short);
        }
        assert!(named("osp").unwrap().osp().is_some() && named("osp").unwrap().local().is_none());
        assert!(named("local/4").unwrap().local().is_some_and(|local| local.steps == 4));
    }
}
