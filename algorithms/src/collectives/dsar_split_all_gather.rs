//! DSAR_Split_AllGather: as SSAR_Split_AllGather, but the sums are made dense before they are gathered (Renggli et al.:
//! SparCML, 2019, §5.3.3). With a coding of few bits, the dense half is quantised (§6).
//!
//! For any P: 1 + ⌈log2 P⌉ rounds, P − 1 + ⌈log2 P⌉ messages, and (2k + n)(P − 1)/P words where the indices are spread
//! evenly.

use super::ssar_split_all_gather::{split, split_cost};
use super::{Collective, CostRange, Shape, Structure};
use crate::schedule::{Cost, Rule, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct DsarSplitAllGather;

impl Collective for DsarSplitAllGather {
    type State = ();

    fn name(&self) -> &'static str {
        "dsar-split-all-gather"
    }

    fn summary(&self) -> &'static str {
        "SparCML's DSAR_Split_AllGather: 1 + ⌈log2 P⌉ rounds, (2k+n)(P−1)/P words"
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let dense = shape.keep(Slots::one(Block(rank.0)), Rule::Dense);
        split(rank, shape, shape.workers, Some(dense))
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        shape.union()
    }

    fn dense_words(&self, shape: &Shape) -> u64 {
        u64::from(shape.workers - 1) * (shape.n as u64).div_ceil(u64::from(shape.workers))
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let low = split_cost(shape, 1).low;
        let others = u64::from(shape.workers - 1);
        let len = (shape.n as u64).div_ceil(u64::from(shape.workers));
        let share = (2 * (shape.k as u64).div_ceil(u64::from(shape.workers))).min(len);
        let words = others * (share + len);
        Some(CostRange::fixed(Cost { words_received: words, words_critical: words, ..low }))
    }
}
