//! Requirements of what goes over a link.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::Barrier;
use tokio::time::timeout;

use super::{Networks, QUIET, at_once, drive, exchange, message, pair, receive, send, sent};
use crate::{LinkError, MAX_PAYLOAD, Message, Network, Peer, Tag};

/// What is to come, by lane.
struct Expected(HashMap<u64, VecDeque<Message>>);

impl Expected {
    fn of(messages: &[Message]) -> Self {
        let mut lanes: HashMap<_, VecDeque<_>> = HashMap::new();
        for message in messages {
            lanes.entry(lane(message.tag)).or_default().push_back(message.clone());
        }
        Expected(lanes)
    }

    fn hear(&mut self, heard: &Message) {
        let tag = heard.tag;
        let expected = self.0.get_mut(&lane(tag)).and_then(VecDeque::pop_front);
        let expected = expected.unwrap_or_else(|| panic!("expected nothing more in the lane of {tag:?}"));
        assert!(
            &expected == heard,
            "expected {:?} of {} bytes next in its lane and found {tag:?} of {} bytes, or other bytes",
            expected.tag,
            expected.payload.len(),
            heard.payload.len()
        );
    }
}

fn lane(tag: Tag) -> u64 {
    if tag.is_control() { Tag::CONTROL } else { tag.0 }
}

/// Both send what `messages` of their rank returns, at once, and receive what the other sends. Returns the networks, as dropping
/// one might end what is under way.
async fn talk(mut networks: Networks, messages: fn(u32) -> Vec<Message>) -> Networks {
    let sides = pair(&mut networks, [0, 1]).await.into_iter().zip(0..).map(|(mut link, us)| async move {
        let expected = messages(1 - us);
        let (count, mut expected) = (expected.len(), Expected::of(&expected));
        let hear = |heard: Message| {
            let address = heard.payload.as_ptr() as usize;
            let is_aligned = heard.payload.len() < 4 || address.is_multiple_of(4);
            assert!(is_aligned, "expected a payload at a multiple of 4 and found one at {address:#x}");
            expected.hear(&heard);
        };
        exchange(&mut *link, messages(us), count, hear).await.expect("an open link");
        link
    });
    at_once(sides).await;
    networks
}

/// Thousands of messages of many conversations.
pub(super) async fn order(networks: Networks) {
    let messages = |us: u32| {
        let tag = |number: usize| match number % 19 {
            control @ 0..3 => Tag::CONTROL | control as u64,
            tag => u64::from(us) << 32 | tag as u64,
        };
        (0..10_000).map(|number| message(tag(number), number, number * 31 % 1500)).collect()
    };
    talk(networks, messages).await;
}

/// The longest and the shortest, and those about powers of two, in one lane.
pub(super) async fn lengths(networks: Networks) {
    let messages = |us: u32| {
        let about = (4..20).map(|power| 1 << power).flat_map(|length: usize| length - 17..length + 18);
        let lengths =
            (0..16).chain(about.filter(|length| *length > 15)).chain([MAX_PAYLOAD - 1, MAX_PAYLOAD]);
        lengths.zip(0..).map(|(length, number)| message(us.into(), number, length)).collect()
    };
    talk(networks, messages).await;
}

/// All that was submitted is reported as sent, and no more, whether it was submitted before or after other was sent.
pub(super) async fn completions(mut networks: Networks) {
    let sides = pair(&mut networks, [0, 1]).await.into_iter().zip(0..).map(|(mut link, us)| async move {
        for turn in 0..40 {
            let of = |us| (0..1 + turn * 7 % 90).map(move |number| message(us, turn << 8 | number, 3000));
            let mut expected = Expected::of(&of(1 - us).collect::<Vec<_>>());
            let hear = |heard| expected.hear(&heard);
            exchange(&mut *link, of(us), of(us).count(), hear).await.expect("an open link");
        }
        let more = timeout(QUIET, sent(&mut *link)).await;
        assert!(more.is_err(), "expected that nothing more is sent and found {more:?}");
        link
    });
    at_once(sides).await;
}

/// Neither side receives until both can send no more; what the network holds meanwhile is bounded.
pub(super) async fn full_load(mut networks: Networks) {
    const COUNT: usize = 300;
    let barrier = Arc::new(Barrier::new(2));
    let sides = pair(&mut networks, [0, 1]).await.into_iter().zip(0..).map(|(mut link, us)| {
        let barrier = Arc::clone(&barrier);
        async move {
            let (ours, theirs) = (message(us, 0, MAX_PAYLOAD), message(1 - us, 0, MAX_PAYLOAD));
            for _ in 0..COUNT {
                link.submit(ours.clone());
            }
            let mut done = 0;
            while let Ok(more) = timeout(QUIET, sent(&mut *link)).await {
                done += more.expect("an open link");
                assert!(done < COUNT, "expected that a sender waits for its receiver; {COUNT} MiB were sent");
            }
            barrier.wait().await;
            let hear = |heard| assert!(heard == theirs, "expected other bytes");
            drive(&mut *link, COUNT - done, COUNT, hear).await.expect("an open link");
            link
        }
    });
    at_once(sides).await;
}

/// More lanes than a network may have streams for, each with two messages, to a peer that reads once no more is taken.
pub(super) async fn many_lanes(mut networks: Networks) {
    const LANES: usize = 1000;
    let [mut first, mut second] = pair(&mut networks, [0, 1]).await;
    let said: Vec<_> =
        (0..2 * LANES).map(|number| message(1 + (number % LANES) as u64, number, 8000)).collect();
    said.iter().for_each(|message| first.submit(message.clone()));
    let (mut owed, mut expected) = (said.len(), Expected::of(&said));
    while owed > 0
        && let Ok(more) = timeout(QUIET, sent(&mut *first)).await
    {
        owed -= more.expect("an open link");
    }
    let sends = drive(&mut *first, owed, 0, |_| {});
    let hears = exchange(&mut *second, [], said.len(), |heard| expected.hear(&heard));
    let (sent, heard) = tokio::join!(sends, hears);
    sent.and(heard).expect("an open link");
}

/// A task that waits for a link lets go of it wherever it waits, and another goes on: nothing is lost, and nothing comes twice.
pub(super) async fn cancelled(mut networks: Networks) {
    const COUNT: usize = 600;
    let sides = pair(&mut networks, [0, 1]).await.into_iter().zip(0..).map(|(mut link, us)| async move {
        let of = |us: u64| (0..COUNT).map(move |number| message(us, number, number * 977 % 40_000));
        let mut expected = Expected::of(&of(1 - us).collect::<Vec<_>>());
        of(us).for_each(|message| link.submit(message));
        let (mut owed, mut missing) = (COUNT, COUNT);
        let mut step = |context: &mut Context<'_>| {
            let mut is_pending = true;
            if owed > 0
                && let Poll::Ready(more) = link.poll_sent(context)
            {
                owed -= more.expect("an open link");
                is_pending = false;
            }
            if missing > 0
                && let Poll::Ready(heard) = link.poll_received(context)
            {
                expected.hear(&heard.expect("an open link"));
                missing -= 1;
                is_pending = false;
            }
            if is_pending && owed + missing > 0 { Poll::Pending } else { Poll::Ready(owed + missing == 0) }
        };
        // A task that polls and is gone, which cannot be woken any more; and then one that stays until it goes on.
        while !(step(&mut Context::from_waker(Waker::noop())) == Poll::Ready(true)
            || poll_fn(&mut step).await)
        {}
        link
    });
    at_once(sides).await;
}

/// A thousand payloads are kept while thousands more come, and say at the end what they said.
pub(super) async fn kept(mut networks: Networks) {
    let sides = pair(&mut networks, [0, 1]).await.into_iter().zip(0..).map(|(mut link, us)| async move {
        let of = |us: u64| (0..4000).map(move |number| message(us, number, 10_000));
        let mut heard = Vec::new();
        let hear = |message| {
            if heard.len() < 1000 {
                heard.push(message)
            }
        };
        exchange(&mut *link, of(us), 4000, hear).await.expect("an open link");
        assert!(of(1 - us).take(1000).eq(heard), "expected that kept payloads stay what they are");
        link
    });
    at_once(sides).await;
}

/// Many leases at once have memory of their own, are as long as was asked for, and arrive as they were written; also those
/// that were taken before the link ended, and sent on the next, and a payload that is sent twice.
pub(super) async fn leased(mut networks: Networks) {
    let lengths = [0, 1, 3, 4096, 70_000].repeat(8).into_iter().chain([MAX_PAYLOAD]);
    let said: Vec<_> = lengths.zip(0..).map(|(length, number)| message(3, number, length)).collect();
    let [mut first, mut second] = pair(&mut networks, [0, 1]).await;
    for turn in 0..20 {
        let mut leases = Vec::new();
        for message in &said {
            let mut lease = first.lease(message.payload.len());
            let (found, address) = (lease.len(), lease.as_ptr() as usize);
            let asked = message.payload.len();
            assert!(
                found == asked,
                "expected a lease of the length {asked} that was asked for and found {found}"
            );
            let is_aligned = found < 4 || address.is_multiple_of(4);
            assert!(is_aligned, "expected a lease at a multiple of 4 and found one at {address:#x}");
            lease.copy_from_slice(&message.payload);
            leases.push(lease);
        }
        let is_own = leases.iter().zip(&said).all(|(lease, message)| lease[..] == message.payload[..]);
        assert!(is_own, "expected that what is written to a lease stays there, whatever else is leased");
        if turn == 10 {
            // Both ends, and then the next link.
            drop((first, second));
            [first, second] = pair(&mut networks, [0, 1]).await;
        }
        let frozen: Vec<_> =
            leases.into_iter().map(|lease| Message { tag: Tag(3), payload: lease.freeze() }).collect();
        let twice = frozen.iter().chain(&frozen).cloned().collect::<Vec<_>>();
        drop(frozen);
        let count = twice.len();
        let sends = exchange(&mut *first, twice, 0, |_| {});
        let mut heard = Vec::new();
        let hears = exchange(&mut *second, [], count, |message| heard.push(message));
        let (sent, received) = tokio::join!(sends, hears);
        sent.and(received).expect("an open link");
        assert!(said.iter().chain(&said).eq(&heard), "expected what was written to the leases");
    }
}

/// Submitting what no message may be is refused, at once and for ever; the other direction goes on.
pub(super) async fn too_long(mut networks: Networks) {
    let [mut first, mut second] = pair(&mut networks, [0, 1]).await;
    let submitted = [message(1, 0, 9), message(1, 1, MAX_PAYLOAD + 1), message(1, 2, 9)];
    for _ in 0..2 {
        for message in submitted.clone() {
            first.submit(message);
        }
        let error = loop {
            if let Err(error) = sent(&mut *first).await {
                break error;
            }
        };
        let length = MAX_PAYLOAD as u64 + 1;
        assert!(matches!(error, LinkError::TooLong { peer: Peer(1), length: l } if l == length), "{error:?}");
    }
    send(&mut *second, [message(2, 0, 9)]).await.expect("an open link");
    assert_eq!(receive(&mut *first).await.expect("an open link"), message(2, 0, 9));
}

/// Messages are counted as they are, and at least the bytes of payload; of the two sides one counts what the other does.
pub(super) async fn counters(networks: Networks) {
    let messages = |us: u32| (0..100 + us as usize).map(|number| message(9, number, number * 400)).collect();
    let networks = talk(networks, messages).await;
    let [zero, one] = [0, 1].map(|us| networks[us].counters().read());
    assert_eq!((zero.links, one.links), (1, 1));
    assert_eq!((zero.messages_sent, zero.messages_received), (100, 101));
    assert_eq!((one.messages_sent, one.messages_received), (101, 100));
    assert_eq!((zero.bytes_sent, zero.bytes_received), (one.bytes_received, one.bytes_sent));
    assert!(
        zero.bytes_sent >= 400 * (99 * 100 / 2) && one.bytes_sent >= 400 * (100 * 101 / 2),
        "{zero:?} {one:?}"
    );
}
