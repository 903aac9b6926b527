//! All workers have agreed on indices and now add up their values there: a reduce-scatter and an all-gather of values
//! without indices.

use super::{Shape, bruck};
use crate::schedule::{Cost, Rule, Slots, Step};
use crate::{Block, Rank};

/// The lane in which proposals lie; a worker's own gradient lies in lane 0.
pub(super) const PROPOSALS: u32 = 1;

/// How many lanes that makes.
pub(super) const LANES: u32 = 2;

/// Keeps what was proposed in all P blocks, adds it up, and brings the sums to every worker, each step of the exchange in
/// ⌈log2 P⌉ rounds.
pub(super) fn all_reduce(rank: Rank, shape: &Shape) -> Vec<Step> {
    let (w, p) = (rank.0, shape.workers);
    let mut steps = vec![Step::Align { slots: Slots::range(0, p), coding: shape.coding }];
    steps.extend(bruck::reduce_scatter_blocks(w, p));
    steps.extend(shape.round(Slots::one(Block(w))));
    steps.extend(bruck::all_gather_blocks(w, p));
    steps
}

/// What [`all_reduce`] costs where every block has as many of `k` entries: 2⌈log2 P⌉ rounds, 2k(P − 1)/P words.
pub(super) fn cost(shape: &Shape, k: u64) -> Cost {
    let others = u64::from(shape.workers - 1);
    let rounds = 2 * u64::from(super::ceil_log2(shape.workers));
    let words = 2 * others * k.div_ceil(u64::from(shape.workers));
    Cost { rounds, messages: rounds, words_received: words, words_critical: words }
}

/// A rule by which all entries of some blocks are proposed where k is n, and `rule` otherwise.
pub(super) fn unless_all(shape: &Shape, rule: Rule) -> Rule {
    if shape.k == shape.n { Rule::Every } else { rule }
}
