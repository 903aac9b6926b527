//! Seeded random numbers, the same on every machine.
//!
//! Every worker must begin with the same parameters and shuffle the data in the same way. The generator therefore uses
//! integer arithmetic only, and what it hands out is uniform: no logarithm or cosine whose last bit depends on the
//! machine's mathematics library.

/// 2⁶⁴ divided by the golden ratio: what the state grows by with each number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): one 64-bit word of state, one word per call.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// The sequence of its authors' program from this seed.
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator for one purpose of one run, such as `(seed, "order", epoch)`; different purposes do not share a stream.
    pub fn new(seed: u64, purpose: &str, number: u64) -> Self {
        let mut generator = Self::seeded(seed);
        for byte in purpose.bytes() {
            generator.state = generator.bits() ^ u64::from(byte);
        }
        generator.state = generator.bits() ^ number;
        generator.bits();
        generator
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number in `0..bound`, for a positive bound. (The bias of multiply-and-shift is below 2⁻³² for any data set.)
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number in `0.0..1.0`, with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// A number in `-1.0..1.0`, with 24 random bits.
    pub fn symmetric(&mut self) -> f32 {
        symmetric(self.bits())
    }

    /// A nearly normal number, see [`normal`].
    pub fn normal(&mut self) -> f32 {
        normal(self.bits())
    }

    /// Puts the items in random order (Fisher and Yates).
    pub fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u32 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// The number at a place of the sequence of a seed, from 1: a generator without a state, for numbers that are wanted in any order.
pub fn at(seed: u64, place: u64) -> u64 {
    mix(seed.wrapping_add(place.wrapping_mul(GOLDEN)))
}

/// 64 random bits as a number in `0.0..1.0`.
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// 64 random bits as a number in `-1.0..1.0`, of 24 of them.
pub fn symmetric(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// 64 random bits as a nearly normal number with mean 0 and variance 1, never zero: a sum of four uniform ones.
pub fn normal(bits: u64) -> f32 {
    let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
    (sum as f32 - 131_070.5) / 37_837.0
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of SplitMix64 from the seed 0, as its authors' program gives them: workers of every version draw
    /// the same.
    #[test]
    fn the_generator_is_splitmix64() {
        let numbers = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        let mut generator = Generator::seeded(0);
        for (place, number) in (1..).zip(numbers) {
            assert_eq!((generator.bits(), at(0, place)), (number, number));
        }
    }

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
        let mut means = [0.0; 4];
        for _ in 0..100_000 {
            buckets[generator.below(10) as usize] += 1;
            let (x, y) = (generator.symmetric(), generator.unit());
            assert!((-1.0..1.0).contains(&x) && (0.0..1.0).contains(&y));
            means[0] += f64::from(x) / 100_000.0;
            means[1] += y / 100_000.0;
            let z = f64::from(generator.normal());
            means[2] += z / 100_000.0;
            means[3] += z * z / 100_000.0;
        }
        assert!(buckets.iter().all(|&count| (9_500..10_500).contains(&count)), "{buckets:?}");
        assert!(means[0].abs() < 0.01 && (means[1] - 0.5).abs() < 0.01, "{means:?}");
        assert!(means[2].abs() < 0.02 && (means[3] - 1.0).abs() < 0.02, "{means:?}");
    }
}
