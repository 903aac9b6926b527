//! Numbers that follow from a seed.

/// The next number of a sequence, or one that has nothing to do with its neighbours.
pub(crate) fn splitmix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number as one from 0 to below 1.
pub(crate) fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of that number among those that follow from a seed.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        Self(seed ^ splitmix(number))
    }

    /// The next, from 0 to below 1.
    pub(crate) fn draw(&mut self) -> f64 {
        self.0 = splitmix(self.0);
        unit(self.0)
    }
}
