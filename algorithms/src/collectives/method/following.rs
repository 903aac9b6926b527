//! Methods whose density follows the share of the norm that a step delivers.

use super::Method;
use crate::SelectOver;
use crate::density::{NormShareError, looks_in};
use crate::selectors::Selector;

impl Method {
    /// Lets the density follow the gradients, so that a step delivers about this share, in (0, 1), of the squared L2 norm of what workers
    /// select from. The method's own density is the budget: the mean over all steps so far never exceeds it, and a step has
    /// at most eight times as many entries. For models whose parameters have names, in main memory. See [`crate::density`].
    #[must_use]
    pub fn norm_share(self, share: f64) -> Self {
        Self { norm_share: Some(share), ..self }
    }

    /// The share of the norm that the density follows, if it does.
    pub fn follows_norm_share(&self) -> Option<f64> {
        self.norm_share
    }

    /// Whether the norm is looked at in a step, counted from 0 without those that were left out.
    pub fn looks_at_norm_in(&self, step: u64) -> bool {
        self.norm_share.is_some() && looks_in(step, &self.whole)
    }

    /// Whether the density can follow a share of the norm as this method is set to.
    ///
    /// # Errors
    /// No such share, and what has no density or another that changes.
    pub fn share_fits(&self) -> Result<(), NormShareError> {
        let Some(share) = self.norm_share else { return Ok(()) };
        if !(share > 0.0 && share < 1.0) {
            return Err(NormShareError::Share(share));
        }
        if self.is_auto() {
            let auto = "the method auto, which measures steps whose density would not last; name a method, or leave the share out";
            return Err(NormShareError::Beside(auto));
        }
        if !self.collective.is_sparse() {
            return Err(NormShareError::Dense(self.collective.name()));
        }
        for (found, what) in [
            (
                self.correction.warm_up > 0,
                "a density warm-up, which sets the density of the same steps; leave one of them out",
            ),
            (
                self.over == SelectOver::Gradient,
                "selection over the whole gradient, whose groups change their numbers of entries by themselves; select over each group, or leave the share out",
            ),
            (
                matches!(self.selector, Selector::Threshold(_)),
                "a fixed threshold, which selects what exceeds it at any density; choose another selector, or leave the share out",
            ),
        ] {
            if found {
                return Err(NormShareError::Beside(what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residual::Correction;

    #[test]
    fn what_no_density_can_follow_is_refused() {
        let refusal = |method: Method| {
            method.candidates(3, 100).err().map(|error| error.to_string()).unwrap_or_default()
        };
        let spardl = || Method::spardl().norm_share(0.5);
        for share in [0.0, 1.0, -0.5, 7.0, f64::NAN] {
            assert!(refusal(spardl().norm_share(share)).starts_with("the share of the norm is "), "{share}");
        }
        let warm = Correction { warm_up: 5, ..Correction::default() };
        for (method, named) in [
            (Method::ring().norm_share(0.5), "with ring, which delivers every entry"),
            (Method::auto().norm_share(0.5), "with the method auto"),
            (spardl().corrected(warm), "with a density warm-up"),
            (spardl().select_over(SelectOver::Gradient), "with selection over the whole gradient"),
            (
                Method::named("topka").unwrap().selector("threshold=0.1".parse().unwrap()).norm_share(0.5),
                "with a fixed threshold",
            ),
        ] {
            assert!(refusal(method.clone()).contains(named), "{method}: {}", refusal(method.clone()));
        }
        assert!(refusal(spardl()).is_empty());
        assert!(spardl().for_sparse(3, 100).unwrap_err().to_string().contains("with a share of the norm"));
        assert_eq!(spardl().beside(3, 100).unwrap().follows_norm_share(), None);
        assert_eq!(spardl().whole_beside().follows_norm_share(), None);
    }
}
