//! Lines fitted to measured times: OMGS-SGD, §V-B and Fig. 2.

use super::Line;

/// By how much fitted times miss the measured ones, as shares of these.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Misfit {
    /// The root of the mean of the squares.
    pub rms: f64,
    /// The largest.
    pub most: f64,
}

impl Misfit {
    /// Of a curve, at numbers of entries and the times measured there, above 0.
    pub fn of(places: &[(f64, f64)], at: impl Fn(f64) -> f64) -> Self {
        let errors = places.iter().map(|&(x, y)| (at(x) / y - 1.0).abs());
        let squares: f64 = errors.clone().map(|error| error * error).sum();
        Self { rms: (squares / places.len().max(1) as f64).sqrt(), most: errors.fold(0.0, f64::max) }
    }
}

impl Line {
    /// The line with the least sum of squared relative errors through numbers of entries (or bytes) and the times measured there, of all
    /// that have neither number below 0. None through places that are no finite times above 0, or not at two sizes at least.
    pub fn fit(places: &[(f64, f64)]) -> Option<Self> {
        let sum = |of: fn(f64, f64) -> f64| places.iter().map(|(x, y)| of(*x, *y) / (y * y)).sum::<f64>();
        let (one, x, xx) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|x, _| x * x));
        let (y, xy) = (sum(|_, y| y), sum(|x, y| x * y));
        let determinant = one * xx - x * x;
        let (fixed, per_entry) = ((y * xx - xy * x) / determinant, (one * xy - x * y) / determinant);
        let two = places.iter().any(|(x, _)| *x != places[0].0);
        let line = match (fixed < 0.0, per_entry < 0.0) {
            (true, _) => Self { fixed: 0.0, per_entry: xy / xx },
            (_, true) => Self { fixed: y / one, per_entry: 0.0 },
            _ => Self { fixed, per_entry },
        };
        let times = places.iter().all(|(_, y)| y.is_finite() && *y > 0.0);
        (two && times && line.fixed.is_finite() && line.per_entry.is_finite()).then_some(line)
    }
}

/// γ of γ d log2 d, OMGS-SGD's equation 10 with its density within γ, by least squares of the relative errors. None as for
/// [`Line::fit`], or where no number of entries is above 1.
pub fn fit_growth(places: &[(f64, f64)]) -> Option<f64> {
    let sum = |of: fn(f64) -> f64| places.iter().map(|(d, y)| of(growth(*d) / y)).sum::<f64>();
    let gamma = sum(|ratio| ratio) / sum(|ratio| ratio * ratio);
    gamma.is_finite().then_some(gamma)
}

/// d log2 d.
pub fn growth(entries: f64) -> f64 {
    entries * libm::log2(entries.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [f64; 5] = [1e3, 2e4, 3e5, 1e6, 4e6];

    #[test]
    fn what_lies_on_a_curve_gives_that_curve() {
        for (fixed, per_entry) in [(1e-3, 2e-9), (5e-6, 1e-8), (0.0, 3e-9), (2e-3, 0.0)] {
            let places = SIZES.map(|x| (x, fixed + per_entry * x));
            let line = Line::fit(&places).unwrap();
            let misfit = Misfit::of(&places, |x| line.fixed + line.per_entry * x);
            assert!(misfit.most < 1e-9 && misfit.rms < 1e-9, "{line:?}: {misfit:?}");
        }
        let places = SIZES.map(|d| (d, 7e-11 * growth(d)));
        assert!((fit_growth(&places).unwrap() / 7e-11 - 1.0).abs() < 1e-9);
    }

    /// What was measured scatters, and may begin below 0: no other line with a cost of at least 0 has a smaller error.
    #[test]
    fn no_other_line_has_a_smaller_error() {
        let scattered = [(1e3, 2e-3), (2e4, 1.5e-3), (3e5, 4e-3), (1e6, 5e-3), (4e6, 2.3e-2)];
        let convex = [(1e3, 1e-7), (1e5, 3e-5), (1e6, 4e-3), (2e6, 2e-2)];
        let falling = [(1e3, 3e-3), (1e5, 2e-3), (1e6, 1e-3)];
        for places in [&scattered[..], &convex, &falling] {
            let error = |fixed: f64, per_entry: f64| -> f64 {
                places.iter().map(|(x, y)| ((fixed + per_entry * x) / y - 1.0).powi(2)).sum()
            };
            let line = Line::fit(places).unwrap();
            assert!(line.fixed >= 0.0 && line.per_entry >= 0.0, "{line:?}");
            let least = error(line.fixed, line.per_entry);
            for (da, db) in [(1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99), (1.01, 0.99)] {
                assert!(least <= error(line.fixed * da, line.per_entry * db), "{places:?}");
            }
            assert!(least <= error(line.fixed + 1e-9, line.per_entry), "{places:?}");
            assert!(least <= error(line.fixed, line.per_entry + 1e-15), "{places:?}");
        }
    }

    #[test]
    fn a_fit_needs_two_sizes_and_times() {
        for places in [
            &[][..],
            &[(1e3, 1.0)],
            &[(1e3, 1.0), (1e3, 2.0)],
            &[(1e3, 0.0), (1e4, 1.0)],
            &[(1e3, f64::NAN), (1e4, 1.0)],
        ] {
            assert_eq!(Line::fit(places), None, "{places:?}");
        }
        assert_eq!(fit_growth(&[]), None);
        assert_eq!(fit_growth(&[(1.0, 1.0)]), None);
    }
}
