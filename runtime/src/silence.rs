//! Which rank is at fault when a link falls silent.
//!
//! A rank that was stopped, a rank that is cut off, and a cable that is cut between two ranks look the same at the end of one
//! link: nothing comes, or nothing that is sent is answered. Both ends may live, and each would name the other. So one rank decides, by
//! the heartbeats that it receives itself and by the silent links that were reported to it:
//!
//! - a rank that receives heartbeats from none of its peers, of two or more, is cut off itself; and so was one that received none for half the
//!   timeout and from one of them none since, because connections that were cut go on one by one;
//! - of the two ends of a silent link, the one from which the coordinator receives no more heartbeats has failed;
//! - if it receives those of both, the rank that most of the silent links have in common is cut off: where packets pass in one direction
//!   alone, its heartbeats can still arrive;
//! - if no rank is at more of them than any other, the link between two is cut. All must name the same rank: the higher one.
//!
//! The coordinator decides. A rank that receives none from it reports to others, which report to it. Where no decision comes, the end that noticed decides
//! for itself.

use std::collections::BTreeSet;
use std::time::Duration;

/// What a rank receives from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// A heartbeat, lately.
    Heard,
    /// Nothing, since the time when it received nothing from any rank.
    SinceDeaf,
    /// Nothing.
    Silent,
    /// The network says that it does not answer.
    Unanswered,
    /// There was no link to it.
    Unknown,
}

/// How many silent links of one rank are reported.
const REPORTED: usize = 2;

/// A link on which nothing has come for the whole timeout, or nothing is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Silence {
    /// The end that noticed.
    pub(crate) at: u32,
    /// The end from which it receives nothing.
    pub(crate) from: u32,
}

impl Silence {
    /// The ranks that rank `this` reports to: the coordinator, or if it receives nothing from that one, a few others. They
    /// report to the coordinator, and when they know the decision, to the ranks that reported to them.
    pub(crate) fn reports_to(self, this: u32, workers: u32, coordinator: u32) -> Vec<u32> {
        match self {
            _ if this == coordinator => Vec::new(),
            Self { at, from } if at == this && from == coordinator => {
                (1..workers).map(|i| (at + i) % workers).filter(|&rank| rank != coordinator).take(3).collect()
            }
            _ => vec![coordinator],
        }
    }

    /// On the wire: two ranks.
    pub(crate) fn encode(self) -> Vec<u8> {
        [self.at.to_le_bytes(), self.from.to_le_bytes()].concat()
    }

    /// None for what no worker says.
    pub(crate) fn decode(bytes: &[u8], workers: u32) -> Option<Self> {
        let (at, from) = bytes.split_at_checked(4)?;
        let at = u32::from_le_bytes(at.try_into().ok()?);
        let from = u32::from_le_bytes(from.try_into().ok()?);
        (at < workers && from < workers && at != from).then_some(Self { at, from })
    }

    /// Whether it is a link of this rank.
    pub(crate) fn has(self, rank: u32) -> bool {
        [self.at, self.from].contains(&rank)
    }

    fn ends(self) -> (u32, u32) {
        (self.at.min(self.from), self.at.max(self.from))
    }
}

/// Whether a silence says more than these: two of a rank show what they have in common, and what it says beyond is not kept.
pub(crate) fn is_news<'a>(silence: Silence, known: impl Iterator<Item = &'a Silence>) -> bool {
    let (mut of_this, mut is_known) = (0, false);
    for other in known {
        of_this += usize::from(other.at == silence.at);
        is_known |= *other == silence;
    }
    !is_known && of_this < REPORTED
}

/// Which rank has failed, and how, as rank `this` with these peers concludes from these silences, one at least.
pub(crate) fn decide(
    silences: &[Silence],
    this: u32,
    peers: &[u32],
    hearing: impl Fn(u32) -> Hearing,
    timeout: Duration,
) -> (u32, String) {
    let seconds = timeout.as_secs_f64();
    let hears = |rank: u32| hearing(rank) == Hearing::Heard;
    let others = peers.len();
    let is_lost = |rank: u32| !hears(rank) && hearing(rank) != Hearing::Unknown;
    let Some(failed) = missed(silences, hears, is_lost) else {
        return cut(silences, seconds);
    };
    if others > 1 && !peers.iter().any(|&peer| hears(peer)) {
        let reason =
            format!("no heartbeat reached it from any of {others} ranks for {seconds:.1} s: it was cut off");
        return (this, reason);
    }
    let reason = match hearing(failed) {
        Hearing::SinceDeaf if others > 1 => {
            let reason = format!(
                "no heartbeat reached it from any of {others} ranks for a while, and from rank {failed} not for {seconds:.1} s: \
                 it was cut off"
            );
            return (this, reason);
        }
        Hearing::Unanswered => {
            "what is sent to it is not answered: it hangs, or its network is cut".to_owned()
        }
        _ => {
            format!("no heartbeat from it for {seconds:.1} s: it hangs, was stopped, or its network is cut")
        }
    };
    (failed, reason)
}

/// The end of a silent link from which the decider receives nothing: one from which it did before, or else one with which it has no link, unless
/// the links show another.
fn missed(silences: &[Silence], hears: impl Fn(u32) -> bool, is_lost: impl Fn(u32) -> bool) -> Option<u32> {
    let ends = |silence: &Silence| [silence.from, silence.at];
    let lost = silences.iter().flat_map(ends).find(|&rank| is_lost(rank));
    lost.or_else(|| match in_common(silences) {
        Some(_) => None,
        None => silences.iter().flat_map(ends).find(|&rank| !hears(rank)),
    })
}

/// The rank that is at an end of more of these links than any other.
fn in_common(silences: &[Silence]) -> Option<u32> {
    let links: BTreeSet<_> = silences.iter().map(|silence| silence.ends()).collect();
    let count = |rank: u32| links.iter().filter(|(low, high)| [*low, *high].contains(&rank)).count();
    let ranks: BTreeSet<u32> = links.iter().flat_map(|&(low, high)| [low, high]).collect();
    let most = ranks.iter().map(|&rank| count(rank)).max()?;
    let mut first = ranks.into_iter().filter(|&rank| count(rank) == most);
    first.next().filter(|_| first.next().is_none())
}

/// Whose network is cut, where heartbeats arrive from all.
fn cut(silences: &[Silence], seconds: f64) -> (u32, String) {
    if let Some(rank) = in_common(silences) {
        let mut others: Vec<u32> = silences
            .iter()
            .filter(|silence| silence.has(rank))
            .map(|silence| silence.at ^ silence.from ^ rank)
            .collect();
        others.sort_unstable();
        others.dedup();
        let others: Vec<String> = others.into_iter().map(|other| other.to_string()).collect();
        let reason = format!(
            "no heartbeat passes between it and ranks {}, though all are alive: its network is cut",
            others.join(", ")
        );
        return (rank, reason);
    }
    let (low, high) = silences.first().map(|silence| silence.ends()).unwrap_or_default();
    let reason = format!(
        "no heartbeat passed between it and rank {low} for {seconds:.1} s, though both are alive: the network between them \
         is cut"
    );
    (high, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: u32 = 5;

    /// The rank that each rank that may decide names, when the ranks in `gone` send nothing, and nothing passes on one link.
    fn decisions(coordinator: u32, gone: &[u32], cut: Option<(u32, u32)>) -> Vec<(u32, u32)> {
        let passes = |a: u32, b: u32| {
            !gone.contains(&a) && !gone.contains(&b) && cut != Some((a, b)) && cut != Some((b, a))
        };
        let mut decisions = Vec::new();
        for at in 0..WORKERS {
            for from in (0..WORKERS).filter(|&from| from != at && !passes(at, from)) {
                let silence = Silence { at, from };
                // Where no report reaches the decider, the end that noticed decides.
                let reports_to = silence.reports_to(at, WORKERS, coordinator);
                let passed_on = reports_to
                    .into_iter()
                    .any(|rank| passes(at, rank) && (rank == coordinator || passes(rank, coordinator)));
                let decider = if passed_on { coordinator } else { at };
                let peers: Vec<u32> = (0..WORKERS).filter(|&peer| peer != decider).collect();
                let hears = |rank| rank == decider || passes(decider, rank);
                let hearing = |rank| if hears(rank) { Hearing::Heard } else { Hearing::Silent };
                decisions.push((
                    at,
                    super::decide(&[silence], decider, &peers, hearing, Duration::from_secs(1)).0,
                ));
            }
        }
        decisions
    }

    #[test]
    fn a_rank_that_is_cut_off_or_stopped_is_named_by_all_and_by_itself() {
        for (decider, victim) in
            [0, 2].into_iter().flat_map(|decider| (0..WORKERS).map(move |v| (decider, v)))
        {
            let decisions = decisions(decider, &[victim], None);
            assert!(
                decisions.len() > 4 && decisions.iter().all(|(_, named)| *named == victim),
                "{decisions:?}"
            );
        }
    }

    #[test]
    fn of_a_cut_link_the_higher_end_is_named() {
        for (a, b) in (0..WORKERS).flat_map(|b| (0..b).map(move |a| (a, b))) {
            for decider in [0, 2] {
                let mut named = decisions(decider, &[], Some((a, b)));
                named.sort_unstable();
                // The decider names the other end of a link of its own.
                let named_by_all = if b == decider { a } else { b };
                assert_eq!(named, [(a, named_by_all), (b, named_by_all)]);
            }
        }
    }

    /// Rank 4 of a ring under rank 0, which has no link to its neighbours: what the two ends report leads to one decision.
    #[test]
    fn of_links_that_have_a_rank_in_common_that_one_is_named_by_a_coordinator_that_hears_it() {
        let hearing = |rank| match rank {
            3 => Hearing::Unknown,
            _ => Hearing::Heard,
        };
        let silence = |at, from| Silence { at, from };
        let named = |silences: &[Silence]| decide(silences, 0, &[1, 4, 5], hearing, Duration::from_secs(1));
        let (rank, reason) = named(&[silence(4, 3), silence(4, 5)]);
        assert!(rank == 4 && reason.contains("ranks 3, 5, though all are alive"), "{reason}");
        assert_eq!(named(&[silence(5, 4), silence(4, 3)]).0, 4);
        assert_eq!(named(&[silence(5, 4), silence(4, 5)]).0, 5, "one link, reported by both ends");
        assert_eq!(named(&[silence(4, 3), silence(3, 4)]).0, 3, "the one that sends nothing");
        // One that sent heartbeats and no longer does counts before what others report.
        let hearing = |rank| if rank == 5 { Hearing::Unanswered } else { Hearing::Heard };
        let silences = [silence(4, 3), silence(4, 5)];
        let (rank, reason) = decide(&silences, 0, &[1, 4, 5], hearing, Duration::from_secs(1));
        assert!(rank == 5 && reason.contains("is not answered"), "{reason}");
    }

    #[test]
    fn a_rank_that_does_not_hear_the_coordinator_reports_to_others() {
        for (coordinator, workers) in
            (2..9).map(|workers| (0, workers)).chain((3..9).map(|workers| (2, workers)))
        {
            for at in (0..workers).filter(|&at| at != coordinator) {
                let silence = Silence { at, from: coordinator };
                let reports_to = silence.reports_to(at, workers, coordinator);
                assert_eq!(reports_to.len(), (workers as usize - 2).min(3));
                assert!(reports_to.iter().all(|&rank| rank != coordinator && rank != at && rank < workers));
                assert!(
                    reports_to
                        .iter()
                        .all(|&rank| silence.reports_to(rank, workers, coordinator) == [coordinator])
                );
            }
        }
        assert_eq!(Silence { at: 3, from: 2 }.reports_to(3, 4, 0), [0]);
        assert!(Silence { at: 0, from: 2 }.reports_to(0, 4, 0).is_empty());
    }

    #[test]
    fn what_is_encoded_reads_back() {
        let silence = Silence { at: 3, from: 0 };
        assert_eq!(Silence::decode(&silence.encode(), 4), Some(silence));
        assert_eq!(Silence::decode(&silence.encode(), 3), None);
        assert_eq!(Silence::decode(&Silence { at: 2, from: 2 }.encode(), 4), None);
        assert_eq!(Silence::decode(&[0; 7], 4), None);
        assert_eq!(Silence::decode(&[0; 9], 4), None);
    }
}
