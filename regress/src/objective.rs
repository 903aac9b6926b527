//! What is minimised: F(w) = (1/N) Σ loss(w·xᵢ, yᵢ) + λ₂/2 ‖w‖² + λ₁ ‖w‖₁.

use std::fmt;

/// What a wrong prediction costs. With the margin m = w·x; y is 1 or −1, and of [`Squares`](Loss::Squares) any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Logistic regression: log(1 + exp(−ym)).
    Logistic,
    /// A support vector machine: max(0, 1 − ym).
    Hinge,
    /// A support vector machine: max(0, 1 − ym)².
    SquaredHinge,
    /// Least squares, and with L1 the Lasso: (m − y)²/2.
    Squares,
}

impl Loss {
    /// All of them.
    pub const ALL: [Loss; 4] = [Loss::Logistic, Loss::Hinge, Loss::SquaredHinge, Loss::Squares];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Loss::Logistic => "logistic",
            Loss::Hinge => "hinge",
            Loss::SquaredHinge => "squared-hinge",
            Loss::Squares => "squares",
        }
    }

    /// By its name, if it is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|loss| loss.name() == name)
    }

    /// Whether labels are two classes.
    pub fn classifies(self) -> bool {
        self != Loss::Squares
    }

    /// Of a sample with this margin.
    pub fn value(self, margin: f64, y: f64) -> f64 {
        match self {
            // Without overflow on either side.
            Loss::Logistic => (-(y * margin).abs()).exp().ln_1p() + (-y * margin).max(0.0),
            Loss::Hinge => (1.0 - y * margin).max(0.0),
            Loss::SquaredHinge => (1.0 - y * margin).max(0.0).powi(2),
            Loss::Squares => (margin - y).powi(2) / 2.0,
        }
    }

    /// The derivative by the margin; of the hinge at its corner, 0.
    pub fn slope(self, margin: f64, y: f64) -> f64 {
        match self {
            Loss::Logistic => -y / (1.0 + (y * margin).exp()),
            Loss::Hinge => {
                if y * margin < 1.0 {
                    -y
                } else {
                    0.0
                }
            }
            Loss::SquaredHinge => -2.0 * y * (1.0 - y * margin).max(0.0),
            Loss::Squares => margin - y,
        }
    }

    /// The most that the second derivative by the margin is; none for the hinge, which has a corner.
    pub fn curvature(self) -> Option<f64> {
        match self {
            Loss::Logistic => Some(0.25),
            Loss::Hinge => None,
            Loss::SquaredHinge => Some(2.0),
            Loss::Squares => Some(1.0),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What large weights cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Penalty {
    /// λ₁, the factor of the sum of magnitudes.
    pub l1: f64,
    /// λ₂, twice the factor of the sum of squares.
    pub l2: f64,
}

impl Penalty {
    /// λ₂/2 ‖w‖² + λ₁ ‖w‖₁.
    pub fn value(&self, weights: impl IntoIterator<Item = f64>) -> f64 {
        weights.into_iter().map(|weight| self.l2 / 2.0 * weight * weight + self.l1 * weight.abs()).sum()
    }
}

/// The number nearest to zero that is at most `by` away: the proximal operator of an L1 penalty.
pub(crate) fn shrink(value: f64, by: f64) -> f64 {
    value.signum() * (value.abs() - by).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_the_values() {
        for loss in Loss::ALL {
            assert_eq!(Loss::named(loss.name()), Some(loss));
            for (margin, y) in [(0.3, 1.0), (-2.0, 1.0), (1.7, -1.0), (3.0, 1.0), (-40.0, 1.0), (900.0, -1.0)]
            {
                let step = 1e-6;
                let found = (loss.value(margin + step, y) - loss.value(margin - step, y)) / (2.0 * step);
                let expected = loss.slope(margin, y);
                assert!(
                    (found - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                    "{loss} {margin} {y}: {found}, {expected}"
                );
                if let Some(most) = loss.curvature() {
                    let curvature =
                        (loss.slope(margin + step, y) - loss.slope(margin - step, y)) / (2.0 * step);
                    assert!(curvature < most + 1e-6);
                }
            }
        }
        assert_eq!((shrink(3.0, 1.0), shrink(-3.0, 1.0), shrink(0.5, 1.0)), (2.0, -2.0, 0.0));
    }
}
