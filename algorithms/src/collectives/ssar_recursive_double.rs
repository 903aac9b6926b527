//! SSAR_Recursive_Double: in round t every worker exchanges all it has with the worker at distance 2^t and adds (Renggli et al.:
//! SparCML, 2019, §5.3.1).
//!
//! For P a power of two log2 P rounds, L1(P), and from 2k log2 P words, where all choose the same entries, to 2k(P − 1),
//! where no two do. Otherwise the surplus ranks are folded in before and out after: two rounds more. Bags turn dense when
//! that is smaller. Nothing is selected from the sums.

use super::{Collective, CostRange, Shape, Structure, fold};
use crate::Block;
use crate::Rank;
use crate::schedule::{After, Cost, How, Receive, Send, Slots, Step};

/// See the module.
#[derive(Clone, Debug)]
pub struct SsarRecursiveDouble;

impl Collective for SsarRecursiveDouble {
    type State = ();

    fn name(&self) -> &'static str {
        "ssar-recursive-double"
    }

    fn summary(&self) -> &'static str {
        "SparCML's SSAR_Recursive_Double: log2 P rounds, 2k log2 P to 2k(P−1) words for powers of two"
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let all = Slots::one(Block(0));
        let mut steps = vec![shape.first_selection(all)];
        let exchange = |peer| Step::Exchange {
            sends: vec![Send { to: peer, slots: all, after: After::Retain }],
            receives: vec![Receive { from: peer, slots: all, how: How::Add }],
        };
        steps.extend(fold::folded(rank, shape.workers, 1, || {
            (0..fold::core(shape.workers).ilog2())
                .map(|t| Rank(rank.0 ^ (1 << t)))
                .flat_map(|peer| shape.round(all).into_iter().chain([exchange(peer)]))
                .collect()
        }));
        steps
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        shape.union()
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let (n, k) = (shape.n as u64, shape.k as u64);
        let core = u64::from(fold::core(shape.workers));
        let levels = u64::from(core.ilog2());
        let surplus = u64::from(shape.workers) - core;
        let folded = u64::from(surplus > 0);
        let words = |contributions: u64| (2 * contributions * k).min(n);
        // The fullest bag in exchange t: that of the first workers, who took their surplus ranks' in.
        let held = |t: u64| (1 << t) + surplus.min(1 << t);
        // They are a round behind; workers far from them are not.
        let in_time = |t: u64| t < levels && surplus.div_ceil(2 << t) < (core >> (t + 1));
        let round = |r: u64| {
            let first = if r == 0 { words(1) } else { words(held(r - 1)) };
            first.max(if in_time(r) { words(1 << r) } else { 0 })
        };
        let cost = |received: u64, critical: u64| Cost {
            rounds: levels + 2 * folded,
            messages: levels + folded,
            words_received: folded * words(1) + received,
            words_critical: critical,
        };
        let received = (0..levels).map(|t| words(held(t))).sum();
        let critical = match folded {
            0 => received,
            _ => (0..=levels).map(round).sum::<u64>() + words(u64::from(shape.workers)),
        };
        Some(CostRange {
            low: cost(levels * words(1), (levels + 2 * folded) * words(1)),
            high: cost(received, critical),
        })
    }
}
