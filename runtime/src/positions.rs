//! In which step each rank is. Ranks exchange it with their heartbeats, so that one that waits for long can tell a
//! peer that is late from one that it will never meet.

use std::collections::HashMap;

use gleaner_transport::{Peer, Tag};

use crate::tag::{StepId, Topic};

/// The most gradients that a heartbeat describes.
const MOST: usize = 256;

/// What the peers have reported last.
#[derive(Debug, Default)]
pub(crate) struct Positions(HashMap<Peer, Position>);

/// What one peer has reported.
#[derive(Debug, PartialEq)]
struct Position {
    /// The bytes of all bags for this rank, those included that wait for the link.
    sent: u64,
    /// How many calls of all ranks are over there, and whether it waits in the next.
    calls: (u32, bool),
    /// By gradient, the first step that is not over there, and whether it has begun.
    next: HashMap<u32, (StepId, bool)>,
}

/// Where a peer is whose message of a step is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How many steps it is ahead, of those that are over there.
    pub(crate) ahead: i32,
    /// Whether it has begun the one after them.
    pub(crate) has_begun: bool,
    /// Whether all bags that it has for this rank have come.
    all_came: bool,
    /// See [`Position::calls`].
    pub(crate) calls: (u32, bool),
}

impl Seen {
    /// Whether the message will never come.
    pub(crate) fn is_lost(self) -> bool {
        self.ahead > 0 && self.all_came
    }
}

/// The bit of a step's tag that says that the step has begun.
const BEGUN: u64 = 1 << 63;

/// On the wire: the bytes of all bags, twice the number of calls and one more in a call, then the tag of each gradient's step.
pub(crate) fn encode(sent: u64, (over, calls): (u32, bool), steps: &[(StepId, bool)]) -> Vec<u8> {
    let tag = |&(id, has_begun): &(StepId, bool)| Topic::Bags(id).tag().0 | if has_begun { BEGUN } else { 0 };
    let calls = u64::from(over) << 1 | u64::from(calls);
    [sent, calls].into_iter().chain(steps.iter().take(MOST).map(tag)).flat_map(u64::to_le_bytes).collect()
}

impl Position {
    /// None for what no worker says.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let (&[sent, calls], steps) = numbers.split_first_chunk()?;
        if steps.len() > MOST {
            return None;
        }
        let calls = u64::from_le_bytes(calls);
        let calls = (u32::try_from(calls >> 1).ok()?, calls & 1 == 1);
        let step = |tag: &[u8; 8]| {
            let tag = u64::from_le_bytes(*tag);
            match Topic::of(Tag(tag & !BEGUN))? {
                Topic::Bags(id) => Some((id.gradient, (id, tag & BEGUN != 0))),
                _ => None,
            }
        };
        let next = steps.iter().map(step).collect::<Option<_>>()?;
        Some(Self { sent: u64::from_le_bytes(sent), calls, next })
    }
}

impl Positions {
    /// Takes what a peer reports. Returns whether it makes sense.
    pub(crate) fn report(&mut self, peer: Peer, payload: &[u8]) -> bool {
        Position::decode(payload).map(|position| self.0.insert(peer, position)).is_some()
    }

    /// Where a peer is, seen from a step for which this many bytes of its bags have come; none if it is in that step, or has
    /// not reported.
    pub(crate) fn seen_from(&self, id: StepId, peer: Peer, came: u64) -> Option<Seen> {
        let Position { sent, calls, next } = self.0.get(&peer)?;
        let &(next, has_begun) = next.get(&id.gradient)?;
        let ahead = id.ahead(next);
        let seen = Seen { ahead, has_begun, all_came: *sent <= came, calls: *calls };
        (ahead != 0 || !has_begun).then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer(1);

    #[test]
    fn a_peer_is_seen_where_it_is() {
        let mut positions = Positions::default();
        let id = |step| StepId::new(0, 7, step);
        assert_eq!(positions.seen_from(id(5), PEER, 9), None);
        assert!(
            positions.report(PEER, &encode(100, (2, true), &[(StepId::new(0, 6, 50), false), (id(5), true)]))
        );
        assert_eq!(positions.seen_from(id(5), PEER, 9), None, "it is in that step");
        let seen = |step, came| {
            let seen = positions.seen_from(id(step), PEER, came).unwrap();
            assert_eq!(seen.calls, (2, true));
            (seen.ahead, seen.has_begun, seen.is_lost())
        };
        assert_eq!(seen(8, 100), (-3, true, false));
        assert_eq!(seen(4, 99), (1, true, false), "something is under way");
        assert_eq!(seen(4, 100), (1, true, true));
        assert_eq!(positions.seen_from(StepId::new(0, 8, 5), PEER, 100), None, "a gradient that it has not");
        assert!(positions.report(PEER, &encode(100, (2, true), &[(id(5), false)])));
        let seen = positions.seen_from(id(5), PEER, 100).unwrap();
        assert_eq!((seen.ahead, seen.has_begun, seen.is_lost()), (0, false, false));
    }

    #[test]
    fn what_no_worker_says_is_refused() {
        let step = |gradient| (StepId::new(0, gradient, 1), gradient % 2 == 0);
        let many: Vec<_> = (0..2 * MOST as u32).map(step).collect();
        assert!(
            Position::decode(&encode(0, (0, false), &many))
                .is_some_and(|position| position.next.len() == MOST)
        );
        let no_step = Topic::Probe { epoch: 0, round: 0 }.tag().0;
        let no_step = [[0; 8], [0; 8], no_step.to_le_bytes()].concat();
        for wrong in [&[][..], &[0; 8], &[0; 15], &[0; 20], &vec![0; 8 * (MOST + 3)], &no_step, &[255; 16]] {
            assert_eq!(Position::decode(wrong), None, "{} bytes", wrong.len());
        }
    }
}
