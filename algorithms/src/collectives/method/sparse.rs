//! What a method does with gradients that are sparse already.

use super::super::ssar_split_all_gather::SsarSplitAllGather;
use super::super::{MethodError, Shape, Structure};
use super::Method;
use crate::bag::Coding;
use crate::residual::{Correction, WholeSteps};
use crate::selectors::Selector;
use crate::{SelectOver, Sparsity};

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
        if method.correction.decay.is_some() {
            return refused("with a decay of the residual, of which only entries are held; leave it out");
        }
        if !method.whole.is_none() {
            return refused(
                "with steps that deliver every entry, in which n values would travel; leave them out",
            );
        }
        if method.norm_share.is_some() {
            return refused("with a share of the norm, which is not looked at there; leave the share out");
        }
        let shape = method.shape(workers, n)?;
        if (!method.collective.is_sparse() || shape.k == n) && !method.keeps_entries(&shape)? {
            return refused(
                "without a density: it leaves entries out, or names entries that no worker brings; ask for a density, or choose a \
                 method such as ssar-recursive-double, ssar-split-all-gather or spardl",
            );
        }
        Ok(method)
    }

    /// The methods that `auto` may be resolved to for gradients of n entries that are sparse already: of its
    /// [candidates](Self::candidates) those that [take](Self::for_sparse) them. A method other than `auto` is its own only one.
    ///
    /// # Errors
    /// As [`for_sparse`](Self::for_sparse) and [`candidates`](Self::candidates), and an `auto` of which no candidate takes them.
    pub fn sparse_candidates(&self, workers: u32, n: usize) -> Result<Vec<Self>, MethodError> {
        if !self.is_auto() {
            return Ok(vec![self.for_sparse(workers, n)?]);
        }
        let all = Self { sparsity: self.sparsity.or(Some(Sparsity::Density(1.0))), ..self.clone() };
        let candidates = all.candidates(workers, n)?.into_iter();
        let own = candidates.map(|method| Self { sparsity: self.sparsity, ..method }.for_sparse(workers, n));
        let (taken, refused): (Vec<_>, Vec<_>) = own.partition(Result::is_ok);
        match refused.into_iter().find_map(Result::err) {
            Some(error) if taken.is_empty() => Err(error),
            _ => Ok(taken.into_iter().flatten().collect()),
        }
    }

    /// The method that exchanges a parameter of n entries whose gradients are sparse already, beside others that use this
    /// one: all of its entries, encoded exactly. This method where it can do that, and otherwise SSAR_Split_AllGather.
    ///
    /// # Errors
    /// [`MethodError::NotSparse`], with momentum correction; as [`shape`](Self::shape).
    pub fn beside(&self, workers: u32, n: usize) -> Result<Self, MethodError> {
        let correction = Correction { warm_up: 0, clip: None, decay: None, ..self.correction };
        let (coding, selector, over) = (Some(Coding::Exact), Selector::Top, SelectOver::Group);
        // All that it has is delivered in every step.
        let none = WholeSteps::default();
        let whole = Self {
            sparsity: None,
            coding,
            selector,
            over,
            correction,
            whole: none,
            dense_below: 0,
            complete: false,
            norm_share: None,
            ..self.clone()
        };
        if whole.collective.is_sparse() && !whole.is_auto() {
            match whole.for_sparse(workers, n) {
                Err(MethodError::NotSparse { .. }) if correction.momentum == 0.0 => {}
                found => return found,
            }
        }
        let other = Self { collective: Self::of(SsarSplitAllGather).collective, ..whole };
        other.for_sparse(workers, n)
    }

    /// The method that exchanges parameters that are [too small](Self::dense_below) to be selected from, beside others that use
    /// this one: a dense ring, with the same momentum correction. Masking would leave no momentum, as everything is sent in every step.
    #[must_use]
    pub fn whole_beside(&self) -> Self {
        let correction = Correction { warm_up: 0, mask: false, decay: None, ..self.correction };
        let Self { collection, nonfinite, .. } = *self;
        Self { collection, nonfinite, correction, ..Self::ring() }
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
