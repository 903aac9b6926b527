//! The worker's supervisor: it takes links in, and makes one failure out of whatever breaks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use gleaner_transport::{Link, LinkEvent, Message, Peer};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{oneshot, watch};

use crate::failure::Failure;
use crate::link::{LinkActor, LinkArguments};
use crate::post::Post;
use crate::report;
use crate::silence::Silence;
use crate::tag::Topic;

/// Top of the supervision tree: one `Link` for each peer below it.
pub(crate) struct Worker;

pub(crate) struct WorkerArguments {
    pub(crate) post: Arc<Post>,
    pub(crate) failure: watch::Sender<Option<Failure>>,
}

pub(crate) enum WorkerMessage {
    /// Something happened on the network.
    Network(LinkEvent),
    /// The job cannot go on. The first failure counts.
    Fail(Failure),
    /// Nobody told of another failure while a suspicion waited for it.
    Convict,
    /// The link to this peer has given no sign of life for the whole time-out.
    Silent(Peer),
    /// Another rank said so of one of its links.
    Told(Silence),
    /// Time to say who is to blame for a silence.
    Judge,
    /// The link to this peer has written all it had.
    Flushed(Peer),
    /// This peer said goodbye.
    Left(Peer),
    /// Last words were given enough time.
    Resign,
    /// This worker leaves; answered when all links have written what they had.
    Leave(oneshot::Sender<()>),
    /// The step that this worker is in, for whoever asks what failed when.
    Step(u64),
}

pub(crate) struct WorkerState {
    post: Arc<Post>,
    failure: watch::Sender<Option<Failure>>,
    /// Whose end was seen but not explained. It may be the cause, or follow from a failure that others know of.
    suspected: Option<Failure>,
    /// The first link that fell silent, as far as this worker knows.
    silence: Option<Silence>,
    /// A failure whose news is still being written to the peers.
    failing: Option<Failure>,
    links: HashMap<ActorId, Peer>,
    flushed: HashSet<Peer>,
    left: HashSet<Peer>,
    leaving: Option<oneshot::Sender<()>>,
    step: Option<u64>,
    /// Callers that were turned away.
    strangers: u64,
}

impl Actor for Worker {
    type Msg = WorkerMessage;
    type State = WorkerState;
    type Arguments = WorkerArguments;

    async fn pre_start(
        &self,
        _: ActorRef<WorkerMessage>,
        WorkerArguments { post, failure }: WorkerArguments,
    ) -> Result<WorkerState, ActorProcessingErr> {
        Ok(WorkerState {
            post,
            failure,
            suspected: None,
            silence: None,
            failing: None,
            links: HashMap::new(),
            flushed: HashSet::new(),
            left: HashSet::new(),
            leaving: None,
            step: None,
            strangers: 0,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<WorkerMessage>,
        message: WorkerMessage,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WorkerMessage::Network(LinkEvent::Up(link)) => state.connect(&myself, link).await?,
            WorkerMessage::Network(LinkEvent::Failed { peer, error }) => {
                state.suspect(&myself, peer, error.to_string());
            }
            WorkerMessage::Network(LinkEvent::Refused { address, reason }) => {
                state.strangers += 1;
                // Whoever calls all the time fills no log.
                if state.strangers <= 5 || state.strangers.is_power_of_two() {
                    let (rank, callers) = (state.post.rank.0, state.strangers);
                    eprintln!(
                        "gleaner: rank {rank} turned {address} away: {reason} (strangers so far: {callers})"
                    );
                }
            }
            WorkerMessage::Fail(failure) => state.fail(&myself, failure),
            WorkerMessage::Convict => {
                if let Some(failure) = state.suspected.take() {
                    state.fail(&myself, failure);
                }
            }
            WorkerMessage::Silent(peer) => {
                // Nobody waits until it has read what is written to it.
                state.flushed.insert(peer);
                state.left.insert(peer);
                state.fall_silent(&myself, peer);
                state.settle(false);
            }
            WorkerMessage::Told(silence) => state.told(&myself, silence),
            WorkerMessage::Judge => {
                if let Some(silence) = state.silence.take() {
                    let peers: Vec<u32> = state.post.peers().into_iter().map(|peer| peer.0).collect();
                    let post = &state.post;
                    let (rank, reason) =
                        silence.judge(post.rank.0, &peers, |rank| post.hears(rank), post.timeout);
                    state.fail(&myself, Failure { rank, step: state.step, reason });
                }
            }
            WorkerMessage::Flushed(peer) => {
                state.flushed.insert(peer);
                state.settle(false);
            }
            WorkerMessage::Left(peer) => {
                state.left.insert(peer);
                state.settle(false);
            }
            WorkerMessage::Resign => state.settle(true),
            WorkerMessage::Step(step) => state.step = Some(step),
            WorkerMessage::Leave(done) => {
                state.leaving = Some(done);
                for peer in state.post.peers() {
                    state.post.send(peer, Message { tag: Topic::Bye.tag(), payload: Default::default() });
                }
                state.post.close();
                myself.send_after(state.patience(), || WorkerMessage::Resign);
                state.settle(false);
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<WorkerMessage>,
        event: SupervisionEvent,
        state: &mut WorkerState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(actor, reason) => {
                if let Some(peer) = state.links.remove(&actor.get_id()) {
                    state.flushed.insert(peer);
                    state.left.insert(peer);
                    state.suspect(&myself, peer, reason.to_string());
                }
                state.settle(false);
            }
            SupervisionEvent::ActorTerminated(actor, ..) => {
                state.links.remove(&actor.get_id());
                state.settle(false);
            }
            _ => {}
        }
        Ok(())
    }
}

impl WorkerState {
    /// How long last words may take.
    fn patience(&self) -> Duration {
        (self.post.timeout / 4).min(Duration::from_secs(1))
    }

    /// How long a suspicion waits for someone who knows better.
    fn hearing(&self) -> Duration {
        (self.post.timeout / 10).min(Duration::from_millis(200))
    }

    fn has_failed(&self) -> bool {
        self.failing.is_some() || self.post.failure().is_some()
    }

    /// Whether this worker pays no more heed to how others are.
    fn is_ending(&self) -> bool {
        self.leaving.is_some() || self.has_failed()
    }

    async fn connect(
        &mut self,
        myself: &ActorRef<WorkerMessage>,
        link: Link,
    ) -> Result<(), ActorProcessingErr> {
        let peer = link.peer;
        let Some(outbox) = self.post.connect(peer) else { return Ok(()) };
        let arguments = LinkArguments { link, outbox, post: self.post.clone(), worker: myself.clone() };
        let (actor, _) = LinkActor::spawn_linked(None, LinkActor, arguments, myself.get_cell()).await?;
        self.links.insert(actor.get_id(), peer);
        if let Some(failure) = self.failing.clone().or_else(|| self.post.failure()) {
            self.tell(peer, &failure);
        }
        Ok(())
    }

    /// A peer is gone and did not say why. Whoever hears of a failure tells all its peers before it ends, but the
    /// news may come over another link, or be lost with a process that is killed: who ended because of somebody
    /// else must not be blamed for it, so the news gets a moment to arrive.
    fn suspect(&mut self, myself: &ActorRef<WorkerMessage>, peer: Peer, reason: String) {
        if self.is_ending() || self.suspected.is_some() {
            return;
        }
        self.suspected = Some(Failure { rank: peer.0, step: self.step, reason });
        myself.send_after(self.hearing(), || WorkerMessage::Convict);
    }

    /// A link of this worker has fallen silent. Either end of it may be the cause, and the other end may think that it is
    /// this one, so one rank judges for all.
    fn fall_silent(&mut self, myself: &ActorRef<WorkerMessage>, peer: Peer) {
        let this = self.post.rank.0;
        if self.is_ending() || self.silence.is_some() {
            return;
        }
        let silence = Silence { at: this, from: peer.0 };
        self.tell_of(silence);
        self.silence = Some(silence);
        // Whoever is not the judge gives the verdict time to come.
        let pause = if this == 0 { self.hearing() } else { 3 * self.hearing() };
        myself.send_after(pause, || WorkerMessage::Judge);
    }

    /// A link of another rank has fallen silent.
    fn told(&mut self, myself: &ActorRef<WorkerMessage>, silence: Silence) {
        if self.is_ending() {
            return;
        }
        self.tell_of(silence);
        if self.post.rank.0 == 0 && self.silence.is_none() {
            self.silence = Some(silence);
            myself.send_after(self.hearing(), || WorkerMessage::Judge);
        }
    }

    fn tell_of(&self, silence: Silence) {
        for rank in silence.confidants(self.post.rank.0, self.post.workers) {
            let message = Message { tag: Topic::Silence.tag(), payload: silence.encode().into() };
            self.post.send(Peer(rank), message);
        }
    }

    /// Tells all peers, and when they have it, this worker's own tasks: whoever hears of the failure may end the
    /// process, and nobody shall then take this worker for the culprit.
    fn fail(&mut self, myself: &ActorRef<WorkerMessage>, mut failure: Failure) {
        if self.has_failed() {
            return;
        }
        failure.step = failure.step.or(self.step);
        report::failed(failure.rank, failure.step, &failure.reason);
        self.post.give_up();
        for peer in self.post.peers() {
            self.tell(peer, &failure);
        }
        self.failing = Some(failure);
        self.post.close();
        myself.send_after(self.patience(), || WorkerMessage::Resign);
        self.settle(false);
    }

    fn tell(&self, peer: Peer, failure: &Failure) {
        let payload = serde_json::to_vec(failure).unwrap_or_default().into();
        self.post.send(peer, Message { tag: Topic::Abort.tag(), payload });
    }

    /// Finishes failing or leaving once everything is written, or enough time was given.
    fn settle(&mut self, at_once: bool) {
        let written = self.links.values().all(|peer| self.flushed.contains(peer));
        // A peer that still reads must not find the connection reset: its own goodbye is waited for.
        let parted = self.links.values().all(|peer| self.flushed.contains(peer) && self.left.contains(peer));
        if (at_once || written)
            && let Some(failure) = self.failing.take()
        {
            self.failure.send_replace(Some(failure));
        }
        if (at_once || parted)
            && let Some(done) = self.leaving.take()
        {
            let _ = done.send(());
        }
    }
}
