//! Who is to blame when a link falls silent.
//!
//! A rank that was stopped, a rank that is cut off, and a cable that is cut between two ranks look the same at the end of one
//! link: nothing comes. Both ends may live, and each would name the other. So one rank judges by what it hears itself:
//!
//! - a rank that hears none of its peers, of two or more, is cut off itself; and so was one that heard none for half the time-out
//!   and one of them not since, because connections that were cut go on one by one;
//! - of the two ends of a silent link, the one that the judge does not hear has failed;
//! - if it hears both, the link between them is cut. Somebody must be named, the same by all: the higher rank.
//!
//! The coordinator judges. Who does not hear it tells others, who tell it. Where no verdict comes, the end that noticed judges
//! for itself.

use std::time::Duration;

/// What a rank hears of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// A sign of life, lately.
    Heard,
    /// Nothing, since it heard no rank at all.
    SinceDeaf,
    /// Nothing.
    Silent,
}

/// A link on which nothing has come for the whole time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    /// The end that noticed.
    pub(crate) at: u32,
    /// The end that it does not hear.
    pub(crate) from: u32,
}

impl Silence {
    /// Whom rank `this` tells, when it has noticed or was told: the judge, or if it does not hear that one, a few others. They
    /// tell the judge, and when they know the verdict, the ranks that told them.
    pub(crate) fn confidants(self, this: u32, workers: u32, judge: u32) -> Vec<u32> {
        match self {
            _ if this == judge => Vec::new(),
            Self { at, from } if at == this && from == judge => {
                (1..workers).map(|i| (at + i) % workers).filter(|&rank| rank != judge).take(3).collect()
            }
            _ => vec![judge],
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

    /// Who has failed, and how, in the eyes of rank `this` with these peers.
    pub(crate) fn judge(
        self,
        this: u32,
        peers: &[u32],
        hearing: impl Fn(u32) -> Hearing,
        timeout: Duration,
    ) -> (u32, String) {
        let Self { at, from } = self;
        let seconds = timeout.as_secs_f64();
        let hears = |rank: u32| hearing(rank) == Hearing::Heard;
        if hears(at) && hears(from) {
            let (low, high) = (at.min(from), at.max(from));
            let reason = format!(
                "no sign of life passed between it and rank {low} for {seconds:.1} s, though both are alive: the network between \
                 them is cut"
            );
            return (high, reason);
        }
        let failed = if hears(from) { at } else { from };
        let (others, hears_any) = (peers.len(), peers.iter().any(|&peer| hears(peer)));
        if others > 1 && !hears_any {
            let reason = format!(
                "no sign of life reached it from any of {others} ranks for {seconds:.1} s: it was cut off"
            );
            return (this, reason);
        }
        if others > 1 && hearing(failed) == Hearing::SinceDeaf {
            let reason = format!(
                "no sign of life reached it from any of {others} ranks for a while, and from rank {failed} not for {seconds:.1} s: \
                 it was cut off"
            );
            return (this, reason);
        }
        let reason = format!(
            "no sign of life from it for {seconds:.1} s: it hangs, was stopped, or its network is cut"
        );
        (failed, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKERS: u32 = 5;

    /// Whom each rank that may judge names, when the ranks in `gone` say nothing to anybody, and nothing passes on one link.
    fn verdicts(judges: u32, gone: &[u32], cut: Option<(u32, u32)>) -> Vec<(u32, u32)> {
        let passes = |a: u32, b: u32| {
            !gone.contains(&a) && !gone.contains(&b) && cut != Some((a, b)) && cut != Some((b, a))
        };
        let mut verdicts = Vec::new();
        for at in 0..WORKERS {
            for from in (0..WORKERS).filter(|&from| from != at && !passes(at, from)) {
                let silence = Silence { at, from };
                // Where the judge does not hear of it, the end that noticed judges.
                let told = silence.confidants(at, WORKERS, judges);
                let passed_on =
                    told.into_iter().any(|rank| passes(at, rank) && (rank == judges || passes(rank, judges)));
                let judge = if passed_on { judges } else { at };
                let peers: Vec<u32> = (0..WORKERS).filter(|&peer| peer != judge).collect();
                let hears = |rank| rank == judge || passes(judge, rank);
                let hearing = |rank| if hears(rank) { Hearing::Heard } else { Hearing::Silent };
                verdicts.push((at, silence.judge(judge, &peers, hearing, Duration::from_secs(1)).0));
            }
        }
        verdicts
    }

    #[test]
    fn a_rank_that_is_cut_off_or_stopped_is_named_by_all_and_by_itself() {
        for (judge, victim) in [0, 2].into_iter().flat_map(|judge| (0..WORKERS).map(move |v| (judge, v))) {
            let verdicts = verdicts(judge, &[victim], None);
            assert!(verdicts.len() > 4 && verdicts.iter().all(|(_, named)| *named == victim), "{verdicts:?}");
        }
    }

    #[test]
    fn of_a_cut_link_the_higher_end_is_named() {
        for (a, b) in (0..WORKERS).flat_map(|b| (0..b).map(move |a| (a, b))) {
            for judge in [0, 2] {
                let mut named = verdicts(judge, &[], Some((a, b)));
                named.sort_unstable();
                // The judge names the other end of a link of its own.
                let named_by_all = if b == judge { a } else { b };
                assert_eq!(named, [(a, named_by_all), (b, named_by_all)]);
            }
        }
    }

    #[test]
    fn whoever_does_not_hear_the_judge_tells_others() {
        for (judge, workers) in (2..9).map(|workers| (0, workers)).chain((3..9).map(|workers| (2, workers))) {
            for at in (0..workers).filter(|&at| at != judge) {
                let silence = Silence { at, from: judge };
                let told = silence.confidants(at, workers, judge);
                assert_eq!(told.len(), (workers as usize - 2).min(3));
                assert!(told.iter().all(|&rank| rank != judge && rank != at && rank < workers));
                assert!(told.iter().all(|&rank| silence.confidants(rank, workers, judge) == [judge]));
            }
        }
        assert_eq!(Silence { at: 3, from: 2 }.confidants(3, 4, 0), [0]);
        assert!(Silence { at: 0, from: 2 }.confidants(0, 4, 0).is_empty());
    }

    #[test]
    fn what_is_told_reads_back() {
        let silence = Silence { at: 3, from: 0 };
        assert_eq!(Silence::decode(&silence.encode(), 4), Some(silence));
        assert_eq!(Silence::decode(&silence.encode(), 3), None);
        assert_eq!(Silence::decode(&Silence { at: 2, from: 2 }.encode(), 4), None);
        assert_eq!(Silence::decode(&[0; 7], 4), None);
        assert_eq!(Silence::decode(&[0; 9], 4), None);
    }
}
