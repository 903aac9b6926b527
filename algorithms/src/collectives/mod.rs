//! The all-reduces, one file each, to be read beside the paper that it names.
//!
//! A new method is one new file here, its `mod` and one line in [`COLLECTIVES`]; every invariant is tested for every method
//! that stands in that list.

mod agreed;
mod auto;
mod bruck;
mod clt_k;
mod direct;
mod dsar_split_all_gather;
mod ensemble;
mod error;
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
mod state;
mod topka;
mod topkdsa;

use std::fmt::Debug;
use std::sync::Arc;

pub use bruck::all_gather;
pub use ensemble::Ensemble;
pub use error::MethodError;
pub use exdyna::{Controllers, Corrected, ExDyna, Printed};
pub use method::Method;
pub use routine::{Prepared, Routine, RoutineError};
pub use spardl::{Sag, SparDl};
pub use state::{Number, State};

use crate::bag::Coding;
use crate::schedule::{Cost, Observed, Rule, Slots, Step};
use crate::selectors::{Selection, Selector};
use crate::{Allotment, Block, Partition, Rank};

/// What schedules are made for.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The number of workers, P.
    pub workers: u32,
    /// The entries of the gradient.
    pub n: usize,
    /// How many entries a worker selects, or as many as its selector aims at.
    pub k: usize,
    /// How values are encoded on the wire.
    pub coding: Coding,
    /// What selects from a worker's own gradient; None for the k largest of all.
    pub selection: Option<Arc<Selection>>,
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
    /// Where a method's workers take turns: which rank now does what rank 0 does in [`steps`](Collective::steps), the next one
    /// what rank 1 does, and so on, with the blocks shifted as far. All turns are proved at once.
    pub turn: Option<u32>,
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

/// An option of a method, as users name it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it may be set to, in words that go on "expected …".
    pub expects: &'static str,
}

/// An all-reduce as a pure function from (rank, shape, structure) to steps. Its options are fields of the type that
/// implements it.
pub trait Collective: Debug + Send + Sync {
    /// What it learns from step to step; `()` for nothing.
    type State: State
    where
        Self: Sized;

    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Where it was published, and its rounds and volume as formulas, in one line.
    fn summary(&self) -> &'static str;

    /// Whether it selects entries; a dense method delivers all of them, has no residual and takes no coding.
    fn is_sparse(&self) -> bool {
        true
    }

    /// Whether it starts with a selection from all of a worker's gradient, which a selector may make.
    fn takes_selector(&self) -> bool {
        false
    }

    /// Whether it selects the k largest entries exactly, by no threshold of its own, so that groups may compete for k
    /// ([`SelectOver::Gradient`](crate::SelectOver)).
    fn competes(&self) -> bool {
        self.is_sparse()
    }

    /// Whether `auto` may choose it. Not where what is delivered is large on the worker that proposed it, or sampled at
    /// random, and not in the sum: less is delivered in as much time, and a forecast of time does not see it.
    fn suits_auto(&self) -> bool {
        true
    }

    /// Its options with their values: commands have a flag of each name. The first may be set by a slash after the name:
    /// `spardl/2`.
    fn options(&self) -> Vec<Setting> {
        Vec::new()
    }

    /// The same method with another value of an option; None where it has no such option or no such value.
    fn with(&self, _option: &str, _value: &str) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Its options in words, for texts that name a method; nothing where all are at their defaults.
    fn variant(&self) -> String {
        let options = self.options();
        options.iter().map(|o| format!("{} = {}", o.name, o.value)).collect::<Vec<_>>().join(", ")
    }

    /// What `auto` compares among this many workers: this method with each value of the options that are left open.
    fn family(&self, _workers: u32) -> Vec<Self>
    where
        Self: Sized + Clone,
    {
        vec![self.clone()]
    }

    /// Whether its options suit a shape.
    ///
    /// # Errors
    /// [`MethodError::Refused`], with what was expected.
    fn accepts(&self, _: &Shape) -> Result<(), MethodError> {
        Ok(())
    }

    /// Into how many blocks it cuts the gradient: mostly one for each worker.
    fn blocks(&self, shape: &Shape) -> u32 {
        shape.workers
    }

    /// How many bags of one block it holds side by side.
    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        1
    }

    /// The lane in which a worker's own gradient starts.
    fn lane(&self, _: Rank, _: &Shape) -> u32 {
        0
    }

    /// What it knows before the first step.
    fn start(&self, _: &Shape) -> Self::State
    where
        Self: Sized,
    {
        Self::State::default()
    }

    /// The partition and the program of a step, counted from 0. A pure function of what is the same on all workers.
    ///
    /// # Errors
    /// As [`Structure::of`].
    fn structure(&self, shape: &Shape, _step: u64, _: &Self::State) -> Result<Structure, MethodError>
    where
        Self: Sized,
    {
        Structure::of(Partition::even(shape.n, self.blocks(shape) as usize), shape.k, 0)
    }

    /// One worker's steps.
    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step>;

    /// Where the partition or the program changes with what is learnt, the [kinds](Structure::kind) of program that there are,
    /// but for those whose messages have no more than another's; otherwise none. Whose turn it is and numbers in registers
    /// change neither. A worker that is a step ahead may then send as much as any of them says, in blocks that are cut anywhere.
    fn kinds(&self, _: &Shape) -> Vec<u32> {
        Vec::new()
    }

    /// Learns from a finished step. The agreed numbers of the state follow only from the update and its notes, which
    /// are the same on all workers.
    fn learn(&self, _: &Shape, _: &Structure, _: &mut Self::State, _: &Observed)
    where
        Self: Sized,
    {
    }

    /// How many entries it delivers: where all workers choose the same ones, and where no two do.
    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        let entries = if self.is_sparse() { shape.k } else { shape.n };
        (entries as u64, entries as u64)
    }

    /// Within how many steps without gradients nothing waits any more, where values are encoded exactly; None where that cannot
    /// be said.
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

    /// How many of a sparse method's words on the critical path are dense whatever was selected.
    fn dense_words(&self, _: &Shape) -> u64 {
        0
    }

    /// What a step costs, where the index sets are spread evenly. Without a formula it is counted on the first step's
    /// schedules, with bags as full as they may be; that takes long for many workers.
    fn cost(&self, _: &Shape) -> Option<CostRange> {
        None
    }
}

/// All methods, in the order in which they are listed to users.
pub static COLLECTIVES: &[fn() -> Method] = &[
    || Method::of(SparDl::default()),
    || Method::of(ssar_recursive_double::SsarRecursiveDouble),
    || Method::of(ssar_split_all_gather::SsarSplitAllGather),
    || Method::of(dsar_split_all_gather::DsarSplitAllGather),
    || Method::of(topka::TopkA),
    || Method::of(topkdsa::TopkDsa),
    || Method::of(gtopk::GTopk),
    || Method::of(oktopk::OkTopk),
    || Method::of(ExDyna::CORRECTED),
    || Method::of(ExDyna::PRINTED),
    || Method::of(clt_k::CltK),
    || Method::of(random_k::RandomK),
    || Method::of(ring::Ring),
    || Method::of(rabenseifner::Rabenseifner),
    || Method::of(recursive_doubling::RecursiveDoubling),
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

    /// Refuses what is too long to select from all blocks together: two pools of k entries are numbered with 32 bits.
    fn pooled(&self, method: &'static str) -> Result<(), MethodError> {
        let most = u32::MAX as usize;
        if self.n < most || self.k < most / 2 {
            return Ok(());
        }
        Err(MethodError::Pool { method, k: self.k, n: self.n })
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

    /// Rounds sums before they are encoded, where values are not encoded exactly.
    fn round(&self, slots: Slots) -> Option<Step> {
        (self.coding != Coding::Exact).then(|| self.keep(slots, Rule::Every))
    }
}

impl Structure {
    /// A partition with k shared out to its blocks.
    ///
    /// # Errors
    /// [`MethodError::Sparsity`], where the partition has fewer than k entries.
    pub fn of(partition: Partition, k: usize, kind: u32) -> Result<Self, MethodError> {
        let allotment = Allotment::of(&partition, k)?;
        Ok(Self { partition, allotment, kind, turn: None })
    }

    /// One in which any block may have all of k: its messages have as many entries as those of any partition.
    fn loosest(shape: &Shape, blocks: u32, kind: u32) -> Self {
        let all = u32::try_from(shape.k).unwrap_or(u32::MAX);
        let partition = Partition::even(shape.n, blocks as usize);
        Self { partition, allotment: vec![all; blocks as usize].into(), kind, turn: None }
    }

    /// The same where this rank does what rank 0 does in the steps.
    #[must_use]
    pub fn with_turn(self, turn: u32) -> Self {
        Self { turn: Some(turn), ..self }
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

/// Where all of P even blocks but the first begin.
fn even(shape: &Shape) -> Vec<usize> {
    let even = Partition::even(shape.n, shape.workers as usize);
    (1..shape.workers).map(|b| even.range(Block(b)).start).collect()
}

/// Cuts of a gradient of `n` entries, read as a line through (0, 0) and (1, n), at as many places and of as many entries as
/// another shape has.
fn recut(cuts: &[f64], n: usize, to: &Shape) -> Vec<f64> {
    let at = |part: usize| match part {
        0 => 0.0,
        _ => cuts.get(part - 1).copied().unwrap_or(n as f64),
    };
    let parts = cuts.len() + 1;
    let scale = to.n as f64 / n.max(1) as f64;
    (1..to.workers as usize)
        .map(|j| {
            let (whole, rest) = (j * parts / to.workers as usize, j * parts % to.workers as usize);
            let share = rest as f64 / f64::from(to.workers);
            ((1.0 - share) * at(whole) + share * at(whole + 1)) * scale
        })
        .collect()
}
