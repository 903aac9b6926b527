//! Lanes that come and go, and one that is late.

use std::collections::BTreeSet;

use tokio::time::timeout;

use super::*;

/// As when a packet of it is lost: what came before it, and all other lanes, goes on.
#[tokio::test]
async fn a_message_that_is_late_holds_no_other_lane_up() {
    let (mut link, raw, _control, _endpoints) = half().await;
    let message = |tag, length| Message { tag: Tag(tag), payload: vec![tag as u8; length].into() };
    let bytes = |message: &Message| {
        let head = crate::tcp::wire::Header::of(message, None).encode();
        [&head[..], &message.payload].concat()
    };
    let late = message(5, 50_000);
    let mut stream = raw.open_uni().await.unwrap();
    stream.write_all(&bytes(&late)[..20_000]).await.unwrap();
    for tag in 6..16 {
        let other = message(tag, 30_000);
        raw.open_uni().await.unwrap().write_all(&bytes(&other)).await.unwrap();
        assert_eq!(receive(&mut link).await.unwrap(), other);
    }
    stream.write_all(&bytes(&late)[20_000..]).await.unwrap();
    assert_eq!(receive(&mut link).await.unwrap(), late);
}

/// However many long messages are announced, there is memory for some of them only, until these have come.
#[tokio::test]
async fn what_is_announced_takes_memory_within_bounds() {
    const COUNT: u64 = 60;
    let (mut link, raw, _control, _endpoints) = half().await;
    let message = |tag| Message { tag: Tag(tag), payload: vec![tag as u8; MAX_PAYLOAD].into() };
    let mut streams = Vec::new();
    for tag in 0..COUNT {
        let mut stream = raw.open_uni().await.unwrap();
        let head = crate::tcp::wire::Header::of(&message(tag), None).encode();
        stream.write_all(&[&head[..], &[tag as u8]].concat()).await.unwrap();
        streams.push(stream);
    }
    assert!(timeout(QUIET, receive(&mut link)).await.is_err(), "none is whole");
    assert!(link.held() <= WINDOW as usize, "{} bytes", link.held());
    let sends = async {
        for (tag, stream) in (0..).zip(&mut streams) {
            stream.write_all(&message(tag).payload[1..]).await.unwrap();
        }
    };
    let hears = async {
        let mut tags = BTreeSet::new();
        while tags.len() < COUNT as usize {
            let heard = receive(&mut link).await.unwrap();
            assert!(heard == message(heard.tag.0) && tags.insert(heard.tag.0), "{:?}", heard.tag);
        }
    };
    timeout(LONG, async { tokio::join!(sends, hears) }).await.unwrap();
    assert_eq!(link.held(), 0);
}

/// More at once than there is memory for: what was not handed to QUIC whole never waits for what finds no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_messages_of_many_lanes_all_arrive() {
    const COUNT: u64 = 120;
    let [mut zero, mut one] = two().await;
    let [mut first, mut second] = [up(&mut zero, Peer(1)).await, up(&mut one, Peer(0)).await];
    let payload = Bytes::from(vec![7; MAX_PAYLOAD]);
    let messages = (0..COUNT).map(|tag| Message { tag: Tag(tag), payload: payload.clone() });
    let mut tags = BTreeSet::new();
    let hear = |heard: Message| assert!(heard.payload == payload && tags.insert(heard.tag.0));
    let talk = async {
        tokio::join!(
            exchange(&mut *first, messages, 0, drop),
            exchange(&mut *second, [], COUNT as usize, hear)
        )
    };
    let (sent, heard) = timeout(LONG, talk).await.unwrap();
    sent.and(heard).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// More lanes than have streams, which come again after they rested.
    #[test]
    fn lanes_that_come_and_go_keep_their_order(tags in proptest::collection::vec(0_u64..400, 2000), seed in any::<u8>()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let [mut zero, mut one] = two().await;
            let [mut first, mut second] = [up(&mut zero, Peer(1)).await, up(&mut one, Peer(0)).await];
            let said: Vec<_> = tags.iter().zip(0_u32..).map(|(tag, number)| {
                let tag = if tag % 50 == 0 { Tag(Tag::CONTROL | tag) } else { Tag(*tag) };
                let length = (number as usize * 31 + usize::from(seed)) % 3000 + 4;
                let mut payload = vec![seed; length];
                payload[..4].copy_from_slice(&number.to_le_bytes());
                Message { tag, payload: payload.into() }
            }).collect();
            let mut heard = Vec::new();
            let talk = tokio::join!(
                // In several turns, so that lanes rest in between.
                async {
                    for turn in said.chunks(97) {
                        send(&mut *first, turn.to_vec()).await.unwrap();
                    }
                },
                exchange(&mut *second, [], said.len(), |message| heard.push(message))
            );
            talk.1.unwrap();
            let lanes = |messages: &[Message]| {
                let mut lanes: std::collections::BTreeMap<u64, Vec<Message>> = Default::default();
                for message in messages {
                    lanes.entry(lane_of(message.tag)).or_default().push(message.clone());
                }
                lanes
            };
            assert!(lanes(&said) == lanes(&heard), "expected every lane in its order");
        });
    }
}
