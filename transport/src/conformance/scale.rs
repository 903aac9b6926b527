//! What takes a host of some size.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{Networks, at_once, event, exchange, message, pair, receive, sent};
use crate::{Link, LinkError, LinkEvent, MAX_PAYLOAD, Message, Network, Peer, Tag};

/// Messages that are submitted and not sent yet, of one sender.
const AHEAD: usize = 16;

/// Each worker asks for links to those behind it whose distance is a power of two, as sparse methods have them: one comes about for each
/// of these pairs, and leads to whom it says.
pub(super) async fn workers(networks: Networks) {
    let workers = networks.len() as u32;
    let distances = (0..).map(|power| 1 << power).take_while(move |distance| *distance < workers);
    let tasks = networks.into_iter().zip(0..).map(|(mut network, us)| {
        let distances = distances.clone();
        async move {
            let after = |distance| Peer((us + distance) % workers);
            let mut missing: BTreeSet<Peer> =
                distances.clone().flat_map(|distance| [after(distance), after(workers - distance)]).collect();
            distances.for_each(|distance| network.open(after(distance)));
            let mut links = Vec::new();
            while !missing.is_empty() {
                match event(&mut network).await {
                    // Rank 0 may have others from the beginning.
                    Some(LinkEvent::Up(link)) => {
                        if missing.remove(&link.peer()) {
                            links.push(link);
                        }
                    }
                    other => panic!("expected a link from rank {us} and found {other:?}"),
                }
            }
            // In the order of peers, so that no circle of workers waits for each other.
            links.sort_by_key(|link| link.peer());
            for link in &mut links {
                let word = |from: u32, to: u32| message(from.into(), to as usize, 20);
                let (said, expected) = (word(us, link.peer().0), word(link.peer().0, us));
                exchange(&mut **link, [said], 1, |heard| assert_eq!(heard, expected))
                    .await
                    .expect("an open link");
            }
            // The last to have received is the first that may drop.
            (network, links)
        }
    });
    at_once(tasks).await;
}

/// One byte, some, more than a message has, and as many as there are.
pub(super) async fn bytes(mut networks: Networks, most: u64) {
    let [mut first, mut second] = pair(&mut networks, [0, 1]).await;
    let all = message(1, 2, 2 * MAX_PAYLOAD).payload;
    for (number, total) in [1, 4096, MAX_PAYLOAD as u64 + 1, most].into_iter().enumerate() {
        let said = pieces(&all, number, total);
        let hears = async {
            for expected in said.clone() {
                let heard = receive(&mut *second).await?;
                assert!(heard == expected, "expected other bytes of {total}");
            }
            Ok::<_, LinkError>(())
        };
        let (sent, heard) = tokio::join!(pour(&mut *first, said.clone()), hears);
        sent.and(heard).expect("an open link");
    }
}

/// This many bytes as messages of one lane. Each lies elsewhere in `all`, so that none is taken for the next.
fn pieces(all: &Bytes, tag: usize, total: u64) -> impl Iterator<Item = Message> + Clone {
    const LONGEST: u64 = MAX_PAYLOAD as u64;
    let all = all.clone();
    (0..total.div_ceil(LONGEST)).map(move |number| {
        let length = LONGEST.min(total - number * LONGEST) as usize;
        let from = 4 * number as usize % MAX_PAYLOAD;
        Message { tag: Tag(tag as u64), payload: all.slice(from..from + length) }
    })
}

/// Sends them, a few at a time.
async fn pour(link: &mut dyn Link, mut messages: impl Iterator<Item = Message>) -> Result<(), LinkError> {
    let mut owed = 0;
    loop {
        while owed < AHEAD
            && let Some(message) = messages.next()
        {
            link.submit(message);
            owed += 1;
        }
        if owed == 0 {
            return Ok(());
        }
        owed -= sent(link).await?;
    }
}
