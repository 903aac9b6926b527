//! QSGD with the maximum norm (Alistarh et al., NeurIPS 2017, §3): a value becomes one of s levels on each side of
//! zero, up or down at random so that its expectation is the value itself.
//!
//! A bucket is a range of positions, index >> shift. Its scale is its largest magnitude, and that value's level is s,
//! so the scale can be read off the rounded values: an entry that rounds to zero can be dropped, and none of the
//! others changes. Wherever a level becomes a value, it is by the one expression scale · (level / s), and
//! (|value| / scale) · s lies within a few units of the last place of the level, so rounding it gives the level back.

use std::ops::Range;

use gleaner_statistics::random;

use super::Coding;

/// Dense blocks have buckets of 512 positions; about as many entries are in the buckets of sparse ones.
pub(super) const DENSE_SHIFT: u8 = 9;

/// Buckets with a smaller scale round to zero. From here on no level of a bucket is subnormal, so products and
/// quotients keep their precision, also where a processor is set to flush subnormals to zero.
const SMALLEST_SCALE: f32 = 256.0 * f32::MIN_POSITIVE;

/// How wide a bucket is so that it has 257 to 512 of `count` entries that are spread over `len` positions; never wider
/// than needed to hold all of them.
pub(super) fn shift(count: usize, len: usize) -> u8 {
    let whole = len.max(1).next_power_of_two().trailing_zeros() as u8;
    let width = (len.max(1) << DENSE_SHIFT) / count.max(1);
    (width.max(1).ilog2() as u8).min(whole).clamp(DENSE_SHIFT, 31)
}

/// The ranges of ascending indices that share a bucket.
pub(super) fn runs(indices: &[u32], shift: u8) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    std::iter::from_fn(move || {
        let bucket = indices.get(start)? >> shift;
        let here = &indices[start..indices.len().min(start + (1 << shift))];
        let run = start..start + here.partition_point(|&index| index >> shift == bucket);
        start = run.end;
        Some(run)
    })
}

/// How many levels there are on each side of zero, s.
fn levels(coding: Coding) -> f32 {
    ((1 << (coding.bits() - 1)) - 1) as f32
}

/// The scale of a bucket: its largest magnitude, or 0 for one that rounds to zero.
pub(super) fn scale(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0, |largest, v| largest.max(v.to_bits() as i32 & 0x7fff_ffff));
    let largest = f32::from_bits(largest as u32);
    if largest < SMALLEST_SCALE { 0.0 } else { largest }
}

/// Whether a scale can be that of a bucket that did not round to zero.
pub(super) fn is_scale(scale: f32) -> bool {
    scale.is_finite() && scale >= SMALLEST_SCALE
}

/// Rounds the values of one bucket and sets the errors, original − rounded; the indices are those of the values.
pub(super) fn round(
    coding: Coding,
    values: &mut [f32],
    errors: &mut [f32],
    indices: impl Iterator<Item = u32>,
    seed: u64,
) {
    let s = levels(coding);
    let scale = scale(values);
    if scale == 0.0 {
        errors.copy_from_slice(values);
        values.fill(0.0);
        return;
    }
    let key = random::at(seed, 1);
    for ((value, error), index) in values.iter_mut().zip(errors).zip(indices) {
        let exact = (value.abs() / scale) * s;
        let below = exact as i32 as f32;
        let level = below + f32::from(u8::from(uniform(key, index) < exact - below));
        // Adding zero turns −0 into 0, the only zero that an entry has.
        let rounded = (scale * (level / s)).copysign(*value) + 0.0;
        *error = *value - rounded;
        *value = rounded;
    }
}

/// The code of a value that was rounded: its level, and above it a bit for its sign.
pub(super) fn code(coding: Coding, value: f32, scale: f32) -> u8 {
    // Adding 2²³ leaves no bits for a fraction: the sum is rounded to the nearest whole number, in its lowest bits.
    let level = (value.abs() / scale) * levels(coding) + 8_388_608.0;
    let sign = (value.to_bits() >> 31) << (coding.bits() - 1);
    (level.to_bits() | sign) as u8
}

/// The value of a code.
pub(super) fn value(coding: Coding, code: u8, scale: f32) -> f32 {
    let sign = 1 << (coding.bits() - 1);
    let magnitude = scale * (f32::from(code & (sign - 1)) / levels(coding));
    f32::from_bits(magnitude.to_bits() | u32::from(code & sign) << (32 - coding.bits()))
}

/// A number from [0, 1) for an index, from a counter-based generator: SplitMix64 (Steele et al., OOPSLA 2014), whose
/// state is a counter to begin with. A multiple of 2⁻²⁴.
fn uniform(key: u64, index: u32) -> f32 {
    let bits = random::at(key, u64::from(index));
    (bits >> 40) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Levels survive the way to values and back for scales of all sizes, on both sides of zero.
    #[test]
    fn every_level_is_read_off_its_value() {
        let scales = (0..2000u32).map(|i| f32::from_bits(SMALLEST_SCALE.to_bits() + i * 1_001_003));
        for scale in scales.chain([SMALLEST_SCALE, f32::MAX]).filter(|&scale| is_scale(scale)) {
            for coding in [Coding::Qsgd2, Coding::Qsgd4, Coding::Qsgd8] {
                let sign = 1u8 << (coding.bits() - 1);
                for level in 0..sign {
                    let exact = f64::from(scale) * f64::from(level) / f64::from(sign - 1);
                    for found in [level, level | sign].into_iter().filter(|&found| found != sign) {
                        let value = value(coding, found, scale);
                        assert_eq!(code(coding, value, scale), found, "{coding}, scale {scale}");
                        assert!(
                            (f64::from(value.abs()) - exact).abs() <= exact * 1.2e-7,
                            "{coding}, {value}"
                        );
                    }
                }
            }
        }
    }
}
