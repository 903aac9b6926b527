//! One link over a transport that takes what it is allowed to.

use std::sync::{Arc, Mutex};

use gleaner_transport::{LinkError, Peer};

use super::*;

/// What a transport has, and how many messages it may still take.
#[derive(Default)]
struct Taken {
    messages: Vec<Message>,
    /// Messages that were taken and not reported yet.
    unreported: usize,
    room: usize,
    comes: VecDeque<Message>,
}

/// A transport that takes a message when the test says so.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Taken>>);

impl gleaner_transport::Link for Fake {
    fn peer(&self) -> Peer {
        Peer(1)
    }

    fn submit(&mut self, message: Message) {
        let mut taken = self.0.lock().unwrap();
        taken.messages.push(message);
        taken.unreported += 1;
    }

    fn poll_sent(&mut self, _: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        let mut taken = self.0.lock().unwrap();
        let sent = taken.unreported.min(taken.room);
        taken.unreported -= sent;
        taken.room -= sent;
        if sent == 0 { Poll::Pending } else { Poll::Ready(Ok(sent)) }
    }

    fn poll_received(&mut self, _: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        self.0.lock().unwrap().comes.pop_front().map_or(Poll::Pending, |message| Poll::Ready(Ok(message)))
    }
}

/// A link that is up, and what is beneath it.
struct Case {
    link: Link,
    fake: Fake,
    seen: usize,
}

const ALL: usize = usize::MAX;

fn case() -> Case {
    let (mut link, fake) = (Link::new(Waker::noop().clone(), Instant::now()), Fake::default());
    link.connect(Box::new(fake.clone()));
    Case { link, fake, seen: 0 }
}

fn id(gradient: u32, step: u64) -> StepId {
    StepId::new(0, gradient, step)
}

fn bag(gradient: u32, step: u64, length: usize) -> Message {
    Message { tag: Topic::Bags(id(gradient, step)).tag(), payload: vec![0; length].into() }
}

impl Case {
    /// The peer grants this many bytes of a gradient in all.
    fn allow(&mut self, gradient: u32, bytes: u64) {
        self.link.allow(gradient, false, &bytes.to_le_bytes()).unwrap();
    }

    /// Writes while the transport may take this many messages more; what it was given since the last time.
    fn flush(&mut self, room: usize) -> Vec<Topic> {
        self.fake.0.lock().unwrap().room = room;
        self.link.flush(Instant::now());
        let taken = self.fake.0.lock().unwrap();
        let new = taken.messages[self.seen..].iter().map(|message| Topic::of(message.tag).unwrap()).collect();
        self.seen = taken.messages.len();
        new
    }

    /// The number that the last message said.
    fn said(&self) -> u64 {
        let taken = self.fake.0.lock().unwrap();
        u64::from_le_bytes(taken.messages.last().unwrap().payload[..].try_into().unwrap())
    }
}

#[test]
fn control_data_goes_first_and_then_the_first_group_of_the_layout() {
    let mut case = case();
    for gradient in [2, 0, 1] {
        case.allow(gradient, u64::MAX / 2);
        case.link.send(bag(gradient, 8, 10));
        case.link.send(bag(gradient, 7, 10));
    }
    case.link.send(Message { tag: Topic::Silence.tag(), payload: Bytes::new() });
    let bags = (0..3).flat_map(|gradient| [7, 8].map(|step| Topic::Bags(id(gradient, step))));
    assert_eq!(case.flush(ALL), [Topic::Silence].into_iter().chain(bags).collect::<Vec<_>>());
    assert_eq!(case.flush(ALL), []);
}

/// Of a long message of a late group, no more than a portion is before one that is urgent.
#[test]
fn what_is_urgent_is_chosen_again_after_64_kib() {
    let mut case = case();
    case.allow(5, u64::MAX / 2);
    case.allow(0, u64::MAX / 2);
    (0..10).for_each(|_| case.link.send(bag(5, 0, 16 << 10)));
    let (late, urgent) = (Topic::Bags(id(5, 0)), Topic::Bags(id(0, 1)));
    assert_eq!(case.flush(0), [late; 4], "64 KiB are with the transport");
    case.link.send(bag(0, 1, 100));
    case.link.send(Message { tag: Topic::Silence.tag(), payload: Bytes::new() });
    assert_eq!(case.flush(0), []);
    assert_eq!(case.flush(1), [Topic::Silence, urgent, late], "what it took makes room");
    assert_eq!(case.flush(2), [late; 2]);
    assert_eq!(case.flush(ALL), [late; 3]);
}

#[test]
fn what_has_no_credit_waits_and_lets_others_pass() {
    let mut case = case();
    let each = 100 + OVERHEAD;
    (0..4).for_each(|_| case.link.send(bag(1, 0, 100)));
    case.link.send(bag(2, 0, 100));
    assert_eq!(case.flush(ALL), []);
    case.allow(2, each);
    assert_eq!(case.flush(ALL), [Topic::Bags(id(2, 0))], "a later group has credit");
    case.allow(1, 2 * each + each / 2);
    assert_eq!(case.flush(ALL), [Topic::Bags(id(1, 0)); 2], "half of a message is not sent");
    case.allow(1, each);
    assert_eq!(case.flush(ALL), [], "credit counts from the beginning, and is never taken back");
    case.allow(1, 3 * each);
    assert_eq!(case.flush(ALL), [Topic::Bags(id(1, 0))]);
    case.link.part();
    assert_eq!(case.flush(ALL), [], "the leave message is behind the last bag");
    case.allow(1, 4 * each);
    assert_eq!(case.flush(ALL), [Topic::Bags(id(1, 0)), Topic::Bye]);
    assert_eq!(case.said(), 5 * each);
}

#[test]
fn what_is_discarded_takes_no_credit() {
    let mut case = case();
    let each = 100 + OVERHEAD;
    case.allow(1, each);
    (0..3).for_each(|_| case.link.send(bag(1, 0, 100)));
    case.link.send(bag(1, 1, 100));
    assert_eq!(case.flush(ALL).len(), 1);
    case.link.discard(Topic::Bags(id(1, 0)).tag());
    case.allow(1, 2 * each);
    assert_eq!(case.flush(ALL), [Topic::Bags(id(1, 1))]);
    case.link.part();
    assert_eq!(case.flush(ALL), [Topic::Bye]);
    assert_eq!(case.said(), 2 * each);
}

/// The receiver's side: credit is given for what was taken in, when half of a window is used, and no more is taken than that.
#[test]
fn a_window_is_raised_when_half_of_it_is_used() {
    let mut case = case();
    let (payload, each) = (Bytes::from(vec![0; 100]), 100 + OVERHEAD);
    assert!(case.link.charge(3, &payload).is_err(), "nothing was granted");
    case.link.widen(3, 10 * each);
    assert_eq!(case.flush(ALL), [Topic::Credit { gradient: 3 }]);
    assert_eq!(case.said(), 10 * each);
    for came in 1..=10 {
        case.link.charge(3, &payload).unwrap();
        assert_eq!(case.link.consume(3, each), came == 6, "{came}");
    }
    assert_eq!(case.flush(ALL), [Topic::Credit { gradient: 3 }]);
    assert_eq!(case.said(), 16 * each);
    (11..=16).for_each(|_| case.link.charge(3, &payload).unwrap());
    assert!(case.link.charge(3, &payload).is_err());
}

/// However many gradients a session has had, what a link knows of those that are gone are two sums.
#[test]
fn gradients_that_are_gone_leave_sums() {
    let mut case = case();
    let (payload, each) = (Bytes::from(vec![0; 100]), 100 + OVERHEAD);
    for gradient in 0..1000 {
        case.link.widen(gradient, 3 * each);
        case.allow(gradient, 3 * each);
        case.link.send(bag(gradient, 0, 100));
        case.flush(ALL);
        case.link.charge(gradient, &payload).unwrap();
        case.link.consume(gradient, each);
        case.link.retire(gradient);
        // Credit that was on its way is of no use.
        case.link.allow(gradient, true, &(9 * each).to_le_bytes()).unwrap();
    }
    assert!(case.link.flows.is_empty() && case.link.retiring.is_empty());
    // What the peer had credit for may still come, in whatever step, and nothing beyond it.
    (0..2000).for_each(|n| case.link.charge([0, 7, 999][n % 3], &payload).unwrap());
    assert!(case.link.charge(0, &payload).is_err());
    assert!(case.link.flows.is_empty());
    case.link.part();
    assert_eq!(case.flush(ALL), [Topic::Bye]);
    assert_eq!(case.said(), 1000 * each);
}

/// A gradient that is gone here while its last bags wait for credit is forgotten when they have left.
#[test]
fn what_waits_when_a_gradient_goes_is_still_sent() {
    let mut case = case();
    let each = 100 + OVERHEAD;
    (0..2).for_each(|_| case.link.send(bag(4, 0, 100)));
    case.allow(4, each);
    assert_eq!(case.flush(ALL).len(), 1);
    case.link.retire(4);
    assert!(!case.link.flows.is_empty());
    case.link.allow(4, true, &(2 * each).to_le_bytes()).unwrap();
    assert_eq!(case.flush(ALL), [Topic::Bags(id(4, 0))]);
    case.flush(ALL);
    assert!(case.link.flows.is_empty() && case.link.retiring.is_empty());
    case.link.part();
    case.flush(ALL);
    assert_eq!(case.said(), 2 * each);
}

#[test]
fn who_leaves_twice_or_answers_no_leave_message_breaks_the_rules() {
    let mut case = case();
    assert!(case.link.all_came().is_err(), "no leave message was sent");
    case.link.part();
    case.flush(ALL);
    assert_eq!(case.link.all_came(), Ok(()));
    case.link.parted(&0u64.to_le_bytes()).unwrap();
    assert!(case.link.has_left() && !case.link.has_left());
    assert_eq!(case.flush(ALL), [Topic::AllCame]);
    assert!(case.link.parted(&0u64.to_le_bytes()).is_err());
}
