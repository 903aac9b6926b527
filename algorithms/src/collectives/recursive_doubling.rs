//! Dense recursive doubling: in round t every worker exchanges everything with the worker at distance 2^t and adds
//! (Thakur, Rabenseifner and Gropp, 2005, §4.4).
//!
//! For P a power of two log2 P rounds and n log2 P words: the fewest rounds, for short gradients. Otherwise the
//! surplus ranks are folded in and out: two rounds and 2n words more.

use super::{Collective, CostRange, Shape, Structure, fold};
use crate::schedule::{After, Cost, How, Receive, Send, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct RecursiveDoubling;

impl Collective for RecursiveDoubling {
    type State = ();

    fn name(&self) -> &'static str {
        "recursive-doubling"
    }

    fn summary(&self) -> &'static str {
        "dense recursive doubling: log2 P rounds, n log2 P words for powers of two"
    }

    fn is_sparse(&self) -> bool {
        false
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let workers = shape.workers;
        let all = Slots::one(Block(0));
        fold::folded(rank, workers, 1, || {
            (0..fold::core(workers).ilog2())
                .map(|t| Rank(rank.0 ^ (1 << t)))
                .map(|peer| Step::Exchange {
                    sends: vec![Send { to: peer, slots: all, after: After::Retain }],
                    receives: vec![Receive { from: peer, slots: all, how: How::Add }],
                })
                .collect()
        })
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let n = shape.n as u64;
        let core = fold::core(shape.workers);
        let levels = u64::from(core.ilog2());
        let surplus = u64::from(shape.workers > core);
        Some(CostRange::fixed(Cost {
            rounds: levels + 2 * surplus,
            messages: levels + surplus,
            words_received: n * (levels + surplus),
            words_critical: n * (levels + 2 * surplus),
        }))
    }
}
