//! What the types compute in, and how many values are combined at once.

use std::ops::{Add, Mul};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Element, values};

/// How a type computes. No other crate can name it, so none can add an [`Element`].
pub trait Arithmetic: Sized {
    /// What it computes in: itself, or f32 for the types of 16 bits.
    type Wide: Wide;

    /// The same number in the type that it computes in.
    fn widen(self) -> Self::Wide;

    /// The number nearest to this one.
    fn narrow(wide: Self::Wide) -> Self;

    /// Combines little-endian values with as many others, in place.
    #[inline(always)]
    fn combine_all(into: &mut [u8], with: &[u8], op: impl Fn(Self::Wide, Self::Wide) -> Self::Wide)
    where
        Self: Element,
    {
        // One loop without a branch, of which the compiler makes vector instructions.
        for (into, with) in into.chunks_exact_mut(Self::WIDTH).zip(values::<Self>(with)) {
            let value = Self::narrow(op(Self::from_le(into).widen(), with.widen()));
            into.copy_from_slice(value.to_le().as_ref());
        }
    }
}

/// The types that values are computed in: [`f32`] and [`f64`].
pub trait Wide: Copy + Add<Output = Self> + Mul<Output = Self> {
    /// The greater of two finite numbers, +0 of two zeros that differ: commutative bit by bit, and no branch.
    fn greater(self, other: Self) -> Self;

    /// The lesser of two finite numbers, −0 of two zeros that differ: commutative bit by bit, and no branch.
    fn lesser(self, other: Self) -> Self;
}

macro_rules! native {
    ($float:ident) => {
        impl Arithmetic for $float {
            type Wide = $float;

            #[inline(always)]
            fn widen(self) -> $float {
                self
            }

            #[inline(always)]
            fn narrow(wide: $float) -> Self {
                wide
            }
        }

        impl Wide for $float {
            #[inline(always)]
            fn greater(self, other: Self) -> Self {
                let greater = if self > other { self } else { other };
                // Equal numbers have equal bits or are zeros, whose sign is positive where one of them is.
                let equal = $float::from_bits(self.to_bits() & other.to_bits());
                if self == other { equal } else { greater }
            }

            #[inline(always)]
            fn lesser(self, other: Self) -> Self {
                let lesser = if self < other { self } else { other };
                let equal = $float::from_bits(self.to_bits() | other.to_bits());
                if self == other { equal } else { lesser }
            }
        }
    };
}

native!(f32);
native!(f64);

impl Arithmetic for bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        // Half a unit of the last place kept, less one where that place is even. No branch, unlike half's conversion.
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let quiet = bits | 0x0040_0000;
        bf16::from_bits(((if wide.is_nan() { quiet } else { rounded }) >> 16) as u16)
    }
}

/// Values of f16 that are converted at once.
const GROUP: usize = 128;

impl Arithmetic for f16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        f16::from_f32(wide)
    }

    /// Converts many at once: by vector instructions where the processor has them, which is found out at run time.
    #[inline(always)]
    fn combine_all(into: &mut [u8], with: &[u8], op: impl Fn(f32, f32) -> f32) {
        let mut halves = [f16::ZERO; GROUP];
        let (mut sums, mut others) = ([0.0; GROUP], [0.0; GROUP]);
        for (into, with) in into.chunks_mut(2 * GROUP).zip(with.chunks(2 * GROUP)) {
            let count = into.len() / 2;
            for (bytes, wide) in [(&*into, &mut sums), (with, &mut others)] {
                halves.iter_mut().zip(values(bytes)).for_each(|(half, value)| *half = value);
                halves[..count].convert_to_f32_slice(&mut wide[..count]);
            }
            sums.iter_mut().zip(&others).for_each(|(sum, &other)| *sum = op(*sum, other));
            halves[..count].convert_from_f32_slice(&sums[..count]);
            into.chunks_exact_mut(2)
                .zip(&halves)
                .for_each(|(into, half)| into.copy_from_slice(&half.to_le()));
        }
    }
}
