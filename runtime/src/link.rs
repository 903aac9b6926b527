//! One open link: an actor for its life, two tasks for its bytes.

use std::sync::Arc;

use bytes::Bytes;
use gleaner_transport::{Link, LinkError, Message, Peer, Receiver, Sender};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use crate::failure::Failure;
use crate::inbox::Overdrawn;
use crate::post::Post;
use crate::silence::Silence;
use crate::steps::Word;
use crate::tag::Topic;
use crate::worker::WorkerMessage;

/// Messages that are written at once, at most.
const BATCH: usize = 64;

/// Bytes that are written at once, rounded up to whole messages: behind them, news of a failure has to wait.
const PORTION: usize = 1 << 20;

/// Supervised by the worker. It ends with an error when the link breaks.
pub(crate) struct LinkActor;

pub(crate) struct LinkArguments {
    pub(crate) link: Link,
    pub(crate) outbox: UnboundedReceiver<Message>,
    pub(crate) post: Arc<Post>,
    pub(crate) worker: ActorRef<WorkerMessage>,
}

/// What its own tasks tell it.
#[derive(Debug)]
pub(crate) enum LinkMessage {
    /// All is written that will be, or writing failed.
    Written(Result<(), LinkError>),
    /// Reading ended: the peer is gone, or was asked to go.
    Read(Gone),
}

/// How reading ended.
#[derive(Debug)]
pub(crate) enum Gone {
    /// After a goodbye or an abort.
    Said,
    /// Without a word.
    Broken(LinkError),
    /// Not a sign of life for the whole time-out.
    Silent,
    /// It sent what no worker sends.
    Rules(&'static str),
}

pub(crate) struct LinkState {
    peer: Peer,
    worker: ActorRef<WorkerMessage>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
    ended: (bool, bool),
}

impl Actor for LinkActor {
    type Msg = LinkMessage;
    type State = LinkState;
    type Arguments = LinkArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<LinkMessage>,
        LinkArguments { link, outbox, post, worker }: LinkArguments,
    ) -> Result<LinkState, ActorProcessingErr> {
        let Link { peer, sender, receiver } = link;
        let to_writer = myself.clone();
        let posts = post.clone();
        let writer = tokio::spawn(async move {
            let _ = to_writer.cast(LinkMessage::Written(write(sender, outbox, &posts).await));
        });
        let to_worker = worker.clone();
        let reader = tokio::spawn(async move {
            let _ = myself.cast(LinkMessage::Read(read(peer, receiver, &post, &to_worker).await));
        });
        Ok(LinkState { peer, worker, reader, writer, ended: (false, false) })
    }

    async fn handle(
        &self,
        myself: ActorRef<LinkMessage>,
        message: LinkMessage,
        state: &mut LinkState,
    ) -> Result<(), ActorProcessingErr> {
        let reason = match message {
            LinkMessage::Written(Ok(())) => {
                state.ended.0 = true;
                let _ = state.worker.cast(WorkerMessage::Flushed(state.peer));
                None
            }
            // Reading tells more of how a link broke; it ends too.
            LinkMessage::Written(Err(_)) => {
                state.ended.0 = true;
                let _ = state.worker.cast(WorkerMessage::Flushed(state.peer));
                None
            }
            LinkMessage::Read(gone) => {
                state.ended.1 = true;
                match gone {
                    Gone::Said => None,
                    Gone::Broken(LinkError::Closed { .. }) => {
                        Some("its connection closed without a goodbye: it died or was killed".to_owned())
                    }
                    Gone::Broken(error) => Some(format!("its connection broke: {error}")),
                    // Not its fault alone, perhaps. Last words may still reach it.
                    Gone::Silent => {
                        let _ = state.worker.cast(WorkerMessage::Silent(state.peer));
                        None
                    }
                    Gone::Rules(what) => Some(format!("it broke the rules: {what}")),
                }
            }
        };
        if let Some(reason) = reason {
            return Err(reason.into());
        }
        if state.ended == (true, true) {
            myself.stop(None);
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<LinkMessage>,
        state: &mut LinkState,
    ) -> Result<(), ActorProcessingErr> {
        state.reader.abort();
        state.writer.abort();
        Ok(())
    }
}

/// Writes what is handed in; when there is nothing, says now and then that this worker is alive. Ends when nothing
/// more can be handed in. Once the job is given up, bags that still wait make room for the news of it.
async fn write(
    mut sender: Box<dyn Sender>,
    mut outbox: UnboundedReceiver<Message>,
    post: &Post,
) -> Result<(), LinkError> {
    let every = post.timeout / 6;
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        match tokio::time::timeout(every, outbox.recv_many(&mut batch, BATCH)).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(_) => batch.push(Message { tag: Topic::Alive.tag(), payload: Bytes::new() }),
        }
        let mut rest = batch.as_slice();
        while !rest.is_empty() {
            if post.has_given_up() {
                let news: Vec<Message> =
                    rest.iter().filter(|m| m.tag == Topic::Abort.tag()).cloned().collect();
                sender.send(&news).await?;
                break;
            }
            let (portion, later) = rest.split_at(portion(rest));
            sender.send(portion).await?;
            rest = later;
        }
        batch.clear();
    }
}

/// How many of the messages are written at once.
fn portion(messages: &[Message]) -> usize {
    let mut bytes = 0;
    let enough = messages.iter().position(|message| {
        bytes += message.payload.len();
        bytes >= PORTION
    });
    enough.map_or(messages.len(), |last| last + 1)
}

/// Reads until the link ends.
async fn read(
    peer: Peer,
    mut receiver: Box<dyn Receiver>,
    post: &Post,
    worker: &ActorRef<WorkerMessage>,
) -> Gone {
    post.hear(peer);
    loop {
        let message = match tokio::time::timeout(post.timeout, receiver.receive()).await {
            Err(_) => return Gone::Silent,
            Ok(Err(_)) if post.inbox.has_left(peer) => return Gone::Said,
            Ok(Err(error)) => return Gone::Broken(error),
            Ok(Ok(message)) => message,
        };
        post.hear(peer);
        match Topic::of(message.tag) {
            Some(Topic::Alive) => {}
            Some(Topic::Bye) => {
                post.inbox.left(peer);
                post.about_steps(|steps| steps.left(peer.0));
                let _ = worker.cast(WorkerMessage::Left(peer));
            }
            Some(Topic::Abort) => {
                let failure = serde_json::from_slice::<Failure>(&message.payload);
                let Ok(failure) = failure else { return Gone::Rules("its last words make no sense") };
                let _ = worker.cast(WorkerMessage::Fail(failure));
                return Gone::Said;
            }
            Some(Topic::Note { .. } | Topic::Bags(_) | Topic::Probe { .. }) => {
                if post.inbox.put(peer, message.tag, message.payload) == Err(Overdrawn) {
                    return Gone::Rules("it sent more than its schedules allow");
                }
            }
            Some(Topic::Cancel(id)) => {
                let Some(word) = Word::decode(&message.payload) else {
                    return Gone::Rules("its words about cancelling make no sense");
                };
                if let Err(what) = post.about_steps(|steps| steps.heard(peer.0, id, word)) {
                    return Gone::Rules(what);
                }
            }
            Some(Topic::Silence) => {
                let Some(silence) = Silence::decode(&message.payload, post.workers) else {
                    return Gone::Rules("what it says about silence makes no sense");
                };
                let _ = worker.cast(WorkerMessage::Told(silence));
            }
            None => return Gone::Rules("it sent a message of an unknown kind"),
        }
    }
}
