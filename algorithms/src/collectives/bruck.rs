//! Bruck's all-gather, for any number of workers (Bruck et al. 1997; SparDL, §2 and Figure 2b).

use crate::Rank;
use crate::schedule::{After, How, Receive, Send, Slots, Step};

/// Worker w starts with block w, of P, and ends with all. In round t it holds the blocks w … w + 2^t − 1 and
/// gets the next ones from the worker at distance 2^t: ⌈log2 P⌉ rounds, P − 1 blocks received.
pub(super) fn all_gather(w: u32, workers: u32) -> Vec<Step> {
    let l = workers.next_power_of_two().trailing_zeros();
    (0..l)
        .map(|t| {
            let distance = 1 << t;
            let count = distance.min(workers - distance);
            Step::Exchange {
                sends: vec![Send {
                    to: Rank((w + workers - distance) % workers),
                    slots: Slots::cyclic(w, count, workers),
                    after: After::Retain,
                }],
                receives: vec![Receive {
                    from: Rank((w + distance) % workers),
                    slots: Slots::cyclic(w + distance, count, workers),
                    how: How::Place,
                }],
            }
        })
        .collect()
}
