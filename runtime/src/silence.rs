//! Who is to blame when a link falls silent.
//!
//! A rank that was stopped, a rank that is cut off, and a cable that is cut between two ranks look the same at the end of one
//! link: nothing comes. Both ends may live, and each would name the other. So one rank judges by what it hears itself:
//!
//! - whoever hears none of its peers, of two or more, is cut off itself;
//! - of the two ends of a silent link, the one that the judge does not hear has failed;
//! - if it hears both, the link between them is cut. Somebody must be named, the same by all: the higher rank.
//!
//! Rank 0 judges. Where its verdict does not come, each end judges for itself.

use std::time::Duration;

/// A link on which nothing has come for the whole time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silence {
    /// The end that noticed.
    pub(crate) at: u32,
    /// The end that it does not hear.
    pub(crate) from: u32,
}

impl Silence {
    /// Whom the end that noticed tells: the judge, or if that is whom it does not hear, a few others, who will know the
    /// verdict.
    pub(crate) fn confidants(self, workers: u32) -> Vec<u32> {
        match (self.at, self.from) {
            (0, _) => Vec::new(),
            (at, 0) => (1..workers).map(|i| (at + i) % workers).filter(|&rank| rank != 0).take(3).collect(),
            _ => vec![0],
        }
    }

    /// Who has failed, and how, in the eyes of rank `this` with these peers.
    pub(crate) fn judge(
        self,
        this: u32,
        peers: &[u32],
        hears: impl Fn(u32) -> bool,
        timeout: Duration,
    ) -> (u32, String) {
        let Self { at, from } = self;
        let seconds = timeout.as_secs_f64();
        if peers.len() > 1 && !peers.iter().any(|&peer| hears(peer)) {
            let peers = peers.len();
            let reason = format!(
                "no sign of life reached it from any of {peers} ranks for {seconds:.1} s: it was cut off"
            );
            return (this, reason);
        }
        if hears(at) && hears(from) {
            let (low, high) = (at.min(from), at.max(from));
            let reason = format!(
                "no sign of life passed between it and rank {low} for {seconds:.1} s, though both are alive: the network between \
                 them is cut"
            );
            return (high, reason);
        }
        let failed = if hears(from) { at } else { from };
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
    fn verdicts(gone: &[u32], cut: Option<(u32, u32)>) -> Vec<(u32, u32)> {
        let passes = |a: u32, b: u32| {
            !gone.contains(&a) && !gone.contains(&b) && cut != Some((a, b)) && cut != Some((b, a))
        };
        let mut verdicts = Vec::new();
        for at in 0..WORKERS {
            for from in (0..WORKERS).filter(|&from| from != at && !passes(at, from)) {
                let silence = Silence { at, from };
                // Where the judge does not hear of it, the end that noticed judges.
                let judge = if passes(at, 0) { 0 } else { at };
                let peers: Vec<u32> = (0..WORKERS).filter(|&peer| peer != judge).collect();
                let hears = |rank| rank == judge || passes(judge, rank);
                verdicts.push((at, silence.judge(judge, &peers, hears, Duration::from_secs(1)).0));
            }
        }
        verdicts
    }

    #[test]
    fn a_rank_that_is_cut_off_or_stopped_is_named_by_all_and_by_itself() {
        for victim in 0..WORKERS {
            let verdicts = verdicts(&[victim], None);
            assert!(verdicts.len() > 4 && verdicts.iter().all(|(_, named)| *named == victim), "{verdicts:?}");
        }
    }

    #[test]
    fn of_a_cut_link_the_higher_end_is_named() {
        for (a, b) in (0..WORKERS).flat_map(|b| (0..b).map(move |a| (a, b))) {
            // What rank 0 says, and the end that hears rank 0. The other end of a link to rank 0 is told by its confidants.
            let verdicts = verdicts(&[], Some((a, b)));
            assert_eq!(verdicts.len(), 2);
            assert!(verdicts.iter().all(|&(at, named)| named == b || (a == 0 && at == b)), "{verdicts:?}");
        }
    }

    #[test]
    fn whoever_does_not_hear_the_judge_tells_others() {
        for workers in 2..9 {
            for at in 1..workers {
                let told = Silence { at, from: 0 }.confidants(workers);
                assert_eq!(told.len(), (workers as usize - 2).min(3));
                assert!(told.iter().all(|&rank| rank != 0 && rank != at && rank < workers));
            }
        }
        assert_eq!(Silence { at: 3, from: 2 }.confidants(4), [0]);
        assert!(Silence { at: 0, from: 2 }.confidants(4).is_empty());
    }
}
