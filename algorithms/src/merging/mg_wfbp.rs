//! MG-WFBP: merged-gradient wait-free backpropagation (Shi, Chu and Li, INFOCOM 2019; OMGS-SGD's \[16\]), for dense gradients. From
//! the last layer of the network to the second, layer l is merged into l − 1 if waiting for that one takes less than the
//! start-up that is saved:
//!
//! > τ_b(l−1) + t_b(l−1) − τ_c(l) < α
//!
//! It knows of no selection and leaves t_s out. α is t_c(d(l)) + t_c(d(l−1)) − t_c(d(l) + d(l−1)) here, which for α + β d is α. We
//! follow its authors' code (github.com/HKBU-HPML/MG-WFBP), which asks besides whether the exchange of l would end after
//! the gradient of l − 1 is there; where t_c is at least α, that follows.

use super::{Grouping, MergingError, Problem, Strategy};

/// Merges a layer into the next where that is no loss by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MgWfbp;

impl Strategy for MgWfbp {
    fn name(&self) -> &'static str {
        "mg-wfbp"
    }

    fn summary(&self) -> &'static str {
        "merged where waiting takes less than a start-up, without a thought of selection: MG-WFBP (INFOCOM 2019)"
    }

    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError> {
        let layers = problem.pass.layers().len();
        let exchange = |from, to| Ok::<_, MergingError>(problem.cost(from, to)?.alone());
        let mut ends = Vec::new();
        // The group so far begins here; before it, exchanges are done at this time.
        let (mut begin, mut done) = (0, 0.0f64);
        for layer in 0..layers - 1 {
            let own = exchange(begin, layer + 1)?;
            // τ_c(l): when this group's exchange would begin if it were not merged any further.
            let starts = done.max(problem.pass.end(layer + 1));
            let next = problem.pass.end(layer + 2);
            let saved = own + exchange(layer + 1, layer + 2)? - exchange(begin, layer + 2)?;
            if next < starts + own && next - starts < saved {
                continue;
            }
            ends.push(layer + 1);
            (begin, done) = (layer + 1, starts + own);
        }
        ends.push(layers);
        Grouping::new(ends, layers)
    }
}

#[cfg(test)]
mod tests {
    use crate::merging::{Affine, Layer, Line, Pass, Placement, Problem, named};

    /// Worked out on paper: the second layer waits 1 s, less than α; the third 5 s, more; the fifth comes while the fourth still
    /// waits for the exchange before it.
    #[test]
    fn groups_by_hand() {
        let layer = |backward| Layer { backward, entries: 1 };
        let pass = Pass::new(0.0, [1.0, 1.0, 5.0, 0.5, 0.5].map(layer).to_vec()).unwrap();
        let costs = Affine { select: Line::default(), exchange: Line { fixed: 2.0, per_entry: 1.0 } };
        let problem = Problem { pass: &pass, costs: &costs, place: Placement::Beside };
        assert_eq!(named("mg-wfbp").unwrap().group(&problem).unwrap().to_string(), "2 + 3");
    }
}
