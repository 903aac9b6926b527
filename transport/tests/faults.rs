//! The conformance suite refuses what breaks the contract: a network over memory with one fault at a time.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use gleaner_transport::memory::{self, MemoryNetwork};
use gleaner_transport::{
    Counters, Lease, Link, LinkError, LinkEvent, MAX_PAYLOAD, Message, Network, OpenError, Peer, Tag,
    conformance,
};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    SwapsWithinATag,
    SwapsControl,
    SendsTwice,
    Alters,
    Misaligns,
    CompletesTwice,
    CompletesAtOnce,
    ForgetsACompletion,
    ReceivesWhenAllIsSent,
    WakesNoTask,
    CutsWhatIsTooLong,
    StaysOpen,
    LendsEightAndNoMore,
    LosesALink,
    OpensToItself,
    IsSilentAboutTheGone,
    CountsNothing,
    ShowsAnothersCard,
    LeasesTooLittle,
    KnowsFewLanes,
    WakesWhoCameFirst,
    TearsWhatIsLeft,
    EndsWhenItIsQuiet,
    KeepsWhatWasNotTaken,
}

/// Each, and the requirement that finds it.
const FOUND: [(Fault, &str); 24] = [
    (Fault::SwapsWithinATag, "every length up to the longest arrives: expected Tag("),
    (Fault::SwapsControl, "messages of one lane keep their order: expected Tag(9223372036854775"),
    (Fault::SendsTwice, "messages of one lane keep their order"),
    (Fault::Alters, "messages of one lane keep their order"),
    (Fault::Misaligns, "messages of one lane keep their order: expected a payload at a multiple of 4"),
    (Fault::CompletesTwice, "messages of one lane keep their order: expected 1 to "),
    (Fault::CompletesAtOnce, "both may send before either receives: expected that a sender waits"),
    (Fault::ForgetsACompletion, "messages of one lane keep their order: it was not done"),
    (Fault::ReceivesWhenAllIsSent, "messages of one lane keep their order: it was not done"),
    (Fault::WakesNoTask, "every pair of workers has one link: it was not done"),
    (Fault::CutsWhatIsTooLong, "too long a message ends the sending alone: it was not done"),
    (Fault::StaysOpen, "a dropped link is closed, and can be opened again: it was not done"),
    (Fault::LendsEightAndNoMore, "a payload that is kept blocks nothing: it was not done"),
    (Fault::LosesALink, "every pair of workers has one link: it was not done"),
    (Fault::OpensToItself, "a link to no peer is refused: it was not done"),
    (Fault::IsSilentAboutTheGone, "links outlive their network: it was not done"),
    (Fault::CountsNothing, "every pair of workers has one link"),
    (
        Fault::ShowsAnothersCard,
        "every card is shown to all, and none of an unknown rank: rank 0 expected the card of rank 1",
    ),
    (
        Fault::LeasesTooLittle,
        "what is leased is the sender's alone until it is sent: expected a lease of the length",
    ),
    (Fault::KnowsFewLanes, "messages of more lanes than are read all arrive: it was not done"),
    (Fault::WakesWhoCameFirst, "who waits for a link may let go of it anywhere: it was not done"),
    (
        Fault::TearsWhatIsLeft,
        "who goes in the middle of a message leaves whole ones: expected whole messages and found another",
    ),
    (Fault::EndsWhenItIsQuiet, "who stops in the middle of a message is waited for: an open link: "),
    (Fault::KeepsWhatWasNotTaken, "a link that was not taken closes with its network: it was not done"),
];

struct Faulty {
    inner: MemoryNetwork,
    fault: Option<Fault>,
    links: usize,
}

impl Network for Faulty {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn workers(&self) -> u32 {
        self.inner.workers()
    }

    fn open(&mut self, peer: Peer) {
        if self.fault != Some(Fault::OpensToItself) || peer != self.peer() {
            self.inner.open(peer);
        }
    }

    fn poll_card(&mut self, mut peer: Peer, context: &mut Context<'_>) -> Poll<Result<Bytes, OpenError>> {
        if self.fault == Some(Fault::ShowsAnothersCard) && self.peer() == Peer(0) && peer == Peer(1) {
            peer = Peer(2);
        }
        self.inner.poll_card(peer, context)
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        let event = match ready!(self.inner.poll_event(context)) {
            Some(LinkEvent::Up(inner)) => {
                self.links += 1;
                if self.fault == Some(Fault::LosesALink) && self.links == 3 {
                    return self.poll_event(context);
                }
                Some(LinkEvent::Up(Box::new(FaultyLink {
                    inner,
                    fault: self.fault,
                    owed: 0,
                    received: 0,
                    kept: Vec::new(),
                    next: None,
                    lanes: HashSet::new(),
                    length: 0,
                    first: None,
                })))
            }
            Some(LinkEvent::Failed { error: OpenError::Gone { .. }, .. })
                if self.fault == Some(Fault::IsSilentAboutTheGone) =>
            {
                return self.poll_event(context);
            }
            event => event,
        };
        Poll::Ready(event)
    }

    fn counters(&self) -> Arc<Counters> {
        if self.fault == Some(Fault::CountsNothing) { Arc::default() } else { self.inner.counters() }
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        while self.fault == Some(Fault::KeepsWhatWasNotTaken)
            && let Poll::Ready(Some(event)) = self.inner.poll_event(&mut context)
        {
            std::mem::forget(event);
        }
    }
}

struct FaultyLink {
    inner: Box<dyn Link>,
    fault: Option<Fault>,
    /// Messages that were submitted and are not reported as sent.
    owed: usize,
    received: usize,
    kept: Vec<Bytes>,
    /// What is received next.
    next: Option<Message>,
    lanes: HashSet<Tag>,
    /// The length of the last message that came.
    length: usize,
    first: Option<Waker>,
}

impl FaultyLink {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The task that is woken.
    fn woken(&mut self, context: &Context<'_>) -> Waker {
        let waker = context.waker();
        match self.fault {
            Some(Fault::WakesNoTask) => Waker::noop().clone(),
            Some(Fault::WakesWhoCameFirst) => self.first.get_or_insert_with(|| waker.clone()).clone(),
            _ => waker.clone(),
        }
    }

    /// A link that brings nothing now, or nothing more.
    fn idle(&mut self, ended: Option<LinkError>) -> Poll<Result<Message, LinkError>> {
        let peer = self.peer();
        match ended {
            Some(_) if self.has(Fault::StaysOpen) => Poll::Pending,
            Some(_) if self.has(Fault::TearsWhatIsLeft) && self.length == MAX_PAYLOAD => {
                self.fault = None;
                Poll::Ready(Ok(Message { tag: Tag(3), payload: vec![0; 1000].into() }))
            }
            Some(error) => Poll::Ready(Err(error)),
            None if self.has(Fault::EndsWhenItIsQuiet) && self.length == MAX_PAYLOAD / 3 => {
                Poll::Ready(Err(LinkError::Closed { peer }))
            }
            None => Poll::Pending,
        }
    }

    /// The message after `first`, if it is there and there was no other before: what comes first is kept for later.
    fn swap(&mut self, context: &mut Context<'_>, first: Message, is_fit: fn(Tag, Tag) -> bool) -> Message {
        if let Poll::Ready(Ok(second)) = self.inner.poll_received(context) {
            if is_fit(first.tag, second.tag) {
                self.fault = None;
                self.next = Some(first);
                return second;
            }
            self.next = Some(second);
        }
        first
    }
}

impl Link for FaultyLink {
    fn peer(&self) -> Peer {
        self.inner.peer()
    }

    fn lease(&mut self, length: usize) -> Lease {
        let less = usize::from(self.has(Fault::LeasesTooLittle) && length > 0);
        self.inner.lease(length - less)
    }

    fn submit(&mut self, mut message: Message) {
        self.owed += 1;
        if self.has(Fault::CutsWhatIsTooLong) {
            message.payload.truncate(MAX_PAYLOAD);
        }
        self.inner.submit(message);
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, LinkError>> {
        if self.has(Fault::CompletesAtOnce) {
            while self.inner.poll_sent(context)?.is_ready() {}
            let all = std::mem::take(&mut self.owed);
            return if all > 0 { Poll::Ready(Ok(all)) } else { Poll::Pending };
        }
        let waker = self.woken(context);
        let context = &mut Context::from_waker(&waker);
        let mut sent = ready!(self.inner.poll_sent(context))?;
        self.owed -= sent;
        let is_late = self.received > 100;
        if is_late && self.has(Fault::CompletesTwice) {
            sent += self.owed + 1;
        } else if sent > 1 && self.has(Fault::ForgetsACompletion) {
            sent -= 1;
        }
        Poll::Ready(Ok(sent))
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, LinkError>> {
        if let Some(message) = self.next.take() {
            return Poll::Ready(Ok(message));
        }
        if self.has(Fault::LendsEightAndNoMore) {
            self.kept.retain(|payload| !payload.is_unique());
        }
        if self.kept.len() >= 8 || self.has(Fault::ReceivesWhenAllIsSent) && self.owed > 0 {
            return Poll::Pending;
        }
        if self.has(Fault::CompletesAtOnce) {
            while matches!(self.inner.poll_sent(context), Poll::Ready(Ok(_))) {}
        }
        let waker = self.woken(context);
        let context = &mut Context::from_waker(&waker);
        let mut message = match self.inner.poll_received(context) {
            Poll::Ready(Ok(message)) => message,
            Poll::Ready(Err(error)) => return self.idle(Some(error)),
            Poll::Pending => return self.idle(None),
        };
        self.received += 1;
        self.length = message.payload.len();
        if self.has(Fault::KnowsFewLanes) && !self.lanes.contains(&message.tag) {
            if self.lanes.len() == 256 {
                return self.poll_received(context);
            }
            self.lanes.insert(message.tag);
        }
        let payload = &mut message.payload;
        match self.fault {
            Some(Fault::SwapsWithinATag) => {
                message = self.swap(context, message, |first, second| first == second && !first.is_control());
            }
            Some(Fault::SwapsControl) => {
                message = self.swap(context, message, |first, second| {
                    first != second && first.is_control() && second.is_control()
                });
            }
            Some(Fault::SendsTwice) if self.received == 100 => self.next = Some(message.clone()),
            Some(Fault::Alters) if payload.len() > 1000 => {
                let mut altered = payload.to_vec();
                altered[1000] ^= 1;
                *payload = altered.into();
            }
            Some(Fault::Misaligns) if payload.len() > 100 => {
                *payload = Bytes::from([&[0], &payload[..]].concat()).slice(1..);
            }
            Some(Fault::LendsEightAndNoMore) => {
                *payload = Bytes::copy_from_slice(payload);
                self.kept.push(payload.clone());
            }
            _ => {}
        }
        Poll::Ready(Ok(message))
    }
}

/// How long a requirement waits for what never happens.
const LIMIT: Duration = Duration::from_secs(10);
/// How long it may take where all happens, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn check(fault: Option<Fault>, limit: Duration) -> Result<(), String> {
    let faulty = move |inner| Faulty { inner, fault, links: 0 };
    let check = async move {
        let cards =
            |workers: u32| -> Vec<Bytes> { (0..workers as u8).map(|peer| vec![peer].into()).collect() };
        let make = async |workers| memory::networks_with(cards(workers)).into_iter().map(faulty).collect();
        conformance::check_within(limit, make).await;
    };
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let checked = LocalSet::new().block_on(&runtime, async { spawn_local(check).await });
    checked.map_err(|error| *error.into_panic().downcast::<String>().unwrap())
}

/// Those at once that wait for what never happens, and the others meanwhile one after the other, so that they do not delay those.
#[test]
fn every_fault_is_found_by_the_law_for_it() {
    let (waiting, others): (Vec<_>, Vec<_>) =
        FOUND.into_iter().partition(|(_, requirement)| requirement.ends_with("it was not done"));
    let (faultless, found) = thread::scope(|scope| {
        let waiting: Vec<_> =
            waiting.iter().map(|of| scope.spawn(move || (of, check(Some(of.0), LIMIT)))).collect();
        let faultless = check(None, LONG);
        let others: Vec<_> = others.iter().map(|of| (of, check(Some(of.0), LONG))).collect();
        let waiting = waiting.into_iter().map(|check| check.join().unwrap());
        (faultless, waiting.chain(others).collect::<Vec<_>>())
    });
    assert_eq!(faultless, Ok(()));
    let mut wrong = Vec::new();
    for (&(fault, requirement), found) in found {
        if !found.as_ref().is_err_and(|found| found.starts_with(&format!("expected that {requirement}"))) {
            wrong.push((fault, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
