//! What the engine asks of an algorithm actor.

use std::any::Any;
use std::time::Instant;

use bytes::Bytes;
use gleaner_transport::Peer;

use crate::failure::Failure;
use crate::io::Io;
use crate::steps::Stand;
use crate::tag::StepId;

/// A group's step that needs a message.
pub(crate) struct Waiting {
    pub(crate) id: StepId,
    /// The step's number.
    pub(crate) step: u64,
    /// Whose message.
    pub(crate) from: Peer,
    /// Since when, by the clock of the I/O thread.
    pub(crate) since: Instant,
}

/// An algorithm actor, whatever the type of its values.
pub(crate) trait Actor: Send {
    /// The next step of each of its groups, and whether the program may cancel steps.
    fn next(&self) -> (Vec<StepId>, bool);

    /// Takes a message that is its own.
    fn handle(&mut self, message: Box<dyn Any + Send>, io: &mut Io);

    /// Whether bags of a step are of any use to it.
    fn expects(&self, id: StepId, io: &Io) -> bool {
        io.steps.expects(id)
    }

    /// A bag has come for a step that is not over.
    fn arrived(&mut self, id: StepId, from: Peer, payload: Bytes, io: &mut Io);

    /// A step that is under way stands so now.
    fn stand(&mut self, id: StepId, stand: Stand, io: &mut Io);

    /// Nothing more comes from this peer.
    fn left(&mut self, peer: Peer, io: &mut Io);

    /// The job has failed.
    fn fail(&mut self, failure: &Failure);

    /// Which messages its steps wait for.
    fn waits(&self) -> Vec<Waiting>;

    /// Whether no step is under way.
    fn is_idle(&self) -> bool;

    /// Whether others still need it, so that this worker cannot leave.
    fn is_needed(&self) -> bool {
        false
    }
}
