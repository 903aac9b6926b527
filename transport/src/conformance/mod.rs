//! What every network promises, as requirements that one of your own can be tested for.
//!
//! ```
//! use gleaner_transport::{conformance, memory};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! conformance::check(async |workers| memory::networks(workers)).await;
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Beside the requirements there are functions that drive a network or a link from a test.

use std::future::{Future, poll_fn};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Link, LinkError, LinkEvent, Message, Network, Peer, Tag};

mod links;
mod messages;
mod scale;

/// The longest that one requirement may take, where nothing else is asked for.
const LIMIT: Duration = Duration::from_secs(60);

/// How long nothing has to happen until a requirement takes it that nothing will.
const QUIET: Duration = Duration::from_millis(100);

/// A network of some type for each worker: the requirements are compiled once, and not for every type.
type Networks = Vec<Box<dyn Network>>;

/// Tests every requirement, each on networks made for it: `make` is given a number of workers and returns one network for each, in
/// the order of their numbers. Links may be up between them. It needs a tokio runtime with time, of any kind.
///
/// # Panics
/// If a requirement is not kept, or not within a minute; the sentence says which.
pub async fn check<N: Network + 'static>(make: impl AsyncFn(u32) -> Vec<N>) {
    check_within(LIMIT, make).await;
}

/// The same where no requirement may take longer than the limit.
///
/// # Panics
/// As [`check`].
pub async fn check_within<N: Network + 'static>(limit: Duration, make: impl AsyncFn(u32) -> Vec<N>) {
    let make = &make;
    check_boxed(limit, &|workers| Box::pin(async move { boxed(make(workers).await) })).await;
}

fn boxed<N: Network + 'static>(networks: Vec<N>) -> Networks {
    networks.into_iter().map(|network| Box::new(network) as Box<dyn Network>).collect()
}

/// Makes networks for that many workers.
type Make<'a> = dyn Fn(u32) -> Pin<Box<dyn Future<Output = Networks> + 'a>> + 'a;

/// What is tested of some networks, in a task of its own.
type Requirement = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes the test of a requirement on these networks, which runs where it is awaited.
type TestOf = fn(Networks) -> Requirement;

/// Every requirement, and among how many workers it is tested. A static, so that it is compiled here and not where it is awaited.
static REQUIREMENTS: [(&str, u32, TestOf); 20] = [
    ("every pair of workers has one link", 5, |networks| Box::pin(links::every_pair(networks))),
    ("a link to no peer is refused", 2, |networks| Box::pin(links::to_no_peer(networks))),
    ("every card is shown to all, and none of an unknown rank", 5, |networks| {
        Box::pin(links::cards(networks))
    }),
    ("messages of one lane keep their order", 2, |networks| Box::pin(messages::order(networks))),
    ("every length up to the longest arrives", 2, |networks| Box::pin(messages::lengths(networks))),
    ("each message is completed once", 2, |networks| Box::pin(messages::completions(networks))),
    ("both may send before either receives", 2, |networks| Box::pin(messages::full_load(networks))),
    ("messages of more lanes than are read all arrive", 2, |networks| {
        Box::pin(messages::many_lanes(networks))
    }),
    ("who waits for a link may let go of it anywhere", 2, |networks| Box::pin(messages::cancelled(networks))),
    ("a payload that is kept blocks nothing", 2, |networks| Box::pin(messages::kept(networks))),
    ("what is leased is the sender's alone until it is sent", 2, |networks| {
        Box::pin(messages::leased(networks))
    }),
    ("too long a message ends the sending alone", 2, |networks| Box::pin(messages::too_long(networks))),
    ("the counters are right", 2, |networks| Box::pin(messages::counters(networks))),
    ("two that open at once have one link", 3, |networks| Box::pin(links::opened_by_both(networks))),
    ("a dropped link is closed, and can be opened again", 3, |networks| Box::pin(links::dropped(networks))),
    ("who goes in the middle of a message leaves whole ones", 2, |networks| Box::pin(links::gone(networks))),
    ("who stops in the middle of a message is waited for", 2, |networks| Box::pin(links::stopped(networks))),
    ("links outlive their network", 3, |networks| Box::pin(links::left(networks))),
    ("a request for a link fails when its peer leaves", 3, |networks| {
        Box::pin(links::left_while_asked(networks))
    }),
    ("a link that was not taken closes with its network", 3, |networks| Box::pin(links::not_taken(networks))),
];

async fn check_boxed(limit: Duration, make: &Make<'_>) {
    for &(name, workers, keeps) in &REQUIREMENTS {
        requirement(limit, name, keeps(make(workers).await)).await;
    }
}

/// How large a network is tried out.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How many workers.
    pub workers: u32,
    /// How many bytes go from one to another in one lane, in messages as long as may be.
    pub bytes: u64,
}

/// Tests beyond the [requirements](check) what takes a host of some size: that many workers among which each has links to those whose distance is a power
/// of two, and from one byte to that many in one lane.
///
/// # Panics
/// As [`check`].
pub async fn check_at_scale<N: Network + 'static>(
    Scale { workers, bytes }: Scale,
    make: impl AsyncFn(u32) -> Vec<N>,
) {
    requirement(
        LIMIT,
        "as many workers as there are have links",
        Box::pin(scale::workers(boxed(make(workers).await))),
    )
    .await;
    requirement(
        LIMIT,
        "as many bytes as there are arrive",
        Box::pin(scale::bytes(boxed(make(2).await), bytes)),
    )
    .await;
}

/// Runs one in a task of its own, so that a failure is reported with its name.
async fn requirement(limit: Duration, name: &str, requirement: Requirement) {
    let mut task = JoinSet::new();
    task.spawn(requirement);
    match timeout(limit, task.join_next()).await {
        Ok(Some(Ok(()))) => {}
        Ok(Some(Err(error))) => {
            let payload = error.into_panic();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            panic!("expected that {name}: {}", text.unwrap_or("it panicked"));
        }
        _ => panic!("expected that {name}: it was not done within {limit:?}"),
    }
}

/// The next event.
pub async fn event(network: &mut impl Network) -> Option<LinkEvent> {
    poll_fn(|context| network.poll_event(context)).await
}

/// The link to that peer, once it is up. Others that come first are dropped.
///
/// # Panics
/// If it does not come about.
pub async fn up(network: &mut impl Network, peer: Peer) -> Box<dyn Link> {
    loop {
        match event(network).await {
            Some(LinkEvent::Up(link)) if link.peer() == peer => return link,
            Some(LinkEvent::Up(_) | LinkEvent::Refused { .. }) => {}
            other => panic!("expected a link from {} to {peer} and found {other:?}", network.peer()),
        }
    }
}

/// The next message.
///
/// # Errors
/// A link that brings no more.
pub async fn receive(link: &mut dyn Link) -> Result<Message, LinkError> {
    poll_fn(|context| link.poll_received(context)).await
}

/// How many more messages are sent, once some are.
async fn sent(link: &mut dyn Link) -> Result<usize, LinkError> {
    poll_fn(|context| link.poll_sent(context)).await
}

/// Sends these messages: returns when all are handed to the network.
///
/// # Errors
/// A link that can carry no more.
pub async fn send(link: &mut dyn Link, messages: impl IntoIterator<Item = Message>) -> Result<(), LinkError> {
    exchange(link, messages, 0, |_| {}).await
}

/// Sends these messages and receives this many at the same time.
///
/// # Errors
/// A link that can carry no more.
///
/// # Panics
/// If the link says that more is sent than was submitted.
pub async fn exchange(
    link: &mut dyn Link,
    messages: impl IntoIterator<Item = Message>,
    expected: usize,
    hear: impl FnMut(Message),
) -> Result<(), LinkError> {
    let mut submitted = 0;
    for message in messages {
        link.submit(message);
        submitted += 1;
    }
    drive(link, submitted, expected, hear).await
}

/// Goes on until this many messages that were submitted are sent, and so many have come.
async fn drive(
    link: &mut dyn Link,
    mut submitted: usize,
    mut expected: usize,
    mut hear: impl FnMut(Message),
) -> Result<(), LinkError> {
    poll_fn(|context| {
        while submitted > 0
            && let Poll::Ready(sent) = link.poll_sent(context)
        {
            let sent = sent?;
            assert!(
                (1..=submitted).contains(&sent),
                "expected 1 to {submitted} messages to be sent and found {sent}"
            );
            submitted -= sent;
        }
        while expected > 0
            && let Poll::Ready(message) = link.poll_received(context)
        {
            hear(message?);
            expected -= 1;
        }
        if submitted + expected == 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

/// A message whose content follows from all three, so that none is taken for another.
fn message(tag: u64, number: usize, length: usize) -> Message {
    let seed = (tag.wrapping_mul(0x9e37_79b9) ^ number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..).map(|i: u64| seed.wrapping_add(i.wrapping_mul(0x0101_0307)).to_le_bytes());
    let payload: Vec<u8> = words.flatten().take(length).collect();
    Message { tag: Tag(tag), payload: Bytes::from(payload) }
}

/// Two workers' networks, and the link between them at both.
async fn pair<N: Network>(networks: &mut [N], [one, two]: [u32; 2]) -> [Box<dyn Link>; 2] {
    networks[one as usize].open(Peer(two));
    let first = up(&mut networks[one as usize], Peer(two)).await;
    [first, up(&mut networks[two as usize], Peer(one)).await]
}

/// Runs each in a task of its own, so that none is polled because another was woken. Returns what they return, in order.
async fn at_once<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut set = JoinSet::new();
    for (number, task) in tasks.into_iter().enumerate() {
        set.spawn(async move { (number, task.await) });
    }
    let mut ended = Vec::new();
    while let Some(task) = set.join_next().await {
        ended.push(task.unwrap_or_else(|error| resume_unwind(error.into_panic())));
    }
    ended.sort_by_key(|(number, _)| *number);
    ended.into_iter().map(|(_, value)| value).collect()
}
