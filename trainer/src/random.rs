//! Seeded random numbers, the same on every machine.
//!
//! Every worker must begin with the same parameters and shuffle the data in the same way. The generator therefore uses
//! integer arithmetic only, and what it hands out is uniform: no logarithm or cosine whose last bit depends on the
//! machine's mathematics library.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one 64-bit word of state, one word per call.
pub struct Generator {
    state: u64,
}

impl Generator {
    /// A generator for one purpose of one run, such as `(seed, "order", epoch)`; different purposes do not share a stream.
    pub fn new(seed: u64, purpose: &str, number: u64) -> Self {
        let mut generator = Generator { state: seed };
        for byte in purpose.bytes() {
            generator.state = generator.bits() ^ u64::from(byte);
        }
        generator.state = generator.bits() ^ number;
        generator.bits();
        generator
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`, for a positive bound. (The bias of multiply-and-shift is below 2⁻³² for any data set.)
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `-1.0..1.0`, with 24 random bits.
    pub fn symmetric(&mut self) -> f32 {
        let bits = (self.bits() >> 40) as u32;
        bits as f32 / (1 << 23) as f32 - 1.0
    }

    /// Puts the items in random order (Fisher and Yates).
    pub fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u32 + 1) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_and_numbers_have_their_own_streams() {
        let first = |seed, purpose, number| Generator::new(seed, purpose, number).bits();
        assert_eq!(first(1, "order", 0), first(1, "order", 0));
        assert_ne!(first(1, "order", 0), first(1, "order", 1));
        assert_ne!(first(1, "order", 0), first(2, "order", 0));
        assert_ne!(first(1, "order", 0), first(1, "weights", 0));
    }

    #[test]
    fn uniform_numbers_fill_their_range_evenly() {
        let mut generator = Generator::new(7, "test", 0);
        let mut buckets = [0; 10];
        let mut mean = 0.0;
        for _ in 0..100_000 {
            buckets[generator.below(10) as usize] += 1;
            let x = generator.symmetric();
            assert!((-1.0..1.0).contains(&x));
            mean += f64::from(x) / 100_000.0;
        }
        assert!(buckets.iter().all(|&count| (9_500..10_500).contains(&count)), "{buckets:?}");
        assert!(mean.abs() < 0.01, "{mean}");
    }
}
