//! What goes over one link: what waits to be sent, in which order, and how much either side may send.
//!
//! Control data goes first. Bags wait in lanes, one for each tag, and the lane of the lowest tag goes first: the group that
//! comes first in the layout, which the next step needs first. Little is given to the transport at a time, so that the choice
//! is made again often.
//!
//! **Credit.** A receiver says for each gradient how many bytes its peer may have sent of it since the beginning. A sender
//! keeps what goes beyond that, so a peer that is several steps ahead, or whose groups are ready in another order, waits
//! with its own memory and not with this worker's. Credit is given for what was taken in or discarded, and leaves room for
//! more than half of a window at any time; since a window is at least two steps, the next message of any step always fits
//! once what came before it was taken in. Of a gradient that is gone only sums remain: how much was sent, and how much the peer may
//! still have on its way.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::Bytes;
use gleaner_transport::{Message, Moved, Tag};

use crate::positions;
use crate::tag::{StepId, Topic};

mod lanes;

use lanes::Lanes;

/// What an empty message costs of a credit, so that those are bounded too.
pub(crate) const OVERHEAD: u64 = 64;

/// Bytes that are given to the transport before what is urgent is chosen again.
const PORTION: usize = 64 << 10;

/// Control messages that may wait for a peer while it goes on sending: so many follow from its own only if it does not read.
const UNREAD: usize = 1 << 14;

/// Bytes per second below which a link counts as silent, unless whole messages come.
const LEAST_RATE: f64 = 1024.0;

#[cfg(test)]
mod rate;

/// What a payload takes of a credit, in bytes.
pub(crate) fn cost(payload: &Bytes) -> u64 {
    payload.len() as u64 + OVERHEAD
}

/// See the module.
pub(crate) struct Link {
    transport: Option<Box<dyn gleaner_transport::Link>>,
    waker: Waker,
    control: VecDeque<Message>,
    lanes: Lanes,
    /// Messages that the transport has, by length, and their bytes.
    submitted: VecDeque<usize>,
    in_flight: usize,
    flows: HashMap<u32, Flow>,
    /// Gradients that are gone but for what waits to be sent.
    retiring: Vec<u32>,
    /// Of gradients that are gone: bytes that were sent, and that the peer may still send.
    retired: u64,
    owed: u64,
    /// When something was last written.
    wrote: Instant,
    end: End,
    is_written: bool,
    /// What had moved when that was last looked at, and when that was.
    moved: (Moved, Instant),
    reads: Reads,
    /// Bytes of bags and measurements that have come, and how many there are in all, once the leave message of the peer has come.
    came: u64,
    last: Option<u64>,
    /// Whether the leave message of the peer has come.
    was_left: bool,
}

/// The bytes of one gradient that go over a link, since it was made.
#[derive(Debug, Default)]
struct Flow {
    sent: u64,
    /// How many the peer lets this worker have sent.
    allowed: u64,
    received: u64,
    /// Taken in or discarded.
    consumed: u64,
    /// How many this worker lets the peer have sent.
    granted: u64,
    /// How many may wait here.
    window: u64,
}

impl Flow {
    /// What to grant now, if it is worth a message.
    fn due(&mut self) -> Option<u64> {
        let grant = self.consumed + self.window;
        let is_due = grant > self.granted && grant - self.granted > self.window / 2;
        is_due.then(|| {
            self.granted = grant;
            grant
        })
    }
}

/// What is read from a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Messages,
    /// The peer sent what cannot be read: what follows is discarded.
    Nonsense,
    /// The peer does not answer. The connection stays: its end would say that this worker is gone.
    Unanswered,
    Nothing,
}

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not yet.
    Open,
    /// With a leave message behind the last bag. Control data still goes before it.
    Parting,
    /// With a leave message that is on its way.
    Parted,
    /// With what it has.
    Closing,
}

/// A peer violated the protocol, in these words.
pub(crate) type Broken = &'static str;

impl Link {
    /// A link that is not up yet. The waker is woken when the transport has something to do.
    pub(crate) fn new(waker: Waker, now: Instant) -> Self {
        Self {
            transport: None,
            waker,
            control: VecDeque::new(),
            lanes: Lanes::default(),
            submitted: VecDeque::new(),
            in_flight: 0,
            flows: HashMap::new(),
            retiring: Vec::new(),
            retired: 0,
            owed: 0,
            wrote: now,
            end: End::Open,
            is_written: false,
            moved: (Moved::default(), now),
            reads: Reads::Messages,
            came: 0,
            last: None,
            was_left: false,
        }
    }

    pub(crate) fn connect(&mut self, transport: Box<dyn gleaner_transport::Link>) {
        self.transport = Some(transport);
    }

    pub(crate) fn is_up(&self) -> bool {
        self.transport.is_some()
    }

    /// Takes a message that is to be sent. What comes after the end has nowhere to go.
    pub(crate) fn send(&mut self, message: Message) {
        match self.end {
            End::Open | End::Parting if message.tag.is_control() => self.control.push_back(message),
            End::Open => self.lanes.push(message),
            End::Parting | End::Parted | End::Closing => {}
        }
    }

    /// Throws away what waits here with this tag.
    pub(crate) fn discard(&mut self, tag: Tag) {
        self.lanes.discard(tag);
        self.forget();
    }

    /// Bags that still wait make room for the news of why the job failed.
    pub(crate) fn give_up(&mut self) {
        self.lanes = Lanes::default();
        self.control.clear();
    }

    /// Sends the leave message behind the last bag, with the number of bytes of all bags: control data may overtake them.
    pub(crate) fn part(&mut self) {
        if self.end == End::Open {
            self.end = End::Parting;
        }
    }

    /// Sends what the peer waits for, whether this worker has parted or not.
    fn answer(&mut self, topic: Topic, payload: Vec<u8>) {
        if self.end != End::Closing {
            self.control.push_back(Message { tag: topic.tag(), payload: payload.into() });
            self.is_written = false;
        }
    }

    /// The peer sends its leave message.
    pub(crate) fn parted(&mut self, payload: &[u8]) -> Result<(), Broken> {
        let last =
            payload.try_into().map(u64::from_le_bytes).map_err(|_| "its leave message makes no sense")?;
        if std::mem::replace(&mut self.was_left, true) {
            return Err("it sent its leave message twice");
        }
        self.last = Some(last);
        Ok(())
    }

    /// Whether the leave message of the peer and all its bags have come; once, and it is notified.
    pub(crate) fn has_left(&mut self) -> bool {
        let has_left = self.last.take_if(|last| *last <= self.came).is_some();
        if has_left {
            self.answer(Topic::AllCame, Vec::new());
        }
        has_left
    }

    /// The peer says that all has come, the leave message too.
    pub(crate) fn all_came(&self) -> Result<(), Broken> {
        match self.end {
            End::Open | End::Parting => Err("it answers a leave message that was not sent"),
            End::Parted | End::Closing => Ok(()),
        }
    }

    /// Takes no more messages. What is here is still written.
    pub(crate) fn close(&mut self) {
        self.end = End::Closing;
    }

    /// Reads no more.
    pub(crate) fn ignore(&mut self) {
        self.reads = Reads::Nothing;
    }

    /// Carries nothing more, and stays.
    pub(crate) fn hold(&mut self) {
        self.reads = Reads::Unanswered;
        self.is_written = true;
    }

    /// Reads what comes until the peer closes, and throws it away: what is said to a peer may be lost where a connection ends
    /// with unread bytes.
    pub(crate) fn distrust(&mut self) {
        self.reads = Reads::Nonsense;
    }

    /// Sends a heartbeat if nothing was written since then, and says in which steps and calls this rank is. Returns whether it did.
    pub(crate) fn live(&mut self, since: Instant, calls: (u32, bool), steps: &[(StepId, bool)]) -> bool {
        let quiet = self.is_up() && self.wrote <= since && self.submitted.is_empty();
        if quiet {
            let sent = self.sent() + self.lanes.waiting();
            self.answer(Topic::Alive, positions::encode(sent, calls, steps));
        }
        quiet
    }

    /// Bytes of bags and measurements that were handed to the transport.
    fn sent(&self) -> u64 {
        self.retired + self.flows.values().map(|flow| flow.sent).sum::<u64>()
    }

    /// Bytes of bags and measurements that have come.
    pub(crate) fn came(&self) -> u64 {
        self.came
    }

    /// Whether bytes have moved out, and in, since this was last asked, at the least rate at which that counts: those of a
    /// long message count as a heartbeat before it is whole.
    pub(crate) fn moves(&mut self, now: Instant) -> (bool, bool) {
        let (before, since) = self.moved;
        let moved = self.transport.as_ref().map_or(before, |transport| transport.moved());
        self.moved = (moved, now);
        let least = (now.duration_since(since).as_secs_f64() * LEAST_RATE).max(1.0);
        let moves = |now: u64, before: u64| now.saturating_sub(before) as f64 >= least;
        (moves(moved.sent, before.sent), moves(moved.received, before.received))
    }

    /// Lets the peer have this many bytes of a gradient waiting here, at least.
    pub(crate) fn widen(&mut self, gradient: u32, window: u64) {
        let flow = self.flows.entry(gradient).or_default();
        flow.window = flow.window.max(window);
        flow.granted = flow.granted.max(flow.consumed);
        self.grant(gradient);
    }

    /// A gradient's bytes were taken in or discarded. Returns whether the peer is to be notified.
    pub(crate) fn consume(&mut self, gradient: u32, bytes: u64) -> bool {
        if let Some(flow) = self.flows.get_mut(&gradient) {
            flow.consumed += bytes;
        }
        self.grant(gradient)
    }

    fn grant(&mut self, gradient: u32) -> bool {
        let grant = self.flows.get_mut(&gradient).and_then(Flow::due);
        grant.is_some_and(|grant| {
            let payload = Bytes::copy_from_slice(&grant.to_le_bytes());
            self.send(Message { tag: Topic::Credit { gradient }.tag(), payload });
            true
        })
    }

    /// No step of a gradient will begin any more, and those that have are over.
    pub(crate) fn retire(&mut self, gradient: u32) {
        self.retiring.push(gradient);
        self.forget();
    }

    /// Adds up what is known of gradients that are gone, once nothing of them waits.
    fn forget(&mut self) {
        let Self { retiring, lanes, flows, retired, owed, .. } = self;
        retiring.retain(|gradient| {
            let waits = lanes.hold(*gradient);
            if !waits && let Some(flow) = flows.remove(gradient) {
                *retired += flow.sent;
                *owed += flow.granted.saturating_sub(flow.received);
            }
            waits
        });
    }

    /// The peer says how much it lets this worker have sent. Of a gradient that is gone, that is of interest while bags wait.
    pub(crate) fn allow(&mut self, gradient: u32, is_gone: bool, payload: &[u8]) -> Result<(), Broken> {
        let allowed = payload.try_into().map(u64::from_le_bytes).map_err(|_| "its credit makes no sense")?;
        if is_gone && !self.flows.contains_key(&gradient) {
            return Ok(());
        }
        let flow = self.flows.entry(gradient).or_default();
        flow.allowed = flow.allowed.max(allowed);
        Ok(())
    }

    /// Whether a peer that goes on sending does not read what follows from it.
    pub(crate) fn is_deaf(&self) -> bool {
        self.control.len() > UNREAD
    }

    /// Counts what has come of a gradient.
    pub(crate) fn charge(&mut self, gradient: u32, payload: &Bytes) -> Result<(), Broken> {
        let cost = cost(payload);
        self.came += cost;
        let left = match self.flows.get_mut(&gradient) {
            Some(flow) => {
                flow.received += cost;
                flow.granted.checked_sub(flow.received)
            }
            // Of a step that was cancelled before it ended there.
            None => self.owed.checked_sub(cost).inspect(|left| self.owed = *left),
        };
        left.map(drop).ok_or("it sent more than its schedules allow")
    }

    /// The next message, if one is to be read.
    pub(crate) fn poll_received(&mut self) -> Poll<Result<Message, gleaner_transport::LinkError>> {
        let Some(transport) = &mut self.transport else { return Poll::Pending };
        let mut context = Context::from_waker(&self.waker);
        match self.reads {
            Reads::Messages => transport.poll_received(&mut context),
            Reads::Nonsense => loop {
                if let Err(error) = ready!(transport.poll_received(&mut context)) {
                    return Poll::Ready(Err(error));
                }
            },
            Reads::Unanswered | Reads::Nothing => Poll::Pending,
        }
    }

    /// Writes what can be written now. Says whether all is written that will be; once.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        self.forget();
        let Some(transport) = &mut self.transport else { return false };
        let mut context = Context::from_waker(&self.waker);
        while !self.is_written {
            while self.in_flight < PORTION {
                let next = self.control.pop_front().or_else(|| self.lanes.pop(&mut self.flows));
                let is_last = next.is_none() && self.end == End::Parting && self.lanes.is_empty();
                let Some(message) =
                    next.or_else(|| is_last.then(|| leave_message(self.retired, &self.flows)))
                else {
                    break;
                };
                if is_last {
                    self.end = End::Parted;
                }
                let bytes = message.payload.len();
                self.in_flight += bytes;
                self.submitted.push_back(bytes);
                transport.submit(message);
            }
            if self.submitted.is_empty() {
                // What waits for credit is still to be written.
                self.is_written = matches!(self.end, End::Parted | End::Closing) && self.lanes.is_empty();
                return self.is_written;
            }
            match transport.poll_sent(&mut context) {
                Poll::Pending => return false,
                Poll::Ready(Ok(sent)) => {
                    self.in_flight -= self.submitted.drain(..sent).sum::<usize>();
                    self.wrote = now;
                }
                // Reading says more of how a link broke; it ends too.
                Poll::Ready(Err(_)) => {
                    self.is_written = true;
                    return true;
                }
            }
        }
        false
    }

    /// Drops the connection if both directions have ended. Says so.
    pub(crate) fn end(&mut self) -> bool {
        let has_ended = self.is_up() && self.is_written && self.reads == Reads::Nothing;
        has_ended && self.transport.take().is_some()
    }

    /// Drops a connection that has ended.
    pub(crate) fn disconnect(&mut self) {
        self.transport = None;
    }
}

/// See [`Link::part`].
fn leave_message(retired: u64, flows: &HashMap<u32, Flow>) -> Message {
    let last = retired + flows.values().map(|flow| flow.sent).sum::<u64>();
    Message { tag: Topic::Bye.tag(), payload: Bytes::copy_from_slice(&last.to_le_bytes()) }
}

#[cfg(test)]
mod tests;
