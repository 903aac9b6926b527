//! Messages that have come and wait for the task that wants them.
//!
//! A group may be ready on one rank before its turn comes on another, so a link is always read and what it brings
//! waits here, by (peer, tag). How much may wait is bounded: every peer has the credit that the schedules declare.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use gleaner_transport::{Peer, Tag};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::failure::Failure;

/// What an empty message costs of a credit, so that those are bounded too.
pub(crate) const OVERHEAD: u64 = 64;

/// Credit that every peer has for control data: two notes.
const NOTES: u64 = 2 << 20;

#[derive(Debug)]
enum Mail {
    Payload(Bytes),
    Left,
}

#[derive(Debug)]
struct Queue {
    sender: UnboundedSender<Mail>,
    /// Until somebody wants it.
    receiver: Option<UnboundedReceiver<Mail>>,
}

impl Default for Queue {
    fn default() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver: Some(receiver) }
    }
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<(Peer, Tag), Queue>,
    waiting: HashMap<Peer, u64>,
    credit: HashMap<Peer, u64>,
    left: Vec<Peer>,
    /// Conversations of cancelled steps: what still comes is dropped.
    discarded: HashSet<Tag>,
}

impl State {
    /// Payloads of so many bytes wait no longer.
    fn free(&mut self, peer: Peer, bytes: u64) {
        let waiting = self.waiting.entry(peer).or_default();
        *waiting = waiting.saturating_sub(bytes);
    }
}

#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    failure: watch::Receiver<Option<Failure>>,
}

/// A peer sent more than any schedule allows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn;

impl Inbox {
    pub(crate) fn new(failure: watch::Receiver<Option<Failure>>) -> Self {
        Self { state: Mutex::default(), failure }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a peer have so many more bytes waiting here.
    pub(crate) fn grant(&self, peer: Peer, bytes: u64) {
        *self.state().credit.entry(peer).or_default() += bytes;
    }

    /// Takes credit back that was granted for what has come and was read.
    pub(crate) fn revoke(&self, peer: Peer, bytes: u64) {
        let mut state = self.state();
        let credit = state.credit.entry(peer).or_default();
        *credit = credit.saturating_sub(bytes);
    }

    /// Takes a message from a link.
    pub(crate) fn put(&self, peer: Peer, tag: Tag, payload: Bytes) -> Result<(), Overdrawn> {
        let mut state = self.state();
        if state.discarded.contains(&tag) {
            return Ok(());
        }
        let credit = NOTES + state.credit.get(&peer).copied().unwrap_or(0);
        let waiting = state.waiting.entry(peer).or_default();
        *waiting += cost(&payload);
        if *waiting > credit {
            return Err(Overdrawn);
        }
        // Whoever wanted it may be gone already; then nobody misses it.
        let _ = state.queues.entry((peer, tag)).or_default().sender.send(Mail::Payload(payload));
        Ok(())
    }

    /// Drops what has come with this tag, and what will come.
    pub(crate) fn discard(&self, tag: Tag) {
        let mut state = self.state();
        state.discarded.insert(tag);
        // Where somebody reads already, it is freed when the reading ends.
        let unread: Vec<_> = state.queues.extract_if(|(_, t), q| *t == tag && q.receiver.is_some()).collect();
        for ((peer, _), queue) in unread {
            if let Some(mut receiver) = queue.receiver {
                state.free(peer, waiting(&mut receiver));
            }
        }
    }

    /// Nothing more will come with this discarded tag.
    pub(crate) fn forget(&self, tag: Tag) {
        self.state().discarded.remove(&tag);
    }

    /// A peer said goodbye: whoever waits for it, now or later, is told after the last message.
    pub(crate) fn left(&self, peer: Peer) {
        let mut state = self.state();
        state.left.push(peer);
        for ((from, _), queue) in &state.queues {
            if *from == peer {
                let _ = queue.sender.send(Mail::Left);
            }
        }
    }

    pub(crate) fn has_left(&self, peer: Peer) -> bool {
        self.state().left.contains(&peer)
    }

    /// The messages with one tag from one peer. One task reads them.
    pub(crate) fn open(&self, peer: Peer, tag: Tag) -> Reading<'_> {
        let mut state = self.state();
        let left = state.left.contains(&peer);
        let queue = state.queues.entry((peer, tag)).or_default();
        if left {
            let _ = queue.sender.send(Mail::Left);
        }
        let receiver = queue.receiver.take();
        Reading { inbox: self, peer, tag, receiver, failure: self.failure.clone() }
    }
}

/// See [`Inbox::open`]. Dropping it ends the conversation.
pub(crate) struct Reading<'a> {
    inbox: &'a Inbox,
    peer: Peer,
    tag: Tag,
    receiver: Option<UnboundedReceiver<Mail>>,
    failure: watch::Receiver<Option<Failure>>,
}

impl Reading<'_> {
    /// The next message, or why none will come.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Failure> {
        let left = || Failure {
            rank: self.peer.0,
            step: None,
            reason:
                "it left the job while others still needed it; all ranks must take the same number of steps"
                    .into(),
        };
        let Some(receiver) = self.receiver.as_mut() else { return Err(left()) };
        let mail = tokio::select! {
            biased;
            mail = receiver.recv() => mail,
            failed = self.failure.wait_for(Option::is_some) => {
                let failure = failed.ok().and_then(|failure| failure.clone());
                return Err(failure.unwrap_or_else(left));
            }
        };
        match mail {
            Some(Mail::Payload(payload)) => {
                self.inbox.state().free(self.peer, cost(&payload));
                Ok(payload)
            }
            Some(Mail::Left) | None => Err(left()),
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut state = self.inbox.state();
        state.queues.remove(&(self.peer, self.tag));
        if let Some(receiver) = &mut self.receiver {
            state.free(self.peer, waiting(receiver));
        }
    }
}

/// What a payload takes of a peer's credit, in bytes.
fn cost(payload: &Bytes) -> u64 {
    payload.len() as u64 + OVERHEAD
}

/// What the payloads take that nobody has read.
fn waiting(receiver: &mut UnboundedReceiver<Mail>) -> u64 {
    let mut bytes = 0;
    while let Ok(mail) = receiver.try_recv() {
        if let Mail::Payload(payload) = mail {
            bytes += cost(&payload);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::{StepId, Topic};

    const PEER: Peer = Peer(3);
    const CANCELLED: Tag = Tag(7);
    const OTHER: Tag = Tag(8);

    /// Puts so many kilobytes as one message each, and says how many were taken.
    fn put(inbox: &Inbox, tag: Tag, messages: usize) -> usize {
        let payload = Bytes::from(vec![0; 1024]);
        (0..messages).take_while(|_| inbox.put(PEER, tag, payload.clone()).is_ok()).count()
    }

    fn full() -> usize {
        (NOTES / (1024 + OVERHEAD)) as usize
    }

    fn inbox() -> Inbox {
        Inbox::new(watch::channel(None).1)
    }

    #[test]
    fn what_waits_is_bounded_by_the_credit() {
        assert_eq!(put(&inbox(), OTHER, 2 * full()), full());
        let granted = inbox();
        granted.grant(PEER, 10 * (1024 + OVERHEAD));
        assert_eq!(put(&granted, OTHER, 2 * full()), full() + 10);
    }

    #[test]
    fn discarded_messages_take_no_credit_whether_they_come_before_or_after_or_were_being_read() {
        for (reads, before) in [(false, 0), (false, 100), (true, 0), (true, 100)] {
            let inbox = inbox();
            assert_eq!(put(&inbox, CANCELLED, before), before);
            let reading = reads.then(|| inbox.open(PEER, CANCELLED));
            assert_eq!(put(&inbox, CANCELLED, before), before);
            inbox.discard(CANCELLED);
            assert_eq!(put(&inbox, CANCELLED, 3 * full()), 3 * full(), "nothing of it counts");
            drop(reading);
            assert_eq!(put(&inbox, CANCELLED, 3 * full()), 3 * full(), "nor later");
            assert!(inbox.state().queues.is_empty(), "and nothing waits");
            assert_eq!(put(&inbox, OTHER, 2 * full()), full(), "the whole credit is there for others");
        }
    }

    #[tokio::test]
    async fn a_message_of_another_epoch_is_never_read_as_one_of_this() {
        let (inbox, of) = (inbox(), |epoch| Topic::Bags(StepId::new(epoch, 1, 2, 3)).tag());
        for epoch in [4, 6, 5] {
            inbox.put(PEER, of(epoch), Bytes::from(vec![epoch as u8])).unwrap();
        }
        let mut reading = inbox.open(PEER, of(5));
        assert_eq!(reading.next().await.unwrap()[..], [5]);
        inbox.left(PEER);
        assert!(reading.next().await.is_err(), "nothing else was for this epoch");
    }

    #[test]
    fn a_forgotten_conversation_is_like_any_other() {
        let inbox = inbox();
        inbox.discard(CANCELLED);
        inbox.forget(CANCELLED);
        assert_eq!(put(&inbox, CANCELLED, 2 * full()), full());
    }
}
