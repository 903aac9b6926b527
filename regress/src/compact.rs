//! Samples whose features are numbered without gaps: what has a place for each of them grows with the samples, and not with n.

use crate::data::Samples;

/// Samples, and the features of their numbers.
pub(crate) struct Compact {
    /// With numbers for features, ascending as these.
    pub(crate) samples: Samples,
    pub(crate) features: Features,
}

/// Features that some sample has, numbered as they ascend.
pub(crate) struct Features {
    /// By number.
    pub(crate) all: Vec<u32>,
    /// A bit for each feature that occurs.
    occurs: Vec<u64>,
    /// How many occur before those of a word.
    before: Vec<u32>,
}

impl Features {
    /// Of what samples have.
    pub(crate) fn of(indices: &[u32]) -> Self {
        let most = indices.iter().max().map_or(0, |&most| most as usize + 1);
        let mut occurs = vec![0_u64; most.div_ceil(64)];
        indices.iter().for_each(|&index| occurs[index as usize / 64] |= 1 << (index % 64));
        let (mut before, mut count) = (Vec::with_capacity(occurs.len()), 0);
        for word in &occurs {
            before.push(count);
            count += word.count_ones();
        }
        let mut all = Vec::with_capacity(count as usize);
        ones(&occurs, |index| all.push(index as u32));
        Self { all, occurs, before }
    }

    /// How many occur below a feature, which is its number if it does, and whether it does.
    #[inline]
    pub(crate) fn below(&self, feature: u32) -> (u32, bool) {
        let (word, bit) = (feature as usize / 64, feature % 64);
        match self.occurs.get(word) {
            Some(bits) => (self.before[word] + (bits & ((1 << bit) - 1)).count_ones(), bits >> bit & 1 == 1),
            None => (self.all.len() as u32, false),
        }
    }
}

impl Compact {
    /// Numbers the features of samples.
    pub(crate) fn of(mut samples: Samples) -> Self {
        let indices = samples.indices_mut();
        let features = Features::of(indices);
        indices.iter_mut().for_each(|index| *index = features.below(*index).0);
        Self { samples, features }
    }
}

/// Calls `found` with the place of each bit that is set, ascending.
pub(crate) fn ones(words: &[u64], mut found: impl FnMut(usize)) {
    for (number, &word) in words.iter().enumerate() {
        let mut left = word;
        while left != 0 {
            found(number * 64 + left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Shape;

    #[test]
    fn numbers_stand_for_the_features_that_occur() {
        let mut samples = Samples::default();
        (0..20).for_each(|number| Shape::Url.sample(2, number, 100_000, &mut samples));
        let Compact { samples: numbered, features } = Compact::of(samples.clone());
        let below = |feature| features.all.iter().filter(|&&other| other < feature).count() as u32;
        for feature in (0..100_000).step_by(97).chain([u32::MAX]) {
            assert_eq!(features.below(feature), (below(feature), features.all.contains(&feature)));
        }
        let features = features.all;
        assert!(features.is_sorted_by(|a, b| a < b));
        let mut used = vec![false; features.len()];
        for (row, original) in numbered.rows().zip(samples.rows()) {
            assert!(row.iter().map(|(number, value)| (features[number as usize], value)).eq(original.iter()));
            row.indices.iter().for_each(|&number| used[number as usize] = true);
        }
        assert!(used.into_iter().all(|used| used));
        let nothing = Compact::of(Samples::default());
        assert!(nothing.samples.is_empty() && nothing.features.all.is_empty());
    }
}
