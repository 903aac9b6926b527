//! Cutting a flat gradient into blocks.

use std::ops::Range;
use std::sync::Arc;

use crate::Block;

/// Contiguous blocks that together cover a flat gradient of n entries.
///
/// Indices inside a block are `u32`, so no block is longer than 2³² − 1 entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    bounds: Arc<[usize]>,
}

impl Partition {
    /// `blocks` blocks whose lengths differ by at most one, the longer ones first. Any n will do: with
    /// fewer entries than blocks the last blocks are empty. No blocks at all are read as one.
    pub fn even(n: usize, blocks: usize) -> Self {
        let blocks = blocks.max(1);
        let (each, longer) = (n / blocks, n % blocks);
        let bounds: Arc<[usize]> = (0..=blocks).map(|b| b * each + b.min(longer)).collect();
        assert!(
            each < u32::MAX as usize,
            "{n} entries in {blocks} blocks: a block's indices are 32 bits wide"
        );
        Self { bounds }
    }

    /// Blocks that begin at 0 and at each of the cuts; cuts that are out of order or beyond n are moved to where they are
    /// not. Falls back on even blocks where one would be too long for 32-bit indices.
    pub fn at(n: usize, cuts: impl IntoIterator<Item = usize>) -> Self {
        let mut bounds = vec![0];
        for cut in cuts {
            bounds.push(cut.clamp(bounds[bounds.len() - 1], n));
        }
        bounds.push(n);
        if bounds.windows(2).any(|b| b[1] - b[0] >= u32::MAX as usize) {
            return Self::even(n, bounds.len() - 1);
        }
        Self { bounds: bounds.into() }
    }

    /// The number of entries, n.
    pub fn entries(&self) -> usize {
        self.bounds[self.bounds.len() - 1]
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// The entries of a block, as positions in the flat gradient.
    pub fn range(&self, block: Block) -> Range<usize> {
        self.bounds[block.index()]..self.bounds[block.index() + 1]
    }

    /// The length of a block in entries.
    pub fn block_len(&self, block: Block) -> usize {
        self.range(block).len()
    }

    /// The block that holds the entry at `position`, which must be below n.
    pub fn block_of(&self, position: usize) -> Block {
        Block((self.bounds.partition_point(|&start| start <= position) - 1) as u32)
    }
}

/// How many entries a worker selects in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sparsity {
    /// A share of all entries, in [0, 1]: k = density · n rounded to the nearest integer (halves up), and at
    /// least 1 when density and n are not 0. At density 0 nothing is delivered and all is kept.
    Density(f64),
    /// Exactly k entries.
    K(usize),
}

/// A density or a k that no gradient can have.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum SparsityError {
    /// Not a number in [0, 1].
    #[error("the density is {0}; expected a number from 0 to 1, such as 0.01")]
    Density(f64),
    /// More entries asked for than there are.
    #[error("k is {k}, but the gradient has {n} entries: choose at most {n}")]
    MoreThanAll {
        /// Entries asked for.
        k: usize,
        /// Entries there are.
        n: usize,
    },
}

crate::sentence::debug_as_sentence!(SparsityError);

impl Sparsity {
    /// k for a gradient of n entries.
    ///
    /// # Errors
    /// A density that is not in [0, 1], or k above n.
    pub fn k(self, n: usize) -> Result<usize, SparsityError> {
        match self {
            Sparsity::Density(density) if !(0.0..=1.0).contains(&density) => {
                Err(SparsityError::Density(density))
            }
            Sparsity::Density(0.0) => Ok(0),
            Sparsity::Density(density) => Ok(((density * n as f64 + 0.5).floor() as usize).max(1).min(n)),
            Sparsity::K(k) if k > n => Err(SparsityError::MoreThanAll { k, n }),
            Sparsity::K(k) => Ok(k),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_cover_everything_once(n in 0usize..500, blocks in 1usize..40) {
            let partition = Partition::even(n, blocks);
            let all: Vec<usize> = (0..blocks).flat_map(|b| partition.range(Block(b as u32))).collect();
            prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
            for i in 0..n {
                prop_assert!(partition.range(partition.block_of(i)).contains(&i));
            }
        }
    }

    #[test]
    fn k_is_rounded_to_the_nearest_and_never_to_nothing() {
        assert_eq!(Sparsity::Density(0.01).k(14_728_266), Ok(147_283));
        assert_eq!(Sparsity::Density(0.01).k(50), Ok(1));
        assert_eq!(Sparsity::Density(0.01).k(10), Ok(1));
        assert_eq!(Sparsity::Density(0.5).k(3), Ok(2));
        assert_eq!(Sparsity::Density(0.01).k(0), Ok(0));
        assert_eq!(Sparsity::Density(0.0).k(10), Ok(0));
        assert_eq!(Sparsity::Density(1.0).k(10), Ok(10));
        assert!(Sparsity::Density(1.5).k(10).is_err());
        assert!(Sparsity::Density(f64::NAN).k(10).is_err());
        assert_eq!(Sparsity::K(11).k(10), Err(SparsityError::MoreThanAll { k: 11, n: 10 }));
    }
}
