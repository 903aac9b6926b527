//! Histories in which a network is cut: of one rank or between two, in both directions or in one.

use super::*;

#[derive(Clone, Copy, Debug)]
enum Cut {
    /// Nothing reaches one rank.
    Incoming,
    /// Nothing that one rank sends arrives.
    Outgoing,
    /// Both.
    Whole,
    /// Nothing passes between two.
    Link,
    /// Nothing passes from one to another.
    Lane,
}

impl Cut {
    const ALL: [Self; 5] = [Self::Incoming, Self::Outgoing, Self::Whole, Self::Link, Self::Lane];

    /// Whether it keeps what `from` sends from `to`, where it is that of rank `one`, or between `one` and `two`.
    fn keeps(self, (from, to): (usize, usize), one: usize, two: usize) -> bool {
        match self {
            Self::Incoming => to == one,
            Self::Outgoing => from == one,
            Self::Whole => from == one || to == one,
            Self::Link => [(one, two), (two, one)].contains(&(from, to)),
            Self::Lane => (from, to) == (one, two),
        }
    }

    /// The rank that all others may name: the same one.
    fn at_fault(self, one: usize, two: usize) -> Vec<usize> {
        match self {
            Self::Incoming | Self::Outgoing | Self::Whole => vec![one],
            Self::Link | Self::Lane => vec![one, two],
        }
    }
}

/// When each end of a cut link learns from its network that nothing is answered, after this: the sends that wait for an answer are as
/// old as heartbeats may be. After that, nothing passes on that link, but for its end.
fn notices(world: &mut World, tries: u64) -> Vec<(u64, usize, usize)> {
    let cut = world.cut.clone();
    let links: BTreeSet<_> = cut.iter().flat_map(|&(from, to)| [(from, to), (to, from)]).collect();
    let beat = TIMEOUT.as_millis() as u64 / 6;
    links.into_iter().map(|(at, peer)| (world.now + tries + world.random(beat), at, peer)).collect()
}

/// Lets a millisecond pass, and delivers the notices that are due in it.
fn pass(world: &mut World, notices: &[(u64, usize, usize)]) {
    world.pass();
    for &(when, at, peer) in notices {
        if when == world.now && !world.places[at].is_gone {
            world.cut.extend([(at, peer), (peer, at)]);
            world.handle(at, Event::Unanswered(Peer(peer as u32)));
        }
    }
}

#[test]
fn a_rank_that_is_cut_off_in_any_direction_is_named_by_all_others() {
    let limit = TIMEOUT.as_millis() as u64;
    for (workers, coordinator) in [(3, 0), (3, 2), (4, 0), (5, 3), (6, 0)] {
        for (seed, cut, is_noticed) in
            (1..=40).flat_map(|seed| Cut::ALL.map(|cut| [(seed, cut, true), (seed, cut, false)])).flatten()
        {
            let mut world = World::new(workers, coordinator, seed * 100 + u64::from(workers));
            (0..world.random(3000)).for_each(|_| world.pass());
            let one = world.random(u64::from(workers)) as usize;
            let two = (one + 1 + world.random(u64::from(workers) - 1) as usize) % workers as usize;
            let ranks = 0..workers as usize;
            let pairs = ranks.clone().flat_map(|from| ranks.clone().map(move |to| (from, to)));
            world.cut = pairs.filter(|&(from, to)| from != to && cut.keeps((from, to), one, two)).collect();
            let tries = limit / 4 + world.random(limit / 4);
            let notices = if is_noticed { notices(&mut world, tries) } else { Vec::new() };
            let (before, story) =
                (world.now, format!("{cut:?}, {is_noticed}: {one}, {two} of {workers}, {seed}"));
            while !world.places.iter().all(|place| place.is_gone) {
                pass(&mut world, &notices);
                assert!(world.now - before < 2 * limit, "{story}");
            }
            let at_fault = cut.at_fault(one, two);
            let named: BTreeSet<usize> = (0..)
                .zip(&world.places)
                .filter(|(rank, _)| [*rank] != at_fault[..])
                .map(|(_, place)| place.failure.as_ref().unwrap().rank as usize)
                .collect();
            assert!(
                named.len() == 1 && named.is_subset(&at_fault.into_iter().collect()),
                "{story}: {named:?}"
            );
        }
    }
}
