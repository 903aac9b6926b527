//! One pass over a gradient for what distributions are fitted to.

use crate::Element;

/// Sums that are carried side by side, so that additions do not wait for each other.
const LANES: usize = 8;

/// Of the magnitudes that are not zero and not below some magnitude, what they exceed it by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Excesses {
    /// How many there are.
    pub(super) count: f64,
    /// Their mean, 0 if there are none.
    pub(super) mean: f64,
    /// The mean of their squares less the square of their mean.
    pub(super) variance: f64,
}

/// The excesses over a magnitude; over 0 all that is not zero.
pub(super) fn excesses<T: Element>(values: &[T], over: f64) -> Excesses {
    // Every non-zero magnitude, if it is 0.
    let least = if over > 0.0 { over } else { f64::from_bits(1) };
    let (mut counts, mut sums, mut squares) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    let mut take = |lane: usize, value: T| {
        let magnitude = value.to_f64().abs();
        // Without a branch: whether an entry is above cannot be predicted.
        let excess = if magnitude > over { magnitude - over } else { 0.0 };
        counts[lane] += f64::from(u8::from(magnitude >= least));
        sums[lane] += excess;
        squares[lane] += excess * excess;
    };
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        for (lane, &value) in group.iter().enumerate() {
            take(lane, value);
        }
    }
    rest.iter().enumerate().for_each(|(lane, &value)| take(lane, value));
    let [count, sum, squares] = [counts, sums, squares].map(|lanes| lanes.iter().sum::<f64>());
    if count == 0.0 {
        return Excesses { count, mean: 0.0, variance: 0.0 };
    }
    let mean = sum / count;
    Excesses { count, mean, variance: (squares / count - mean * mean).max(0.0) }
}

/// Mean and variance of all values, zeros too and with their signs.
pub(super) fn signed<T: Element>(values: &[T]) -> (f64, f64) {
    let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
    let mut take = |lane: usize, value: T| {
        let value = value.to_f64();
        sums[lane] += value;
        squares[lane] += value * value;
    };
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        for (lane, &value) in group.iter().enumerate() {
            take(lane, value);
        }
    }
    rest.iter().enumerate().for_each(|(lane, &value)| take(lane, value));
    let n = values.len().max(1) as f64;
    let [sum, squares] = [sums, squares].map(|lanes| lanes.iter().sum::<f64>());
    let mean = sum / n;
    (mean, (squares / n - mean * mean).max(0.0))
}

/// Mantissas, each below 2, whose product still is a finite number.
const FACTORS: usize = 512;

/// The mean natural logarithm of the magnitudes that are not zero; 0 if there are none.
///
/// A logarithm takes long, so mantissas are multiplied, exponents added, and one logarithm taken for many.
pub(super) fn mean_logarithm<T: Element>(values: &[T]) -> f64 {
    let (mut count, mut exponents, mut mantissas) = (0u64, 0i64, 0.0);
    for chunk in values.chunks(FACTORS * LANES) {
        let mut products = [1.0f64; LANES];
        let mut take = |lane: usize, value: T| {
            // Of f64 alone there are magnitudes that are not normal, and they are far from any mean.
            let bits = value.to_f64().abs().max(f64::MIN_POSITIVE).to_bits();
            let taken = value != T::ZERO;
            count += u64::from(taken);
            exponents += if taken { (bits >> 52) as i64 - 1023 } else { 0 };
            let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | 1.0f64.to_bits());
            products[lane] *= if taken { mantissa } else { 1.0 };
        };
        let (groups, rest) = chunk.as_chunks::<LANES>();
        for group in groups {
            for (lane, &value) in group.iter().enumerate() {
                take(lane, value);
            }
        }
        rest.iter().enumerate().for_each(|(lane, &value)| take(lane, value));
        mantissas += products.iter().map(|product| product.ln()).sum::<f64>();
    }
    if count == 0 { 0.0 } else { (mantissas + exponents as f64 * std::f64::consts::LN_2) / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
    }

    proptest! {
        #[test]
        fn as_the_definitions_say(
            values in proptest::collection::vec(prop_oneof![Just(0.0f32), Just(-0.0f32), -3.0f32..3.0, Just(1e-42f32)], 0..9000),
            over in prop_oneof![Just(0.0), 0.0f64..3.0],
        ) {
            let all: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
            let excesses_of: Vec<f64> =
                all.iter().map(|v| v.abs()).filter(|&v| v > 0.0 && v >= over).map(|v| v - over).collect();
            let count = excesses_of.len() as f64;
            let of = |values: &[f64]| values.iter().sum::<f64>() / (values.len().max(1) as f64);
            let variance = |values: &[f64]| {
                let mean = of(values);
                of(&values.iter().map(|v| (v - mean) * (v - mean)).collect::<Vec<_>>())
            };
            let found = excesses(&values, over);
            prop_assert_eq!(found.count, count);
            prop_assert!(close(found.mean, of(&excesses_of)) && close(found.variance, variance(&excesses_of)));
            let (mean, spread) = signed(&values);
            prop_assert!(close(mean, of(&all)) && close(spread, variance(&all)));
            let logarithms: Vec<f64> = all.iter().filter(|v| **v != 0.0).map(|v| v.abs().ln()).collect();
            prop_assert!(close(mean_logarithm(&values), of(&logarithms)));
        }
    }
}
