//! What values look like on the wire, and rounding to values that look so.
//!
//! Rounding is apart from encoding. [`Coding::round`] replaces values by ones that the coding can represent, and gives
//! the errors, which belong to the residuals. From then on encoding loses nothing: the decoder has the bits that
//! rounding gave, and encoding those again gives the same bytes.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use super::{Entries, qsgd};

/// How a value is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coding {
    /// All 32 bits.
    #[default]
    Exact,
    /// bfloat16: the nearest value with 8 bits of significand, ties to even.
    Bf16,
    /// IEEE half precision: the nearest value with 11 bits of significand, ties to even. Magnitudes above 65504 become
    /// 65504, those of at most 2⁻²⁵ become zero.
    F16,
    /// QSGD with 2 bits: zero or ± the bucket's largest magnitude, at random and without bias.
    Qsgd2,
    /// QSGD with 4 bits: 7 levels on each side of zero, at random and without bias.
    Qsgd4,
    /// QSGD with 8 bits: 127 levels on each side of zero, at random and without bias.
    Qsgd8,
}

/// The coding that values have been rounded to, which travels with them.
///
/// It says what is needed to write them without loss. Values that were never rounded are exact, the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rounded {
    coding: Coding,
    /// Buckets are ranges of 2^shift positions; 0 where the coding has no buckets.
    shift: u8,
}

/// A name that no coding has.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", no_coding(.0))]
pub struct UnknownCoding(String);

fn no_coding(name: &str) -> String {
    let meant = crate::sentence::did_you_mean(name, &Coding::ALL.map(Coding::name).join(", "));
    format!("'{name}' is not a coding of values{meant}; expected exact, bf16, f16, qsgd2, qsgd4 or qsgd8")
}

crate::sentence::debug_as_sentence!(UnknownCoding);

impl Coding {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [Coding; 6] =
        [Coding::Exact, Coding::Bf16, Coding::F16, Coding::Qsgd2, Coding::Qsgd4, Coding::Qsgd8];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Exact => "exact",
            Coding::Bf16 => "bf16",
            Coding::F16 => "f16",
            Coding::Qsgd2 => "qsgd2",
            Coding::Qsgd4 => "qsgd4",
            Coding::Qsgd8 => "qsgd8",
        }
    }

    /// The bits that a value takes, scales apart.
    pub fn bits(self) -> u32 {
        match self {
            Coding::Exact => 32,
            Coding::Bf16 | Coding::F16 => 16,
            Coding::Qsgd2 => 2,
            Coding::Qsgd4 => 4,
            Coding::Qsgd8 => 8,
        }
    }

    /// Whether values are rounded at random: QSGD.
    pub fn is_stochastic(self) -> bool {
        self.has_buckets()
    }

    /// Whether it rounds within buckets that share a scale: QSGD.
    pub(super) fn has_buckets(self) -> bool {
        matches!(self, Coding::Qsgd2 | Coding::Qsgd4 | Coding::Qsgd8)
    }

    /// Rounds the finite entries of a block of `len` positions: gives all but those that it made zero, and the errors,
    /// original − rounded, where they are not zero.
    ///
    /// Rounded and error add up to the original, within 2⁻²⁴ of the error, which has 24 significant bits itself.
    ///
    /// The random choices of QSGD depend on the seed and on the position of each entry and on nothing else, so all
    /// copies of a bag are rounded to the same bits. Its buckets are as wide as to hold about 512 entries each.
    pub fn round(self, entries: &Entries, len: usize, seed: u64) -> (Rounded, Entries, Entries) {
        let mut values = entries.values.clone();
        let mut errors = vec![0.0; values.len()];
        let rounded = self.round_at(&entries.indices, &mut values, &mut errors, len, seed);
        let errors = entries.indices.iter().copied().zip(errors).filter(|(_, error)| *error != 0.0);
        (rounded, survivors(entries, values), errors.collect())
    }

    /// Rounds the values at ascending indices of a block of `len` positions, finite ones, in place, and sets `errors`, as
    /// many, to original − rounded. As [`round`](Self::round), but values may be zero, before and after it.
    pub fn round_at(
        self,
        indices: &[u32],
        values: &mut [f32],
        errors: &mut [f32],
        len: usize,
        seed: u64,
    ) -> Rounded {
        let shift = if self.has_buckets() { qsgd::shift(indices.len(), len) } else { 0 };
        match self {
            Coding::Qsgd2 | Coding::Qsgd4 | Coding::Qsgd8 => {
                for run in qsgd::runs(indices, shift) {
                    let here = indices[run.clone()].iter().copied();
                    qsgd::round(self, &mut values[run.clone()], &mut errors[run], here, seed);
                }
            }
            _ => self.round_each(values, errors),
        }
        Rounded { coding: self, shift }
    }

    /// Rounds all values of a block, which must be finite, in place, and sets `errors`, as many, to original − rounded.
    ///
    /// The same as [`round`](Self::round) on a block with more than half of its entries: QSGD's buckets have 512
    /// positions.
    pub fn round_dense(self, values: &mut [f32], errors: &mut [f32], seed: u64) -> Rounded {
        let rounded = Rounded::narrowest(self);
        match self {
            Coding::Qsgd2 | Coding::Qsgd4 | Coding::Qsgd8 => {
                let buckets =
                    values.chunks_mut(1 << rounded.shift).zip(errors.chunks_mut(1 << rounded.shift));
                for (bucket, (values, errors)) in buckets.enumerate() {
                    let first = (bucket << rounded.shift) as u32;
                    qsgd::round(self, values, errors, first.., seed);
                }
            }
            _ => self.round_each(values, errors),
        }
        rounded
    }

    /// [`round`](Self::round) for all values of a block, with −0 where there is no entry: as [`round_dense`](Self::round_dense).
    pub(crate) fn round_among_all(
        self,
        entries: &Entries,
        len: usize,
        seed: u64,
    ) -> (Rounded, Entries, Entries) {
        let mut values = entries.to_dense_with(len, -0.0);
        let mut errors = vec![0.0; len];
        let rounded = self.round_dense(&mut values, &mut errors, seed);
        let there = entries.indices.iter().map(|&index| values[index as usize]);
        (rounded, survivors(entries, there), Entries::from_dense(&errors))
    }

    /// The codings that round each value by itself.
    fn round_each(self, values: &mut [f32], errors: &mut [f32]) {
        let nearest = match self {
            Coding::Bf16 => |v| bf16_from(v).to_f32(),
            Coding::F16 => |v| f16_from(v).to_f32(),
            _ => |v| v,
        };
        for (value, error) in values.iter_mut().zip(errors) {
            let rounded = nearest(*value);
            *error = *value - rounded;
            *value = rounded;
        }
    }
}

/// The rounded entries but for those that rounding made zero: a sum that was zero before is one still.
fn survivors(entries: &Entries, rounded: impl IntoIterator<Item = f32>) -> Entries {
    let pairs = entries.iter().zip(rounded).filter(|((_, exact), rounded)| *rounded != 0.0 || *exact == 0.0);
    pairs.map(|((index, _), rounded)| (index, rounded)).collect()
}

/// The nearest finite bfloat16.
pub(super) fn bf16_from(value: f32) -> bf16 {
    let largest = bf16::MAX.to_f32();
    bf16::from_f32(value.clamp(-largest, largest))
}

/// The nearest finite half.
pub(super) fn f16_from(value: f32) -> f16 {
    let largest = f16::MAX.to_f32();
    f16::from_f32(value.clamp(-largest, largest))
}

impl Rounded {
    /// Values as they are.
    pub const EXACT: Rounded = Rounded { coding: Coding::Exact, shift: 0 };

    /// The coding.
    pub fn coding(self) -> Coding {
        self.coding
    }

    /// The binary logarithm of the width of a bucket in positions; 0 where the coding has none.
    pub fn shift(self) -> u8 {
        self.shift
    }

    /// With buckets as narrow as can be, if the coding has any.
    pub(super) fn narrowest(coding: Coding) -> Self {
        Self { coding, shift: if coding.has_buckets() { qsgd::DENSE_SHIFT } else { 0 } }
    }

    /// The two bytes that say so on the wire.
    pub(super) fn to_bytes(self) -> [u8; 2] {
        [self.coding as u8, self.shift]
    }

    /// What the two bytes say, if [`Coding::round`] can have made it.
    pub(super) fn from_bytes([coding, shift]: [u8; 2]) -> Option<Self> {
        let coding = *Coding::ALL.get(usize::from(coding))?;
        let fits = if coding.has_buckets() { (qsgd::DENSE_SHIFT..32).contains(&shift) } else { shift == 0 };
        fits.then_some(Self { coding, shift })
    }
}

impl fmt::Display for Coding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Coding {
    type Err = UnknownCoding;

    fn from_str(name: &str) -> Result<Self, UnknownCoding> {
        Coding::ALL.into_iter().find(|c| c.name() == name).ok_or_else(|| UnknownCoding(name.into()))
    }
}

#[cfg(test)]
mod tests;
