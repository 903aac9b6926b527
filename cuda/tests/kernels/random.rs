//! Numbers that are the same on every run.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
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
