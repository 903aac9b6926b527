//! CLT-k, the cyclic local top-k of ScaleCom: one worker after the other, rank = step mod P, chooses the k largest of its
//! own gradient for all, and every worker's values at these indices are added up (Chen et al.: ScaleCom: Scalable Sparsified
//! Gradient Compression for Communication-Efficient Distributed Training, NeurIPS 2020, §2 and Algorithm 1; a baseline of
//! ExDyna, §III).
//!
//! The leader's indices go down a binomial tree: ⌈log2 P⌉ rounds and k⌈log2 P⌉ words along the critical path. Then a
//! reduce-scatter and an all-gather of values alone: 2⌈log2 P⌉ rounds and 2k(P − 1)/P words where the indices are spread
//! evenly over the gradient. Exactly the leader's k entries are delivered, fewer only where they are zero.

use super::{Collective, CostRange, MethodError, Number, Shape, State, Structure, agreed, ceil_log2};
use crate::schedule::{After, Cost, How, Observed, Receive, Rule, Send, Slots, Step};
use crate::{Partition, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct CltK;

/// Whose turn it is.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    leader: u32,
}

impl State for Turn {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        vec![&mut self.leader]
    }

    fn migrate(self, _: &Shape, to: &Shape) -> Self {
        Self { leader: self.leader % to.workers }
    }
}

impl Collective for CltK {
    type State = Turn;

    fn name(&self) -> &'static str {
        "clt-k"
    }

    fn summary(&self) -> &'static str {
        "ScaleCom's cyclic local top-k: 3⌈log2 P⌉ rounds, k⌈log2 P⌉ + 2k(P−1)/P words"
    }

    fn suits_auto(&self) -> bool {
        false
    }

    fn accepts(&self, shape: &Shape) -> Result<(), MethodError> {
        shape.pooled(self.name())
    }

    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        agreed::LANES
    }

    fn structure(&self, shape: &Shape, _: u64, turn: &Turn) -> Result<Structure, MethodError> {
        let leader = turn.leader % shape.workers;
        Ok(Structure::of(Partition::even(shape.n, shape.workers as usize), shape.k, 0)?.with_turn(leader))
    }

    /// Where rank 0 leads.
    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let proposals = Slots::range(0, shape.workers).in_lane(agreed::PROPOSALS);
        let mut steps = Vec::new();
        if rank.0 == 0 {
            let rule = agreed::unless_all(shape, Rule::Jointly(shape.k));
            steps.push(Step::Propose { slots: proposals, rule });
        }
        steps.extend(broadcast(rank.0, shape.workers, proposals));
        steps.extend(agreed::all_reduce(rank, shape));
        steps
    }

    fn learn(&self, shape: &Shape, structure: &Structure, turn: &mut Turn, _: &Observed) {
        turn.leader = (structure.turn.unwrap_or(0) + 1) % shape.workers;
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let levels = u64::from(ceil_log2(shape.workers));
        let proposed = shape.k as u64;
        let Cost { rounds, messages, words_received, words_critical } = agreed::cost(shape, shape.k as u64);
        Some(CostRange::fixed(Cost {
            rounds: rounds + levels,
            messages: messages + levels,
            words_received: words_received + if levels > 0 { proposed } else { 0 },
            words_critical: words_critical + levels * proposed,
        }))
    }
}

/// From rank 0 to all, down a binomial tree: the parent of w lacks its lowest set bit.
fn broadcast(w: u32, workers: u32, slots: Slots) -> Vec<Step> {
    let below = if w == 0 { ceil_log2(workers) } else { w.trailing_zeros() };
    let children = (0..below).rev().map(|t| w + (1 << t)).filter(|&child| child < workers);
    let mut steps = Vec::new();
    if w > 0 {
        let receives = vec![Receive { from: Rank(w & (w - 1)), slots, how: How::Place }];
        steps.push(Step::Exchange { sends: vec![], receives });
    }
    steps.extend(children.map(|child| Step::Exchange {
        sends: vec![Send { to: Rank(child), slots, after: After::Retain }],
        receives: vec![],
    }));
    steps
}
