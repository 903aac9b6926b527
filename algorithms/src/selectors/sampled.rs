//! A threshold that is read off a sample: the ⌈k·s/n⌉-th largest of s sampled magnitudes. Where more than k entries reach it,
//! the k largest of those are selected (Lin et al.: Deep Gradient Compression, ICLR 2018, §5: "sampling and hierarchical
//! selection").
//!
//! At most k entries; fewer where the sample was unlucky, by a relative error of about 1/√(k·s/n). The sample has one of every
//! 32 entries, at least 1,024 and at most 32,768, at places that do not change from step to step. Exact where it is the
//! whole gradient.

use super::source::Source;
use super::{Chosen, DeviceError, Element};
use crate::bag::Entries;
use crate::select;

pub(super) fn choose<T: Element>(source: &Source<'_, T>, k: usize) -> Result<Chosen<T>, DeviceError> {
    if source.len() == 0 {
        return Ok(Chosen::default());
    }
    let threshold = threshold(source, k)?;
    let found = source.reaching(threshold)?.entries;
    if found.len() <= k {
        return Ok(Chosen::by(found, threshold));
    }
    let mut kept = Entries::default();
    let smallest = select::top_k(&found.indices, &found.values, k, &mut kept, None);
    Ok(Chosen { threshold: Some(smallest), ..Chosen::by(kept, threshold) })
}

/// The sample's guess.
fn threshold<T: Element>(source: &Source<'_, T>, k: usize) -> Result<T, DeviceError> {
    let mut sample = source.sample()?;
    let expected = (k as f64 * sample.len() as f64 / source.len() as f64).ceil() as usize;
    let from_below = sample.len() - expected.clamp(1, sample.len());
    let (_, &mut reached, _) = sample.select_nth_unstable(from_below);
    Ok(T::from_magnitude(reached))
}
