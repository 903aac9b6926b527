//! Rabenseifner's dense all-reduce: recursive halving, then recursive doubling (Thakur, Rabenseifner and Gropp,
//! Optimization of Collective Communication Operations in MPICH, 2005, §4.4).
//!
//! For P a power of two 2 log2 P rounds and 2n(P − 1)/P words. Otherwise the surplus ranks are folded in and out:
//! two rounds more, and 2n(p − 1)/p + 2n words along the critical path with p = 2^⌊log2 P⌋.

use super::{Collective, CostRange, Shape, Structure, fold};
use crate::Rank;
use crate::schedule::{After, Cost, How, Receive, Send, Slots, Step};

/// See the module.
#[derive(Clone, Debug)]
pub struct Rabenseifner;

impl Collective for Rabenseifner {
    type State = ();

    fn name(&self) -> &'static str {
        "rabenseifner"
    }

    fn summary(&self) -> &'static str {
        "dense recursive halving and doubling: 2 log2 P rounds, 2n(P−1)/P words for powers of two"
    }

    fn is_sparse(&self) -> bool {
        false
    }

    fn blocks(&self, shape: &Shape) -> u32 {
        fold::core(shape.workers)
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let workers = shape.workers;
        let core = fold::core(workers);
        let blocks = |first, count| Slots::range(first, count);
        let levels = core.ilog2();
        fold::folded(rank, workers, core, || {
            let w = rank.0;
            // The blocks of this worker's half at a distance: those whose number agrees with w above that bit.
            let half = |w: u32, distance: u32| blocks(w & !(distance - 1), distance);
            let halving = (0..levels).rev().map(|i| 1 << i).map(|distance| {
                let peer = w ^ distance;
                Step::Exchange {
                    sends: vec![Send { to: Rank(peer), slots: half(peer, distance), after: After::Drop }],
                    receives: vec![Receive { from: Rank(peer), slots: half(w, distance), how: How::Add }],
                }
            });
            let doubling = (0..levels).map(|i| 1 << i).map(|distance| {
                let peer = w ^ distance;
                Step::Exchange {
                    sends: vec![Send { to: Rank(peer), slots: half(w, distance), after: After::Retain }],
                    receives: vec![Receive {
                        from: Rank(peer),
                        slots: half(peer, distance),
                        how: How::Place,
                    }],
                }
            });
            halving.chain(doubling).collect()
        })
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let n = shape.n as u64;
        let core = u64::from(fold::core(shape.workers));
        let levels = u64::from(core.ilog2());
        let surplus = u64::from(u64::from(shape.workers) > core);
        let words = 2 * (core - 1) * n.div_ceil(core);
        Some(CostRange::fixed(Cost {
            rounds: 2 * levels + 2 * surplus,
            messages: 2 * levels + surplus,
            words_received: words + n * surplus,
            words_critical: words + 2 * n * surplus,
        }))
    }
}
