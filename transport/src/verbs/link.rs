//! An open link over a queue pair.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::credit::{Allowance, Credit, Overrun, Slot, Taking};
use super::end::End;
use super::offer::Offer;
use super::queue::Queue;
use super::sys::*;
use super::{HEADER, SHORT, STAGED};
use crate::{Counters, Lease, Link, LinkError, MAX_PAYLOAD, Message, Peer, Tag};

mod looking;
mod sending;

use looking::{Looking, Next};

/// See the module.
pub(super) struct VerbsLink {
    peer: Peer,
    /// Dropped before the control connection: when that closes, the adapter sends no more.
    end: End,
    theirs: Offer,
    outgoing: Outgoing,
    incoming: Incoming,
    counters: Arc<Counters>,
    proof: Proof,
    looking: Looking,
    /// The tasks that wait until more is sent, and until more has come. What either finds for the other, it wakes the other for.
    sender: Option<Waker>,
    receiver: Option<Waker>,
    /// What ended the link, reported in this order: the peer's leaving, then what the adapter says.
    is_closed: bool,
    failed: Option<Failed>,
    /// Where the two found each other. It carries nothing more, and its end is the peer's.
    control: Box<dyn Link>,
}

/// Whether packets pass in both directions, as long as the path may carry.
struct Proof {
    /// Bytes of the packet.
    length: usize,
    is_answered: bool,
    has_come: bool,
    /// What the peer said instead.
    refusal: Option<Bytes>,
}

/// What the adapter says at the end.
enum Failed {
    /// The peer's adapter does not answer.
    Unanswered(String),
    /// Anything else.
    Broken(String),
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
    /// Sent, and not reported yet.
    done: usize,
    /// Which places of the staging memory are used.
    staged: [bool; STAGED],
    /// The length of a message that is too long. It ended the sending.
    refused: Option<u64>,
}

/// A request that is not completed.
enum UnderWay {
    Proof,
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
    /// Whether something came that is no message of ours: what follows is discarded.
    is_damaged: bool,
    /// What is wrong with what came, until it is reported.
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

/// Why a link is not to be used.
pub(super) enum Unproven {
    /// The peer said this.
    Refused(Bytes),
    /// A packet of this many bytes was not answered, or none came.
    Failed { error: LinkError, length: usize },
}

/// Waits until it is woken by the other direction, or by the adapter.
fn wait<T>(waker: &mut Option<Waker>, context: &Context<'_>) -> Poll<T> {
    match waker {
        Some(waker) => waker.clone_from(context.waker()),
        None => *waker = Some(context.waker().clone()),
    }
    Poll::Pending
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl VerbsLink {
    /// A link of two ends that are connected.
    pub(super) fn new(end: End, theirs: Offer, control: Box<dyn Link>, counters: &Arc<Counters>) -> Self {
        let length = end.queue.mtu(&theirs);
        let mut link = Self {
            peer: control.peer(),
            end,
            theirs,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            counters: Arc::clone(counters),
            proof: Proof { length, is_answered: false, has_come: false, refusal: None },
            looking: Looking::default(),
            sender: None,
            receiver: None,
            is_closed: false,
            failed: None,
            control,
        };
        link.send_proof();
        link
    }

    /// Whether packets pass in both directions; or why not, in the peer's words if it has any.
    pub(super) fn poll_proven(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Unproven>> {
        self.drive(context, |link| link.proof.is_answered && link.proof.has_come);
        if let Some(refusal) = self.proof.refusal.take() {
            return Poll::Ready(Err(Unproven::Refused(refusal)));
        }
        if let Some(error) = self.incoming.damage.take().or_else(|| self.ended()) {
            let length = self.proof.length;
            return Poll::Ready(Err(Unproven::Failed { error, length }));
        }
        if !(self.proof.is_answered && self.proof.has_come) {
            return Poll::Pending;
        }
        self.counters.linked();
        Poll::Ready(Ok(()))
    }

    /// Where the peer gets the reason why there is no link.
    pub(super) fn control(&mut self) -> &mut dyn Link {
        &mut *self.control
    }

    /// Takes all completions that there are. If the caller has nothing to return then, it has the context woken when there are more;
    /// otherwise it says so, and nothing wakes who waits for the other direction.
    fn drive(&mut self, context: &mut Context<'_>, has_news: impl Fn(&Self) -> bool) -> bool {
        if !self.is_closed {
            match self.control.poll_received(context) {
                Poll::Pending => {}
                Poll::Ready(Err(_)) => self.is_closed = true,
                Poll::Ready(Ok(message)) if !(self.proof.is_answered && self.proof.has_come) => {
                    self.proof.refusal = Some(message.payload);
                }
                Poll::Ready(Ok(_)) => self.damaged("a message where there should be none".to_owned()),
            }
        }
        let mut completions = Queue::completions();
        self.looking.begin();
        let mut is_news = has_news(self);
        while self.failed.is_none() {
            match self.end.queue.take(&mut completions) {
                // To look for more would delay them.
                Ok(0) if is_news => break,
                Ok(0) => match self.looking.nothing() {
                    Next::Look => std::hint::spin_loop(),
                    // Not armed: an event for each completion would cost more than the message. Polled again, this looks on.
                    Next::Yield => {
                        context.waker().wake_by_ref();
                        break;
                    }
                    Next::Wait => match self.end.queue.poll_ready(context) {
                        Poll::Pending => break,
                        Poll::Ready(Ok(())) => {}
                        Poll::Ready(Err(error)) => self.fail(&error),
                    },
                },
                Ok(taken) => {
                    self.looking.found();
                    completions[..taken].iter().for_each(|completion| self.complete(completion));
                    is_news = has_news(self);
                }
                Err(error) => self.fail(&error),
            }
        }
        self.tell_credit();
        // Credit may have come.
        self.post();
        is_news
    }

    fn fail(&mut self, error: &io::Error) {
        self.failed.get_or_insert_with(|| Failed::Broken(format!("the adapter refuses a request: {error}")));
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
            let failed = match completion.status {
                WC_RETRY_EXC_ERR => Failed::Unanswered(format!("the adapter says: {words}")),
                WC_WR_FLUSH_ERR => Failed::Broken(format!("its queue pair was put into error ({words})")),
                _ => Failed::Broken(format!("the adapter reports an error ({words})")),
            };
            // The first says why; all others follow from it.
            self.failed.get_or_insert(failed);
            return;
        }
        if completion.opcode & WC_RECV == 0 {
            return self.sent();
        }
        let (receive, length) = (completion.wr_id as usize, completion.byte_len as usize);
        let is_long = completion.opcode == WC_RECV_RDMA_WITH_IMM;
        if !is_long && completion.wc_flags & WC_WITH_IMM != 0 {
            return self.take_note(receive, length);
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

    /// The proof comes first, and then credit.
    fn take_note(&mut self, receive: usize, length: usize) {
        if !self.proof.has_come {
            self.proof.has_come = true;
            if length != self.proof.length {
                let expected = self.proof.length;
                self.damaged(format!("a first packet of {length} bytes instead of {expected}"));
            }
        } else {
            let mut bytes = [0; Credit::LENGTH];
            self.end.read_slot(receive, 0, &mut bytes);
            if length != Credit::LENGTH || self.outgoing.allowance.grant(Credit::decode(bytes)).is_err() {
                self.damaged("credit for what was not sent".to_owned());
            }
        }
        if let Err(error) = self.end.post_receive(receive) {
            self.fail(&error);
        }
    }

    /// Takes in the first message that has come. It is copied once: what a peer may still write to is not looked at, and its
    /// slot is free at once, however long the payload is kept.
    fn take(&mut self) -> Option<Message> {
        let Arrival { receive, slot, length } = self.incoming.arrived.pop_front()?;
        let mut head = [0; HEADER];
        let rest = length.saturating_sub(HEADER);
        let payload = match slot {
            Some(slot) => {
                self.end.read_ring(slot.offset as usize, &mut head);
                self.end.copy_ring(slot.offset as usize + HEADER, rest)
            }
            None => {
                self.end.read_slot(receive, 0, &mut head);
                self.end.copy_slot(receive, HEADER, rest)
            }
        };
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
            Some(Failed::Unanswered(what)) => Some(LinkError::Unanswered { peer, what: what.clone() }),
            Some(Failed::Broken(what)) => {
                Some(LinkError::Io { peer, source: io::Error::other(what.clone()) })
            }
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
        let is_news = self.drive(context, |link| link.outgoing.done > 0);
        let Incoming { arrived, damage, .. } = &self.incoming;
        if is_news || !arrived.is_empty() || damage.is_some() || self.ended().is_some() {
            wake(&mut self.receiver);
        }
        match (std::mem::take(&mut self.outgoing.done), self.ended()) {
            (0, None) => wait(&mut self.sender, context),
            (0, Some(error)) => Poll::Ready(Err(error)),
            (done, _) => Poll::Ready(Ok(done)),
        }
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        if self.incoming.arrived.is_empty() || self.incoming.is_damaged {
            let has_news = |link: &Self| !(link.incoming.arrived.is_empty() || link.incoming.is_damaged);
            let is_news = self.drive(context, has_news);
            if is_news || self.outgoing.done > 0 || self.ended().is_some() {
                wake(&mut self.sender);
            }
        }
        loop {
            if let Some(damage) = self.incoming.damage.take() {
                return Poll::Ready(Err(damage));
            }
            if self.incoming.is_damaged {
                return self.poll_discarded(context);
            }
            match self.take() {
                Some(message) => return Poll::Ready(Ok(message)),
                None if self.incoming.is_damaged => {}
                None => match self.ended() {
                    Some(error) => return Poll::Ready(Err(error)),
                    None => return wait(&mut self.receiver, context),
                },
            }
        }
    }
}

impl VerbsLink {
    /// Throws away what has come, until the peer closes.
    fn poll_discarded(&mut self, context: &Context<'_>) -> Poll<Result<Message, LinkError>> {
        while let Some(Arrival { receive, slot, .. }) = self.incoming.arrived.pop_front() {
            self.incoming.taking.free(slot);
            if let Err(error) = self.end.post_receive(receive) {
                self.fail(&error);
            }
        }
        self.tell_credit();
        match self.ended() {
            Some(error) => Poll::Ready(Err(error)),
            None => wait(&mut self.receiver, context),
        }
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        // The peer's adapter is refused at once, and need not wait for acknowledgements that never come.
        self.end.queue.stop();
    }
}
