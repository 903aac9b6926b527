//! What goes wrong, and which rank is at fault.

use std::fmt;

use gleaner_algorithms::collectives::{MethodError, RoutineError};
use gleaner_algorithms::device::DeviceError;
use gleaner_algorithms::residual::VersionError;
use gleaner_algorithms::schedule::{CheckError, ExecutionError};
use gleaner_transport::{JoinError, OpenError};
use serde::{Deserialize, Serialize};

use crate::checkpoint::CheckpointError;
use crate::environment::ConfigError;
use crate::layout::LayoutError;
use crate::replica::ReplicaError;

/// Why the whole job cannot go on: sent to every worker, so that all name the same rank.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The rank that is to blame.
    pub rank: u32,
    /// The step in which the worker that noticed it was, if it was in one.
    pub step: Option<u64>,
    /// A sentence about what that rank did.
    pub reason: String,
}

/// How the reason begins where the rank is a parameter server.
const SERVER: &str = "(server ";

impl Failure {
    /// The same where the rank is this parameter server, if it is one.
    pub(crate) fn of_server(self, server: Option<u32>) -> Self {
        match server.filter(|_| !self.reason.starts_with(SERVER)) {
            Some(server) => Self { reason: format!("{SERVER}{server}) {}", self.reason), ..self },
            None => self,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.reason.strip_prefix(SERVER).and_then(|rest| rest.split_once(") "));
        write!(f, "rank {}", self.rank)?;
        if let Some((server, _)) = server {
            write!(f, " {SERVER}{server})")?;
        }
        f.write_str(" failed")?;
        if let Some(step) = self.step {
            write!(f, " at step {step}")?;
        }
        write!(f, ": {}", server.map_or(&*self.reason, |(_, reason)| reason))
    }
}

impl std::error::Error for Failure {}

gleaner_transport::debug_as_sentence!(Failure);

impl From<RoutineError> for Error {
    fn from(error: RoutineError) -> Self {
        match error {
            RoutineError::Method(error) => Error::Method(error),
            RoutineError::Check(error) => Error::Schedule(error),
            RoutineError::Version(error) => Error::Version(error),
            error => Error::Routine(error),
        }
    }
}

/// A step of a reducer that all ranks have given up, because one asked for it. Nothing of it was delivered, and nothing is
/// lost: what was accumulated waits in the residuals for the next step.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} cancelled step {step} of '{reducer}': its values wait in the residual for the next step"
)]
pub struct Cancelled {
    /// The rank that asked; of several, the one whose request came first.
    pub rank: u32,
    /// The step, counted from 0.
    pub step: u64,
    /// The reducer's name.
    pub reducer: String,
}

gleaner_transport::debug_as_sentence!(Cancelled);

/// A step that all ranks have given up, because a rank had not enough memory on its device to select. Nothing of it was delivered, and
/// nothing is lost: what was accumulated waits in the residuals for the next step, on all ranks.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "step {step} is undone on all ranks, as rank {rank} lacked memory on its device{}. Gradients wait in the residuals: free memory there \
     and begin the next step, or end the job",
    own.as_ref().map(|own| format!(": {own}")).unwrap_or_default()
)]
pub struct OutOfMemory {
    /// The rank that lacked memory; of several, one that all ranks name.
    pub rank: u32,
    /// The step, counted from 0.
    pub step: u64,
    /// How much was missing, in a sentence, if it was on this rank.
    pub own: Option<String>,
}

gleaner_transport::debug_as_sentence!(OutOfMemory);

/// What a session's calls report. Its `Debug` prints the sentence, as that of all errors here does: a `main` that returns one
/// shows it by that.
#[derive(thiserror::Error)]
pub enum Error {
    /// Rank, world size, rendezvous or secret are missing or contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The workers did not come together.
    #[error("{0}")]
    Join(#[from] JoinError),
    /// A worker died, fell silent, left or violated the protocol. The session is of no further use; what was
    /// accumulated since the last checkpoint is lost with it.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A rank cancelled the step. The session goes on, and so does the reducer.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// A step is undone on all ranks, as one lacked memory. The session goes on, and so do the gradients.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The trainer's own calls do not fit its layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Options that a replica cannot have, or a call that it does not take.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// No such number of entries.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// A schedule that is no all-reduce.
    #[error("the method's schedules are wrong: {0}")]
    Schedule(#[from] CheckError),
    /// A checkpoint of another method, or a method that has no forecast.
    #[error(transparent)]
    Routine(RoutineError),
    /// A checkpoint that cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A step that does not end in the order in which it began.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A reduction that the method cannot do.
    #[error(transparent)]
    Reduction(#[from] ExecutionError),
    /// A device that holds residuals has failed, lacks memory, or was given what is not its own.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused something.
    #[error("{0}: {1}")]
    System(&'static str, #[source] std::io::Error),
}

gleaner_transport::debug_as_sentence!(Error);

/// The rank at fault when workers did not come together, as far as this one knows.
pub(crate) fn at_fault(error: &JoinError, this: u32) -> Option<u32> {
    match error {
        JoinError::Missing { is_alone: true, .. } => Some(0),
        JoinError::Missing { missing, .. } => missing.first().map(|peer| peer.0),
        JoinError::Left { peer, .. } | JoinError::Slow { peer, .. } => Some(peer.0),
        JoinError::Unlinked { error: OpenError::Gone { peer }, .. } => Some(peer.0),
        // The one that came to rank 0.
        JoinError::Unlinked { peer, other, .. } => Some(peer.0.max(other.0)),
        JoinError::Unreachable { .. } | JoinError::Lost { .. } | JoinError::NoOutcome { .. } => Some(0),
        // Rank 0 knows who.
        JoinError::Failed { .. } => None,
        _ => Some(this),
    }
}

#[cfg(test)]
mod tests {
    use gleaner_transport::{Peer, Transport};

    use super::*;

    /// Two that have no link both name the one that came to rank 0, unless one of them knows that the other is gone.
    #[test]
    fn of_two_without_a_link_who_is_gone_is_to_blame() {
        let unlinked = |peer, other, error| JoinError::Unlinked {
            peer: Peer(peer),
            other: Peer(other),
            transport: Transport::Quic,
            error,
        };
        let failed = |peer| OpenError::Handshake {
            peer: Peer(peer),
            address: "its port".to_owned(),
            reason: "no answer".to_owned(),
        };
        for (error, blamed) in [
            (unlinked(0, 2, failed(2)), 2),
            (unlinked(2, 0, failed(0)), 2),
            (unlinked(0, 2, OpenError::Gone { peer: Peer(2) }), 2),
            (unlinked(2, 0, OpenError::Gone { peer: Peer(0) }), 0),
        ] {
            assert_eq!(at_fault(&error, 9), Some(blamed), "{error}");
        }
    }
}
