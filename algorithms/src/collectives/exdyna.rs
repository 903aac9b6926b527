//! ExDyna: every worker selects in a part of the gradient that no other worker selects in, by a threshold that all have in
//! common; threshold and parts follow the counts (Yoon and Oh: Preserving Near-Optimal Gradient Sparsification Cost for
//! Scalable Distributed Deep Learning, 2024, Algorithms 1 to 5).
//!
//! 1. The gradient is cut into P partitions, which go round the workers: in step t worker w has partition (t + w) mod P.
//! 2. Each worker proposes the indices of its partition at which its own accumulator reaches the threshold (Algorithm 4).
//! 3. An all-gather brings all proposals to every worker. No index is proposed twice, so the union is their sum and nothing
//!    builds up.
//! 4. An all-reduce adds up every worker's values at the union. The bags are aligned, so it carries no indices.
//! 5. From how many entries each partition gave, all workers compute the same next threshold and the next cuts.
//!
//! 3⌈log2 P⌉ rounds and 3k(P − 1)/P words for any P, where k entries are proposed and the partitions are equally full.
//!
//! The last point is done in one of two ways: as [printed], or [corrected].

mod corrected;
mod printed;

pub use corrected::Corrected;
pub use printed::Printed;

use super::{Collective, CostRange, MethodError, Number, Shape, State, Structure, agreed, bruck, ceil_log2};
use crate::schedule::{Cost, Observed, Register, Rule, Slots, Step};
use crate::{Block, Partition, Rank};

/// ExDyna with one of its sets of controllers. With other numbers it is a method of its own:
///
/// ```
/// use gleaner_algorithms::Method;
/// use gleaner_algorithms::collectives::{Controllers, ExDyna, Printed};
///
/// let quick = Printed { gamma: 0.05, ..Printed::PUBLISHED };
/// let quick = ExDyna { name: "exdyna-quick", controllers: Controllers::Printed(quick) };
/// assert_eq!(Method::of(quick).density(0.01).shape(4, 100_000).unwrap().k, 1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExDyna {
    /// Its name among methods.
    pub name: &'static str,
    /// How threshold and partitions follow the counts.
    pub controllers: Controllers,
}

/// How threshold and partitions follow the counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Controllers {
    /// Ours.
    Corrected(Corrected),
    /// Algorithms 2, 3 and 5 of the paper.
    Printed(Printed),
}

/// All workers' threshold: the first of the agreed numbers in both states.
const THRESHOLD: Register = Register::Agreed(0);

/// What ExDyna learns.
#[derive(Clone, Debug)]
pub enum ControllerState {
    /// Of our controllers.
    Corrected(corrected::Following),
    /// Of the paper's.
    Printed(printed::Allocation),
}

impl Default for ControllerState {
    fn default() -> Self {
        Self::Corrected(corrected::Following::default())
    }
}

impl State for ControllerState {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        match self {
            Self::Corrected(following) => following.agreed(),
            Self::Printed(allocation) => allocation.agreed(),
        }
    }

    fn migrate(self, from: &Shape, to: &Shape) -> Self {
        match self {
            Self::Corrected(following) => Self::Corrected(following.migrate(from, to)),
            Self::Printed(allocation) => Self::Printed(allocation.migrate(from, to)),
        }
    }
}

impl ExDyna {
    /// With controllers that keep the density and the balance.
    pub const CORRECTED: Self =
        Self { name: "exdyna", controllers: Controllers::Corrected(Corrected::DEFAULT) };

    /// As the paper has it, with its constants.
    pub const PRINTED: Self =
        Self { name: "exdyna-printed", controllers: Controllers::Printed(Printed::PUBLISHED) };
}

/// The paper's first threshold, 1/(2√k).
fn first_threshold(shape: &Shape) -> f64 {
    0.5 / (shape.k.max(1) as f64).sqrt()
}

impl Collective for ExDyna {
    type State = ControllerState;

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        match self.controllers {
            Controllers::Corrected(_) => {
                "ExDyna: each worker selects in its own partition; 3⌈log2 P⌉ rounds, 3k(P−1)/P words"
            }
            Controllers::Printed(_) => "ExDyna with the paper's controllers of threshold and partitions",
        }
    }

    fn competes(&self) -> bool {
        false
    }

    fn suits_auto(&self) -> bool {
        false
    }

    /// Other turns have the same messages, of other partitions.
    fn kinds(&self, _: &Shape) -> Vec<u32> {
        vec![0]
    }

    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        agreed::LANES
    }

    fn start(&self, shape: &Shape) -> ControllerState {
        match &self.controllers {
            Controllers::Corrected(corrected) => ControllerState::Corrected(corrected.start(shape)),
            Controllers::Printed(printed) => ControllerState::Printed(printed.start(shape)),
        }
    }

    fn structure(
        &self,
        shape: &Shape,
        step: u64,
        learnt: &ControllerState,
    ) -> Result<Structure, MethodError> {
        let turn = step % u64::from(shape.workers);
        let partition = match learnt {
            ControllerState::Corrected(following) => Partition::at(shape.n, following.cuts()),
            ControllerState::Printed(allocation) => Partition::at(shape.n, allocation.cuts()),
        };
        Structure::of(partition, shape.k, turn as u32)
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let (p, turn) = (shape.workers, structure.kind);
        // Algorithm 3, line 29; and whose a partition is.
        let partition = (turn + rank.0) % p;
        let owner = |partition: u32| Rank((partition + p - turn) % p);
        let most = match self.controllers {
            Controllers::Corrected(_) => corrected::most(shape),
            Controllers::Printed(_) if shape.k == 0 => 0,
            Controllers::Printed(_) => shape.n,
        };
        let rule = Rule::Above { register: THRESHOLD, most };
        let proposals = |first, count| Slots::cyclic(first, count, p).in_lane(agreed::PROPOSALS);
        let slots = Slots::one(Block(partition)).in_lane(agreed::PROPOSALS);
        let mut steps = vec![Step::Propose { slots, rule: agreed::unless_all(shape, rule) }];
        steps.extend(bruck::all_gather(partition, p, owner, proposals));
        steps.extend(agreed::all_reduce(rank, shape));
        steps
    }

    fn learn(&self, shape: &Shape, structure: &Structure, learnt: &mut ControllerState, observed: &Observed) {
        // Where nothing or everything is selected, there is nothing to control.
        if shape.k == 0 || shape.k == shape.n {
            return;
        }
        match (&self.controllers, learnt) {
            (Controllers::Corrected(corrected), ControllerState::Corrected(following)) => {
                corrected.learn(shape, &structure.partition, following, &observed.proposed);
            }
            (Controllers::Printed(printed), ControllerState::Printed(allocation)) => {
                let counts = observed.proposed.iter().map(|p| p.as_ref().map_or(0, |p| p.len()));
                printed.learn(shape, allocation, counts.map(|count| count as f64).collect());
            }
            // A state is started by the same method.
            _ => {}
        }
    }

    /// The corrected threshold is found again within 100 steps; the printed one changes by a fixed share in each step, however
    /// far away it is.
    fn drains_within(&self, shape: &Shape) -> Option<u64> {
        match self.controllers {
            Controllers::Corrected(_) => Some(shape.passes()?.saturating_add(100)),
            Controllers::Printed(_) => None,
        }
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let levels = u64::from(ceil_log2(shape.workers));
        let gathered = u64::from(shape.workers - 1) * (shape.k as u64).div_ceil(u64::from(shape.workers));
        let values = agreed::cost(shape, shape.k as u64);
        Some(CostRange::fixed(Cost {
            rounds: values.rounds + levels,
            messages: values.messages + levels,
            words_received: values.words_received + gathered,
            words_critical: values.words_critical + gathered,
        }))
    }
}
