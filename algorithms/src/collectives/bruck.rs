//! Bruck's all-gather, for any number of workers (Bruck et al. 1997; SparDL, §2 and Figure 2b).

use crate::Rank;
use crate::schedule::{After, How, Receive, Send, Slots, Step};

/// Member w of P starts with part w and ends with all. In round t it holds the parts w … w + 2^t − 1, round the circle,
/// and gets the next ones from the member at distance 2^t: ⌈log2 P⌉ rounds, P − 1 parts received.
///
/// `rank` names the members, and `parts` the slots of this many parts from one on.
pub fn all_gather(
    w: u32,
    members: u32,
    rank: impl Fn(u32) -> Rank,
    parts: impl Fn(u32, u32) -> Slots,
) -> Vec<Step> {
    (0..super::ceil_log2(members))
        .map(|t| {
            let distance = 1 << t;
            let count = distance.min(members - distance);
            Step::Exchange {
                sends: vec![Send {
                    to: rank((w + members - distance) % members),
                    slots: parts(w, count),
                    after: After::Retain,
                }],
                receives: vec![Receive {
                    from: rank((w + distance) % members),
                    slots: parts((w + distance) % members, count),
                    how: How::Place,
                }],
            }
        })
        .collect()
}

/// [`all_gather`] of the blocks of all workers, one each.
pub(super) fn all_gather_blocks(w: u32, workers: u32) -> Vec<Step> {
    all_gather(w, workers, Rank, |first, count| Slots::cyclic(first, count, workers))
}

/// The same the other way round: member w of P starts with all blocks and ends with the sum of block w. The blocks w + 1,
/// w + 2 … lie in parts of 1, 2, 4 … and the last part holds those that remain; they are sent from the last part to the
/// first, each to the member at the distance of its first block, which holds all of them still (SparDL, §3.1,
/// "Optimization for SRS", without its selections): ⌈log2 P⌉ rounds, P − 1 blocks received.
pub(super) fn reduce_scatter_blocks(w: u32, workers: u32) -> Vec<Step> {
    (0..super::ceil_log2(workers))
        .rev()
        .map(|t| {
            let distance = 1 << t;
            let count = distance.min(workers - distance);
            Step::Exchange {
                sends: vec![Send {
                    to: Rank((w + distance) % workers),
                    slots: Slots::cyclic(w + distance, count, workers),
                    after: After::Drop,
                }],
                receives: vec![Receive {
                    from: Rank((w + workers - distance) % workers),
                    slots: Slots::cyclic(w, count, workers),
                    how: How::Add,
                }],
            }
        })
        .collect()
}
