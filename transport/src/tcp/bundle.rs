//! An open link of several sockets. Each recovers by itself from what the path loses, and grows its window by itself, so one
//! long transfer over a long path is faster than on one socket.
//!
//! Whichever socket has room for more is given the next run of messages, so that none waits at a slow socket while another
//! could carry it. Messages have numbers, and are handed out in their order, whichever socket brought them.

use std::collections::VecDeque;
use std::future::Future;
use std::net::{IpAddr, Shutdown};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};

use super::link::TcpLink;
use super::links::Hold;
use super::stream::Stream;
use crate::{Counters, Link, LinkError, MAX_PAYLOAD, Message, Moved, Peer, Tag, Traffic};

/// Bytes after which a run ends: as long as the payloads of a large bag are, so that several sockets have work soon.
const RUN: usize = 64 << 10;

/// The most messages of a run. Its number fits into eight bits.
const MESSAGES: u64 = 64;

/// Bytes that may wait here for what is to be handed out before them: what 1 Gbit/s brings in an eighth of a second, while one
/// socket sends again what was lost on it. Beyond that, a socket is read only for what is missing: one message of each may
/// wait besides.
const HELD: usize = 16 << 20;

/// How long, once a socket has ended, the others may take to bring what the peer had sent before it closed the link.
const ENDING: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Bundle {
    peer: Peer,
    sockets: Vec<Socket>,
    outgoing: Outgoing,
    incoming: Incoming,
    counters: Arc<Counters>,
    // Dropped last: the next link may come once this one's sockets are closed.
    _hold: Hold,
}

/// What was submitted.
#[derive(Default)]
struct Outgoing {
    /// What no socket has been given yet.
    waiting: VecDeque<Message>,
    /// The number of the first of them.
    next: u64,
    /// Of those that sockets have been given, from the first that is not sent on, whether each is sent.
    given: VecDeque<bool>,
    /// The length of a message that is too long. It ended the sending.
    refused: Option<u64>,
    /// Whose turn it is to be asked first.
    turn: usize,
}

/// What came.
#[derive(Default)]
struct Incoming {
    /// The number of the message that is handed out next.
    next: u64,
    /// Bytes that wait in all sockets.
    held: usize,
    /// What came and was no message of ours: what follows is discarded.
    is_damaged: bool,
    /// Since the first socket has ended: why, until it is reported, and when the others have had their time.
    end: Option<(Option<LinkError>, Pin<Box<Sleep>>)>,
}

/// One of the sockets: a link of its own, whose messages are those of runs and what precedes them.
struct Socket {
    link: TcpLink,
    own: Arc<Counters>,
    /// What of `own` was counted.
    counted: Traffic,
    /// The numbers of what it is to send; none is for what precedes a run.
    sending: VecDeque<Option<u64>>,
    /// Of the run that is coming, the numbers that have not come.
    run: Range<u64>,
    /// What came and was not handed out, in its order.
    came: VecDeque<(u64, Message)>,
    has_ended: bool,
}

/// What precedes a run.
pub(super) fn announce(run: &Range<u64>) -> Message {
    Message { tag: Tag(run.start << 8 | (run.end - run.start)), payload: Bytes::new() }
}

/// Reads that, where the run's first number is at least `least`.
pub(super) fn announced(Message { tag, payload }: &Message, least: u64) -> Option<Range<u64>> {
    let (start, count) = (tag.0 >> 8, tag.0 & 0xff);
    let is_run = payload.is_empty() && (1..=MESSAGES).contains(&count) && start >= least;
    is_run.then_some(start..start + count)
}

impl Socket {
    /// The next message of a run, and its number, which is at least `least`.
    fn poll_message(
        &mut self,
        peer: Peer,
        least: u64,
        context: &mut Context<'_>,
    ) -> Poll<Result<(u64, Message), LinkError>> {
        loop {
            let message = std::task::ready!(self.link.poll_received(context))?;
            if let Some(number) = self.run.next() {
                return Poll::Ready(Ok((number, message)));
            }
            let Some(run) = announced(&message, least.max(self.run.end)) else {
                let what = format!(
                    "expected that messages from number {} on are announced and found {:?} with {} bytes",
                    least.max(self.run.end),
                    message.tag,
                    message.payload.len()
                );
                return Poll::Ready(Err(LinkError::Damaged { peer, what }));
            };
            self.run = run;
        }
    }

    /// Adds to the link's counters what has been counted here since.
    fn add_to(&mut self, counters: &Counters) {
        let now = self.own.read();
        let sent = now.bytes_sent - self.counted.bytes_sent;
        let received = now.bytes_received - self.counted.bytes_received;
        counters.sent(sent as usize, 0);
        counters.received(received as usize, 0);
        self.counted = now;
    }
}

impl Outgoing {
    /// Gives a socket the next run, if there is one.
    fn give(&mut self, socket: &mut Socket) -> bool {
        let mut bytes = 0;
        let taken = self.waiting.iter().take(MESSAGES as usize).take_while(|message| {
            let has_room = bytes < RUN;
            bytes += message.payload.len();
            has_room
        });
        let count = taken.count();
        if count == 0 {
            return false;
        }
        let run = self.next..self.next + count as u64;
        self.next = run.end;
        socket.link.submit(announce(&run));
        socket.sending.push_back(None);
        for (number, message) in run.zip(self.waiting.drain(..count)) {
            socket.link.submit(message);
            socket.sending.push_back(Some(number));
            self.given.push_back(false);
        }
        true
    }

    /// The first of these that a socket was to send are sent.
    fn mark(&mut self, sent: impl Iterator<Item = Option<u64>>) {
        let first = self.next - self.given.len() as u64;
        for number in sent.flatten() {
            self.given[(number - first) as usize] = true;
        }
    }

    /// How many more are sent, in the order of their submission.
    fn complete(&mut self) -> usize {
        let count = self.given.iter().take_while(|is_sent| **is_sent).count();
        self.given.drain(..count);
        count
    }
}

impl Bundle {
    /// A link of connections whose handshakes are done, in the order of their numbers.
    pub(super) fn new(peer: Peer, streams: Vec<Stream>, counters: &Arc<Counters>, hold: Hold) -> Self {
        let socket = |stream| {
            let own = Arc::<Counters>::default();
            Socket {
                link: TcpLink::new(peer, stream, &own, None),
                own,
                counted: Traffic::default(),
                sending: VecDeque::new(),
                run: 0..0,
                came: VecDeque::new(),
                has_ended: false,
            }
        };
        Self {
            peer,
            sockets: streams.into_iter().map(socket).collect(),
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            counters: Arc::clone(counters),
            _hold: hold,
        }
    }

    /// Hands out the next message, if it has come.
    fn take(&mut self) -> Option<Message> {
        let next = self.incoming.next;
        let is_next = |socket: &&mut Socket| socket.came.front().is_some_and(|(number, _)| *number == next);
        let (_, message) = self.sockets.iter_mut().find(is_next)?.came.pop_front()?;
        self.incoming.next += 1;
        self.incoming.held -= message.payload.len();
        self.counters.received(0, 1);
        Some(message)
    }

    /// Reads what has come on all sockets, until the next message is there. Says whether anything was read.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, LinkError> {
        let Self { peer, sockets, incoming, .. } = self;
        let mut has_read = false;
        for socket in sockets.iter_mut().filter(|socket| !socket.has_ended) {
            while socket.came.is_empty() || incoming.held < HELD {
                match socket.poll_message(*peer, incoming.next, context) {
                    Poll::Pending => break,
                    Poll::Ready(Ok((number, message))) => {
                        has_read = true;
                        incoming.held += message.payload.len();
                        socket.came.push_back((number, message));
                        if number == incoming.next {
                            return Ok(true);
                        }
                    }
                    Poll::Ready(Err(error @ (LinkError::Damaged { .. } | LinkError::TooLong { .. }))) => {
                        return Err(error);
                    }
                    Poll::Ready(Err(error)) => {
                        has_read = true;
                        socket.has_ended = true;
                        incoming.end.get_or_insert_with(|| (Some(error), Box::pin(sleep(ENDING))));
                        break;
                    }
                }
            }
        }
        Ok(has_read)
    }

    /// Throws away what comes.
    fn discard(&mut self, context: &mut Context<'_>) {
        for socket in self.sockets.iter_mut().filter(|socket| !socket.has_ended) {
            while let Poll::Ready(received) = socket.link.poll_received(context) {
                if let Err(LinkError::Closed { .. } | LinkError::Io { .. }) = received {
                    socket.has_ended = true;
                    break;
                }
            }
        }
    }

    /// Once one socket has ended, the peer is to see that on all of them.
    fn shut(&self) {
        for socket in &self.sockets {
            // One that is closed already needs no closing.
            let _ = socket2::SockRef::from(socket.link.socket()).shutdown(Shutdown::Write);
        }
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        let peer = self.peer;
        loop {
            if let Some(message) = self.take() {
                return Poll::Ready(Ok(message));
            }
            let was_whole = self.incoming.end.is_none();
            let has_read = self.read(context)?;
            if was_whole && self.incoming.end.is_some() {
                self.shut();
            }
            if has_read {
                continue;
            }
            let Some((error, time)) = &mut self.incoming.end else { return Poll::Pending };
            let have_all_ended = self.sockets.iter().all(|socket| socket.has_ended);
            if !have_all_ended && !time.is_elapsed() && time.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            return Poll::Ready(Err(error.take().unwrap_or(LinkError::Closed { peer })));
        }
    }
}

impl Link for Bundle {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn address(&self) -> Option<IpAddr> {
        self.sockets.first()?.link.address()
    }

    fn is_sealed(&self) -> bool {
        self.sockets.iter().all(|socket| socket.link.is_sealed())
    }

    fn moved(&self) -> Moved {
        let all = self.sockets.iter().map(|socket| socket.link.moved());
        all.fold(Moved::default(), |sum, one| Moved {
            sent: sum.sent + one.sent,
            received: sum.received + one.received,
        })
    }

    fn submit(&mut self, message: Message) {
        let Outgoing { waiting, refused, .. } = &mut self.outgoing;
        if refused.is_some() {
            return;
        }
        if message.payload.len() > MAX_PAYLOAD {
            *refused = Some(message.payload.len() as u64);
            waiting.clear();
            return;
        }
        waiting.push_back(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        let Self { peer, sockets, outgoing, counters, .. } = self;
        if let Some(length) = outgoing.refused {
            return Poll::Ready(Err(LinkError::TooLong { peer: *peer, length }));
        }
        let count = sockets.len();
        loop {
            let mut has_given = false;
            for i in 0..count {
                let at = (outgoing.turn + i) % count;
                let socket = &mut sockets[at];
                while let Poll::Ready(sent) = socket.link.poll_sent(context) {
                    outgoing.mark(socket.sending.drain(..sent?));
                }
                let is_free = socket.sending.is_empty() && !outgoing.waiting.is_empty();
                if is_free && socket.link.poll_room(context).is_ready() && outgoing.give(socket) {
                    has_given = true;
                    outgoing.turn = (at + 1) % count;
                    break;
                }
            }
            if !has_given {
                break;
            }
        }
        sockets.iter_mut().for_each(|socket| socket.add_to(counters));
        let sent = outgoing.complete();
        counters.sent(0, sent);
        if sent == 0 { Poll::Pending } else { Poll::Ready(Ok(sent)) }
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        let peer = self.peer;
        let received = if self.incoming.is_damaged {
            self.discard(context);
            let have_all_ended = self.sockets.iter().all(|socket| socket.has_ended);
            if have_all_ended { Poll::Ready(Err(LinkError::Closed { peer })) } else { Poll::Pending }
        } else {
            let received = self.poll_message(context);
            self.incoming.is_damaged =
                matches!(received, Poll::Ready(Err(LinkError::Damaged { .. } | LinkError::TooLong { .. })));
            received
        };
        self.sockets.iter_mut().for_each(|socket| socket.add_to(&self.counters));
        received
    }
}
