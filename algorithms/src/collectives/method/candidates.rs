//! The methods that `auto` may be resolved to.

use super::super::{MethodError, Setting};
use super::Method;
use crate::bag::Coding;
use crate::residual::CorrectionError;
use crate::selectors::Selector;

impl Method {
    /// The methods that `auto` may be resolved to among this many workers, with its options: every listed method that
    /// [suits](crate::collectives::Collective::suits_auto) it, with its whole [family](crate::collectives::Collective::family). An
    /// option that was set is kept: sparse methods that do not have it are left out. Dense methods come without the options that only sparse ones
    /// have. A method other than `auto` is its own only candidate.
    ///
    /// # Errors
    /// As [`shape`](Self::shape), where no method accepts these options, or the one that has what was asked for does not.
    pub fn candidates(&self, workers: u32, n: usize) -> Result<Vec<Self>, MethodError> {
        self.candidates_among(Self::all(), workers, n)
    }

    /// As [`candidates`](Self::candidates), with these methods in place of the listed ones.
    ///
    /// # Errors
    /// As [`candidates`](Self::candidates).
    pub fn candidates_among(
        &self,
        methods: impl IntoIterator<Item = Self>,
        workers: u32,
        n: usize,
    ) -> Result<Vec<Self>, MethodError> {
        if !self.is_auto() {
            self.shape(workers, n)?;
            return Ok(vec![self.clone()]);
        }
        if self.correction.warm_up > 0 {
            return Err(CorrectionError::Auto.into());
        }
        if !self.whole.is_none() {
            return Err(CorrectionError::WholeAuto.into());
        }
        if self.complete {
            return Err(CorrectionError::SumsAuto.into());
        }
        self.competes()?;
        self.share_fits()?;
        self.decay_fits()?;
        let asked = self.collective.options();
        let mut candidates = Vec::new();
        for listed in methods.into_iter().filter(|method| method.collective.suits_auto()) {
            let set = |method: Self, o: &Setting| method.with(o.name, &o.value);
            let own = match listed.collective.is_sparse() {
                true => asked.iter().try_fold(listed, set),
                false => Ok(listed),
            };
            let collective = match own {
                Ok(own) => own.collective,
                Err(MethodError::NoOption { .. }) => continue,
                Err(error) => return Err(error),
            };
            let alone = match collective.is_sparse() {
                true => self.clone(),
                false => Self { coding: Some(Coding::Exact), selector: Selector::Top, ..self.clone() },
            };
            if collective.is_sparse() && !asked.is_empty() {
                Self { collective: collective.clone(), ..alone.clone() }.shape(workers, n)?;
            }
            let members = collective.members(workers).into_iter();
            candidates.extend(members.map(|collective| Self { collective, ..alone.clone() }));
        }
        let reason = candidates.first().map(|first| first.shape(workers, n));
        candidates.retain(|candidate| candidate.shape(workers, n).is_ok());
        match reason {
            Some(Err(reason)) if candidates.is_empty() => Err(reason),
            _ => Ok(candidates),
        }
    }
}
