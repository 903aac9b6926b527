//! Which layers are important: OSP, §4.1.1.

/// The importance of a layer, I = Σ |g·p| over its entries (equation 4), from its parameters and its last global gradient. The
/// same bits wherever the two have the same bits. Infinite where one of the products is not finite, so that such a layer is the
/// last to be put off.
///
/// Parts of a layer that are on several servers add up to it.
pub fn importance(parameters: &[f32], gradient: &[f32]) -> f64 {
    // Eight sums beside each other, added up in one order: fast, and always the same.
    let mut sums = [0.0f64; 8];
    let product = |(p, g): (&f32, &f32)| (f64::from(*p) * f64::from(*g)).abs();
    let (parameters, gradients) = (parameters.chunks(8), gradient.chunks(8));
    for (parameters, gradients) in parameters.zip(gradients) {
        for (sum, pair) in sums.iter_mut().zip(parameters.iter().zip(gradients)) {
            *sum += product(pair);
        }
    }
    let sum: f64 = sums.iter().sum();
    if sum.is_nan() { f64::INFINITY } else { sum }
}

/// The gradient importance bitmap: which units go to the background. From the least important one on, of two alike the one with
/// the lower index, each that still fits into this many entries in total. A unit that does not fit is passed over, so that one
/// large unit does not leave the background empty; one without entries fits always.
pub fn split(importances: &[f64], entries: &[usize], budget: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..importances.len().min(entries.len())).collect();
    order.sort_by(|&a, &b| importances[a].total_cmp(&importances[b]).then(a.cmp(&b)));
    let mut background = vec![false; entries.len()];
    let mut left = budget;
    for unit in order {
        if let Some(rest) = left.checked_sub(entries[unit]) {
            (background[unit], left) = (true, rest);
        }
    }
    background
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn importance_by_hand() {
        assert_eq!(importance(&[], &[]), 0.0);
        assert_eq!(importance(&[1.0, -2.0, 3.0], &[-4.0, 5.0, 0.5]), 4.0 + 10.0 + 1.5);
        assert_eq!(importance(&[f32::INFINITY, 1.0], &[0.0, 1.0]), f64::INFINITY);
        assert_eq!(importance(&[-f32::NAN, 1.0], &[1.0, 1.0]), f64::INFINITY);
        // No product is lost in a smaller type.
        assert_eq!(importance(&[f32::MAX, 1.0], &[2.0, 1.0]), 2.0 * f64::from(f32::MAX) + 1.0);
    }

    #[test]
    fn splits_by_hand() {
        let importances = [5.0, 1.0, 1.0, 0.5, f64::INFINITY];
        let of = |budget| split(&importances, &[10, 20, 20, 40, 1], budget);
        assert_eq!(of(0), [false; 5]);
        assert_eq!(of(40), [false, false, false, true, false]);
        // Unit 3 does not fit; of units 1 and 2, which are alike, the first; then what still fits.
        assert_eq!(of(39), [true, true, false, false, true]);
        assert_eq!(of(60), [false, true, false, true, false]);
        assert_eq!(of(61), [false, true, false, true, true]);
        assert_eq!(of(90), [true, true, true, true, false]);
        assert_eq!(of(91), [true; 5]);
    }

    proptest! {
        #[test]
        fn importance_is_the_sum_of_its_parts(values in prop::collection::vec((-9i8..9, -9i8..9), 0..60), cut in 0usize..60) {
            let (p, g): (Vec<f32>, Vec<f32>) = values.iter().map(|&(p, g)| (f32::from(p), f32::from(g))).unzip();
            let expected: i32 = values.iter().map(|&(p, g)| (i32::from(p) * i32::from(g)).abs()).sum();
            prop_assert_eq!(importance(&p, &g), f64::from(expected));
            let cut = cut.min(p.len());
            prop_assert_eq!(importance(&p[..cut], &g[..cut]) + importance(&p[cut..], &g[cut..]), f64::from(expected));
        }

        #[test]
        fn what_is_in_the_background_fits_and_what_is_not_did_not(
            units in prop::collection::vec((0u8..6, 0usize..30), 0..12), budget in 0usize..200
        ) {
            let (importances, entries): (Vec<f64>, Vec<usize>) = units.iter().map(|&(i, n)| (f64::from(i), n)).unzip();
            let background = split(&importances, &entries, budget);
            prop_assert_eq!(background.len(), entries.len());
            let sum = |of: &dyn Fn(usize) -> bool| -> usize {
                (0..entries.len()).filter(|&unit| background[unit] && of(unit)).map(|unit| entries[unit]).sum()
            };
            prop_assert!(sum(&|_| true) <= budget);
            for unit in (0..entries.len()).filter(|&unit| !background[unit]) {
                let before = |other: usize| (importances[other], other) < (importances[unit], unit);
                prop_assert!(sum(&before) + entries[unit] > budget, "unit {} was left out", unit);
            }
        }
    }
}
