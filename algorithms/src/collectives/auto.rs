//! The name for "whichever is cheapest": no all-reduce itself, but a choice among those that are listed, which takes a
//! network and a machine to be made. See [`forecast`](crate::forecast).

use super::{Collective, MethodError, Shape, Structure};
use crate::Rank;
use crate::schedule::Step;

/// Accepts no shape: who holds a method named `auto` resolves it first.
#[derive(Debug)]
pub(super) struct Auto;

/// The name on the command line.
pub(super) const NAME: &str = "auto";

impl Collective for Auto {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "whichever of the others is expected to take the least time: a job measures its network and workers first"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn accepts(&self, _: &Shape) -> Result<(), MethodError> {
        Err(MethodError::Unresolved)
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn steps(&self, _: Rank, _: &Shape, _: &Structure) -> Vec<Step> {
        Vec::new()
    }
}
