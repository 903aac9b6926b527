//! Dense recursive doubling: in round t everybody swaps everything with the worker at distance 2^t and adds
//! (Thakur, Rabenseifner and Gropp, 2005, §4.4).
//!
//! For P a power of two log2 P rounds and n log2 P words: the fewest rounds, for short gradients. Otherwise the
//! surplus ranks are folded in and out: two rounds and 2n words more.

use std::sync::Arc;

use super::{Collective, fold};
use crate::schedule::{After, How, Receive, Send, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Debug)]
pub struct RecursiveDoubling;

impl Collective for RecursiveDoubling {
    fn name(&self) -> &'static str {
        "recursive-doubling"
    }

    fn summary(&self) -> &'static str {
        "dense recursive doubling: log2 P rounds, n log2 P words for powers of two"
    }

    fn is_sparse(&self) -> bool {
        false
    }

    fn blocks(&self, _: u32) -> u32 {
        1
    }

    fn steps(&self, rank: Rank, workers: u32, _: &Arc<[u32]>) -> Vec<Step> {
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
}
