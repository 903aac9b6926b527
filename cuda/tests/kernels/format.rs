//! The formats of gradients and parameters, by `half`.

use half::{bf16, f16};

pub trait Format: Copy + PartialEq + std::fmt::Debug {
    const NAME: &'static str;
    fn of(value: f32) -> Self;
    fn wide(self) -> f32;
    fn with_bits(bits: u32) -> Self;
    fn bits(self) -> u32;
}

impl Format for f32 {
    const NAME: &'static str = "f32";

    fn of(value: f32) -> Self {
        value
    }

    fn wide(self) -> f32 {
        self
    }

    fn with_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

macro_rules! halves {
    ($($half:ident $name:literal)*) => { $(
        impl Format for $half {
            const NAME: &'static str = $name;

            fn of(value: f32) -> Self {
                $half::from_f32(value)
            }

            fn wide(self) -> f32 {
                self.to_f32()
            }

            fn with_bits(bits: u32) -> Self {
                $half::from_bits(bits as u16)
            }

            fn bits(self) -> u32 {
                self.to_bits().into()
            }
        }
    )* };
}

halves!(f16 "f16" bf16 "bf16");

/// The bits, or the same number for all NaN: which of them arithmetic makes differs between processors.
pub fn comparable(value: impl Format) -> u32 {
    if value.wide().is_nan() { u32::MAX } else { value.bits() }
}

pub fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}
