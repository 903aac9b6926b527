//! Data in the shape of two that SparCML's evaluation trains on, of any size, from a seed.
//!
//! Every sample follows from the seed and its number alone, so that any number of workers make the same data. The r-th most
//! frequent feature is sampled with a probability in proportion to 1/r, and the more frequent features have the lower indices. Of n
//! trigrams few occur at all: SparCML's Table 2 has 2.95 s of communication for the 44 steps of an epoch at 1 Gbit/s, in which a worker can
//! receive a million entries of 8 bytes a step and no more. A sample has half to one and a half times the mean number of
//! non-zero entries. Its label is sampled first; each feature is biased towards one of the two labels, and is sampled again,
//! three times in four, where it is biased towards the other. The biases are the same for all seeds, so that another seed gives other samples of the same kind.

use super::Samples;
use gleaner_statistics::random::Generator;

/// What generated data look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Malicious URLs: 2,396,130 samples, 3,231,961 features, 115.6 non-zero entries a sample, all of them 1.
    Url,
    /// Trigrams of web pages: 350,000 samples, 16,609,143 features, 3,727.7 non-zero entries a sample, each sample of length 1.
    Webspam,
}

impl Shape {
    /// By its name, if it is one.
    pub fn named(name: &str) -> Option<Self> {
        [Shape::Url, Shape::Webspam].into_iter().find(|shape| shape.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Url => "url",
            Shape::Webspam => "webspam",
        }
    }

    /// Samples of the real data.
    pub fn samples(self) -> u64 {
        match self {
            Shape::Url => 2_396_130,
            Shape::Webspam => 350_000,
        }
    }

    /// Features of the real data, n.
    pub fn features(self) -> usize {
        match self {
            Shape::Url => 3_231_961,
            Shape::Webspam => 16_609_143,
        }
    }

    /// Non-zero entries of a sample of the real data, in the mean.
    pub fn nonzeros(self) -> f64 {
        match self {
            Shape::Url => 115.6,
            Shape::Webspam => 3_727.7,
        }
    }

    /// How many of n features occur at all, spread over all of them.
    fn occurring(self, features: usize) -> usize {
        match self {
            Shape::Url => features,
            Shape::Webspam => {
                // Of a thousand all occur, so that small data have samples of several.
                let share = (features as u64 * 680_715).div_ceil(16_609_143) as usize;
                share.max(features.min(1000))
            }
        }
    }

    /// The share of samples whose label is 1, as of the real data.
    fn positive(self) -> f64 {
        match self {
            Shape::Url => 0.331,
            Shape::Webspam => 0.606,
        }
    }

    /// Appends the sample of that number, with labels of 1 and −1. There must be at least two features.
    pub fn sample(self, seed: u64, number: u64, features: usize, samples: &mut Samples) {
        let mut random = Generator::new(seed, self.name(), number);
        let label = if random.unit() < self.positive() { 1.0 } else { -1.0 };
        let occurring = self.occurring(features);
        // Of few features a sample has a quarter at most: the rare ones are not sampled for ever.
        let wanted = (self.nonzeros() * (0.5 + random.unit())).round().min(occurring as f64 / 4.0) as usize;
        let mut indices: Vec<u32> = Vec::with_capacity(wanted);
        let logarithm = libm::log2(occurring as f64 + 1.0);
        while indices.len() < wanted.max(1) {
            for _ in indices.len()..wanted.max(1) {
                indices.push(draw(label, logarithm, occurring, &mut random));
            }
            // Stable sorting merges the new ones with those that are in order already.
            indices.sort();
            indices.dedup();
        }
        let values = self.values(indices.len(), &mut random);
        let spread = |rank: u32| (u64::from(rank) * features as u64 / occurring as u64) as u32;
        indices.into_iter().zip(values).for_each(|(rank, value)| samples.push(spread(rank), value));
        samples.end(label);
    }

    fn values(self, count: usize, random: &mut Generator) -> Vec<f32> {
        match self {
            Shape::Url => vec![1.0; count],
            Shape::Webspam => {
                let values: Vec<f64> = (0..count).map(|_| 0.25 + random.unit()).collect();
                let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
                values.into_iter().map(|value| (value / length) as f32).collect()
            }
        }
    }
}

/// A feature for a sample of that label. If u is uniform, ⌊(n + 1)^u⌋ is r with a probability in proportion to log(1 + 1/r).
fn draw(label: f32, logarithm: f64, features: usize, random: &mut Generator) -> u32 {
    loop {
        let rank = (libm::exp2(random.unit() * logarithm) as usize).clamp(1, features);
        let leans = Generator::new(0, "lean", rank as u64).bits() & 1 == 0;
        if leans == (label > 0.0) || random.unit() < 0.25 {
            return rank as u32 - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(shape: Shape, seed: u64, count: u64, features: usize) -> Samples {
        let mut samples = Samples::default();
        (0..count).for_each(|number| shape.sample(seed, number, features, &mut samples));
        samples
    }

    #[test]
    fn samples_have_the_shape_of_the_real_data() {
        for (shape, count) in [(Shape::Url, 1000), (Shape::Webspam, 60)] {
            let samples = made(shape, 1, count, shape.features());
            let mean = samples.nonzeros() as f64 / count as f64;
            // Uniform from a half to one and a half: a standard deviation of 0.29 of the mean.
            let error = 4.0 * 0.29 / (count as f64).sqrt();
            assert!((mean / shape.nonzeros() - 1.0).abs() < error, "{mean} entries a sample");
            let positive =
                samples.labels().iter().filter(|&&label| label == 1.0).count() as f64 / count as f64;
            assert!((positive - shape.positive()).abs() < 2.0 / (count as f64).sqrt(), "{positive}");
            for row in samples.rows() {
                assert!(row.indices.is_sorted_by(|a, b| a < b));
                assert!((row.indices.last().copied().unwrap() as usize) < shape.features());
            }
        }
        let row = made(Shape::Webspam, 1, 1, 5000);
        let length: f32 = row.row(0).values.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }

    /// Of draws in proportion to 1/r, as many fall between 100 and 1,000 as between 10,000 and 100,000.
    #[test]
    fn features_follow_a_power_law() {
        let features = 1_000_000;
        let mut random = Generator::new(3, "test", 0);
        let logarithm = libm::log2(features as f64 + 1.0);
        let mut decades = [0_u32; 7];
        for _ in 0..60_000 {
            decades[draw(1.0, logarithm, features, &mut random).max(1).ilog10() as usize] += 1;
        }
        // Of the few most frequent ones it matters towards which label they are biased.
        let mean = decades[2..6].iter().sum::<u32>() / 4;
        assert!(decades[2..6].iter().all(|count| count.abs_diff(mean) < 500), "{decades:?}");
        assert!(mean > 9_000 && decades[6] == 0, "{decades:?}");
    }

    #[test]
    fn a_sample_follows_from_the_seed_and_its_number() {
        let (all, mut one) = (made(Shape::Url, 5, 20, 10_000), Samples::default());
        Shape::Url.sample(5, 13, 10_000, &mut one);
        assert_eq!((one.row(0).indices, one.row(0).label), (all.row(13).indices, all.row(13).label));
        assert_ne!(made(Shape::Url, 6, 20, 10_000), all);
        // Few features are enough.
        assert_eq!(made(Shape::Webspam, 5, 3, 2).len(), 3);
    }
}
