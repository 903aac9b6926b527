//! Which method, and how many entries it delivers: the same options for every command.

use gleaner_algorithms::collectives::{COLLECTIVES, MethodError};
use gleaner_algorithms::{Method, Sparsity, SparsityError};

use crate::quantity;

/// A method and its sparsity.
#[derive(clap::Args, Clone, Debug)]
pub struct Choice {
    #[arg(long, value_name = "METHOD", default_value = "spardl", help = names(), long_help = summaries())]
    method: String,
    /// The share of all entries that a sparse method delivers, above 0 and at most 1 [default: 0.01]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, conflicts_with = "k")]
    density: Option<f64>,
    /// The number of entries that a sparse method delivers, instead of a share
    #[arg(long, value_name = "ENTRIES", value_parser = quantity::count)]
    k: Option<usize>,
}

fn names() -> String {
    let names: Vec<&str> = COLLECTIVES.iter().map(|c| c.name()).collect();
    format!("The all-reduce: {}", names.join(", "))
}

fn summaries() -> String {
    let lines = COLLECTIVES.iter().map(|c| format!("\n  {:20}{}", c.name(), c.summary()));
    format!("The all-reduce:{}", lines.collect::<String>())
}

/// A choice that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    /// No such method.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// No such number of entries.
    #[error(transparent)]
    Sparsity(#[from] SparsityError),
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

impl Choice {
    /// The method, as far as it can be judged without knowing the gradient.
    pub fn method(&self) -> Result<Method, ChoiceError> {
        let method = Method::named(&self.method)?;
        Ok(match (self.density, self.k) {
            (Some(density), _) if !(density > 0.0 && density <= 1.0) => {
                return Err(SparsityError::Density(density).into());
            }
            (Some(density), _) => method.density(density),
            (None, Some(k)) => method.k(k),
            (None, None) => method,
        })
    }
}

/// How many of n entries a method delivers among so many workers: all, unless it is sparse.
pub fn k(method: &Method, workers: u32, n: usize) -> Result<usize, ChoiceError> {
    let blocks = method.collective().blocks(workers).max(1) as usize;
    let block = n.div_ceil(blocks);
    if block >= u32::MAX as usize {
        return Err(ChoiceError::Block { method: method.collective().name(), n, workers, block });
    }
    let k = method.sparsity().k(n)?;
    match method.sparsity() {
        Sparsity::K(0) => Err(SparsityError::MoreThanAll { k: 0, n }.into()),
        _ if method.collective().is_sparse() => Ok(k),
        _ => Ok(n),
    }
}
