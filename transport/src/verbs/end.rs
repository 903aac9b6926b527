//! One side's end of a link: its queue pair, and the memory that belongs to it.

use std::io;
use std::sync::Arc;

use super::device::Device;
use super::error::VerbsError;
use super::memory::{Domain, Pool, Region};
use super::offer::Offer;
use super::queue::Queue;
use super::sys::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, SEND_SIGNALED, SendWr, Sge, WR_RDMA_WRITE_WITH_IMM,
};
use super::{HEADER, RECEIVES, RING, SENDS, SLOT, STAGED};
use crate::MAX_PAYLOAD;

/// See the module. The queue pair is destroyed first, and after that no adapter reaches the memory.
pub(super) struct End {
    pub(super) queue: Queue,
    /// Where the peer writes long messages. It alone can be written from outside, by this peer alone.
    ring: Region,
    /// A slot for each receive that is posted. The adapter writes what the peer sends.
    receives: Region,
    /// A slot for each request to send: a header, and behind it the payload of a short message.
    sends: Region,
    /// Where long payloads are copied that lie elsewhere.
    staging: Region,
    pub(super) pool: Arc<Pool>,
    psn: u32,
}

/// Which memory a request to send reads.
#[derive(Clone, Copy)]
pub(super) enum Payload {
    /// It stands behind the header.
    Short,
    /// It was copied to this place in the staging memory.
    Staged(usize),
    /// Registered memory with this key, at this address.
    Lent(u32, u64),
}

impl End {
    /// An end that has posted its receives and is not connected. Within a tokio runtime.
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, VerbsError> {
        let domain = Domain::new(device)?;
        let end = Self {
            queue: Queue::new(&domain)?,
            ring: Region::new(&domain, RING, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE)?,
            receives: Region::new(&domain, RECEIVES * SLOT, ACCESS_LOCAL_WRITE)?,
            sends: Region::new(&domain, SENDS * SLOT, 0)?,
            staging: Region::new(&domain, STAGED * MAX_PAYLOAD, 0)?,
            pool: Pool::new(&domain),
            psn: random() & 0x00ff_ffff,
        };
        let refused = |source| VerbsError::Refused { what: "a receive", source };
        (0..RECEIVES).try_for_each(|slot| end.post_receive(slot)).map_err(refused)?;
        Ok(end)
    }

    /// What the peer needs to know of it.
    pub(super) fn offer(&self, device: &Device) -> Offer {
        Offer {
            port: device.port,
            number: self.queue.number(),
            psn: self.psn,
            ring: self.ring.at(0).as_ptr().expose_provenance() as u64,
            rkey: self.ring.rkey(),
        }
    }

    /// Has a message received in that slot, which is free.
    pub(super) fn post_receive(&self, slot: usize) -> io::Result<()> {
        let addr = self.receives.at(slot * SLOT).as_ptr().expose_provenance() as u64;
        let place = Sge { addr, length: SLOT as u32, lkey: self.receives.lkey() };
        // SAFETY: the slot is registered for the adapter to write, and is read only after its receive is completed. The region
        // is dropped after the queue.
        unsafe { self.queue.receive(slot, place) }
    }

    /// Copies out what was received in a slot.
    pub(super) fn read_slot(&self, slot: usize, at: usize, to: &mut [u8]) {
        self.receives.read(slot * SLOT + at, to);
    }

    /// This many bytes of what was received in a slot.
    pub(super) fn copy_slot(&self, slot: usize, at: usize, length: usize) -> Vec<u8> {
        self.receives.copy(slot * SLOT + at, length)
    }

    /// This many bytes of the ring.
    pub(super) fn copy_ring(&self, at: usize, length: usize) -> Vec<u8> {
        self.ring.copy(at, length)
    }

    /// Copies out of the ring.
    pub(super) fn read_ring(&self, at: usize, to: &mut [u8]) {
        self.ring.read(at, to);
    }

    /// Copies a long payload to the staging memory, which holds [`STAGED`] of them.
    ///
    /// # Safety
    /// No request that is not completed reads that place.
    pub(super) unsafe fn stage(&self, place: usize, payload: &[u8]) {
        // SAFETY: the caller says that the adapter does not read there, and this link has one owner.
        unsafe { self.staging.write(place * MAX_PAYLOAD, payload) };
    }

    /// Sends a header, or a header and a short payload, from a slot.
    ///
    /// # Safety
    /// No request that is not completed reads that slot.
    pub(super) unsafe fn send_short(
        &self,
        slot: usize,
        request: SendWr,
        header: &[u8],
        payload: &[u8],
    ) -> io::Result<()> {
        let at = slot * SLOT;
        // SAFETY: the caller says that the adapter does not read there, and this link has one owner.
        unsafe {
            self.sends.write(at, header);
            self.sends.write(at + header.len(), payload);
        }
        let addr = self.sends.at(at).as_ptr().expose_provenance() as u64;
        let piece = Sge { addr, length: (header.len() + payload.len()) as u32, lkey: self.sends.lkey() };
        // SAFETY: the slot is registered, and by the caller's word is not written again before this is completed. The region is
        // dropped after the queue.
        unsafe { self.queue.send(request, &mut [piece]) }
    }

    /// Writes a header and a long payload into the peer's ring, and notifies the peer.
    ///
    /// # Safety
    /// No request that is not completed reads that slot; and the payload stays where it is and as it is until this one is
    /// completed without an error, or the end is dropped.
    pub(super) unsafe fn send_long(
        &self,
        slot: usize,
        header: [u8; HEADER],
        (payload, length): (Payload, usize),
        (address, rkey): (u64, u32),
    ) -> io::Result<()> {
        let at = slot * SLOT;
        // SAFETY: as above.
        unsafe { self.sends.write(at, &header) };
        let addr = self.sends.at(at).as_ptr().expose_provenance() as u64;
        let first = Sge { addr, length: HEADER as u32, lkey: self.sends.lkey() };
        let (lkey, addr) = match payload {
            Payload::Lent(key, address) => (key, address),
            Payload::Staged(place) => (
                self.staging.lkey(),
                self.staging.at(place * MAX_PAYLOAD).as_ptr().expose_provenance() as u64,
            ),
            Payload::Short => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let second = Sge { addr, length: length as u32, lkey };
        let mut request = SendWr::new(WR_RDMA_WRITE_WITH_IMM);
        request.send_flags = SEND_SIGNALED;
        (request.remote_addr, request.rkey) = (address, rkey);
        // SAFETY: as above, and by the caller's word for the payload.
        unsafe { self.queue.send(request, &mut [first, second]) }
    }
}

/// Where the numbers of packets begin need not be secret, but packets of a link that is gone are not to fit the next.
fn random() -> u32 {
    getrandom::u32().unwrap_or_else(|_| std::process::id())
}
