//! The network over RDMA: reliable-connection queue pairs of InfiniBand or RoCE v2, by libibverbs, which is loaded when it is
//! needed.
//!
//! # Finding each other
//!
//! Workers find each other [over TCP](crate::tcp), with its rendezvous and its handshake. Each link of TCP becomes the control
//! connection of one queue pair at either end: over it both send the numbers of their queue pair, where their ring lies and its key,
//! and that they are connected. It then carries nothing, and closes when a side drops the link or dies.
//!
//! # Messages
//!
//! All messages of a link keep their order. A message is a header of 16 bytes (tag u64, length of the payload u32, number
//! of the message u32; little-endian) and the payload. One with a payload of up to 4 KiB is a SEND into one of 64 receives that
//! the peer has posted. A longer one is an RDMA WRITE with immediate into the peer's ring of 4 MiB, and takes a receive, too. How
//! much may be under way follows from what the peer says it has freed: a SEND with immediate of
//! two numbers (messages u64, position in the ring u64), for which eight more receives are posted. Both ends compute where in the ring a
//! message lies; what does not fit is damage.
//!
//! # Which memory a peer can write
//!
//! Each link has a protection domain, and of its memory the ring alone can be written by the peer. As it can be written at
//! any time, a message is copied out once before it is looked at: memory windows that close for each message would cost a request
//! and its completion more. A payload that is kept thus holds no memory of the adapter.
//!
//! A payload in a [lease](crate::Link::lease) above 4 KiB goes to the wire from where it was written; what lies elsewhere is copied
//! into registered memory first.
//!
//! Nothing is encrypted, so a job over verbs must be [plain](JoinConfig::is_plain).

use std::sync::Arc;

mod credit;
mod device;
mod end;
mod error;
mod library;
mod link;
mod memory;
mod network;
mod offer;
mod queue;
mod sys;

pub use error::VerbsError;
pub use network::VerbsNetwork;

use crate::tcp::{self, JoinConfig, Joining};
use crate::{MAX_PAYLOAD, Transport, VerbsDevice};
use device::Device;
use end::End;

/// Bytes of a message's header.
const HEADER: usize = 16;
/// The longest payload that goes by SEND, in bytes.
const SHORT: usize = 4096;
/// Bytes of a slot for a header and a short payload.
const SLOT: usize = (HEADER + SHORT).next_multiple_of(64);
/// Messages that may be on their way to a peer.
const MESSAGES: usize = 64;
/// Receives that are posted besides, for credit.
const CREDITS: usize = 8;
const RECEIVES: usize = MESSAGES + CREDITS;
/// Requests to send that may be under way.
const SENDS: usize = 34;
/// Bytes of the ring for long messages: at least four of the longest, less a little.
const RING: usize = 4 << 20;
/// Long payloads that can be copied at once, because they lie in memory that is not registered.
const STAGED: usize = 2;
/// Buffers for long payloads that a link lends, registered when they are first needed.
const LEASES: usize = 8;
/// Bytes of registered memory that each link needs, without leases.
const LINK_MEMORY: usize = RING + (RECEIVES + SENDS) * SLOT + STAGED * MAX_PAYLOAD;

/// By which adapter verbs can be used here.
///
/// # Errors
/// What is missing.
pub(crate) fn adapter(device: Option<&VerbsDevice>, is_plain: bool) -> Result<String, VerbsError> {
    open(device, is_plain).map(|device| device.place())
}

/// The device, of which it is known that a link can be made.
fn open(device: Option<&VerbsDevice>, is_plain: bool) -> Result<Arc<Device>, VerbsError> {
    if !is_plain {
        return Err(VerbsError::Sealed);
    }
    let device = Device::open(device)?;
    drop(End::new(&device)?);
    Ok(device)
}

/// Takes part in a job: returns when all workers have come, or says why they did not. A device that cannot be used, or memory for not
/// even one link, is reported before this worker shows itself to others.
///
/// # Errors
/// What verbs lack here, and what [`tcp::join`] says.
pub fn join(config: JoinConfig) -> Joining<VerbsNetwork> {
    Box::pin(async move {
        config.choice.check(Transport::Verbs)?;
        let device = open(config.choice.device.as_ref(), config.is_plain)?;
        let timeout = config.timeout;
        let inner = tcp::meet(config, Transport::Verbs).await?;
        Ok(VerbsNetwork::start(inner, device, timeout))
    })
}
