//! Synthetic gradients: heavy-tailed, partly shared between the ranks, the same for the same seed.

use gleaner_statistics::random;

/// One rank's gradient in one step. Each entry is r³ + s³, with r shared by all ranks and s the rank's own, both
/// normal; any process can compute any entry of any rank.
pub struct Gradient {
    shared: u64,
    own: u64,
}

impl Gradient {
    /// The gradient of that rank in that step.
    pub fn of(seed: u64, rank: u64, step: u64) -> Self {
        let shared = random::at(0, seed ^ random::at(0, step));
        Self { shared, own: random::at(0, shared ^ random::at(0, rank + 1)) }
    }

    /// Its entry at this position.
    pub fn at(&self, position: usize) -> f32 {
        let normal_of = |start: u64| normal(random::at(0, start.wrapping_add(position as u64)));
        let (r, s) = (normal_of(self.shared), normal_of(self.own));
        r * r * r + s * s * s
    }

    /// Its first entries, as many as there is room for.
    pub fn fill(&self, entries: &mut [f32]) {
        entries.iter_mut().enumerate().for_each(|(position, entry)| *entry = self.at(position));
    }
}

/// Nearly normal with variance 1: the sum of four uniform numbers of 16 bits.
fn normal(bits: u64) -> f32 {
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    (sum as f32 / 65_536.0 - 2.0) * 1.732_050_8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_shared_in_part_and_fresh_each_step() {
        let of = |seed, rank, step| {
            let mut gradient = vec![0.0; 100_000];
            Gradient::of(seed, rank, step).fill(&mut gradient);
            gradient
        };
        let correlation = |a: &[f32], b: &[f32]| {
            let dot = |a: &[f32], b: &[f32]| {
                a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            };
            dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
        };
        let first = of(1, 0, 0);
        assert!(first == of(1, 0, 0));
        assert!((correlation(&first, &of(1, 1, 0)) - 0.5).abs() < 0.05);
        assert!(correlation(&first, &of(1, 0, 1)).abs() < 0.05);
        assert!(correlation(&first, &of(2, 0, 0)).abs() < 0.05);
        let largest = first.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let typical = first.iter().map(|v| v.abs()).sum::<f32>() / 1e5;
        assert!(largest > 10.0 * typical, "heavy tails: {largest} against {typical}");
    }
}
