//! Where tasks hand messages in and pick them up, whichever links exist.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_algorithms::{Membership, Rank};
use gleaner_transport::{MAX_PAYLOAD, Message, Network, Peer, Traffic};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::inbox::Inbox;
use crate::steps::{Deed, Stand, Steps};
use crate::tag::{StepId, Topic};

/// What waits to be written to one peer. Payloads in it are lent by bags that exist anyway.
#[derive(Debug)]
struct Outbox {
    sender: UnboundedSender<Message>,
    /// Until the link is up.
    receiver: Option<UnboundedReceiver<Message>>,
}

/// Shared by all tasks of a worker.
pub(crate) struct Post {
    pub(crate) rank: Rank,
    pub(crate) workers: u32,
    /// How often the set of workers has changed: part of the tags of all that belongs to steps and calls.
    pub(crate) epoch: u16,
    /// After this long without a sign of life a peer counts as dead; all other limits derive from it.
    pub(crate) timeout: Duration,
    pub(crate) inbox: Inbox,
    failure: watch::Receiver<Option<Failure>>,
    network: Arc<dyn Network>,
    outboxes: Mutex<HashMap<Peer, Outbox>>,
    /// When each peer last gave a sign of life, if it ever did.
    signs: Vec<Mutex<Option<Instant>>>,
    /// The job has failed: only that is still worth writing.
    given_up: AtomicBool,
    steps: Mutex<Steps>,
    /// Steps of groups that were begun and are not over.
    under_way: watch::Sender<usize>,
}

/// A step of a group is under way here as long as this lives.
pub(crate) struct UnderWay {
    post: Arc<Post>,
    pub(crate) id: StepId,
    /// Whether it may finish.
    pub(crate) stand: watch::Receiver<Stand>,
}

impl UnderWay {
    pub(crate) fn new(post: Arc<Post>, id: StepId) -> Self {
        let stand = post.about_steps(|steps| steps.begin(id));
        post.under_way.send_modify(|steps| *steps += 1);
        Self { post, id, stand }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.post.about_steps(|steps| steps.end(self.id));
        self.post.under_way.send_modify(|steps| *steps -= 1);
    }
}

impl Post {
    /// This worker's place in the present membership.
    pub(crate) fn membership(&self) -> Membership {
        Membership { epoch: self.epoch, rank: self.rank, workers: self.workers }
    }

    pub(crate) fn new(
        network: Arc<dyn Network>,
        timeout: Duration,
        failure: watch::Receiver<Option<Failure>>,
    ) -> Self {
        let inbox = Inbox::new(failure.clone());
        // Rank 0 passes everybody's notes on, those of the next call perhaps before this rank has read them all.
        inbox.grant(Peer(0), 2 * u64::from(network.workers()) * (MAX_PAYLOAD as u64 + 64));
        Self {
            rank: Rank(network.peer().0),
            workers: network.workers(),
            epoch: 0,
            timeout,
            inbox,
            failure,
            steps: Mutex::new(Steps::new(network.peer().0, network.workers())),
            under_way: watch::Sender::new(0),
            signs: (0..network.workers()).map(|_| Mutex::default()).collect(),
            network,
            outboxes: Mutex::default(),
            given_up: AtomicBool::new(false),
        }
    }

    fn outboxes(&self) -> MutexGuard<'_, HashMap<Peer, Outbox>> {
        self.outboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, in order with all others to that peer; opens the link if there is none yet.
    pub(crate) fn send(&self, to: Peer, message: Message) {
        let mut outboxes = self.outboxes();
        let outbox = outboxes.entry(to).or_insert_with(|| {
            self.network.open(to);
            let (sender, receiver) = unbounded_channel();
            Outbox { sender, receiver: Some(receiver) }
        });
        // A link that went down has failed the job; the message has nowhere to go.
        let _ = outbox.sender.send(message);
    }

    /// What the new link to a peer is to write.
    pub(crate) fn connect(&self, peer: Peer) -> Option<UnboundedReceiver<Message>> {
        let mut outboxes = self.outboxes();
        let outbox = outboxes.entry(peer).or_insert_with(|| {
            let (sender, receiver) = unbounded_channel();
            Outbox { sender, receiver: Some(receiver) }
        });
        outbox.receiver.take()
    }

    /// The peers that something was sent to or that a link exists to.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        self.outboxes().keys().copied().collect()
    }

    /// A peer gave a sign of life.
    pub(crate) fn hear(&self, peer: Peer) {
        if let Some(sign) = self.signs.get(peer.0 as usize) {
            *sign.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// Whether a rank gave a sign of life lately: in half the time-out, a peer that lives gives three.
    pub(crate) fn hears(&self, rank: u32) -> bool {
        let sign = self.signs.get(rank as usize);
        let last = sign.and_then(|sign| *sign.lock().unwrap_or_else(PoisonError::into_inner));
        rank == self.rank.0 || last.is_some_and(|last| last.elapsed() < self.timeout / 2)
    }

    /// Lets no link write anything but why the job failed.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Whether the job was given up.
    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Lets every link write what it has and end.
    pub(crate) fn close(&self) {
        self.outboxes().clear();
    }

    /// Why the job failed, if it did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.borrow().clone()
    }

    /// To wait for a failure.
    pub(crate) fn failed(&self) -> watch::Receiver<Option<Failure>> {
        self.failure.clone()
    }

    /// The failure that the job ends with, once all ranks know: the one given, unless there was one before it.
    pub(crate) async fn first_failure(&self, failure: Failure) -> Failure {
        let mut failed = self.failure.clone();
        let first = tokio::time::timeout(Duration::from_secs(2), failed.wait_for(Option::is_some)).await;
        first.ok().and_then(Result::ok).and_then(|first| first.clone()).unwrap_or(failure)
    }

    /// Asks about, or tells of, the steps that are under way, and does what follows. The deeds of one event come before those
    /// of the next, so that all ranks hear of them in that order.
    pub(crate) fn about_steps<T>(&self, event: impl FnOnce(&mut Steps) -> T) -> T {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = event(&mut steps);
        for deed in steps.deeds() {
            match deed {
                Deed::Tell(rank, id, word) => {
                    let message = Message { tag: Topic::Cancel(id).tag(), payload: word.encode().into() };
                    self.send(Peer(rank), message);
                }
                Deed::Discard(id) => self.inbox.discard(Topic::Bags(id).tag()),
                Deed::Forget(id) => self.inbox.forget(Topic::Bags(id).tag()),
            }
        }
        answer
    }

    /// Waits until no step is under way, or for the time-out.
    pub(crate) async fn settled(&self) {
        let mut under_way = self.under_way.subscribe();
        let _ = tokio::time::timeout(self.timeout, under_way.wait_for(|&steps| steps == 0)).await;
    }

    /// Bytes and messages so far.
    pub(crate) fn traffic(&self) -> Traffic {
        self.network.traffic()
    }
}
