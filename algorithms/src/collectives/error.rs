//! Invalid methods and options.

use super::{COLLECTIVES, Method};
use crate::SparsityError;
use crate::bag::Coding;
use crate::density::NormShareError;
use crate::residual::CorrectionError;
use crate::selectors::{Selector, SelectorError};
use crate::sentence::did_you_mean;

/// An invalid method or option.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum MethodError {
    /// No such all-reduce.
    #[error("there is no method '{name}'{}; choose one of {known}", did_you_mean(name, known))]
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
    /// No worker takes part.
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
    /// Entries that are selected together are numbered with 32 bits.
    #[error(
        "{method} would select {k} of {n} entries together; expected fewer than {most}: choose a smaller k, or give \
         each part of the model a gradient of its own",
        most = u32::MAX / 2
    )]
    Pool {
        /// The method's name.
        method: &'static str,
        /// The entries asked for.
        k: usize,
        /// The entries of the gradient.
        n: usize,
    },
    /// What a method says against its options among this many workers, or a type of values against a name.
    #[error("{0}")]
    Refused(String),
    /// An option of another method.
    #[error("{method} has no {option}, and {value} was asked for; {}", having(option))]
    NoOption {
        /// The method's name.
        method: &'static str,
        /// The option.
        option: String,
        /// Its value.
        value: String,
    },
    /// A value that an option does not have.
    #[error("{method} has no {option} of '{value}'; expected {expects}")]
    NoValue {
        /// The method's name.
        method: &'static str,
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expects: &'static str,
    },
    /// Values that codings do not say.
    #[error(
        "values of type {element} are encoded exactly, and {coding} was asked for; choose exact values, or float32"
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
         choose {}",
        names(|method| method.collective().takes_selector())
    )]
    NoSelector {
        /// The method's name.
        method: &'static str,
        /// The selector.
        selector: Selector,
    },
    /// What cannot be done with entries alone.
    #[error("{method} does not take gradients that are sparse already {why}")]
    NotSparse {
        /// The method's name.
        method: &'static str,
        /// What does not go with that, and what to do.
        why: &'static str,
    },
    /// Groups whose entries are not chosen by magnitude alone have nothing to compete with.
    #[error(
        "selection over the whole gradient needs a method that selects its k largest entries, and {method} with the selector \
         {selector} was asked for; select over each group, or choose the selector top and one of {}",
        names(|method| method.collective().competes())
    )]
    NoCompetition {
        /// The method's name.
        method: &'static str,
        /// The selector.
        selector: Selector,
    },
    /// An invalid selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// An invalid correction.
    #[error(transparent)]
    Correction(#[from] CorrectionError),
    /// A share of the norm that no density can follow.
    #[error(transparent)]
    NormShare(#[from] NormShareError),
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

crate::sentence::debug_as_sentence!(MethodError);

/// The listed methods of a kind, as words.
fn names(of: impl Fn(&Method) -> bool) -> String {
    let all = COLLECTIVES.iter().map(|method| method()).filter(|method| of(method));
    listed(all.map(|method| method.collective().name().to_owned()))
}

/// The listed methods that have an option.
fn having(option: &str) -> String {
    match &*names(|method| method.collective().options().iter().any(|o| o.name == option)) {
        "" => format!("no method has {option}"),
        names => format!("only {names} has {option}"),
    }
}

/// Words with commas between them, and an 'or' before the last.
pub(super) fn listed(words: impl IntoIterator<Item = String>) -> String {
    let words: Vec<String> = words.into_iter().collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}
