//! What a replica is made with, what a trainer says of a pass, and what it gets back of a step.

use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::residual::OnNonFinite;
use gleaner_algorithms::synchrony::{Sgd, Synchrony};
use gleaner_algorithms::{Method, SelectOver};

use super::carrier::Finished;
use crate::update::Skipped;
use crate::waits::Awaited;

/// How workers agree on common parameters. The same on all ranks, but for the samples.
#[derive(Clone, Debug)]
pub struct Options {
    /// How gradients are exchanged, and how many of their entries.
    pub method: Method,
    /// When.
    pub synchrony: Arc<dyn Synchrony>,
    /// What is done with the mean of the gradients.
    pub sgd: Sgd,
    /// Samples of each of this worker's passes. Where ranks differ, each gradient counts by its samples.
    pub samples: u64,
    /// Steps of an epoch.
    pub epoch: u64,
}

/// What a trainer says of a forward and backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// The learning rate of its update.
    pub rate: f32,
    /// How many samples were in its batch.
    pub samples: u64,
    /// Their mean loss.
    pub loss: f32,
}

/// The result of a step.
#[derive(Clone, Debug, Default)]
pub struct Stepped {
    /// For how long the pass was over and the next could not begin: batch synchronisation time.
    pub waiting: Duration,
    /// How long the pass took: batch computation time.
    pub computing: Duration,
    /// How long the exchange during the pass took.
    pub background: Duration,
    /// Entries whose gradient is exchanged during the next pass.
    pub deferred: u64,
    /// Under OSP, how many entries may be exchanged during the next pass, S(G^u), and how many the pass leaves time for, U_max.
    pub budget: Option<(u64, u64)>,
    /// Entries of the updates that came in this step and are not zero, where the updates are known.
    pub entries: u64,
    /// Which worker was waited for, where servers report it.
    pub awaited: Awaited,
    /// Why an update that came in this step was left out, on all ranks alike.
    pub skipped: Option<Skipped>,
}

impl Stepped {
    /// With the result of the stage that was waited for.
    pub(super) fn routine(self, finished: Finished) -> Self {
        let entries = self.entries + finished.entries;
        Self { entries, awaited: finished.awaited, skipped: finished.skipped.or(self.skipped), ..self }
    }
}

/// A replica that cannot be, or a call that it does not take.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// A synchrony of servers, and none is there.
    #[error(
        "the synchrony {0} needs parameter servers, and this job has none; start it with --servers 1, as gleaner launch and gleaner train have it, \
         or choose bsp, osp or local, which go over an all-reduce"
    )]
    NoServers(String),
    /// Parameters of another number.
    #[error("the replica was given {found} starting values; the layout has {expected}")]
    Initial {
        /// Entries in the layout.
        expected: usize,
        /// Values given.
        found: usize,
    },
    /// A parameter of another kind.
    #[error(
        "the replica was given the sparse parameter '{0}', and a replica takes gradients whole; declare it by parameter(), or \
         exchange it by gradients() or by a sparse reducer"
    )]
    Sparse(String),
    /// Two options that do not go together.
    #[error("the synchrony {synchrony} does not go with {option}: {reason}")]
    Unfit {
        /// The synchrony.
        synchrony: String,
        /// What does not go with it.
        option: String,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A batch of no samples, or another number of samples than was agreed on.
    #[error("a pass of {found} samples; {expected} were agreed on when the replica was made")]
    Samples {
        /// As was agreed.
        expected: u64,
        /// As was given.
        found: u64,
    },
    /// Gradients missing at the end of a pass.
    #[error(
        "step() was called before the gradients of {0} were ready; every parameter needs one in every pass"
    )]
    Missing(String),
    /// A call of workers, on a parameter server.
    #[error(
        "this rank is parameter server {0}, which takes no part in what workers do together; let its program call serve() alone"
    )]
    Server(u32),
    /// Servers that keep nothing.
    #[error(
        "parameter servers keep their state only where they are given a directory for it; make the replica with durable_replica()"
    )]
    NoState,
    /// In the middle of a pass.
    #[error("{0} is called between steps only: call step() first")]
    MidStep(&'static str),
}

gleaner_transport::debug_as_sentence!(ReplicaError);

impl Options {
    /// Whether these go together.
    pub(super) fn check(&self) -> Result<(), ReplicaError> {
        let unfit = |option: &str, reason| {
            let (synchrony, option) = (self.synchrony.name(), option.into());
            Err(ReplicaError::Unfit { synchrony, option, reason })
        };
        if self.samples == 0 {
            return Err(ReplicaError::Samples { expected: 1, found: 0 });
        }
        if self.method.selects_over() == SelectOver::Gradient {
            return unfit(
                "selecting over the whole gradient",
                "its layers are exchanged in steps of their own; select over each group",
            );
        }
        if self.method.follows_norm_share().is_some() {
            return unfit(
                "a share of the norm",
                "its layers are exchanged in steps of their own; leave the share out",
            );
        }
        if self.method.correction().decay.is_some() {
            return unfit(
                "a decay of the residual",
                "what waits there is no momentum of steps; leave the decay out",
            );
        }
        if self.synchrony.local().is_some() {
            if self.method.correction().momentum > 0.0 {
                return unfit(
                    "momentum correction",
                    "what it sends is a difference of parameters, in which the steps' own momentum is; leave the correction out",
                );
            }
            if self.method.nonfinite() == OnNonFinite::Skip {
                return unfit(
                    "skipping steps that are not finite",
                    "a worker goes on by itself between two exchanges, and cannot take such a step back; let them be refused",
                );
            }
        }
        Ok(())
    }
}
