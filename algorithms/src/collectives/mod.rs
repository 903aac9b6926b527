//! The all-reduces, one file each, to be read beside the paper that it names.
//!
//! A new method is one new file here and one line in [`COLLECTIVES`]; every law is tested for every method
//! that stands in that list.

mod bruck;
mod fold;
mod rabenseifner;
mod recursive_doubling;
mod ring;
mod spardl;

use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::residual::Collection;
use crate::schedule::{Schedule, Step};
use crate::{Partition, Rank, Sparsity, SparsityError};

/// An all-reduce as a pure function from (rank, workers, allotment) to steps.
pub trait Collective: Debug + Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// Where it was published, and its rounds and volume as formulas, in one line.
    fn summary(&self) -> &'static str;

    /// Whether it selects entries; a dense method delivers all of them and has no residual.
    fn is_sparse(&self) -> bool;

    /// Into how many blocks it cuts the gradient.
    fn blocks(&self, workers: u32) -> u32;

    /// One worker's steps. `allotment` holds the k of each block.
    fn steps(&self, rank: Rank, workers: u32, allotment: &Arc<[u32]>) -> Vec<Step>;
}

/// All methods, in the order in which they are listed to users.
pub static COLLECTIVES: &[&dyn Collective] =
    &[&spardl::SparDl, &ring::Ring, &rabenseifner::Rabenseifner, &recursive_doubling::RecursiveDoubling];

/// A method as a user chooses it: an all-reduce, how many entries it delivers, and what happens to the rest.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    collective: &'static dyn Collective,
    sparsity: Sparsity,
    collection: Collection,
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
        /// The workers, P.
        workers: u32,
        /// The entries of a block.
        block: usize,
    },
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.collective.name())?;
        if !self.collective.is_sparse() {
            return Ok(());
        }
        match self.sparsity {
            Sparsity::Density(density) => write!(f, " at density {density}")?,
            Sparsity::K(k) => write!(f, " with k = {k}")?,
        }
        write!(f, ", {} residual collection", self.collection.name())
    }
}

impl Method {
    /// The method of this name, at density 1% with global residual collection.
    ///
    /// # Errors
    /// A name that is not in [`COLLECTIVES`].
    pub fn named(name: &str) -> Result<Self, MethodError> {
        let found = COLLECTIVES.iter().find(|c| c.name() == name);
        let collective = *found.ok_or_else(|| MethodError::Unknown {
            name: name.into(),
            known: COLLECTIVES.iter().map(|c| c.name()).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Self::of(collective))
    }

    /// SparDL: Spar-Reduce-Scatter and Bruck's all-gather, at density 1%.
    pub fn spardl() -> Self {
        Self::of(&spardl::SparDl)
    }

    /// The dense ring all-reduce.
    pub fn ring() -> Self {
        Self::of(&ring::Ring)
    }

    /// A method of your own, at density 1%: whatever steps it gives, the checker has to accept them.
    pub fn of(collective: &'static dyn Collective) -> Self {
        Self { collective, sparsity: Sparsity::Density(0.01), collection: Collection::Global }
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

    /// The schedule of one worker for a gradient of n entries.
    ///
    /// # Errors
    /// No workers, blocks too long for 32-bit indices, a density that is not in [0, 1], or k above n.
    pub fn schedule(&self, rank: Rank, workers: u32, n: usize) -> Result<Schedule, MethodError> {
        let (partition, allotment) = self.cut(workers, n)?;
        Ok(Schedule { rank, workers, steps: self.collective.steps(rank, workers, &allotment), partition })
    }

    /// The schedules of all workers, in the order of their ranks.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule).
    pub fn schedules(&self, workers: u32, n: usize) -> Result<Vec<Schedule>, MethodError> {
        let (partition, allotment) = self.cut(workers, n)?;
        let ranks = (0..workers).map(Rank);
        Ok(ranks
            .map(|rank| Schedule {
                rank,
                workers,
                steps: self.collective.steps(rank, workers, &allotment),
                partition: partition.clone(),
            })
            .collect())
    }

    /// How many of n entries are delivered among so many workers: k if the method is sparse, otherwise n.
    ///
    /// # Errors
    /// As [`schedule`](Self::schedule).
    pub fn delivered(&self, workers: u32, n: usize) -> Result<usize, MethodError> {
        if workers == 0 {
            return Err(MethodError::NoWorkers);
        }
        let block = n.div_ceil(self.collective.blocks(workers).max(1) as usize);
        if block >= u32::MAX as usize {
            return Err(MethodError::Block { method: self.collective.name(), n, workers, block });
        }
        let k = self.sparsity.k(n)?;
        Ok(if self.collective.is_sparse() { k } else { n })
    }

    fn cut(&self, workers: u32, n: usize) -> Result<(Partition, Arc<[u32]>), MethodError> {
        self.delivered(workers, n)?;
        let partition = Partition::even(n, self.collective.blocks(workers) as usize);
        let allotment = partition.allot(self.sparsity.k(n)?)?;
        Ok((partition, allotment))
    }
}
