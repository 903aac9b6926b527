//! A grouping of layers that stand next to each other.

use std::fmt;
use std::ops::Range;

use super::MergingError;

/// Which layers are exchanged together: cut behind some of them, in the order in which backpropagation finishes them. What OMGS-SGD
/// calls a merged-layer (Definition 1) is a layer behind which there is no cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// Behind how many layers each group ends. They increase.
    ends: Vec<usize>,
}

impl Grouping {
    /// Groups that end behind this many layers each.
    ///
    /// # Errors
    /// [`MergingError::Ends`] where these do not increase from at least 1 to the number of layers.
    pub fn new(ends: Vec<usize>, layers: usize) -> Result<Self, MergingError> {
        let increase = ends.windows(2).all(|pair| pair[0] < pair[1]);
        if !increase || ends.first() == Some(&0) || ends.last() != Some(&layers) {
            return Err(MergingError::Ends { ends, layers });
        }
        Ok(Self { ends })
    }

    /// A cut behind every layer but the last for which this holds; layers count from 0.
    pub(super) fn cut(layers: usize, behind: impl Fn(usize) -> bool) -> Self {
        Self { ends: (1..=layers).filter(|&end| end == layers || behind(end - 1)).collect() }
    }

    /// Behind how many layers each group ends.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.ends.len()
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The layers of each group.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        (0..self.ends.len()).map(|group| group.checked_sub(1).map_or(0, |g| self.ends[g])..self.ends[group])
    }
}

/// How many layers each group has: `2 + 1`.
impl fmt::Display for Grouping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths: Vec<String> = self.ranges().map(|range| range.len().to_string()).collect();
        f.write_str(&lengths.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_increase_to_the_last_layer() {
        let grouping = Grouping::new(vec![2, 3, 7], 7).unwrap();
        assert_eq!(grouping.ranges().collect::<Vec<_>>(), [0..2, 2..3, 3..7]);
        assert_eq!((grouping.groups(), grouping.layers()), (3, 7));
        assert_eq!(grouping.to_string(), "2 + 1 + 4");
        assert_eq!(Grouping::cut(7, |layer| layer == 1 || layer == 2), grouping);
        for ends in [vec![], vec![0, 7], vec![3, 3, 7], vec![5, 3, 7], vec![3], vec![8]] {
            let error = Grouping::new(ends, 7).unwrap_err().to_string();
            assert!(error.contains("there are 7 layers"), "{error}");
        }
    }
}
