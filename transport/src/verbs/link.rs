//! An open link over a queue pair.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::credit::{Allowance, Credit, Overrun, Slot, Taking};
use super::end::{End, Payload};
use super::offer::Offer;
use super::queue::Queue;
use super::sys::*;
use super::{HEADER, SENDS, SHORT, SPINS, STAGED};
use crate::{Counters, Lease, Link, LinkError, MAX_PAYLOAD, Message, Peer, Tag};

/// Requests to send that are left to credit.
const FOR_CREDIT: usize = 2;

/// See the module.
pub(super) struct VerbsLink {
    peer: Peer,
    /// Dropped before the control connection: when that closes, the adapter sends no more.
    end: End,
    theirs: Offer,
    outgoing: Outgoing,
    incoming: Incoming,
    counters: Arc<Counters>,
    /// What ended the link, told in this order: the peer's leaving, then what the adapter says.
    is_closed: bool,
    failed: Option<String>,
    /// Where the two found each other. It carries nothing more, and its end is the peer's.
    control: Box<dyn Link>,
}

#[derive(Default)]
struct Outgoing {
    waiting: VecDeque<Message>,
    /// Handed to the adapter, in order.
    under_way: VecDeque<UnderWay>,
    allowance: Allowance,
    /// Requests so far; each uses the next slot.
    requests: usize,
    /// Messages so far, which are numbered.
    count: u32,
    /// Sent, and not told yet.
    done: usize,
    /// Which places of the staging memory are used.
    staged: [bool; STAGED],
    /// The length of a message that is too long. It ended the sending.
    refused: Option<u64>,
}

/// A request that is not completed.
enum UnderWay {
    Credit,
    Message {
        length: usize,
        staged: Option<usize>,
        /// What the adapter reads, if it lies in a lease.
        _payload: Option<Bytes>,
    },
}

#[derive(Default)]
struct Incoming {
    /// What has come and is not taken in, in order.
    arrived: VecDeque<Arrival>,
    taking: Taking,
    count: u32,
    /// Whether something came that is no message of ours: what follows is thrown away.
    is_damaged: bool,
    /// What is wrong with what came, until it is told.
    damage: Option<LinkError>,
}

/// Where a message lies.
struct Arrival {
    receive: usize,
    slot: Option<Slot>,
    /// Header and payload.
    length: usize,
}

fn header(tag: Tag, length: usize, number: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&tag.0.to_le_bytes());
    bytes[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl VerbsLink {
    /// A link of two ends that are connected.
    pub(super) fn new(end: End, theirs: Offer, control: Box<dyn Link>, counters: &Arc<Counters>) -> Self {
        counters.linked();
        Self {
            peer: control.peer(),
            end,
            theirs,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            counters: Arc::clone(counters),
            is_closed: false,
            failed: None,
            control,
        }
    }

    /// Takes all completions that there are, and has the context woken when there are more.
    fn drive(&mut self, context: &mut Context<'_>) {
        if !self.is_closed {
            match self.control.poll_received(context) {
                Poll::Pending => {}
                Poll::Ready(Err(_)) => self.is_closed = true,
                Poll::Ready(Ok(_)) => self.damaged("a message where there should be none".to_owned()),
            }
        }
        let (mut completions, mut spins) = (Queue::completions(), 0);
        while self.failed.is_none() {
            let taken = match self.end.queue.take(&mut completions) {
                Ok(0) if spins < SPINS => {
                    spins += 1;
                    std::hint::spin_loop();
                    continue;
                }
                Ok(0) => match self.end.queue.poll_ready(context) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(())) => continue,
                    Poll::Ready(Err(error)) => return self.fail(&error),
                },
                Ok(taken) => taken,
                Err(error) => return self.fail(&error),
            };
            spins = 0;
            completions[..taken].iter().for_each(|completion| self.complete(completion));
        }
        self.tell_credit();
    }

    fn fail(&mut self, error: &io::Error) {
        self.failed.get_or_insert_with(|| format!("the adapter refuses a request: {error}"));
    }

    fn damaged(&mut self, what: String) {
        if !self.incoming.is_damaged {
            self.incoming.is_damaged = true;
            self.incoming.damage = Some(LinkError::Damaged { peer: self.peer, what });
        }
    }

    fn complete(&mut self, completion: &Wc) {
        if completion.status != WC_SUCCESS {
            let words = self.end.queue.status(completion.status);
            let sentence = match completion.status {
                WC_RETRY_EXC_ERR => format!("the adapter of its host does not answer ({words})"),
                WC_WR_FLUSH_ERR => format!("its queue pair was put into error ({words})"),
                _ => format!("the adapter reports an error ({words})"),
            };
            // The first says why; all others follow from it.
            self.failed.get_or_insert(sentence);
            return;
        }
        if completion.opcode & WC_RECV == 0 {
            return self.sent();
        }
        let (receive, length) = (completion.wr_id as usize, completion.byte_len as usize);
        let is_long = completion.opcode == WC_RECV_RDMA_WITH_IMM;
        if !is_long && completion.wc_flags & WC_WITH_IMM != 0 {
            return self.take_credit(receive, length);
        }
        match self.incoming.taking.come(is_long.then_some(length)) {
            Ok(slot) => self.incoming.arrived.push_back(Arrival { receive, slot, length }),
            Err(Overrun) if length > HEADER + MAX_PAYLOAD => {
                let error = LinkError::TooLong { peer: self.peer, length: (length - HEADER) as u64 };
                self.incoming.is_damaged = true;
                self.incoming.damage.get_or_insert(error);
            }
            Err(Overrun) => self.damaged("more than it was given credit for".to_owned()),
        }
    }

    /// The first request under way is completed.
    fn sent(&mut self) {
        if let Some(UnderWay::Message { length, staged, .. }) = self.outgoing.under_way.pop_front() {
            self.outgoing.done += 1;
            self.counters.sent(HEADER + length, 1);
            if let Some(place) = staged {
                self.outgoing.staged[place] = false;
            }
        }
    }

    fn take_credit(&mut self, receive: usize, length: usize) {
        let mut bytes = [0; Credit::LENGTH];
        self.end.read_slot(receive, 0, &mut bytes);
        if length != Credit::LENGTH || self.outgoing.allowance.grant(Credit::decode(bytes)).is_err() {
            self.damaged("credit for what was not sent".to_owned());
        }
        if let Err(error) = self.end.post_receive(receive) {
            self.fail(&error);
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

    /// Tells the peer what was freed here, once that is much.
    fn tell_credit(&mut self) {
        let Some(credit) = self.incoming.taking.due() else { return };
        let Some(slot) = self.slot(0).filter(|_| self.failed.is_none()) else { return };
        let request = SendWr::new(WR_SEND_WITH_IMM);
        // SAFETY: requests are completed in order, so the slot after the last is free while fewer than there are slots are under
        // way.
        let posted = unsafe { self.end.send_short(slot, request, &credit.encode(), &[]) };
        self.incoming.taking.told(credit);
        self.handed(posted, UnderWay::Credit);
    }

    /// Hands over what can be.
    fn post(&mut self) {
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
            // A payload that lies in a lease is kept as long, and nobody writes what is frozen.
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

    /// Takes in the first message that has come. It is copied once: what a peer may still write to is not looked at, and its
    /// slot is free at once, however long the payload is kept.
    fn take(&mut self) -> Option<Message> {
        let Arrival { receive, slot, length } = self.incoming.arrived.pop_front()?;
        let mut head = [0; HEADER];
        let mut payload = vec![0; length.saturating_sub(HEADER)];
        match slot {
            Some(slot) => {
                self.end.read_ring(slot.offset as usize, &mut head);
                self.end.read_ring(slot.offset as usize + HEADER, &mut payload);
            }
            None => {
                self.end.read_slot(receive, 0, &mut head);
                self.end.read_slot(receive, HEADER, &mut payload);
            }
        }
        self.incoming.taking.free(slot);
        if let Err(error) = self.end.post_receive(receive) {
            self.fail(&error);
        }
        self.tell_credit();
        let mut tag = [0; 8];
        tag.copy_from_slice(&head[..8]);
        let tag = Tag(u64::from_le_bytes(tag));
        let expected = header(tag, payload.len(), self.incoming.count);
        if length < HEADER || payload.len() > MAX_PAYLOAD || head != expected {
            self.damaged(format!(
                "a header that does not fit {length} bytes as message {}",
                self.incoming.count
            ));
            return None;
        }
        self.incoming.count = self.incoming.count.wrapping_add(1);
        self.counters.received(length, 1);
        Some(Message { tag, payload: payload.into() })
    }

    /// Why no more can come or go.
    fn ended(&self) -> Option<LinkError> {
        let peer = self.peer;
        match &self.failed {
            _ if self.is_closed => Some(LinkError::Closed { peer }),
            Some(sentence) => Some(LinkError::Io { peer, source: io::Error::other(sentence.clone()) }),
            None => None,
        }
    }
}

impl Link for VerbsLink {
    fn peer(&self) -> Peer {
        self.peer
    }

    /// Registered memory for a long payload. Short ones are copied anyway, behind their header.
    fn lease(&mut self, length: usize) -> Lease {
        if length > SHORT { self.end.pool.lease(length) } else { Lease::heap(length) }
    }

    fn submit(&mut self, message: Message) {
        let Outgoing { waiting, refused, .. } = &mut self.outgoing;
        if refused.is_none() && message.payload.len() > MAX_PAYLOAD {
            *refused = Some(message.payload.len() as u64);
            waiting.clear();
        } else if refused.is_none() {
            waiting.push_back(message);
        }
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        if let Some(length) = self.outgoing.refused {
            return Poll::Ready(Err(LinkError::TooLong { peer: self.peer, length }));
        }
        // What is handed over before is completed while this waits.
        self.post();
        self.drive(context);
        self.post();
        match (std::mem::take(&mut self.outgoing.done), self.ended()) {
            (0, None) => Poll::Pending,
            (0, Some(error)) => Poll::Ready(Err(error)),
            (done, _) => Poll::Ready(Ok(done)),
        }
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        if self.incoming.arrived.is_empty() || self.incoming.is_damaged {
            self.drive(context);
        }
        loop {
            if let Some(damage) = self.incoming.damage.take() {
                return Poll::Ready(Err(damage));
            }
            if self.incoming.is_damaged {
                return self.poll_discarded();
            }
            match self.take() {
                Some(message) => return Poll::Ready(Ok(message)),
                None if self.incoming.is_damaged => {}
                None => return self.ended().map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
            }
        }
    }
}

impl VerbsLink {
    /// Throws away what has come, until the peer closes.
    fn poll_discarded(&mut self) -> Poll<Result<Message, LinkError>> {
        while let Some(Arrival { receive, slot, .. }) = self.incoming.arrived.pop_front() {
            self.incoming.taking.free(slot);
            if let Err(error) = self.end.post_receive(receive) {
                self.fail(&error);
            }
        }
        self.tell_credit();
        self.ended().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        // The peer's adapter is refused at once, and need not wait for acknowledgements that never come.
        self.end.queue.stop();
    }
}
