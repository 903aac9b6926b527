//! Random-k: indices that a generator samples alike on all workers, so that they need not be sent (Stich, Cordonnier and
//! Jaggi: Sparsified SGD with Memory, NeurIPS 2018, §2; with error feedback).
//!
//! 2⌈log2 P⌉ rounds and 2k(P − 1)/P words for any P, whatever the gradients are: half of what a sum of k chosen entries
//! takes. Every block gives its share of k, so that all are equally full. The generator is seeded by the job's step, and
//! every set of indices of a block is as likely as any other.

use super::{Collective, CostRange, Shape, Structure, agreed};
use crate::Rank;
use crate::schedule::{Rule, Slots, Step};

/// See the module.
#[derive(Clone, Debug)]
pub struct RandomK;

impl Collective for RandomK {
    type State = ();

    fn name(&self) -> &'static str {
        "random-k"
    }

    fn summary(&self) -> &'static str {
        "indices sampled alike by all workers: 2⌈log2 P⌉ rounds, 2k(P−1)/P words"
    }

    fn competes(&self) -> bool {
        false
    }

    fn suits_auto(&self) -> bool {
        false
    }

    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        agreed::LANES
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let slots = Slots::range(0, shape.workers).in_lane(agreed::PROPOSALS);
        let mut steps = vec![Step::Propose { slots, rule: Rule::Random(structure.allotment.clone()) }];
        steps.extend(agreed::all_reduce(rank, shape));
        steps
    }

    fn drains_within(&self, shape: &Shape) -> Option<u64> {
        drains_within(shape)
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        Some(CostRange::fixed(agreed::cost(shape, shape.k as u64)))
    }
}

/// (n/k)(ln n + 20): after so many samples one of the entries was never sampled with a probability below e⁻²⁰.
pub(super) fn drains_within(shape: &Shape) -> Option<u64> {
    let share = shape.n as f64 / shape.k as f64;
    (shape.k > 0).then(|| (share * ((shape.n as f64).ln() + 20.0)).ceil() as u64)
}
