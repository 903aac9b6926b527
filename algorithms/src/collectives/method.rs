//! A method as a user chooses it.

mod candidates;
mod completing;
mod decaying;
mod display;
mod following;
mod options;
mod sparse;

use std::sync::Arc;

use super::auto::{self, Auto};
use super::state::Erased;
use super::{
    COLLECTIVES, Collective, CostRange, MethodError, RoutineError, Setting, Shape, SparDl, Structure, ring,
};
use crate::bag::Coding;
use crate::residual::{Collection, Correction, OnNonFinite, WholeSteps};
use crate::schedule::{Memory, Observed, Schedule, check};
use crate::selectors::{Selection, Selector};
use crate::{Layers, Rank, SelectOver, Sparsity};

/// An all-reduce, how many entries it selects, how they are encoded, and what happens to the rest.
#[derive(Clone, Debug)]
pub struct Method {
    collective: Arc<dyn Erased>,
    /// None if not set.
    sparsity: Option<Sparsity>,
    collection: Collection,
    /// None if not set.
    coding: Option<Coding>,
    selector: Selector,
    correction: Correction,
    whole: WholeSteps,
    /// Parameters of a model with fewer entries are delivered whole.
    dense_below: usize,
    /// Whether a second exchange completes the sums.
    complete: bool,
    nonfinite: OnNonFinite,
    over: SelectOver,
    /// The share of the norm that the density follows, if it does.
    norm_share: Option<f64>,
}

impl Method {
    /// Whether it is a clone of the same object, with the same options.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.collective, &other.collective) && self.to_string() == other.to_string()
    }
}

impl Method {
    /// The share of the entries that a sparse method selects where neither density nor k is set. Values then have 4 bits, unless a
    /// coding is set: a sixtieth of the bytes of a dense ring. The guide on accuracy has the losses of trainings with it.
    pub const DENSITY: f64 = 0.05;

    /// The method of this name, at the [default](Self::DENSITY) density with global residual collection. A slash may be followed by a value of its first
    /// option: `spardl/2`.
    ///
    /// # Errors
    /// A name that is neither `auto` nor in [`COLLECTIVES`], or an option that the method does not have.
    pub fn named(name: &str) -> Result<Self, MethodError> {
        Self::among(Self::all().chain([Self::auto()]), name)
    }

    /// Like [`named`](Self::named), among these methods.
    ///
    /// # Errors
    /// As [`named`](Self::named).
    pub fn among(methods: impl IntoIterator<Item = Self>, name: &str) -> Result<Self, MethodError> {
        let (first, value) = name.split_once('/').map_or((name, None), |(first, value)| (first, Some(value)));
        let mut known = Vec::new();
        for method in methods {
            if method.collective.name() == first {
                let option = method.collective.options().first().map_or("options", |option| option.name);
                return value.map_or(Ok(method.clone()), |value| method.with(option, value));
            }
            known.push(method.collective.name());
        }
        Err(MethodError::Unknown { name: name.into(), known: known.join(", ") })
    }

    /// All of [`COLLECTIVES`], at the [default](Self::DENSITY) density.
    pub fn all() -> impl Iterator<Item = Self> {
        COLLECTIVES.iter().map(|method| method())
    }

    /// SparDL: Spar-Reduce-Scatter, Spar-All-Gather between teams, and Bruck's all-gather; one team, at the
    /// [default](Self::DENSITY) density.
    pub fn spardl() -> Self {
        Self::of(SparDl::default())
    }

    /// The cheapest method for the network and the machines of a job, which measures them; at the [default](Self::DENSITY) density. No
    /// schedule is made for it until it is resolved to one of its [`candidates`](Self::candidates).
    pub fn auto() -> Self {
        Self::of(Auto::default())
    }

    /// Whether this is `auto`, which is not resolved to a method yet.
    pub fn is_auto(&self) -> bool {
        self.collective.name() == auto::NAME
    }

    /// The dense ring all-reduce.
    pub fn ring() -> Self {
        Self::of(ring::Ring)
    }

    /// A method of your own, at the [default](Self::DENSITY) density. The checker verifies its schedules before they run.
    pub fn of(collective: impl Collective + Clone + 'static) -> Self {
        Self {
            collective: Arc::new(collective),
            sparsity: None,
            collection: Collection::Global,
            coding: None,
            selector: Selector::Top,
            correction: Correction::default(),
            whole: WholeSteps::default(),
            dense_below: 0,
            complete: false,
            nonfinite: OnNonFinite::Refuse,
            over: SelectOver::Group,
            norm_share: None,
        }
    }

    /// Selects this share of the entries, in [0, 1]; with exact values, unless a [coding](Self::coding) is set.
    #[must_use]
    pub fn density(self, density: f64) -> Self {
        Self { sparsity: Some(Sparsity::Density(density)), ..self }
    }

    /// Selects this many entries; with exact values, unless a [coding](Self::coding) is set.
    #[must_use]
    pub fn k(self, k: usize) -> Self {
        Self { sparsity: Some(Sparsity::K(k)), ..self }
    }

    /// Sets which residuals are collected.
    #[must_use]
    pub fn residual(self, collection: Collection) -> Self {
        Self { collection, ..self }
    }

    /// Selects this many entries, and leaves everything else as it is, the coding of values too: the method
    /// of one group of a gradient.
    #[must_use]
    pub fn selecting(self, sparsity: Sparsity) -> Self {
        Self { coding: Some(self.values()), sparsity: Some(sparsity), ..self }
    }

    /// Encodes values exactly where no coding is set.
    #[must_use]
    pub fn or_exact(self) -> Self {
        Self { coding: self.coding.or(Some(Coding::Exact)), ..self }
    }

    /// Sets how values are encoded; what rounding takes away goes to the residuals.
    #[must_use]
    pub fn coding(self, coding: Coding) -> Self {
        Self { coding: Some(coding), ..self }
    }

    /// Sets how entries of a worker's own gradient are selected, in methods that start with a selection from all of it.
    #[must_use]
    pub fn selector(self, selector: Selector) -> Self {
        Self { selector, ..self }
    }

    /// Sets momentum correction, clipping and warm-up, which keep accuracy at low densities.
    #[must_use]
    pub fn corrected(self, correction: Correction) -> Self {
        Self { correction, ..self }
    }

    /// Delivers every entry in these steps. A dense method does so in every step.
    #[must_use]
    pub fn whole_steps(self, whole: WholeSteps) -> Self {
        Self { whole, ..self }
    }

    /// Delivers all entries of a model's parameters that have fewer than this, such as biases and gains, by a dense ring in every
    /// step: they are a group by themselves, and k is of the others. It is for models whose parameters have names, and changes nothing
    /// for one vector, or for a dense method.
    #[must_use]
    pub fn dense_below(self, entries: usize) -> Self {
        Self { dense_below: entries, ..self }
    }

    /// Sets how a step is treated in which a worker's gradient has NaN or infinite entries. It is no part of the method's name: a
    /// job may go on from a checkpoint with the other one.
    #[must_use]
    pub fn on_nonfinite(self, nonfinite: OnNonFinite) -> Self {
        Self { nonfinite, ..self }
    }

    /// Sets what k entries are selected from where a gradient is exchanged in groups. With [`SelectOver::Gradient`] the groups compete for k of the whole
    /// gradient: k is shared out by how many of the k largest entries each group held in an earlier step, as all ranks counted.
    #[must_use]
    pub fn select_over(self, over: SelectOver) -> Self {
        Self { over, ..self }
    }

    /// How entries of a worker's own gradient are selected.
    pub fn selects_by(&self) -> Selector {
        self.selector
    }

    /// What k entries are selected from where a gradient is exchanged in groups.
    pub fn selects_over(&self) -> SelectOver {
        self.over
    }

    /// Whether groups can compete as this method is set to.
    ///
    /// # Errors
    /// Selection over the whole gradient by a method that does not select the k largest.
    pub fn competes(&self) -> Result<(), MethodError> {
        let exact = self.collective.competes() && self.selector == Selector::Top;
        match self.over {
            SelectOver::Gradient if !exact => {
                Err(MethodError::NoCompetition { method: self.collective.name(), selector: self.selector })
            }
            _ => Ok(()),
        }
    }

    /// What an option is set to; None if the method has no such option.
    pub fn option(&self, name: &str) -> Option<String> {
        self.collective.options().into_iter().find(|option| option.name == name).map(|option| option.value)
    }

    /// The all-reduce.
    pub fn collective(&self) -> &dyn Collective {
        &*self.collective
    }

    /// How many entries are selected.
    pub fn sparsity(&self) -> Sparsity {
        self.sparsity.unwrap_or(Sparsity::Density(Self::DENSITY))
    }

    /// How many entries were asked for, if that was set.
    pub fn asked(&self) -> Option<Sparsity> {
        self.sparsity
    }

    /// Which residuals are collected.
    pub fn collection(&self) -> Collection {
        self.collection
    }

    /// Momentum correction, clipping and warm-up.
    pub fn correction(&self) -> &Correction {
        &self.correction
    }

    /// In which steps every entry is delivered.
    pub fn delivers_whole(&self) -> &WholeSteps {
        &self.whole
    }

    /// Parameters of a model with fewer entries than this are delivered whole; 0 if none is.
    pub fn is_dense_below(&self) -> usize {
        if self.collective.is_sparse() { self.dense_below } else { 0 }
    }

    /// This method as it is in a step, counted from 0, with a gradient of n entries: less sparse while it warms up.
    ///
    /// # Errors
    /// A density that is not in [0, 1], or k above n.
    pub fn in_step(&self, step: u64, n: usize) -> Result<Self, MethodError> {
        if step >= self.correction.warm_up {
            return Ok(self.clone());
        }
        let sparsity = self.correction.sparsity(self.sparsity(), step, n)?;
        Ok(self.clone().selecting(sparsity))
    }

    /// How a step is treated with values that are not finite.
    pub fn nonfinite(&self) -> OnNonFinite {
        self.nonfinite
    }

    /// How values are encoded on the wire.
    pub fn values(&self) -> Coding {
        let default = match self.sparsity {
            None if self.collective.is_sparse() => Coding::Qsgd4,
            _ => Coding::Exact,
        };
        self.coding.unwrap_or(default)
    }

    /// The shape of the schedules for this many workers and a gradient of n entries. Where the layers of the gradient are
    /// known, give them in place of n.
    ///
    /// # Errors
    /// No workers, blocks too long for 32-bit indices, a density that is not in [0, 1], k above n, or options that
    /// the method does not have.
    pub fn shape(&self, workers: u32, layers: impl Into<Layers>) -> Result<Shape, MethodError> {
        let layers = layers.into();
        let n = layers.entries();
        if workers == 0 {
            return Err(MethodError::NoWorkers);
        }
        let (method, coding, k) = (self.collective.name(), self.values(), self.sparsity().k(n)?);
        let selector = self.selector;
        let selection = (selector != Selector::Top).then(|| Arc::new(Selection { selector, k, layers }));
        let mut shape = Shape { workers, n, k, coding, selection };
        self.collective.accepts(&shape)?;
        if shape.selection.is_some() && !self.collective.takes_selector() {
            return Err(MethodError::NoSelector { method, selector });
        }
        if coding != Coding::Exact && !self.collective.is_sparse() {
            return Err(MethodError::NoCoding { method, coding });
        }
        if self.collective.takes_selector() {
            shape.pooled(method)?;
        }
        self.correction.check()?;
        self.competes()?;
        self.sums_fit(n)?;
        self.share_fits()?;
        self.decay_fits()?;
        if let Some(selection) = &shape.selection {
            selector.check()?;
            if n >= u32::MAX as usize {
                return Err(MethodError::Long { selector, n });
            }
            // Rounding makes it another number than was asked for.
            shape.k = selection.count().unwrap_or(k);
        }
        let block = n.div_ceil(self.collective.blocks(&shape).max(1) as usize);
        if block >= u32::MAX as usize {
            return Err(MethodError::Block { method, n, workers, block });
        }
        Ok(shape)
    }

    /// The schedule of one worker for the first step with a gradient of n entries.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn schedule(&self, rank: Rank, workers: u32, n: usize) -> Result<Schedule, MethodError> {
        let shape = self.shape(workers, n)?;
        let structure = self.structure(&shape, &self.memory(&shape))?;
        Ok(self.schedule_of(rank, &shape, &structure))
    }

    /// What workers of this method know before the first step.
    pub fn memory(&self, shape: &Shape) -> Memory {
        let mut memory = self.collective.memory(shape);
        memory.own.extend(shape.selection.iter().flat_map(|selection| selection.memory()));
        memory
    }

    /// The part of the next step's schedules that follows from what was learnt.
    ///
    /// # Errors
    /// As [`Structure::of`].
    pub fn structure(&self, shape: &Shape, memory: &Memory) -> Result<Structure, MethodError> {
        self.collective.structure_after(shape, memory)
    }

    /// Learns from a finished step, in which the schedules had this structure.
    pub fn learn(&self, shape: &Shape, structure: &Structure, memory: &mut Memory, observed: &Observed) {
        self.collective.learn_from(shape, structure, memory, observed);
        if let Some(selection) = &shape.selection {
            selection.learn(&mut memory.own, observed.own.entries);
        }
    }

    /// What was learnt in one shape, carried over to another number of workers, n or k. What a selector knows starts again.
    pub fn migrate(&self, from: &Shape, to: &Shape, memory: &Memory) -> Memory {
        let mut memory = self.collective.migrated(from, to, memory);
        memory.own.extend(to.selection.iter().flat_map(|selection| selection.memory()));
        memory
    }

    /// The schedules of all workers for the first step, in the order of their ranks.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn schedules(&self, workers: u32, n: usize) -> Result<Vec<Schedule>, MethodError> {
        let shape = self.shape(workers, n)?;
        Ok(self.schedules_of(&shape, &self.structure(&shape, &self.memory(&shape))?).collect())
    }

    /// The schedules of all workers with this structure, made one by one.
    pub fn schedules_of(&self, shape: &Shape, structure: &Structure) -> impl Iterator<Item = Schedule> {
        (0..shape.workers).map(|rank| self.schedule_of(Rank(rank), shape, structure))
    }

    fn schedule_of(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Schedule {
        let workers = shape.workers;
        let turn = structure.turn.map_or(0, |turn| turn % workers);
        let rank = Rank((rank.0 + workers - turn) % workers);
        let schedule = Schedule {
            rank,
            workers,
            partition: structure.partition.clone(),
            lanes: self.collective.lanes(shape, structure),
            lane: self.collective.lane(rank, shape),
            steps: self.collective.steps(rank, shape, structure),
        };
        if turn == 0 { schedule } else { schedule.rotated(turn) }
    }

    /// What a step costs: by the method's formula, or else what the checker counts for the first step.
    ///
    /// # Errors
    /// Schedules that the checker refuses, of a method without a formula.
    pub fn cost(&self, shape: &Shape) -> Result<CostRange, RoutineError> {
        if let Some(cost) = self.collective.cost(shape) {
            return Ok(cost);
        }
        let structure = self.structure(shape, &self.memory(shape))?;
        let schedules: Vec<Schedule> = self.schedules_of(shape, &structure).collect();
        Ok(CostRange::fixed(check(schedules)?.cost))
    }

    /// How many of n entries are selected among this many workers: k if the method is sparse, otherwise n.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn delivered(&self, workers: u32, n: usize) -> Result<usize, MethodError> {
        let shape = self.shape(workers, n)?;
        Ok(if self.collective.is_sparse() { shape.k } else { n })
    }
}
