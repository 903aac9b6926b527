//! The largest of each run of this many consecutive entries, in one pass over memory (Renggli et al.: SparCML, 2019, §6.1: 2 to 16
//! of every 512): bucket·k/n of them, rounded, and at least one.
//!
//! Exact in every bucket; the count is fixed and differs from k by the rounding. The last bucket may be shorter, and has its
//! share by its own length.

use super::layers::share;
use crate::bag::Entries;
use crate::{Element, select};

/// How many entries are chosen in all.
pub(super) fn count(n: usize, bucket: u32, k: usize) -> usize {
    let bucket = bucket.max(1) as usize;
    n / bucket * share(bucket, k, n) + share(n % bucket, k, n)
}

/// The share of every bucket.
pub(super) fn choose<T: Element>(values: &[T], bucket: u32, k: usize) -> Entries<T> {
    let (n, bucket) = (values.len(), bucket.max(1) as usize);
    let (whole, rest) = values.split_at(n - n % bucket);
    let mut kept = Entries::default();
    if !whole.is_empty() {
        select::bucketed(whole, bucket, share(bucket, k, n), &mut kept);
    }
    let last = select::top_k_dense(rest, share(rest.len(), k, n));
    kept.indices.extend(last.indices.iter().map(|&index| whole.len() as u32 + index));
    kept.values.extend(last.values);
    kept
}
