//! SSAR_Split_AllGather: every worker sends the others their parts of its selection, adds up its own part, and all gather
//! the sums (Renggli et al.: SparCML, 2019, §5.3.2).
//!
//! For any P: 1 + ⌈log2 P⌉ rounds and P − 1 + ⌈log2 P⌉ messages, L2(P) = (P − 1)α + log2(P)α. Where the indices are spread
//! evenly, 2k(P − 1)/P words for the split and as many for the all-gather if all choose the same entries, up to
//! min(2k, n/P)(P − 1) if no two do. Nothing is selected from the sums.

use super::{Collective, CostRange, Shape, Structure, bruck, ceil_log2, direct};
use crate::schedule::{Cost, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct SsarSplitAllGather;

impl Collective for SsarSplitAllGather {
    type State = ();

    fn name(&self) -> &'static str {
        "ssar-split-all-gather"
    }

    fn summary(&self) -> &'static str {
        "SparCML's SSAR_Split_AllGather: 1 + ⌈log2 P⌉ rounds, P−1 + ⌈log2 P⌉ messages"
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        split(rank, shape, shape.workers, shape.round(Slots::one(Block(rank.0))))
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        shape.union()
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        Some(split_cost(shape, 1))
    }
}

/// Selects, splits with this many destinations a round, does something to the sums, and gathers them.
pub(super) fn split(rank: Rank, shape: &Shape, window: u32, sums: Option<Step>) -> Vec<Step> {
    let (w, p) = (rank.0, shape.workers);
    let mut steps = vec![shape.first_selection(Slots::range(0, p))];
    steps.extend(direct::reduce_scatter(w, p, window));
    steps.extend(sums);
    steps.extend(bruck::all_gather_blocks(w, p));
    steps
}

/// What that costs, with the split in this many rounds.
pub(super) fn split_cost(shape: &Shape, rounds: u64) -> CostRange {
    let others = u64::from(shape.workers - 1);
    let l = u64::from(ceil_log2(shape.workers));
    let len = (shape.n as u64).div_ceil(u64::from(shape.workers));
    let block = |k: u64| (2 * k).min(len);
    let share = (shape.k as u64).div_ceil(u64::from(shape.workers));
    let cost = |gathered: u64| {
        let words = others * (block(share) + block(gathered));
        let rounds = if others == 0 { 0 } else { rounds + l };
        Cost { rounds, messages: others + l, words_received: words, words_critical: words }
    };
    CostRange { low: cost(share), high: cost(share * u64::from(shape.workers)) }
}
