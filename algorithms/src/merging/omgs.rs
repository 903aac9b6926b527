//! OMGS: Algorithm 1, FindMergedLayers (Shi et al., INFOCOM 2020), line by line.
//!
//! From layer L to 2, layer l is merged into l − 1 if Q3 and Q5 hold (equation 24). As the print cannot be taken at its word
//! everywhere, there are two of it: [`READ`](Omgs::READ), where §IV-A says what a line must mean, and
//! [`PRINTED`](Omgs::PRINTED), to the letter. They differ in three places, marked (a), (b) and (c):
//!
//! | line | printed | read |
//! |---|---|---|
//! | 5 (a) | μ = τ_b\[l\] + t_b\[l−1\] | with t_b\[l\] between, as u(l) before equation 21 |
//! | 10 (b) | CCPS starts at τ_b\[l\] + t_b\[l−1\], after Merge has added t_b\[l\] to it | at τ_b\[l\] + t_b\[l\], which Merge has set to 0: equation 15 |
//! | 12, 22 (c) | CCMS sets t_c\[l\] of a merged layer to AGPM(0) = α again | to 0: equation 13 |
//!
//! Both take TKPM(0) as 0, its limit and equation 13, although 0 · log 0 is not defined. α of line 7 is t_c(d(l)) + t_c(d(l−1)) −
//! t_c(d(l) + d(l−1)), which for α + β d is α, so that the algorithm runs on any cost functions. It supposes that selection runs in the
//! backward pass, whatever the problem says.

use super::{GroupCost, Grouping, MergingError, Problem, Strategy};

/// Algorithm 1 of OMGS-SGD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Omgs {
    printed: bool,
}

/// What Algorithm 1 keeps of each layer, from layer 1 of the network, which stands at 0 here, to L. Names are the paper's:
/// times in seconds, timestamps in seconds from when the backward pass begins.
struct LayerTimes {
    tb: Vec<f64>,
    ts: Vec<f64>,
    tc: Vec<f64>,
    taub: Vec<f64>,
    taus: Vec<f64>,
    tauc: Vec<f64>,
}

impl Omgs {
    /// Lines that contradict §IV-A are read as it says.
    pub const READ: Self = Self { printed: false };

    /// Algorithm 1 to the letter.
    pub const PRINTED: Self = Self { printed: true };
}

impl LayerTimes {
    /// Lines 27 to 36, CalculateCompStart: the layers before the first `layers`, from when the last of them begins. `ts` is kept
    /// up to date where it changes, so that it need not be asked for again.
    fn comp_start(&mut self, layers: usize, tau: f64) {
        self.taub[layers - 1] = tau;
        self.taus[layers - 1] = self.taub[layers - 1] + self.tb[layers - 1];
        for l in (0..layers - 1).rev() {
            self.taub[l] = self.taus[l + 1] + self.ts[l + 1];
            self.taus[l] = self.taub[l] + self.tb[l];
        }
    }

    /// Lines 19 to 26, CalculateCommStart; `tc` likewise.
    fn comm_start(&mut self) {
        let last = self.tb.len() - 1;
        self.tauc[last] = self.taus[last] + self.ts[last];
        for l in (0..last).rev() {
            self.tauc[l] = (self.tauc[l + 1] + self.tc[l + 1]).max(self.taus[l] + self.ts[l]);
        }
    }
}

impl Strategy for Omgs {
    fn name(&self) -> &'static str {
        if self.printed { "omgs-printed" } else { "omgs" }
    }

    fn summary(&self) -> &'static str {
        match self.printed {
            false => {
                "merged where that ends the exchange of two layers sooner: OMGS (INFOCOM 2020), Algorithm 1"
            }
            true => "the same with each line of Algorithm 1 as it is printed",
        }
    }

    fn group(&self, problem: &Problem<'_>) -> Result<Grouping, MergingError> {
        let backward = problem.pass.layers();
        let count = backward.len();
        // Backpropagation finishes L first: layer l of the paper is `count - l` in its order, and `l - 1` here.
        let place = |l: usize| count - 1 - l;
        let costs =
            (0..count).map(|l| problem.cost(place(l), place(l) + 1)).collect::<Result<Vec<_>, _>>()?;
        // Lines 1 to 3.
        let mut merged = vec![false; count];
        let zeros = || vec![0.0; count];
        let mut layers = LayerTimes {
            tb: (0..count).map(|l| backward[place(l)].backward).collect(),
            ts: costs.iter().map(|cost| cost.select).collect(),
            tc: costs.iter().map(GroupCost::alone).collect(),
            taub: zeros(),
            taus: zeros(),
            tauc: zeros(),
        };
        layers.comp_start(count, 0.0);
        layers.comm_start();
        // Behind which the layers that are merged into l begin.
        let mut begin = 0;
        // Line 4.
        for l in (1..count).rev() {
            let both = problem.cost(begin, place(l - 1) + 1)?;
            let alpha = layers.tc[l] + costs[l - 1].alone() - both.alone();
            let own = if self.printed { 0.0 } else { layers.tb[l] }; // (a)
            let mu = layers.taub[l] + own + layers.tb[l - 1];
            let q3 = mu + layers.ts[l] + layers.ts[l - 1] < layers.tauc[l] + layers.tc[l];
            let q5 = layers.tauc[l] + alpha > mu + both.select;
            if !(q3 && q5) {
                begin = place(l - 1);
                continue;
            }
            // Lines 37 to 41, Merge.
            layers.tb[l - 1] += layers.tb[l];
            layers.tb[l] = 0.0;
            (layers.tc[l - 1], layers.ts[l - 1]) = (both.alone(), both.select);
            (layers.tc[l], layers.ts[l]) = (if self.printed { alpha } else { 0.0 }, 0.0); // (c)
            // Lines 10 and 11.
            let doubled = if self.printed { layers.tb[l - 1] } else { 0.0 }; // (b)
            layers.comp_start(l + 1, layers.taub[l] + doubled);
            // Lines 12 and 13.
            layers.comm_start();
            merged[l] = true;
        }
        Ok(Grouping::cut(count, |layer| !merged[place(layer)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merging::{Affine, Layer, Line, Pass, Placement};

    fn groups(omgs: Omgs, backward: &[f64], exchange: Line) -> String {
        let layer = |&backward: &f64| Layer { backward, entries: 1 };
        let pass = Pass::new(0.0, backward.iter().map(layer).collect()).unwrap();
        let costs = Affine { select: Line { fixed: 0.0, per_entry: 1.0 }, exchange };
        omgs.group(&Problem { pass: &pass, costs: &costs, place: Placement::InBackward }).unwrap().to_string()
    }

    /// Worked out on paper: α = 3, β = 1, selection 1 s an entry.
    #[test]
    fn groups_by_hand() {
        let exchange = Line { fixed: 3.0, per_entry: 1.0 };
        // u = 0 + 1 + 2 = 3, τ_c = 2. Q3: 3 + 1 + 1 < 2 + 4. Q5: 2 + 3 > 3 + 2 does not hold. As printed u = 2 and both do.
        assert_eq!(groups(Omgs::READ, &[1.0, 2.0], exchange), "1 + 1");
        assert_eq!(groups(Omgs::PRINTED, &[1.0, 2.0], exchange), "2");
        // u = 2: merged. Then τ_b = 0, t_b = 2, t_s = 2, τ_c = 4, t_c = 5 of the two, and u = 3 for the third. Q3: 3 + 2 + 1 < 4 + 5.
        // Q5: 4 + 3 > 3 + 3: merged as well. As printed the two begin at 2 and, again, 2 s late: τ_c = max(2 + 3, 6) = 6, and
        // u = 2 + 1: merged.
        assert_eq!(groups(Omgs::READ, &[1.0, 1.0, 1.0], exchange), "3");
        assert_eq!(groups(Omgs::PRINTED, &[1.0, 1.0, 1.0], exchange), "3");
        // Q5 with a third layer of 2 s: 4 + 3 > 4 + 3 does not hold. As printed τ_b = 2, u = 4, τ_c = 6: 6 + 3 > 4 + 3.
        assert_eq!(groups(Omgs::READ, &[1.0, 1.0, 2.0], exchange), "2 + 1");
        assert_eq!(groups(Omgs::PRINTED, &[1.0, 1.0, 2.0], exchange), "3");
    }

    /// Without Q3 there is nothing to save: the exchange of l is over before the next could begin.
    #[test]
    fn nothing_is_merged_where_exchanges_are_short() {
        for omgs in [Omgs::READ, Omgs::PRINTED] {
            assert_eq!(groups(omgs, &[1.0; 5], Line { fixed: 0.1, per_entry: 0.0 }), "1 + 1 + 1 + 1 + 1");
        }
    }
}
