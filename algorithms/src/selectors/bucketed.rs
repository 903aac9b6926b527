//! The largest of every so many consecutive entries, in one pass over memory (Renggli et al.: SparCML, 2019, §6.1: 2 to 16
//! of every 512): bucket·k/n of them, rounded, and at least one.
//!
//! Exact in every bucket; the count is fixed and differs from k by the rounding. The last bucket may be shorter.

use crate::bag::Entries;
use crate::{Element, select};

/// How many are chosen of every bucket.
fn share(n: usize, bucket: u32, k: usize) -> usize {
    if k == 0 || n == 0 {
        return 0;
    }
    let share = (k as f64 * f64::from(bucket) / n as f64).round() as usize;
    share.clamp(1, bucket as usize)
}

/// How many entries are chosen in all.
pub(super) fn count(n: usize, bucket: u32, k: usize) -> usize {
    let (share, bucket) = (share(n, bucket, k), bucket.max(1) as usize);
    n / bucket * share + share.min(n % bucket)
}

/// The share of every bucket.
pub(super) fn choose<T: Element>(values: &[T], bucket: u32, k: usize) -> Entries<T> {
    let mut kept = Entries::default();
    select::bucketed(values, bucket.max(1) as usize, share(values.len(), bucket, k), &mut kept);
    kept
}
