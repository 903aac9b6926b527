//! Messages of the trainer's thread and of compute threads to the thread that owns links and steps.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Wake, Waker};

use gleaner_transport::Peer;
use tokio::sync::oneshot;

use crate::algorithm::Actor;
use crate::failure::Failure;
use crate::notes::Call;
use crate::probe::Volley;
use crate::steps::Cause;
use crate::tag::StepId;

/// Messages that may wait. The owner of the mailbox never waits for others, so none waits for long.
const WAITING: usize = 1024;

/// One of them.
pub(crate) enum Command {
    /// A gradient exchange or a reducer, whose groups have numbers from this one on, begins its life.
    Add(u32, Box<dyn Actor>),
    /// And ends it, once its steps are over.
    Retire(u32),
    /// Peers get credit: this many bytes of a gradient may wait here.
    Widen(Vec<Window>),
    /// To the exchange whose groups have numbers from this one on.
    To(u32, Box<dyn Any + Send>),
    /// The program wants a step given up.
    Ask(StepId, Cause),
    /// A call that all ranks make together.
    Call(Call),
    /// A measurement of the network.
    Volley(Volley),
    /// The job cannot go on. Answered with the first failure once all peers know.
    Fail(Failure, oneshot::Sender<Failure>),
    /// A task panicked.
    Panicked(String),
    /// This worker leaves when its steps are over. Answered when it has left.
    Leave(oneshot::Sender<()>),
}

/// This many bytes of a gradient that one peer may have waiting here.
pub(crate) type Window = (Peer, u32, u64);

/// Where to send commands.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: mpsc::SyncSender<Command>,
    bell: Arc<Bell>,
    blocked: Arc<AtomicUsize>,
}

/// A thread of the program waits for the update of a step while this lives.
pub(crate) struct Blocked(Arc<AtomicUsize>);

impl Drop for Blocked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A mailbox, and where its owner takes commands out.
pub(crate) fn mailbox() -> (Mailbox, mpsc::Receiver<Command>, Arc<Bell>) {
    let (sender, commands) = mpsc::sync_channel(WAITING);
    let bell = Arc::new(Bell::default());
    (Mailbox { sender, bell: Arc::clone(&bell), blocked: Arc::default() }, commands, bell)
}

impl Mailbox {
    /// This thread waits for the update of a step from here on.
    pub(crate) fn block(&self) -> Blocked {
        self.blocked.fetch_add(1, Ordering::Relaxed);
        Blocked(Arc::clone(&self.blocked))
    }

    /// Whether a thread of the program waits for the update of a step.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) > 0
    }

    /// Sends a command; it is dropped when the owner has ended.
    pub(crate) fn send(&self, command: Command) {
        if self.sender.send(command).is_ok() {
            self.bell.ring(None);
        }
    }
}

/// Wakes the owner of the mailbox and remembers which links have something to do.
#[derive(Debug, Default)]
pub(crate) struct Bell(Mutex<Rung>);

#[derive(Debug, Default)]
struct Rung {
    peers: Vec<Peer>,
    owner: Option<Waker>,
}

impl Bell {
    fn rung(&self) -> MutexGuard<'_, Rung> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, peer: Option<Peer>) {
        let owner = {
            let mut rung = self.rung();
            rung.peers.extend(peer);
            rung.owner.take()
        };
        owner.into_iter().for_each(Waker::wake);
    }

    /// The task to wake when the next message comes.
    pub(crate) fn listen(&self, owner: &Waker) {
        let mut rung = self.rung();
        if rung.owner.as_ref().is_none_or(|known| !known.will_wake(owner)) {
            rung.owner = Some(owner.clone());
        }
    }

    /// Adds the links that have something to do to a list.
    pub(crate) fn peers(&self, ready: &mut Vec<Peer>) {
        ready.append(&mut self.rung().peers);
    }

    /// A waker for the link to a peer.
    pub(crate) fn of(self: &Arc<Self>, peer: Peer) -> Waker {
        Arc::new(PeerBell { bell: Arc::clone(self), peer }).into()
    }
}

struct PeerBell {
    bell: Arc<Bell>,
    peer: Peer,
}

impl Wake for PeerBell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.ring(Some(self.peer));
    }
}
