//! What a step takes on a network that is described: a discrete-event simulation of the very schedules that jobs run.
//!
//! First, what every worker does is written down as a [`Trace`]: from an execution where the case is small ([`executed`]) or where
//! its work is to be timed ([`profiled`]), from the lengths of bags where it is large ([`lengths`]). It does not depend on time. Then a [`replay`] gives time to it, on a
//! [`Machine`] and a [`Network`]. So one trace serves many machines and networks, which is how a machine is fitted to
//! measurements ([`calibration`]).

pub mod calibration;
pub mod executed;
pub mod lengths;
mod machine;
pub mod measured;
mod network;
mod overlap;
pub mod profiled;
mod replay;
pub mod servers;
mod trace;
mod wire;

use std::borrow::Cow;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use gleaner_algorithms::Method;

use crate::Error;

pub use executed::Source;
pub use machine::Machine;
pub use network::{Host, Link, Network};
pub use overlap::Overlap;
pub use replay::{Lived, Replayed, Span, replay};
pub use trace::{Handled, Op, Part, Trace, Work};

/// Where the messages of a step, and the work on them, come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Workload {
    /// The method runs on gradients.
    Executed {
        /// How many entries one entry stands for: 1 for the whole gradient.
        scale: usize,
        /// The steps of the job.
        steps: Steps,
    },
    /// The method runs on gradients, and each piece of work is timed.
    Profiled {
        /// The steps of the job.
        steps: Steps,
        /// How many workers work at once, as on so many cores that they share; 1 where each has a host of its own.
        at_once: u32,
    },
    /// Expected lengths of bags (sparse vectors in messages), without values.
    Expected(Overlap),
}

/// The steps of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Those before the ones that count.
    pub warm_up: u32,
    /// Those that count.
    pub counted: u32,
}

impl Default for Steps {
    /// As `gleaner bench` has them.
    fn default() -> Self {
        Self { warm_up: 3, counted: 10 }
    }
}

/// What all workers do in a step: one trace, or those of several steps in a row where the method learns from each.
///
/// # Errors
/// A method that cannot run among so many workers, or what is too large.
pub fn traces(
    method: &Method,
    (workers, n): (u32, usize),
    workload: Workload,
    source: Source<'_>,
) -> Result<Vec<Trace>, Error> {
    // Refused with the same words however it is simulated.
    method.schedule(gleaner_algorithms::Rank(0), workers, n)?;
    match workload {
        Workload::Executed { scale, steps } => executed::traces(method, (workers, n), scale, steps, source),
        Workload::Profiled { steps, at_once } => {
            profiled::traces(method, (workers, n), (steps, at_once), source)
        }
        Workload::Expected(overlap) => Ok(vec![lengths::trace(method, workers, n, overlap)?]),
    }
}

/// The same for a network, with what it is to be replayed on. Where there are too many messages for all workers, the hosts are
/// equal, and the schedules are rotations of one another, that is rank 0 alone.
pub fn traces_on<'a>(
    network: &'a Network,
    method: &Method,
    (workers, n): (u32, usize),
    workload: Workload,
    source: Source<'_>,
) -> Result<(Vec<Trace>, Cow<'a, Network>), Error> {
    if let Workload::Expected(overlap) = workload
        && lengths::too_large(method, workers, n)?.is_some()
        && let Some(one) = network.one_of_equals()
        && let Some(trace) = lengths::by_symmetry(method, workers, n, overlap)?
    {
        return Ok((vec![trace], Cow::Owned(one)));
    }
    Ok((traces(method, (workers, n), workload, source)?, Cow::Borrowed(network)))
}

/// Does the same to all of these, on all cores.
fn on_all_cores<T>(all: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let all = Mutex::new(all);
    let next = || all.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(one) = next() {
                    work(one);
                }
            });
        }
    });
}
