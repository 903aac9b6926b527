//! Where the parameters of a model begin and end in its flat gradient.

use std::ops::Range;
use std::sync::Arc;

/// The layers that a gradient is made of, one behind the other. A number alone is one layer of this many entries:
///
/// ```
/// use gleaner_algorithms::{Layers, Method};
/// use gleaner_algorithms::selectors::Selector;
///
/// let method = Method::named("topka")?.density(0.01).selector(Selector::Layers);
/// let layers = Layers::of([1000, 10]);
/// // 10 entries of the first layer, and one of the second, which is never left out.
/// assert_eq!(method.shape(4, layers)?.k, 11);
/// assert_eq!(method.shape(4, 1010)?.k, 10);
/// # Ok::<(), gleaner_algorithms::collectives::MethodError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Where each layer ends, in entries.
    ends: Arc<[usize]>,
}

impl Layers {
    /// Layers of these lengths in entries; some may be empty.
    pub fn of(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut end = 0;
        let ends = lengths.into_iter().map(|len| {
            end += len;
            end
        });
        Self { ends: ends.collect() }
    }

    /// The number of entries, n.
    pub fn entries(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The entries of each layer, as positions in the flat gradient.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        (0..self.ends.len()).map(|layer| layer.checked_sub(1).map_or(0, |l| self.ends[l])..self.ends[layer])
    }
}

impl From<usize> for Layers {
    fn from(n: usize) -> Self {
        Self::of([n])
    }
}
