//! What ExDyna would choose from recorded gradients: every worker in a part of its own, all by one threshold (Yoon and Oh,
//! 2024, Algorithm 4). The method [`exdyna`](crate::collectives) does it over a network, and finds the threshold step by step;
//! here it is the one that exactly k entries reach.

use crate::bag::Entries;
use crate::{Block, Element, Partition, select};

/// Of each worker what it chooses in its part, by rank and indexed in the flat gradient: in all k entries, fewer where there
/// are not so many that are not zero. The parts have equal lengths.
///
/// # Panics
/// If the gradients differ in length.
pub fn choose<T: Element>(gradients: &[&[T]], k: usize) -> Vec<Entries<T>> {
    let n = gradients.first().map_or(0, |gradient| gradient.len());
    let partition = Partition::even(n, gradients.len());
    let parts = || (0u32..).zip(gradients).map(|(w, gradient)| &gradient[partition.range(Block(w))]);
    // What every part has at its place; the k largest of that are those above one threshold.
    let owned: Vec<T> = parts().flatten().copied().collect();
    let chosen = select::top_k_dense(&owned, k).split(&partition);
    let placed = |(w, mut entries): (usize, Entries<T>)| {
        let start = partition.range(Block(w as u32)).start as u32;
        entries.indices.iter_mut().for_each(|index| *index += start);
        entries
    };
    chosen.into_iter().enumerate().map(placed).collect()
}
