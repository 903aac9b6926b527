//! TopkA: every worker selects its own k entries and gets those of all others (SparCML's sparse all-gather; Renggli et al. 2019,
//! §5.3; a baseline of SparDL).
//!
//! ⌈log2 P⌉ rounds and 2k(P − 1) words received by every worker, for any P. Up to Pk entries are delivered: nothing is
//! selected from the sum.

use super::{Collective, CostRange, Shape, Structure, bruck, ceil_log2};
use crate::schedule::{Cost, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct TopkA;

impl Collective for TopkA {
    type State = ();

    fn name(&self) -> &'static str {
        "topka"
    }

    fn summary(&self) -> &'static str {
        "sparse all-gather: ⌈log2 P⌉ rounds, 2k(P−1) words"
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn lanes(&self, shape: &Shape, _: &Structure) -> u32 {
        shape.workers
    }

    fn lane(&self, rank: Rank, _: &Shape) -> u32 {
        rank.0
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let (w, p) = (rank.0, shape.workers);
        let all = Slots::one(Block(0));
        let mut steps = vec![shape.first_selection(all.in_lane(w))];
        steps.extend(bruck::all_gather(w, p, Rank, |first, count| all.in_lanes(first, count, p)));
        steps.push(Step::Sum { slots: all });
        steps
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        shape.union()
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let rounds = u64::from(ceil_log2(shape.workers));
        let words = u64::from(shape.workers - 1) * (2 * shape.k as u64).min(shape.n as u64);
        Some(CostRange::fixed(Cost {
            rounds,
            messages: rounds,
            words_received: words,
            words_critical: words,
        }))
    }
}
