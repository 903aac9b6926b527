//! TopkDSA: SparCML's dynamic sparse all-reduce as SparDL and Ok-Topk compare with it: pairwise exchanges of the parts,
//! then an all-gather of sums that are dense where that is smaller (SparDL, Table 1; Renggli et al. 2019).
//!
//! P − 1 + ⌈log2 P⌉ rounds, from 4k(P − 1)/P to (2k + n)(P − 1)/P words. The table has log2 P rounds more, for sending
//! lengths ahead; here every bag carries its own. It differs from `ssar-split-all-gather` in meeting its peers one by one.

use super::ssar_split_all_gather::{split, split_cost};
use super::{Collective, CostRange, Shape, Structure};
use crate::schedule::{Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct TopkDsa;

impl Collective for TopkDsa {
    type State = ();

    fn name(&self) -> &'static str {
        "topkdsa"
    }

    fn summary(&self) -> &'static str {
        "pairwise reduce-scatter and all-gather: P−1 + ⌈log2 P⌉ rounds, 4k(P−1)/P to (2k+n)(P−1)/P words"
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        split(rank, shape, 1, shape.round(Slots::one(Block(rank.0))))
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        shape.union()
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        Some(split_cost(shape, u64::from(shape.workers - 1)))
    }
}
