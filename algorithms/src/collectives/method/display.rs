//! The name of a method with its options.

use std::fmt;

use super::Method;
use crate::bag::Coding;
use crate::residual::Correction;
use crate::selectors::Selector;
use crate::{SelectOver, Sparsity};

/// Names the method and its options; options at their defaults are left out.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective.name())?;
        let is_sparse = self.collective.is_sparse();
        match self.sparsity() {
            _ if !is_sparse => {}
            Sparsity::Density(density) => write!(f, " at density {density}")?,
            Sparsity::K(k) => write!(f, " with k = {k}")?,
        }
        match &*self.collective.variant() {
            "" => {}
            variant => write!(f, ", {variant}")?,
        }
        if !is_sparse {
            // Nothing of it is sparse, so there is nothing to warm up.
            return write!(f, "{}", Correction { warm_up: 0, ..self.correction });
        }
        if self.values() != Coding::Exact {
            write!(f, ", {} values", self.values())?;
        }
        if self.selector != Selector::Top {
            write!(f, ", selector {}", self.selector)?;
        }
        if self.over == SelectOver::Gradient {
            write!(f, ", selected over the whole gradient")?;
        }
        write!(f, ", {} residual collection{}{}", self.collection.name(), self.correction, self.whole)?;
        if self.complete {
            write!(f, ", sums completed")?;
        }
        if let Some(share) = self.norm_share {
            write!(f, ", as many as hold {share} of the norm")?;
        }
        match self.dense_below {
            0 => Ok(()),
            entries => write!(f, ", parameters of less than {entries} entries whole"),
        }
    }
}

impl Method {
    /// The name, and after a slash its first option if it is set: as commands take it in a list of methods.
    pub fn label(&self) -> String {
        let name = self.collective.name();
        match self.collective.options().first() {
            Some(first) if !self.collective.variant().is_empty() => format!("{name}/{}", first.value),
            _ => name.into(),
        }
    }

    /// The name and the options, without what all candidates of a choice have in common.
    pub fn title(&self) -> String {
        match &*self.collective.variant() {
            "" => self.collective.name().into(),
            variant => format!("{} with {variant}", self.collective.name()),
        }
    }
}
