//! What CLT-k would choose from recorded gradients: one worker's k largest, for all (Chen et al.: ScaleCom, NeurIPS 2020).
//! The method [`clt-k`](crate::collectives) does it over a network.

use crate::bag::Entries;
use crate::{Element, Rank, select};

/// The k largest of the leader's gradient. Every worker then sends its own values at these indices.
///
/// # Panics
/// If there is no such worker.
pub fn choose<T: Element>(gradients: &[&[T]], leader: Rank, k: usize) -> Entries<T> {
    select::top_k_dense(gradients[leader.index()], k)
}
