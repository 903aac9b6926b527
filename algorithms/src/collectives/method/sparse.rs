//! What a method does with gradients that are sparse already.

use super::super::{MethodError, Shape, Structure};
use super::Method;
use crate::selectors::Selector;

impl Method {
    /// This method for gradients of n entries that are sparse already, and given as entries alone. Without a
    /// [density](Self::density) that was asked for, all entries are delivered and nothing waits: what a method leaves out is
    /// left out of dense gradients because they are dense. With one, k of n entries are delivered in a step, and the others wait.
    ///
    /// # Errors
    /// [`MethodError::NotSparse`], of a method that cannot deliver all entries without looking at all n of them, a selector, and
    /// momentum correction; as [`shape`](Self::shape).
    pub fn for_sparse(&self, workers: u32, n: usize) -> Result<Self, MethodError> {
        let method = match self.sparsity {
            None => self.clone().density(1.0),
            Some(_) => self.clone(),
        };
        let refused = |why| Err(MethodError::NotSparse { method: self.collective.name(), why });
        if method.selector != Selector::Top {
            return refused("with a selector, which looks at every value; leave the selector out");
        }
        if method.correction.momentum > 0.0 {
            return refused("with momentum correction, whose velocities do not stay sparse; leave it out");
        }
        if method.is_auto() {
            return Ok(method);
        }
        let shape = method.shape(workers, n)?;
        if (!method.collective.is_sparse() || shape.k == n) && !method.keeps_entries(&shape)? {
            return refused(
                "without a density: it leaves entries out, or names entries that nobody brings; ask for a density, or choose a \
                 method such as ssar-recursive-double, ssar-split-all-gather or spardl",
            );
        }
        Ok(method)
    }

    /// Whether no schedule leaves an entry out, whatever is learnt.
    fn keeps_entries(&self, shape: &Shape) -> Result<bool, MethodError> {
        let blocks = self.collective.blocks(shape);
        let first = self.structure(shape, &self.memory(shape))?;
        let kinds = self.collective.kinds(shape).into_iter();
        let mut structures =
            [first].into_iter().chain(kinds.map(|kind| Structure::loosest(shape, blocks, kind)));
        Ok(structures.all(|of| self.schedules_of(shape, &of).all(|schedule| schedule.keeps_entries())))
    }
}
