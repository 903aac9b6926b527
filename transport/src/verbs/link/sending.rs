//! What a link hands to its adapter.

use std::io;

use super::super::end::Payload;
use super::super::sys::{SendWr, WR_SEND, WR_SEND_WITH_IMM};
use super::super::{HEADER, SENDS, SHORT};
use super::{Outgoing, UnderWay, VerbsLink, header};

/// Requests to send that are left to credit.
const FOR_CREDIT: usize = 2;

impl VerbsLink {
    /// Sends the first packet, as long as the path may carry, so that the link is up only where such packets pass and are answered.
    pub(super) fn send_proof(&mut self) {
        let Some(slot) = self.slot(0) else { return };
        let bytes = vec![0; self.proof.length];
        // SAFETY: no request is under way.
        let posted = unsafe { self.end.send_short(slot, SendWr::new(WR_SEND_WITH_IMM), &bytes, &[]) };
        self.handed(posted, UnderWay::Proof);
    }

    /// The first request under way is completed.
    pub(super) fn sent(&mut self) {
        match self.outgoing.under_way.pop_front() {
            Some(UnderWay::Message { length, staged, .. }) => {
                self.outgoing.done += 1;
                self.counters.sent(HEADER + length, 1);
                if let Some(place) = staged {
                    self.outgoing.staged[place] = false;
                }
            }
            Some(UnderWay::Proof) => self.proof.is_answered = true,
            Some(UnderWay::Credit) | None => {}
        }
    }

    /// The slot for the next request, if there is one.
    fn slot(&self, left: usize) -> Option<usize> {
        let Outgoing { under_way, requests, .. } = &self.outgoing;
        (under_way.len() + left < SENDS).then_some(requests % SENDS)
    }

    fn handed(&mut self, posted: io::Result<()>, under_way: UnderWay) {
        self.outgoing.requests += 1;
        self.outgoing.under_way.push_back(under_way);
        if let Err(error) = posted {
            self.fail(&error);
        }
    }

    /// Grants the peer credit for what was freed here, once that is much.
    pub(super) fn tell_credit(&mut self) {
        let Some(credit) = self.incoming.taking.due() else { return };
        let Some(slot) = self.slot(0).filter(|_| self.failed.is_none()) else { return };
        let request = SendWr::new(WR_SEND_WITH_IMM);
        // SAFETY: requests are completed in order, so the slot after the last is free while fewer than there are slots are under
        // way.
        let posted = unsafe { self.end.send_short(slot, request, &credit.encode(), &[]) };
        self.incoming.taking.grant(credit);
        self.handed(posted, UnderWay::Credit);
    }

    /// Hands over what can be.
    pub(super) fn post(&mut self) {
        while self.failed.is_none()
            && let Some(message) = self.outgoing.waiting.front()
            && let Some(slot) = self.slot(FOR_CREDIT)
        {
            let (tag, length) = (message.tag, message.payload.len());
            let payload = match length {
                ..=SHORT => Payload::Short,
                _ => match (
                    self.end.pool.key_of(&message.payload),
                    self.outgoing.staged.iter().position(|used| !used),
                ) {
                    (Some(key), _) => Payload::Lent(key, message.payload.as_ptr().expose_provenance() as u64),
                    (None, Some(place)) => Payload::Staged(place),
                    (None, None) => return,
                },
            };
            let long = (length > SHORT).then_some(HEADER + length);
            let Some(place) = self.outgoing.allowance.take(long) else { return };
            let Some(message) = self.outgoing.waiting.pop_front() else { return };
            let head = header(tag, length, self.outgoing.count);
            self.outgoing.count = self.outgoing.count.wrapping_add(1);
            let staged = if let Payload::Staged(place) = payload { Some(place) } else { None };
            // SAFETY: the slot is free, as above. A place of the staging memory is marked as used until its request is completed.
            // A payload that lies in a lease is kept as long, and what is frozen is not written.
            let posted = unsafe {
                match place {
                    None => self.end.send_short(slot, SendWr::new(WR_SEND), &head, &message.payload),
                    Some(place) => {
                        if let Some(place) = staged {
                            self.end.stage(place, &message.payload);
                            self.outgoing.staged[place] = true;
                        }
                        let to = (self.theirs.ring.wrapping_add(place.offset), self.theirs.rkey);
                        self.end.send_long(slot, head, (payload, length), to)
                    }
                }
            };
            let kept = matches!(payload, Payload::Lent(..)).then_some(message.payload);
            self.handed(posted, UnderWay::Message { length, staged, _payload: kept });
        }
    }
}
