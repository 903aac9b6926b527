//! A reduce-scatter by direct sends: every worker sends every other one its block (SparCML, §5.3.2, "Split").

use crate::schedule::{After, How, Receive, Send, Slots, Step};
use crate::{Block, Rank};

/// Worker w of P sends block j to worker j, for all others j, and adds up what it gets for block w: P − 1 messages. The
/// destinations are rotated, w + 1 first, so that no worker is met by all at once; `window` of them are served in a round.
pub(super) fn reduce_scatter(w: u32, workers: u32, window: u32) -> Vec<Step> {
    let distances: Vec<u32> = (1..workers).collect();
    distances
        .chunks(window.max(1) as usize)
        .map(|distances| Step::Exchange {
            sends: distances
                .iter()
                .map(|d| (w + d) % workers)
                .map(|to| Send { to: Rank(to), slots: Slots::one(Block(to)), after: After::Drop })
                .collect(),
            receives: distances
                .iter()
                .map(|d| (w + workers - d) % workers)
                .map(|from| Receive { from: Rank(from), slots: Slots::one(Block(w)), how: How::Add })
                .collect(),
        })
        .collect()
}
