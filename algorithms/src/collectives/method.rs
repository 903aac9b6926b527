//! A method as a user chooses it.

use std::collections::BTreeSet;
use std::fmt;

use std::sync::Arc;

use super::{COLLECTIVES, Collective, Sag, Shape, Structure, auto, ring, spardl};
use crate::bag::Coding;
use crate::residual::{Collection, Correction, CorrectionError, OnNonFinite};
use crate::schedule::{Cost, Memory, Observed, Schedule, check};
use crate::selectors::{Selection, Selector, SelectorError};
use crate::{Layers, Rank, Sparsity, SparsityError};

/// An all-reduce, how many entries it delivers, how they are told, and what happens to the rest.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    collective: &'static dyn Collective,
    sparsity: Sparsity,
    collection: Collection,
    teams: u32,
    sag: Sag,
    coding: Coding,
    selector: Selector,
    correction: Correction,
    nonfinite: OnNonFinite,
}

/// A choice that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MethodError {
    /// No such all-reduce.
    #[error("there is no method '{name}'; choose one of {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// No such number of entries.
    #[error(transparent)]
    Sparsity(#[from] SparsityError),
    /// A choice that has not been made.
    #[error(
        "auto is a choice among methods for the network of a job: expected one of them where no job measures its network; \
         name a method, or see `gleaner plan --compare` for what suits a network"
    )]
    Unresolved,
    /// Nobody takes part.
    #[error("a job of 0 workers; expected at least one")]
    NoWorkers,
    /// Indices inside a block are 32 bits wide.
    #[error(
        "{method} cuts {n} entries among {workers} workers into blocks of {block}; a block has at most {most}: choose a method with more blocks, or more workers",
        most = u32::MAX - 1
    )]
    Block {
        /// The method's name.
        method: &'static str,
        /// The entries of the gradient.
        n: usize,
        /// The number of workers.
        workers: u32,
        /// The length of a block.
        block: usize,
    },
    /// Teams of different sizes.
    #[error("{workers} workers cannot be divided into {teams} equal teams; choose {divisors}", divisors = divisors(*workers))]
    Teams {
        /// The number of teams.
        teams: u32,
        /// The number of workers.
        workers: u32,
    },
    /// Teams that cannot double.
    #[error(
        "R-SAG needs a number of teams that is a power of two, and {teams} is not; choose B-SAG, or another number of teams"
    )]
    Recursive {
        /// The number of teams.
        teams: u32,
    },
    /// A method without teams.
    #[error("{method} has no teams, and {teams} were asked for; only spardl has teams")]
    NoTeams {
        /// The method's name.
        method: &'static str,
        /// The number of teams.
        teams: u32,
    },
    /// A way to bring teams together, without teams.
    #[error("{method} has no teams, and a way to bring them together was asked for; only spardl has teams")]
    NoSag {
        /// The method's name.
        method: &'static str,
    },
    /// Values that codings do not say.
    #[error(
        "values of type {element} are told as they are, and {coding} was asked for; choose exact values, or float32"
    )]
    NotFloat32 {
        /// The name of the element type.
        element: &'static str,
        /// The coding.
        coding: Coding,
    },
    /// A method that sends values as they are.
    #[error(
        "{method} sends values as they are, and {coding} was asked for; choose a sparse method, or exact values"
    )]
    NoCoding {
        /// The method's name.
        method: &'static str,
        /// The coding.
        coding: Coding,
    },
    /// A method that does not start with a selection from all of a worker's gradient.
    #[error(
        "{method} chooses its entries in its own way, and the selector {selector} was asked for; leave the selector out, or \
         choose {SELECTING}"
    )]
    NoSelector {
        /// The method's name.
        method: &'static str,
        /// The selector.
        selector: Selector,
    },
    /// A selector that cannot be.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A correction that cannot be.
    #[error(transparent)]
    Correction(#[from] CorrectionError),
    /// What a selector chooses is indexed in the whole gradient.
    #[error(
        "the selector {selector} looks at {n} entries at once; expected at most {most}: leave it out, or give each part of the \
         model a gradient of its own",
        most = u32::MAX - 1
    )]
    Long {
        /// The selector.
        selector: Selector,
        /// The entries of the gradient.
        n: usize,
    },
}

/// The methods that start with a selection from all of a worker's gradient.
const SELECTING: &str =
    "topka, topkdsa, gtopk, ssar-recursive-double, ssar-split-all-gather or dsar-split-all-gather";

/// The schedule of one worker with this structure.
fn schedule<C: Collective + ?Sized>(
    collective: &C,
    rank: Rank,
    shape: &Shape,
    structure: &Structure,
) -> Schedule {
    Schedule {
        rank,
        workers: shape.workers,
        partition: structure.partition.clone(),
        lanes: collective.lanes(shape, structure),
        lane: collective.lane(rank, shape),
        steps: collective.steps(rank, shape, structure),
    }
}

/// What the checker counts for the first step; nothing for schedules that it refuses.
pub(super) fn count<C: Collective + ?Sized>(collective: &C, shape: &Shape) -> Cost {
    let structure = collective.structure(shape, &collective.memory(shape));
    let ranks = (0..shape.workers).map(Rank);
    check(ranks.map(|rank| schedule(collective, rank, shape, &structure)))
        .map(|proof| proof.cost)
        .unwrap_or_default()
}

fn divisors(workers: u32) -> String {
    let all: Vec<String> =
        (1..=workers).filter(|d| workers.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    match all.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => "1".into(),
    }
}

/// For methods without teams.
pub(super) fn refuse_teams(method: &'static str, shape: &Shape) -> Result<(), MethodError> {
    match (shape.teams, shape.sag) {
        (1, Sag::Auto) => Ok(()),
        (1, _) => Err(MethodError::NoSag { method }),
        (teams, _) => Err(MethodError::NoTeams { method, teams }),
    }
}

/// For methods that send values as they are.
pub(super) fn refuse_coding(method: &'static str, shape: &Shape) -> Result<(), MethodError> {
    match shape.coding {
        Coding::Exact => Ok(()),
        coding => Err(MethodError::NoCoding { method, coding }),
    }
}

/// For methods that do not start with a selection from all of a worker's gradient.
pub(super) fn refuse_selector(method: &'static str, shape: &Shape) -> Result<(), MethodError> {
    match &shape.selection {
        None => Ok(()),
        Some(selection) => Err(MethodError::NoSelector { method, selector: selection.selector }),
    }
}

/// Names the method and its options; options at their defaults are left out.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective.name())?;
        if !self.collective.is_sparse() {
            // Nothing of it is sparse, so there is nothing to warm up.
            return write!(f, "{}", Correction { warm_up: 0, ..self.correction });
        }
        match self.sparsity {
            Sparsity::Density(density) => write!(f, " at density {density}")?,
            Sparsity::K(k) => write!(f, " with k = {k}")?,
        }
        if self.teams != 1 {
            write!(f, ", {} teams", self.teams)?;
        }
        match self.sag {
            Sag::Auto => {}
            Sag::Recursive => write!(f, " by R-SAG")?,
            Sag::Bruck => write!(f, " by B-SAG")?,
        }
        if self.coding != Coding::Exact {
            write!(f, ", {} values", self.coding)?;
        }
        if self.selector != Selector::Top {
            write!(f, ", selector {}", self.selector)?;
        }
        write!(f, ", {} residual collection{}", self.collection.name(), self.correction)
    }
}

impl Method {
    /// The method of this name, at density 1% with global residual collection.
    ///
    /// # Errors
    /// A name that is neither `auto` nor in [`COLLECTIVES`].
    pub fn named(name: &str) -> Result<Self, MethodError> {
        if name == auto::NAME {
            return Ok(Self::auto());
        }
        let found = COLLECTIVES.iter().find(|c| c.name() == name);
        let collective = *found.ok_or_else(|| MethodError::Unknown {
            name: name.into(),
            known: COLLECTIVES.iter().map(|c| c.name()).chain([auto::NAME]).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Self::of(collective))
    }

    /// SparDL: Spar-Reduce-Scatter, Spar-All-Gather between teams, and Bruck's all-gather; one team, at density 1%.
    pub fn spardl() -> Self {
        Self::of(&spardl::SparDl)
    }

    /// Whichever method is cheapest for the network and the machines of a job, which measures them; at density 1%. No
    /// schedule is made for it until it is resolved to one of its [`candidates`](Self::candidates).
    pub fn auto() -> Self {
        Self::of(&auto::Auto)
    }

    /// Whether this is a choice that is still to be made.
    pub fn is_auto(&self) -> bool {
        self.collective.name() == auto::NAME
    }

    /// What this choice may be resolved to among so many workers, with its options: every listed method that
    /// [suits](Collective::suits_auto) it, those with
    /// teams in every number of teams and every way of bringing them together. A number of teams or a way that was asked
    /// for is kept to. Dense methods come without the options that only sparse ones have. A method that is no choice
    /// is its own only candidate.
    ///
    /// # Errors
    /// As [`shape`](Self::shape), where no method accepts these options.
    pub fn candidates(&self, workers: u32, n: usize) -> Result<Vec<Self>, MethodError> {
        if !self.is_auto() {
            self.shape(workers, n)?;
            return Ok(vec![*self]);
        }
        if self.correction.warm_up > 0 {
            return Err(CorrectionError::Auto.into());
        }
        if !workers.is_multiple_of(self.teams.max(1)) {
            return Err(MethodError::Teams { teams: self.teams, workers });
        }
        // Those up to the root, and what each leaves of the number of workers.
        let small = (1..=workers.isqrt()).filter(|d| workers.is_multiple_of(*d));
        let divisors: BTreeSet<u32> = small.flat_map(|d| [d, workers / d]).filter(|&d| d > 1).collect();
        let mut candidates = Vec::new();
        for &collective in COLLECTIVES.iter().filter(|c| c.suits_auto()) {
            let alone = match collective.is_sparse() {
                true => Self { collective, ..*self },
                false => Self { collective, coding: Coding::Exact, selector: Selector::Top, ..*self },
            };
            if self.teams == 1 || !collective.is_sparse() {
                candidates.push(Self { teams: 1, sag: Sag::Auto, ..alone });
            }
            for &teams in &divisors {
                for sag in [Sag::Recursive, Sag::Bruck] {
                    if [1, teams].contains(&self.teams) && [Sag::Auto, sag].contains(&self.sag) {
                        candidates.push(Self { teams, sag, ..alone });
                    }
                }
            }
        }
        let reason = candidates.first().map(|first| first.shape(workers, n));
        candidates.retain(|candidate| candidate.shape(workers, n).is_ok());
        match reason {
            Some(Err(reason)) if candidates.is_empty() => Err(reason),
            _ => Ok(candidates),
        }
    }

    /// The dense ring all-reduce.
    pub fn ring() -> Self {
        Self::of(&ring::Ring)
    }

    /// A method of your own, at density 1%: whatever steps it gives, the checker has to accept them.
    pub fn of(collective: &'static dyn Collective) -> Self {
        Self {
            collective,
            sparsity: Sparsity::Density(0.01),
            collection: Collection::Global,
            teams: 1,
            sag: Sag::Auto,
            coding: Coding::Exact,
            selector: Selector::Top,
            correction: Correction::default(),
            nonfinite: OnNonFinite::Refuse,
        }
    }

    /// Delivers this share of the entries, in [0, 1].
    #[must_use]
    pub fn density(self, density: f64) -> Self {
        Self { sparsity: Sparsity::Density(density), ..self }
    }

    /// Delivers this many entries.
    #[must_use]
    pub fn k(self, k: usize) -> Self {
        Self { sparsity: Sparsity::K(k), ..self }
    }

    /// Collects these residuals.
    #[must_use]
    pub fn residual(self, collection: Collection) -> Self {
        Self { collection, ..self }
    }

    /// Divides the workers into so many teams, d: a divisor of P (SparDL, §3.3).
    #[must_use]
    pub fn teams(self, teams: u32) -> Self {
        Self { teams, ..self }
    }

    /// Brings the teams together in this way.
    #[must_use]
    pub fn sag(self, sag: Sag) -> Self {
        Self { sag, ..self }
    }

    /// Tells values in this way; what is rounded away goes to the residuals.
    #[must_use]
    pub fn coding(self, coding: Coding) -> Self {
        Self { coding, ..self }
    }

    /// Chooses in this way from a worker's own gradient, in methods that start with a selection from all of it.
    #[must_use]
    pub fn selector(self, selector: Selector) -> Self {
        Self { selector, ..self }
    }

    /// Keeps accuracy by these means.
    #[must_use]
    pub fn corrected(self, correction: Correction) -> Self {
        Self { correction, ..self }
    }

    /// Does this with a step in which a worker's gradient has NaN or infinite entries. It is no part of the method's name: a
    /// job may go on from a checkpoint with the other one.
    #[must_use]
    pub fn on_nonfinite(self, nonfinite: OnNonFinite) -> Self {
        Self { nonfinite, ..self }
    }

    /// The name, and after a slash the number of teams if there are several: as commands take it in a list of methods.
    pub fn label(&self) -> String {
        match self.teams {
            1 => self.collective.name().to_owned(),
            teams => format!("{}/{teams}", self.collective.name()),
        }
    }

    /// The all-reduce.
    pub fn collective(&self) -> &'static dyn Collective {
        self.collective
    }

    /// How many entries are delivered.
    pub fn sparsity(&self) -> Sparsity {
        self.sparsity
    }

    /// Which residuals are collected.
    pub fn collection(&self) -> Collection {
        self.collection
    }

    /// What is done to keep accuracy.
    pub fn correction(&self) -> &Correction {
        &self.correction
    }

    /// This method as it is in a step, counted from 0, with a gradient of n entries: less sparse while it warms up.
    ///
    /// # Errors
    /// A density that is not in [0, 1], or k above n.
    pub fn in_step(self, step: u64, n: usize) -> Result<Self, MethodError> {
        if step >= self.correction.warm_up {
            return Ok(self);
        }
        Ok(Self { sparsity: self.correction.sparsity(self.sparsity, step, n)?, ..self })
    }

    /// What becomes of a step with values that are not finite.
    pub fn nonfinite(&self) -> OnNonFinite {
        self.nonfinite
    }

    /// How values are told on the wire.
    pub fn values(&self) -> Coding {
        self.coding
    }

    /// What the schedules for so many workers and a gradient of n entries are made for. Where the layers of the gradient are
    /// known, they stand in place of n.
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
        let (teams, sag, coding, k) = (self.teams, self.sag, self.coding, self.sparsity.k(n)?);
        let selector = self.selector;
        let selection = (selector != Selector::Top).then(|| Arc::new(Selection { selector, k, layers }));
        let mut shape = Shape { workers, n, k, teams, sag, coding, selection };
        self.collective.accepts(&shape)?;
        self.correction.check()?;
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
            return Err(MethodError::Block { method: self.collective.name(), n, workers, block });
        }
        Ok(shape)
    }

    /// The schedule of one worker for the first step with a gradient of n entries.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn schedule(&self, rank: Rank, workers: u32, n: usize) -> Result<Schedule, MethodError> {
        let shape = self.shape(workers, n)?;
        let structure = self.collective.structure(&shape, &self.memory(&shape));
        Ok(self.schedule_of(rank, &shape, &structure))
    }

    /// What workers of this method know before the first step.
    pub fn memory(&self, shape: &Shape) -> Memory {
        let mut memory = self.collective.memory(shape);
        memory.own.extend(shape.selection.iter().flat_map(|selection| selection.memory()));
        memory
    }

    /// Learns from a finished step, in which the schedules had this structure.
    pub fn learn(&self, shape: &Shape, structure: &Structure, memory: &mut Memory, observed: &Observed) {
        self.collective.learn(shape, structure, memory, observed);
        if let Some(selection) = &shape.selection {
            selection.learn(&mut memory.own, observed.own.entries);
        }
    }

    /// The schedules of all workers for the first step, in the order of their ranks.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn schedules(&self, workers: u32, n: usize) -> Result<Vec<Schedule>, MethodError> {
        let shape = self.shape(workers, n)?;
        Ok(self.schedules_after(&shape, &self.memory(&shape)).collect())
    }

    /// The schedules of all workers for the step after what was learnt, made one by one.
    pub fn schedules_after<'a>(
        &self,
        shape: &'a Shape,
        memory: &Memory,
    ) -> impl Iterator<Item = Schedule> + use<'a> {
        let (method, structure) = (*self, self.collective.structure(shape, memory));
        (0..shape.workers).map(move |rank| method.schedule_of(Rank(rank), shape, &structure))
    }

    fn schedule_of(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Schedule {
        schedule(self.collective, rank, shape, structure)
    }

    /// How many of n entries are selected among so many workers: k if the method is sparse, otherwise n.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn delivered(&self, workers: u32, n: usize) -> Result<usize, MethodError> {
        let shape = self.shape(workers, n)?;
        Ok(if self.collective.is_sparse() { shape.k } else { n })
    }
}
