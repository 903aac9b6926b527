//! What can be wrong with an experiment's file.

use crate::topology::LinkError;
use gleaner_units::QuantityError;

/// What cannot be, without its place.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// An unknown key.
    #[error("'{key}' is not known in [{section}]; expected one of {}", known.join(", "))]
    Key {
        /// The key.
        key: String,
        /// Where it stands.
        section: &'static str,
        /// What may stand there.
        known: Vec<&'static str>,
    },
    /// A key that has to be there.
    #[error("[{section}] lacks '{key}': {advice}")]
    Lacks {
        /// The key.
        key: &'static str,
        /// Where it should stand.
        section: &'static str,
        /// What to write.
        advice: &'static str,
    },
    /// A value of another kind.
    #[error("'{key}' is {found}; expected {expected}")]
    Value {
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// A quantity that cannot be read.
    #[error("'{key}': {source}")]
    Quantity {
        /// The key.
        key: String,
        /// Why.
        source: QuantityError,
    },
    /// A property of a link that cannot be read.
    #[error("'{key}': {source}")]
    Link {
        /// The key.
        key: String,
        /// Why.
        source: LinkError,
    },
    /// A key that has a value elsewhere.
    #[error("'{key}' stands in [{first}] and in [{second}]; keep one of them")]
    Twice {
        /// The key.
        key: String,
        /// One place.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A pattern that fits nothing.
    #[error(
        "this [[{section}]] fits no case of the matrix; its keys are axes or fixed options, and its values stand there"
    )]
    Pattern {
        /// `exclude` or `only`.
        section: &'static str,
    },
    /// Nothing left.
    #[error("no case is left; loosen [[exclude]] and [[only]]")]
    Nothing,
    /// Two things that go without each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// Too few hosts.
    #[error(
        "{workers} workers need {workers} hosts, and the network has {hosts}; raise 'hosts' or leave it out"
    )]
    Hosts {
        /// Workers of the largest case.
        workers: u32,
        /// Hosts.
        hosts: u32,
    },
    /// A host or a rank that no case has.
    #[error("'{key} = {found}' is not there in a case with {workers} workers; they are numbered from 0 to {}", workers - 1)]
    Number {
        /// `host` or `rank`.
        key: &'static str,
        /// The number.
        found: u32,
        /// Workers of the smallest case.
        workers: u32,
    },
}
