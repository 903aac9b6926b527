//! Numbers that are the same on every run.

use gleaner_statistics::random::Generator;

/// Numbers from a seed.
pub struct Random(Generator);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Generator::seeded(seed))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    pub fn word(&mut self) -> u32 {
        (self.bits() >> 32) as u32
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// From −1 to 1.
    pub fn unit(&mut self) -> f32 {
        self.0.symmetric()
    }

    /// About as gradients are: many small ones, few large ones.
    pub fn gradient(&mut self) -> f32 {
        self.unit() * self.unit() * self.unit() * 1e-2
    }

    /// Any bits but those of NaN and infinity.
    pub fn finite(&mut self) -> f32 {
        let value = f32::from_bits(self.word());
        if value.is_finite() { value } else { self.finite() }
    }

    /// Distinct indices below `bound`, in no order.
    pub fn indices(&mut self, bound: u32, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..bound).collect();
        for i in 0..count {
            let other = i + self.below(all.len() - i);
            all.swap(i, other);
        }
        all.truncate(count);
        all
    }
}
