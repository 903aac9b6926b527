//! The all-reduces, one file each, to be read beside the paper that it names.
//!
//! A new method is one new file here and one line in [`COLLECTIVES`]; every law is tested for every method
//! that stands in that list.

mod agreed;
mod auto;
mod bruck;
mod clt_k;
mod direct;
mod dsar_split_all_gather;
mod ensemble;
mod exdyna;
mod fold;
mod gtopk;
mod method;
mod oktopk;
mod rabenseifner;
mod random_k;
mod recursive_doubling;
mod ring;
mod routine;
mod spar_all_gather;
mod spardl;
mod ssar_recursive_double;
mod ssar_split_all_gather;
mod topka;
mod topkdsa;

use std::fmt::Debug;
use std::sync::Arc;

pub use ensemble::Ensemble;
pub use exdyna::{Controllers, Corrected, ExDyna, Printed};
pub use method::{Method, MethodError};
pub use routine::{Prepared, Routine, RoutineError};

use crate::bag::Coding;
use crate::schedule::{Cost, Memory, Observed, Rule, Slots, Step};
use crate::selectors::{Selection, Selector};
use crate::{Allotment, Partition, Rank};

/// What schedules are made for.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The number of workers, P.
    pub workers: u32,
    /// The entries of the gradient.
    pub n: usize,
    /// How many entries a worker selects, or as many as its selector aims at.
    pub k: usize,
    /// Into how many teams the workers are divided, d (SparDL, §3.3).
    pub teams: u32,
    /// How the teams come together.
    pub sag: Sag,
    /// How values are told on the wire.
    pub coding: Coding,
    /// What selects from a worker's own gradient; None for the k largest of all.
    pub selection: Option<Arc<Selection>>,
}

/// How SparDL's teams come together: Spar-All-Gather (§3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sag {
    /// R-SAG where the number of teams is a power of two, B-SAG otherwise.
    #[default]
    Auto,
    /// R-SAG: recursive doubling with a selection after each exchange.
    Recursive,
    /// B-SAG: a selection of h entries, then Bruck's all-gather.
    Bruck,
}

/// What of a method's schedules depends on what was learnt. Equal structures have equal schedules.
#[derive(Clone, Debug, PartialEq)]
pub struct Structure {
    /// How the gradient is cut into blocks.
    pub partition: Partition,
    /// k, shared out to the blocks.
    pub allotment: Allotment,
    /// Which of the method's programs this is, if it has several.
    pub kind: u32,
}

/// What a method costs: between the case in which all workers choose the same entries, and the one in which no two
/// choose the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostRange {
    /// All choose the same.
    pub low: Cost,
    /// No two choose the same.
    pub high: Cost,
}

/// An all-reduce as a pure function from (rank, shape, structure) to steps.
pub trait Collective: Debug + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Where it was published, and its rounds and volume as formulas, in one line.
    fn summary(&self) -> &'static str;

    /// Whether it selects entries; a dense method delivers all of them and has no residual.
    fn is_sparse(&self) -> bool;

    /// Whether `auto` may choose it. Not where what is delivered is large on the worker that proposed it, or by lot, and not
    /// in the sum: less is delivered in as much time, and a forecast of time does not see it.
    fn suits_auto(&self) -> bool {
        true
    }

    /// Which shapes it can be made for.
    ///
    /// # Errors
    /// Teams, a coding or a selector that it does not know what to do with.
    fn accepts(&self, shape: &Shape) -> Result<(), MethodError> {
        method::refuse_teams(self.name(), shape)?;
        method::refuse_selector(self.name(), shape)?;
        if self.is_sparse() { Ok(()) } else { method::refuse_coding(self.name(), shape) }
    }

    /// Into how many blocks it cuts the gradient.
    fn blocks(&self, shape: &Shape) -> u32;

    /// How many bags of one block it holds side by side.
    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        1
    }

    /// The lane in which a worker's own gradient starts.
    fn lane(&self, _: Rank, _: &Shape) -> u32 {
        0
    }

    /// What it knows before the first step.
    fn memory(&self, _: &Shape) -> Memory {
        Memory::default()
    }

    /// The partition and the program of the next step. A pure function of what is the same on all workers.
    fn structure(&self, shape: &Shape, _: &Memory) -> Structure {
        Structure::of(Partition::even(shape.n, self.blocks(shape) as usize), shape.k, 0)
    }

    /// One worker's steps.
    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step>;

    /// Learns from a finished step. What it writes to the agreed numbers depends only on the update and its notes,
    /// which are the same on all workers.
    fn learn(&self, _: &Shape, _: &Structure, _: &mut Memory, _: &Observed) {}

    /// How many entries it delivers: where all workers choose the same ones, and where no two do.
    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        let entries = if self.is_sparse() { shape.k } else { shape.n };
        (entries as u64, entries as u64)
    }

    /// Within how many steps without gradients nothing waits any more, where values are told exactly and no sum cancels to
    /// zero; None where that cannot be said.
    fn drains_within(&self, shape: &Shape) -> Option<u64> {
        match &shape.selection {
            _ if !self.is_sparse() => Some(0),
            Some(selection) if matches!(selection.selector, Selector::Threshold(_)) => None,
            Some(selection) if selection.selector == Selector::Random => {
                Some(shape.passes()? + random_k::drains_within(shape)?)
            }
            _ => shape.passes(),
        }
    }

    /// How many of the words on the critical path are dense whatever was selected.
    fn dense_words(&self, shape: &Shape) -> u64 {
        if self.is_sparse() { 0 } else { self.cost(shape).high.words_critical }
    }

    /// What a step costs, where the index sets are spread evenly. Without a formula it is counted on the first step's
    /// schedules, with bags as full as they may be; that takes long for many workers.
    fn cost(&self, shape: &Shape) -> CostRange {
        CostRange::fixed(method::count(self, shape))
    }
}

/// All methods, in the order in which they are listed to users.
pub static COLLECTIVES: &[&dyn Collective] = &[
    &spardl::SparDl,
    &ssar_recursive_double::SsarRecursiveDouble,
    &ssar_split_all_gather::SsarSplitAllGather,
    &dsar_split_all_gather::DsarSplitAllGather,
    &topka::TopkA,
    &topkdsa::TopkDsa,
    &gtopk::GTopk,
    &oktopk::OkTopk,
    &exdyna::ExDyna::CORRECTED,
    &exdyna::ExDyna::PRINTED,
    &clt_k::CltK,
    &random_k::RandomK,
    &ring::Ring,
    &rabenseifner::Rabenseifner,
    &recursive_doubling::RecursiveDoubling,
];

impl Shape {
    /// What is delivered where nothing is dropped after the first selections: between k entries and k of every worker.
    fn union(&self) -> (u64, u64) {
        let k = self.k as u64;
        (k, (k * u64::from(self.workers)).min(self.n as u64))
    }

    /// The steps in which every entry of every worker is delivered by itself, k of them in each step, twice over; None where
    /// k is 0.
    fn passes(&self) -> Option<u64> {
        let all = u64::from(self.workers).saturating_mul(self.n as u64);
        (self.k > 0).then(|| all.div_ceil(self.k as u64).saturating_mul(2))
    }

    /// A selection by a rule, rounded as this shape says.
    fn keep(&self, slots: Slots, rule: Rule) -> Step {
        Step::Keep { slots, rule, coding: self.coding }
    }

    /// What a worker selects of its own gradient at the start, in a method that looks at all of it and that learns nothing
    /// itself: the k largest, or what a selector chooses; every entry where k is n.
    fn first_selection(&self, slots: Slots) -> Step {
        let rule = match &self.selection {
            _ if self.k == self.n => Rule::Every,
            None => Rule::Jointly(self.k),
            Some(selection) => Rule::By(selection.clone()),
        };
        self.keep(slots, rule)
    }

    /// Rounds sums before they are told, where values are not told as they are.
    fn round(&self, slots: Slots) -> Option<Step> {
        (self.coding != Coding::Exact).then(|| self.keep(slots, Rule::Every))
    }
}

impl Structure {
    /// A partition with k shared out to its blocks.
    pub fn of(partition: Partition, k: usize, kind: u32) -> Self {
        // k is at most n: a shape has seen to that.
        let allotment = Allotment::of(&partition, k.min(partition.entries())).unwrap_or_default();
        Self { partition, allotment, kind }
    }
}

impl CostRange {
    /// The same whatever is chosen.
    pub fn fixed(cost: Cost) -> Self {
        Self { low: cost, high: cost }
    }
}

/// ⌈log2 P⌉.
pub(crate) fn ceil_log2(workers: u32) -> u32 {
    workers.next_power_of_two().trailing_zeros()
}
