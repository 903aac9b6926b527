//! Random histories of workers that are killed, stopped, cut off, fail or leave, with messages that take any time.

mod cuts;
mod opening;

use std::collections::VecDeque;

use gleaner_statistics::random::Generator;

use super::*;
use crate::roles::Roles;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Workers alone.
fn role_map(workers: u32) -> RoleMap {
    RoleMap::new(workers, Roles::default()).unwrap()
}

#[derive(Clone, Debug)]
enum Mail {
    Event(Event),
    Sign,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Its connections close.
    Killed,
    /// It sends and receives nothing any more.
    Stopped,
    /// Its own step cannot go on.
    Fails,
}

struct Place {
    worker: Worker,
    /// Sends and receives nothing: it was stopped or killed.
    is_gone: bool,
    failure: Option<Failure>,
    has_left: bool,
}

struct World {
    places: Vec<Place>,
    /// By sender and receiver: when each message arrives, in order.
    links: Vec<Vec<VecDeque<(u64, Mail)>>>,
    /// By sender and receiver: where nothing passes any more.
    cut: BTreeSet<(usize, usize)>,
    now: u64,
    start: Instant,
    random: Generator,
}

impl World {
    /// Workers that are all linked to each other.
    fn new(workers: u32, coordinator: u32, seed: u64) -> Self {
        Self::of(role_map(workers), coordinator, seed)
    }

    /// The same with these roles.
    fn of(role_map: RoleMap, coordinator: u32, seed: u64) -> Self {
        let workers = role_map.ranks;
        let start = Instant::now();
        let place = |rank| {
            let mut worker = Worker::new(rank, role_map, coordinator, TIMEOUT);
            worker.step = Some(7);
            for peer in (0..workers).filter(|&peer| peer != rank) {
                worker.handle(Event::Reached(Peer(peer)), start);
                worker.handle(Event::Up(Peer(peer)), start);
            }
            Place { worker, is_gone: false, failure: None, has_left: false }
        };
        Self {
            places: (0..workers).map(place).collect(),
            links: (0..workers).map(|_| (0..workers).map(|_| VecDeque::new()).collect()).collect(),
            cut: BTreeSet::new(),
            now: 0,
            start,
            random: Generator::seeded(seed),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.below(below as u32).into()
    }

    fn time(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn post(&mut self, from: usize, to: usize, mail: Mail) {
        if self.cut.contains(&(from, to)) {
            return;
        }
        let last = self.links[from][to].back().map_or(0, |(at, _)| *at);
        let at = (self.now + self.random(20)).max(last);
        self.links[from][to].push_back((at, mail));
    }

    fn handle(&mut self, rank: usize, event: Event) {
        let now = self.time();
        self.places[rank].worker.handle(event, now);
        self.follow(rank);
    }

    fn follow(&mut self, rank: usize) {
        for action in self.places[rank].worker.actions() {
            match action {
                Action::Send(to, Topic::Abort, news) => {
                    let failure = serde_json::from_slice(&news).unwrap();
                    self.post(rank, to.0 as usize, Mail::Event(Event::News(Peer(rank as u32), failure)));
                }
                Action::Send(to, Topic::Silence, payload) => {
                    let silence = Silence::decode(&payload, self.places.len() as u32).unwrap();
                    self.post(rank, to.0 as usize, Mail::Event(Event::Reported(silence)));
                }
                Action::Send(to, Topic::Dropped, news) => {
                    let failure = serde_json::from_slice(&news).unwrap();
                    self.post(rank, to.0 as usize, Mail::Event(Event::Dropped(failure)));
                }
                Action::Send(..) => panic!("nothing else is sent"),
                Action::Part(to) => {
                    self.post(rank, to.0 as usize, Mail::Event(Event::Left(Peer(rank as u32))));
                    self.handle(rank, Event::Written(to));
                }
                Action::Close(to) => self.handle(rank, Event::Written(to)),
                Action::Fail(failure) => {
                    assert!(self.places[rank].failure.is_none(), "one failure is enough");
                    self.places[rank].failure = Some(failure);
                    // The process may end now.
                    self.end(rank);
                }
                Action::Leave => {
                    self.places[rank].has_left = true;
                    self.end(rank);
                }
                Action::GiveUp | Action::Ignore(_) | Action::Report(_) | Action::Drop(_) => {}
            }
        }
    }

    /// Its connections close.
    fn end(&mut self, rank: usize) {
        self.places[rank].is_gone = true;
        for to in (0..self.places.len()).filter(|&to| to != rank) {
            self.post(rank, to, Mail::Closed);
        }
    }

    /// A millisecond passes.
    fn pass(&mut self) {
        self.now += 1;
        let now = self.time();
        let ranks = self.places.len();
        for from in 0..ranks {
            for to in (0..ranks).filter(|&to| to != from) {
                if self.now.is_multiple_of(TIMEOUT.as_millis() as u64 / 6) && !self.places[from].is_gone {
                    self.post(from, to, Mail::Sign);
                }
                while self.links[from][to].front().is_some_and(|(at, _)| *at <= self.now)
                    && let Some((_, mail)) = self.links[from][to].pop_front()
                {
                    if self.places[to].is_gone {
                        continue;
                    }
                    let peer = Peer(from as u32);
                    self.places[to].worker.hear(peer, now);
                    match mail {
                        Mail::Sign => {}
                        Mail::Event(event) => {
                            // The link answers a leave message.
                            if matches!(event, Event::Left(_)) {
                                self.post(to, from, Mail::Event(Event::AllCame(Peer(to as u32))));
                            }
                            self.handle(to, event);
                        }
                        Mail::Closed if self.places[to].worker.has_left(peer) => {
                            self.handle(to, Event::Ended(peer))
                        }
                        Mail::Closed => self.handle(to, Event::Broken(peer, "it closed".into())),
                    }
                }
            }
        }
        for rank in 0..ranks {
            if !self.places[rank].is_gone {
                self.places[rank].worker.tick(now);
                self.follow(rank);
            }
        }
    }
}

#[test]
fn all_that_live_name_the_one_that_failed_whatever_comes_when() {
    let others = (2..=6).map(|workers| (workers, 0)).chain((3..=6).map(|workers| (workers, 2)));
    for (workers, coordinator) in others {
        for seed in 1..=60 {
            for fault in [Fault::Killed, Fault::Stopped, Fault::Fails] {
                let mut world = World::new(workers, coordinator, seed * 100 + u64::from(workers));
                (0..world.random(3000)).for_each(|_| world.pass());
                let victim = world.random(u64::from(workers)) as usize;
                match fault {
                    Fault::Killed => world.end(victim),
                    Fault::Stopped => world.places[victim].is_gone = true,
                    _ => {
                        let failure = Failure { rank: victim as u32, step: None, reason: "NaN".into() };
                        world.handle(victim, Event::Failed(failure));
                    }
                }
                let before = world.now;
                let ended = |place: &Place| place.is_gone;
                while !world.places.iter().all(ended) {
                    world.pass();
                    let took = world.now - before;
                    assert!(
                        took < 2 * TIMEOUT.as_millis() as u64,
                        "{fault:?} of {victim} of {workers} under {coordinator}, seed {seed}"
                    );
                }
                for (rank, place) in world.places.iter().enumerate() {
                    if rank == victim && fault != Fault::Fails {
                        continue;
                    }
                    let failure = place.failure.as_ref().unwrap();
                    let named = (failure.rank as usize, failure.step);
                    assert_eq!(named, (victim, Some(7)), "{fault:?}: rank {rank} of {workers}, seed {seed}");
                }
            }
        }
    }
}

#[test]
fn no_rank_fails_when_all_leave_whenever_that_is() {
    for workers in 1..=6u32 {
        for seed in 1..=100 {
            let mut world = World::new(workers, workers / 2, seed);
            let when: Vec<u64> = (0..workers).map(|_| world.random(1500)).collect();
            while !world.places.iter().all(|place| place.has_left) {
                world.pass();
                for (rank, &when) in when.iter().enumerate() {
                    if when + 1 == world.now {
                        world.handle(rank, Event::Leave);
                    }
                }
                assert!(world.now < 5000, "{workers} workers, seed {seed}");
            }
            assert!(world.places.iter().all(|place| place.failure.is_none()), "seed {seed}");
        }
    }
}

#[test]
fn a_link_that_comes_up_late_brings_the_news() {
    let (start, peer) = (Instant::now(), Peer(1));
    let mut worker = Worker::new(0, role_map(3), 0, TIMEOUT);
    worker.handle(Event::Failed(Failure { rank: 2, step: Some(1), reason: "it hangs".into() }), start);
    assert!(
        worker.actions().iter().any(|action| matches!(action, Action::Fail(_))),
        "no rank is to be notified"
    );
    worker.handle(Event::Up(peer), start);
    let actions = worker.actions();
    assert!(matches!(&actions[..], [Action::Send(to, Topic::Abort, _), Action::Close(_)] if *to == peer));
}

/// The news of a failure is delivered for as long as it moves; only the rank that is to blame is not waited for.
#[test]
fn one_that_fails_waits_until_its_peers_know() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut worker = Worker::new(0, role_map(3), 0, TIMEOUT);
    let failure = Failure { rank: 2, step: Some(1), reason: "it is wrong".into() };
    for peer in [Peer(1), Peer(2)] {
        worker.handle(Event::Up(peer), start);
    }
    worker.handle(Event::Failed(failure.clone()), start);
    for peer in [Peer(1), Peer(2)] {
        worker.handle(Event::Written(peer), start);
    }
    let has_failed =
        |worker: &mut Worker| worker.actions().iter().any(|action| matches!(action, Action::Fail(_)));
    for second in 1..9 {
        worker.hear(Peer(1), at(second));
        worker.extend(Peer(1), at(second));
        worker.tick(at(second));
        assert!(!has_failed(&mut worker), "{second} s");
    }
    worker.handle(Event::News(Peer(1), failure), at(9));
    assert!(has_failed(&mut worker));
}

/// Nor does one leave before all has come, as long as it moves.
#[test]
fn one_that_leaves_waits_until_all_has_come() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    for comes in [true, false] {
        let mut worker = Worker::new(0, role_map(2), 0, TIMEOUT);
        worker.handle(Event::Up(Peer(1)), start);
        worker.handle(Event::Leave, start);
        worker.handle(Event::Written(Peer(1)), start);
        worker.handle(Event::Left(Peer(1)), start);
        for second in 1..9 {
            worker.hear(Peer(1), at(second));
            worker.extend(Peer(1), at(second));
            worker.tick(at(second));
            assert!(!worker.actions().contains(&Action::Leave), "{second} s");
        }
        let end = if comes { at(9) } else { at(8) + TIMEOUT };
        if comes {
            worker.handle(Event::AllCame(Peer(1)), end);
        } else {
            worker.hear(Peer(1), end);
            worker.tick(end);
        }
        assert!(worker.actions().contains(&Action::Leave));
    }
}

/// Two ranks that have sent each other their leave messages may both have stopped reading, so when another one notifies them of a failure,
/// neither waits for a sign that the other was notified too.
#[test]
fn one_that_has_left_is_not_waited_for_when_the_job_fails() {
    let start = Instant::now();
    for (rank, other) in [(0, Peer(1)), (1, Peer(0))] {
        let mut worker = Worker::new(rank, role_map(4), 0, TIMEOUT);
        let teller = Peer(3);
        for peer in [other, teller] {
            worker.handle(Event::Up(peer), start);
        }
        worker.handle(Event::Leave, start);
        worker.handle(Event::Left(other), start);
        for peer in [other, teller] {
            worker.handle(Event::Written(peer), start);
        }
        assert!(!worker.actions().contains(&Action::Leave), "rank {rank} waits until all has come");
        let failure = Failure { rank: 2, step: Some(1), reason: "it was killed".into() };
        worker.handle(Event::News(teller, failure.clone()), start);
        assert!(worker.actions().contains(&Action::Fail(failure)), "rank {rank} waits for one that left");
    }
}

/// The network of the host of rank 0, the coordinator, is cut for a while, and its connections go on one by one: some before rank 1
/// counts as silent, or one a moment after that.
#[test]
fn a_rank_that_was_cut_off_takes_no_peer_for_gone_because_it_hears_others_again() {
    for (peers, mended) in [(5, 0.7), (2, 1.05)] {
        let start = Instant::now();
        let mut worker = Worker::new(0, role_map(peers + 1), 0, TIMEOUT);
        (1..=peers).for_each(|peer| worker.handle(Event::Up(Peer(peer)), start));
        let beat = TIMEOUT / 6;
        (2..=peers).for_each(|peer| worker.hear(Peer(peer), start + beat));
        let (silent, mended) = (start + TIMEOUT, start + TIMEOUT.mul_f64(mended));
        let hear = |worker: &mut Worker| (2..=peers).for_each(|peer| worker.hear(Peer(peer), mended));
        if mended < silent {
            hear(&mut worker);
        }
        worker.tick(silent);
        assert!(worker.actions().contains(&Action::Ignore(Peer(1))));
        assert!(!worker.has_left(Peer(1)), "it sent no leave message");
        if mended > silent {
            hear(&mut worker);
        }
        worker.tick(silent + TIMEOUT / 4);
        let failed = worker.actions().into_iter().find_map(|action| match action {
            Action::Report(failure) => Some(failure),
            _ => None,
        });
        let Failure { rank, reason, .. } = failed.unwrap();
        assert!(rank == 0 && reason.ends_with("it was cut off"), "rank {rank}: {reason}");
    }
}

/// A rank with one link receives nothing from other ranks, and opens links to others when that one falls silent.
#[test]
fn a_rank_that_heard_one_peer_alone_was_not_cut_off() {
    let start = Instant::now();
    let mut worker = Worker::new(4, role_map(5), 0, TIMEOUT);
    worker.handle(Event::Up(Peer(0)), start);
    let silent = start + TIMEOUT;
    worker.tick(silent);
    for peer in [1, 2, 3] {
        worker.handle(Event::Up(Peer(peer)), silent + TIMEOUT / 20);
    }
    worker.tick(silent + TIMEOUT / 2);
    let failed = worker.actions().into_iter().find_map(|action| match action {
        Action::Report(failure) => Some(failure.rank),
        _ => None,
    });
    assert_eq!(failed, Some(0));
}

/// A leave message is not silence: rank 0 left, rank 2 was stopped, and rank 3 must not take itself for the one that is cut off.
#[test]
fn who_left_in_peace_does_not_count_as_silent() {
    let start = Instant::now();
    let mut worker = Worker::new(3, role_map(4), 0, TIMEOUT);
    for peer in [Peer(0), Peer(2)] {
        worker.handle(Event::Up(peer), start);
    }
    worker.handle(Event::Left(Peer(0)), start);
    worker.handle(Event::Ended(Peer(0)), start);
    let ticks = (1..).map(|tick| start + tick * TIMEOUT / 24);
    let failed = ticks.take(100).find_map(|now| {
        worker.tick(now);
        worker.actions().into_iter().find_map(|action| match action {
            Action::Report(failure) => Some(failure.rank),
            _ => None,
        })
    });
    assert_eq!(failed, Some(2));
}

/// Four workers and a server, and a worker fails that no other needs: no other fails, and all know.
#[test]
fn the_others_go_on_without_a_worker_whatever_comes_when() {
    let roles = Roles { servers: 1, colocated: false, on_failure: OnFailure::Continue };
    for seed in 1..=100 {
        for fault in [Fault::Killed, Fault::Stopped, Fault::Fails] {
            let mut world = World::of(RoleMap::new(5, roles).unwrap(), 0, seed);
            (0..world.random(3000)).for_each(|_| world.pass());
            let victim = 1 + world.random(3) as usize;
            match fault {
                Fault::Killed => world.end(victim),
                Fault::Stopped => world.places[victim].is_gone = true,
                Fault::Fails => {
                    let failure = Failure { rank: victim as u32, step: None, reason: "NaN".into() };
                    world.handle(victim, Event::Failed(failure));
                }
            }
            (0..3 * TIMEOUT.as_millis()).for_each(|_| world.pass());
            for (rank, place) in world.places.iter().enumerate().filter(|(rank, _)| *rank != victim) {
                let named = place.worker.dropped.keys().map(|peer| peer.0 as usize).collect::<Vec<_>>();
                assert_eq!(named, [victim], "{fault:?}: rank {rank}, seed {seed}");
                assert!(place.failure.is_none() && !place.is_gone, "{fault:?}: rank {rank}, seed {seed}");
            }
        }
    }
}
