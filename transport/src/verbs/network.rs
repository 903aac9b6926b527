//! A worker's place in a job over verbs: links of TCP, each of which becomes one of a queue pair.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::device::Device;
use super::end::End;
use super::link::{Unproven, VerbsLink};
use super::offer::{Negotiation, Offer};
use crate::tcp::TcpNetwork;
use crate::tcp::upgraded::Upgraded;
use crate::{Counters, Link, LinkError, LinkEvent, Message, Network, OpenError, Peer, Tag};

/// One worker's place in a job over verbs, made by [`join`](super::join).
#[derive(Debug)]
pub struct VerbsNetwork {
    peer: Peer,
    workers: u32,
    epoch: u16,
    base: Arc<Upgraded>,
    /// The task that makes links of queue pairs, which ends with the network.
    tasks: JoinSet<()>,
}

impl VerbsNetwork {
    /// Begins to make links.
    pub(super) fn start(inner: TcpNetwork, device: Arc<Device>, timeout: Duration) -> Self {
        let (peer, workers, epoch) = (inner.peer(), inner.workers(), inner.epoch());
        let base = Arc::new(Upgraded::new(inner, Arc::default()));
        let mut tasks = JoinSet::new();
        tasks.spawn(connect(Arc::clone(&base), device, timeout));
        Self { peer, workers, epoch, base, tasks }
    }
}

impl Network for VerbsNetwork {
    fn peer(&self) -> Peer {
        self.peer
    }

    fn workers(&self) -> u32 {
        self.workers
    }

    fn epoch(&self) -> u16 {
        self.epoch
    }

    fn open(&mut self, peer: Peer) {
        self.base.wanted().insert(peer);
        if let Some(inner) = &mut *self.base.inner() {
            inner.open(peer);
        }
    }

    fn poll_card(&mut self, peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        self.base.poll_card(peer, context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if let Poll::Ready(event) = self.base.events.poll(context) {
            return Poll::Ready(Some(event));
        }
        if let Poll::Ready(Some(Err(error))) = self.tasks.poll_join_next(context) {
            return Poll::Ready(Some(LinkEvent::Panicked { reason: error.to_string() }));
        }
        Poll::Pending
    }

    fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.base.counters)
    }
}

impl Drop for VerbsNetwork {
    fn drop(&mut self) {
        self.base.close();
    }
}

/// The task that takes the links of TCP and makes those of queue pairs, several at once.
async fn connect(base: Arc<Upgraded>, device: Arc<Device>, limit: Duration) {
    let mut openings = JoinSet::new();
    loop {
        tokio::select! {
            event = base.event() => match event {
                LinkEvent::Up(control) => {
                    openings.spawn(open(Arc::clone(&base), Arc::clone(&device), control, limit));
                }
                other => base.pass_on(other),
            },
            Some(Err(error)) = openings.join_next(), if !openings.is_empty() => {
                base.events.report(LinkEvent::Panicked { reason: error.to_string() });
            }
        }
    }
}

/// The task that makes one link.
async fn open(base: Arc<Upgraded>, device: Arc<Device>, control: Box<dyn Link>, limit: Duration) {
    let (peer, address) = (control.peer(), device.place());
    let agreed = timeout(limit, agree(&device, control, limit, &base.counters)).await;
    let late = "its end of the link was not ready in time".to_owned();
    let agreed = agreed.unwrap_or_else(|_| {
        Err(OpenError::TimedOut { peer, address: address.clone(), after: limit, last: late })
    });
    let was_wanted = base.wanted().remove(&peer);
    base.events.report(match agreed {
        Ok(link) => LinkEvent::Up(Box::new(link)),
        // What keeps the two apart concerns both, whichever asked: the other may have no way to say that it gives up.
        Err(error) if was_wanted || !matches!(error, OpenError::Gone { .. }) => {
            LinkEvent::Failed { peer, error }
        }
        Err(error) => LinkEvent::Refused { address: peer.to_string(), reason: error.to_string() },
    });
}

/// Both ends exchange their queue pairs, connect them, and say so: the end that has received that knows that the other receives.
async fn agree(
    device: &Arc<Device>,
    mut control: Box<dyn Link>,
    limit: Duration,
    counters: &Arc<Counters>,
) -> Result<VerbsLink, OpenError> {
    let peer = control.peer();
    let failed = |reason: String| OpenError::Handshake { peer, address: device.place(), reason };
    let end = match End::new(device) {
        Ok(end) => end,
        Err(error) => {
            // The peer says the same, with our name.
            refuse(&mut *control, &error.to_string(), limit).await;
            return Err(OpenError::Lacks { peer, reason: error.to_string() });
        }
    };
    let ours = end.offer(device);
    say(&mut *control, &Negotiation::Offer(ours.clone())).await.map_err(|error| gone(peer, &error))?;
    let theirs = match hear(&mut *control, device).await? {
        Negotiation::Offer(theirs) => theirs,
        _ => return Err(failed("it sent an unexpected message".to_owned())),
    };
    if ours.port.is_ethernet != theirs.port.is_ethernet {
        let name = |is_ethernet| if is_ethernet { "Ethernet (RoCE)" } else { "InfiniBand" };
        return Err(failed(format!(
            "this worker's port is {} and that of {peer} is {}: choose others with --verbs-device",
            name(ours.port.is_ethernet),
            name(theirs.port.is_ethernet)
        )));
    }
    if let Err(error) = end.queue.connect(&ours, &theirs, limit) {
        refuse(&mut *control, &error.to_string(), limit).await;
        return Err(failed(unroutable(&ours, &theirs, &error.to_string())));
    }
    say(&mut *control, &Negotiation::Ready).await.map_err(|error| gone(peer, &error))?;
    let Negotiation::Ready = hear(&mut *control, device).await? else {
        return Err(failed("it sent an unexpected message".to_owned()));
    };
    let way = way(&ours, &theirs);
    let mut link = VerbsLink::new(end, theirs, control, counters);
    match poll_fn(|context| link.poll_proven(context)).await {
        Ok(()) => Ok(link),
        Err(Unproven::Refused(payload)) => Err(refused(&payload, peer, device)),
        Err(Unproven::Failed { error: LinkError::Closed { .. }, .. }) => Err(OpenError::Gone { peer }),
        Err(Unproven::Failed { error, length }) => {
            let reason = impassable(&way, length, &error);
            refuse(link.control(), &reason, limit).await;
            Err(failed(reason))
        }
    }
}

/// From where to where packets go.
fn way(ours: &Offer, theirs: &Offer) -> String {
    let [ours, theirs] = [ours, theirs].map(|offer| std::net::Ipv6Addr::from(offer.port.gid));
    format!("from GID {ours} to GID {theirs}")
}

fn impassable(way: &str, length: usize, error: &LinkError) -> String {
    format!(
        "TCP passes, and RDMA does not: no packet of {length} bytes passed {way}, or no answer came ({error}); for RoCE v2 let UDP port \
         4791 pass, and give both interfaces an MTU that all switches on the way carry"
    )
}

fn unroutable(ours: &Offer, theirs: &Offer, error: &str) -> String {
    let way = way(ours, theirs);
    format!("{error}; is there a way {way} (`ip route get`)? Choose others with --verbs-device")
}

fn gone(peer: Peer, error: &LinkError) -> OpenError {
    match error {
        LinkError::Closed { .. } => OpenError::Gone { peer },
        error => {
            OpenError::Handshake { peer, address: "its TCP connection".to_owned(), reason: error.to_string() }
        }
    }
}

async fn say(control: &mut dyn Link, word: &Negotiation) -> Result<(), LinkError> {
    control.submit(Message { tag: Tag(Tag::CONTROL), payload: word.encode().into() });
    poll_fn(|context| control.poll_sent(context)).await.map(drop)
}

/// Says why there is no link, and waits until the peer has read it: a connection that ends with unread bytes takes what was
/// said with it.
async fn refuse(control: &mut dyn Link, reason: &str, limit: Duration) {
    let answered = async {
        let mut read = say(control, &Negotiation::Refused(reason.to_owned())).await;
        while read.is_ok() {
            read = poll_fn(|context| control.poll_received(context)).await.map(drop);
        }
    };
    let _ = timeout(limit.min(Duration::from_secs(1)), answered).await;
}

async fn hear(control: &mut dyn Link, device: &Device) -> Result<Negotiation, OpenError> {
    let peer = control.peer();
    let message =
        poll_fn(|context| control.poll_received(context)).await.map_err(|error| gone(peer, &error))?;
    match Negotiation::decode(&message.payload) {
        Some(word) if !matches!(word, Negotiation::Refused(_)) => Ok(word),
        _ => Err(refused(&message.payload, peer, device)),
    }
}

/// What a peer said instead of what was expected.
fn refused(payload: &[u8], peer: Peer, device: &Device) -> OpenError {
    let address = device.place();
    match Negotiation::decode(payload) {
        Some(Negotiation::Refused(reason)) => OpenError::Refused { peer, address, reason },
        _ => OpenError::Handshake {
            peer,
            address,
            reason: format!(
                "{peer} does not use verbs, or uses another version: start all workers with the same program and transport"
            ),
        },
    }
}
