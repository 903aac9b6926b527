//! SparDL without teams: Spar-Reduce-Scatter, then Bruck's all-gather.
//!
//! Zhao, Yin, Mao, Chen, Gao: SparDL: Distributed Deep Learning Training with Efficient Sparse Communication,
//! §3.1 (with "Optimization for SRS") and Algorithm 1. For any number of workers P, with l = ⌈log2 P⌉:
//! 2l rounds, and 4k(P − 1)/P words received by every worker (equation 3).

use std::sync::Arc;

use super::{Collective, bruck};
use crate::schedule::{After, How, Receive, Rule, Send, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Debug)]
pub struct SparDl;

impl Collective for SparDl {
    fn name(&self) -> &'static str {
        "spardl"
    }

    fn summary(&self) -> &'static str {
        "SparDL without teams: 2⌈log2 P⌉ rounds, 4k(P−1)/P words"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn blocks(&self, workers: u32) -> u32 {
        workers
    }

    fn steps(&self, rank: Rank, workers: u32, allotment: &Arc<[u32]>) -> Vec<Step> {
        let mut steps = spar_reduce_scatter(rank.0, workers, allotment);
        steps.extend(bruck::all_gather(rank.0, workers));
        steps
    }
}

/// The worker w keeps block w and cuts the others, round the circle, into sending bags B₁ … B_l of 1, 2, 4, …
/// blocks; the last one holds the E = P − 2^(l−1) that remain. It sends them from the last to the first, each
/// to the worker at the distance of the bag's first block, which holds all those blocks still (Theorem 3.1).
/// Only the blocks about to be sent are sparsified, and at the end the one that stays.
fn spar_reduce_scatter(w: u32, workers: u32, allotment: &Arc<[u32]>) -> Vec<Step> {
    let rule = || Rule::Top(allotment.clone());
    let l = workers.next_power_of_two().trailing_zeros();
    let mut steps = Vec::new();
    for distance in (0..l).rev().map(|i| 1 << i) {
        let count = distance.min(workers - distance);
        let bag = Slots::cyclic(w + distance, count, workers);
        steps.push(Step::Keep { slots: bag, rule: rule() });
        steps.push(Step::Exchange {
            sends: vec![Send { to: Rank((w + distance) % workers), slots: bag, after: After::Drop }],
            receives: vec![Receive {
                from: Rank((w + workers - distance) % workers),
                slots: Slots::cyclic(w, count, workers),
                how: How::Add,
            }],
        });
    }
    steps.push(Step::Keep { slots: Slots::one(Block(w)), rule: rule() });
    steps
}
