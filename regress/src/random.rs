//! Seeded random numbers, the same on every machine: integer arithmetic only.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one 64-bit word of state, one word per call.
pub(crate) struct Generator {
    state: u64,
}

impl Generator {
    /// A generator for one purpose of one run, such as `(seed, "order", epoch)`; different purposes do not share a stream.
    pub(crate) fn new(seed: u64, purpose: &str, number: u64) -> Self {
        let mut generator = Self { state: seed };
        for byte in purpose.bytes() {
            generator.state = generator.bits() ^ u64::from(byte);
        }
        generator.state = generator.bits() ^ number;
        generator.bits();
        generator
    }

    /// The next 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`, for a positive bound.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `0.0..1.0`, with 53 random bits.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts the items in random order (Fisher and Yates).
    pub(crate) fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u32 + 1) as usize;
            items.swap(last, other);
        }
    }
}
