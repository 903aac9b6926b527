//! What the actors on the I/O thread share: links, what has come, what is decided about steps, and this worker's life.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::Outgoing;
use gleaner_transport::{Message, Network, Peer};

use crate::compute::{Compute, Task};
use crate::failure::Failure;
use crate::inbox::Inbox;
use crate::link::{Link, cost};
use crate::mailbox::{Bell, Mailbox, Window};
use crate::positions::Positions;
use crate::roles::RoleMap;
use crate::seat::Seat;
use crate::steps::Steps;
use crate::tag::{StepId, Topic};
use crate::timeline::Recorder;
use crate::worker::{Event, Worker};

/// See the module.
pub(crate) struct Io {
    pub(crate) rank: Rank,
    pub(crate) role_map: RoleMap,
    /// The rank that gathers and decides.
    pub(crate) coordinator: Rank,
    pub(crate) epoch: u16,
    /// Numbers of gradients that were given out so far.
    pub(crate) gradients: u32,
    pub(crate) now: Instant,
    pub(crate) worker: Worker,
    pub(crate) steps: Steps,
    pub(crate) inbox: Inbox,
    pub(crate) positions: Positions,
    pub(crate) mailbox: Mailbox,
    pub(crate) links: HashMap<Peer, Link>,
    pub(crate) network: Box<dyn Network>,
    pub(crate) recorder: Arc<Recorder>,
    bell: Arc<Bell>,
    /// Links that have something to write.
    dirty: Vec<Peer>,
    compute: Compute,
    /// Tasks that found the queue full.
    tasks: VecDeque<Task>,
    /// What this rank sends itself.
    pub(crate) local: VecDeque<Message>,
    /// Memory for what executions send.
    outbox: Vec<Outgoing>,
}

impl Io {
    pub(crate) fn new(
        network: Box<dyn Network>,
        Seat { rank, coordinator, epoch, .. }: Seat,
        worker: Worker,
        (mailbox, bell): (Mailbox, Arc<Bell>),
        compute: Compute,
        recorder: Arc<Recorder>,
        role_map: RoleMap,
    ) -> Self {
        Self {
            rank,
            role_map,
            coordinator,
            epoch,
            gradients: 0,
            now: Instant::now(),
            worker,
            steps: Steps::new(rank.0, role_map.workers, coordinator.0),
            inbox: Inbox::default(),
            positions: Positions::default(),
            mailbox,
            links: HashMap::new(),
            network,
            recorder,
            bell,
            dirty: Vec::new(),
            compute,
            tasks: VecDeque::new(),
            local: VecDeque::new(),
            outbox: Vec::new(),
        }
    }

    /// The link to a peer; it is opened if there is none yet.
    pub(crate) fn link(&mut self, peer: Peer) -> &mut Link {
        self.links.entry(peer).or_insert_with(|| {
            self.network.open(peer);
            self.worker.handle(Event::Reached(peer), self.now);
            Link::new(self.bell.of(peer), self.now)
        })
    }

    /// A link is up, opened by either side.
    pub(crate) fn connect(&mut self, peer: Peer, transport: Box<dyn gleaner_transport::Link>) {
        let link = self.links.entry(peer).or_insert_with(|| Link::new(self.bell.of(peer), self.now));
        link.connect(transport);
        self.worker.handle(Event::Up(peer), self.now);
        self.touch(peer);
    }

    /// Whether all links are up that were asked for, but for those to peers that left.
    pub(crate) fn is_linked(&self) -> bool {
        self.links.iter().all(|(peer, link)| link.is_up() || self.worker.has_left(*peer))
    }

    /// A link has ended: in order, or for this reason.
    pub(crate) fn ended(&mut self, peer: Peer, reason: Option<String>) {
        self.link(peer).disconnect();
        let event = reason.map_or(Event::Ended(peer), |reason| Event::Broken(peer, reason));
        self.worker.handle(event, self.now);
    }

    /// Sends a message, in order with all others of its lane; opens the link if there is none yet.
    pub(crate) fn send(&mut self, to: Peer, message: Message) {
        if to.0 == self.rank.0 {
            return self.local.push_back(message);
        }
        self.link(to).send(message);
        self.touch(to);
    }

    /// Sends control data.
    pub(crate) fn tell(&mut self, to: Peer, topic: Topic, payload: Vec<u8>) {
        self.send(to, Message { tag: topic.tag(), payload: payload.into() });
    }

    /// Lets a peer have this many bytes of a gradient waiting here.
    pub(crate) fn widen(&mut self, peer: Peer, gradient: u32, window: u64) {
        if peer.0 == self.rank.0 {
            return;
        }
        self.link(peer).widen(gradient, window);
        self.touch(peer);
    }

    /// Lets peers have so much waiting here.
    pub(crate) fn widen_all(&mut self, windows: Vec<Window>) {
        windows.into_iter().for_each(|(peer, gradient, bytes)| self.widen(peer, gradient, bytes));
    }

    /// Bytes of a gradient were taken in or discarded.
    pub(crate) fn consume(&mut self, peer: Peer, gradient: u32, bytes: u64) {
        if self.links.get_mut(&peer).is_some_and(|link| link.consume(gradient, bytes)) {
            self.touch(peer);
        }
    }

    /// No step of a gradient will begin any more, and those that have are over.
    pub(crate) fn retire(&mut self, gradient: u32) {
        self.steps.remove(gradient);
        self.links.values_mut().for_each(|link| link.retire(gradient));
    }

    /// Whether a gradient was here and is no more.
    pub(crate) fn is_gone(&self, gradient: u32) -> bool {
        gradient < self.gradients && !self.steps.knows(gradient)
    }

    /// Throws away what waits for a step, on both ends of the links.
    pub(crate) fn discard(&mut self, id: StepId) {
        let tag = Topic::Bags(id).tag();
        for (peer, payload) in self.inbox.clear(tag) {
            self.consume(peer, id.gradient, cost(&payload));
        }
        self.links.values_mut().for_each(|link| link.discard(tag));
    }

    /// The job cannot go on.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.worker.handle(Event::Failed(failure), self.now);
    }

    /// A link has something to write, or the transport may take more.
    pub(crate) fn touch(&mut self, peer: Peer) {
        if !self.dirty.contains(&peer) {
            self.dirty.push(peer);
        }
    }

    /// Writes what can be written now.
    pub(crate) fn flush(&mut self) {
        while let Some(peer) = self.dirty.pop() {
            if self.links.get_mut(&peer).is_some_and(|link| link.flush(self.now)) {
                self.worker.handle(Event::Written(peer), self.now);
                self.end(peer);
            }
        }
    }

    /// Drops a link whose both directions have ended.
    pub(crate) fn end(&mut self, peer: Peer) {
        if self.links.get_mut(&peer).is_some_and(Link::end) {
            self.worker.handle(Event::Ended(peer), self.now);
        }
    }

    /// Takes bytes that have moved as heartbeats, and of what is still to be sent. Says whether any have.
    pub(crate) fn moves(&mut self) -> bool {
        let mut any = false;
        for (peer, link) in &mut self.links {
            let (sent, received) = link.moves(self.now);
            if received {
                self.worker.hear(*peer, self.now);
            }
            if sent {
                self.worker.extend(*peer, self.now);
            }
            any |= sent || received;
        }
        any
    }

    /// Lets a compute thread do something.
    pub(crate) fn compute(&mut self, task: Task) {
        self.tasks.push_back(task);
        self.offer();
    }

    /// Hands tasks in that found the queue full.
    pub(crate) fn offer(&mut self) {
        while let Some(task) = self.tasks.pop_front() {
            if let Err(task) = self.compute.offer(task) {
                self.tasks.push_front(task);
                return;
            }
        }
    }

    /// An empty list for what an execution sends, to be [kept](Self::keep) for the next.
    pub(crate) fn outbox(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outbox)
    }

    pub(crate) fn keep(&mut self, outbox: Vec<Outgoing>) {
        self.outbox = outbox;
    }
}
