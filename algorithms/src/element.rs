//! The types that a gradient's values may have: float32, float64, bfloat16 and float16.
//!
//! A sum has the type of what is summed, and every addition rounds to it, to nearest and ties to even. The 16-bit types
//! compute in f32 and round once, which gives the same bits as an addition of their own would.

mod arithmetic;

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, BitAnd, Mul, Neg, Shr, Sub};

use half::{bf16, f16};

pub(crate) use arithmetic::{Arithmetic, Wide};

/// The type of a gradient's values. Implemented for [`f32`], [`f64`], [`half::bf16`] and [`half::f16`], and for no others.
pub trait Element:
    Arithmetic
    + bytemuck::Pod
    + PartialOrd
    + Default
    + Debug
    + Display
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// The name that NumPy and the frameworks have for it.
    const NAME: &'static str;
    /// Bytes of one value, in memory and on the wire.
    const WIDTH: usize = size_of::<Self>();
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The least finite value.
    const LEAST: Self;
    /// The greatest finite value.
    const GREATEST: Self;
    /// The magnitude of infinity: every magnitude from here on is not finite.
    const INFINITE: Self::Magnitude;

    /// One value's bytes.
    type Bytes: Copy + AsRef<[u8]> + IntoIterator<Item = u8>;
    /// The integer by which magnitudes are ordered.
    type Magnitude: Magnitude;

    /// Reads one little-endian value.
    ///
    /// # Panics
    /// If there are not [`WIDTH`](Self::WIDTH) bytes.
    fn from_le(bytes: &[u8]) -> Self;

    /// The little-endian bytes.
    fn to_le(self) -> Self::Bytes;

    /// The bits, lowest first: equal for values that are equal in every respect, unlike zeros of different signs.
    fn bits(self) -> u64;

    /// The value that has these bits; higher ones than it has are ignored.
    fn from_bits(bits: u64) -> Self;

    /// Whether it is neither infinite nor NaN.
    #[inline]
    fn is_finite(self) -> bool {
        self.magnitude() < Self::INFINITE
    }

    /// The bits of |x|: orders magnitudes, every finite one below infinity and infinity below NaN, whatever the rounding
    /// mode. 0 for both zeros.
    fn magnitude(self) -> Self::Magnitude;

    /// The value, not negative, that has this magnitude.
    fn from_magnitude(magnitude: Self::Magnitude) -> Self;

    /// self / `count`, rounded to this type: the share of one of `count` holders, or the mean of `count` workers.
    fn divide(self, count: u32) -> Self;

    /// The same number in 64 bits, for tests and reports.
    fn to_f64(self) -> f64;

    /// The number nearest to this one.
    fn from_f64(value: f64) -> Self;
}

/// The integers by which magnitudes are ordered. They are never negative; signed, since those are the comparisons that
/// every vector unit has.
pub trait Magnitude:
    Copy
    + Ord
    + Default
    + Debug
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Shr<u32, Output = Self>
    + BitAnd<Output = Self>
{
    /// Larger than every magnitude, or as large as the largest NaN's.
    const MAX: Self;
    /// The least magnitude that is not zero's.
    const ONE: Self;

    /// The low 32 bits.
    fn low(self) -> u32;

    /// The number of bits up to the highest that is set.
    fn bit_length(self) -> u32;
}

macro_rules! magnitudes {
    ($($integer:ident)*) => { $(
        impl Magnitude for $integer {
            const MAX: Self = $integer::MAX;
            const ONE: Self = 1;

            #[inline(always)]
            fn low(self) -> u32 {
                self as u32
            }

            fn bit_length(self) -> u32 {
                $integer::BITS - self.leading_zeros()
            }
        }
    )* };
}

magnitudes!(i16 i32 i64);

macro_rules! native {
    ($float:ident, $bits:ident, $magnitude:ident, $name:literal) => {
        impl Element for $float {
            const NAME: &'static str = $name;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LEAST: Self = $float::MIN;
            const GREATEST: Self = $float::MAX;
            const INFINITE: $magnitude = $float::INFINITY.to_bits() as $magnitude;

            type Bytes = [u8; size_of::<$float>()];
            type Magnitude = $magnitude;

            #[inline(always)]
            fn from_le(bytes: &[u8]) -> Self {
                let mut word = [0; size_of::<$float>()];
                word.copy_from_slice(bytes);
                $float::from_le_bytes(word)
            }

            #[inline(always)]
            fn to_le(self) -> Self::Bytes {
                self.to_le_bytes()
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                self.to_bits().into()
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                $float::from_bits(bits as $bits)
            }

            #[inline(always)]
            fn magnitude(self) -> $magnitude {
                self.to_bits() as $magnitude & $magnitude::MAX
            }

            #[inline(always)]
            fn from_magnitude(magnitude: $magnitude) -> Self {
                $float::from_bits(magnitude as $bits)
            }

            #[inline(always)]
            fn divide(self, count: u32) -> Self {
                self / count as $float
            }

            fn to_f64(self) -> f64 {
                self.into()
            }

            fn from_f64(value: f64) -> Self {
                value as $float
            }
        }
    };
}

native!(f32, u32, i32, "float32");
native!(f64, u64, i64, "float64");

macro_rules! halves {
    ($half:ident, $name:literal) => {
        impl Element for $half {
            const NAME: &'static str = $name;
            const ZERO: Self = $half::ZERO;
            const ONE: Self = $half::ONE;
            const LEAST: Self = $half::MIN;
            const GREATEST: Self = $half::MAX;
            const INFINITE: i16 = $half::INFINITY.to_bits() as i16;

            type Bytes = [u8; 2];
            type Magnitude = i16;

            #[inline(always)]
            fn from_le(bytes: &[u8]) -> Self {
                let mut word = [0; 2];
                word.copy_from_slice(bytes);
                $half::from_le_bytes(word)
            }

            #[inline(always)]
            fn to_le(self) -> Self::Bytes {
                self.to_le_bytes()
            }

            #[inline(always)]
            fn bits(self) -> u64 {
                self.to_bits().into()
            }

            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                $half::from_bits(bits as u16)
            }

            #[inline(always)]
            fn magnitude(self) -> i16 {
                self.to_bits() as i16 & i16::MAX
            }

            #[inline(always)]
            fn from_magnitude(magnitude: i16) -> Self {
                $half::from_bits(magnitude as u16)
            }

            fn divide(self, count: u32) -> Self {
                Self::from_f64(self.to_f64() / f64::from(count))
            }

            fn to_f64(self) -> f64 {
                self.into()
            }

            fn from_f64(value: f64) -> Self {
                $half::from_f32(to_odd(value))
            }
        }
    };
}

halves!(bf16, "bfloat16");
halves!(f16, "float16");

/// Reads little-endian values.
#[inline]
pub fn values<T: Element>(bytes: &[u8]) -> impl ExactSizeIterator<Item = T> + '_ {
    bytes.chunks_exact(T::WIDTH).map(T::from_le)
}

/// The position, counted in values, of the first of these little-endian values that is NaN or infinite.
pub fn first_non_finite<T: Element>(bytes: &[u8]) -> Option<usize> {
    // Below infinity the difference is negative, and stays so under `and` only where all are: one pass, no branch.
    let finite = T::Magnitude::default() - T::Magnitude::ONE;
    let all = values::<T>(bytes).fold(finite, |all, value| all & (value.magnitude() - T::INFINITE));
    (all >= T::Magnitude::default())
        .then(|| values::<T>(bytes).position(|value| !value.is_finite()))
        .flatten()
}

/// `value` in f32, rounded to odd: what is rounded again, to fewer bits, is rounded as if it were the first time.
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let bits = near.to_bits();
    if f64::from(near) == value || near.is_nan() {
        return near;
    }
    // Inexact: cut off instead of rounding, and note in the last bit that something was cut off.
    let cut = if f64::from(near).abs() > value.abs() { bits - 1 } else { bits };
    f32::from_bits(cut | 1)
}

#[cfg(test)]
mod tests;
