//! The dense ring all-reduce: a reduce-scatter and an all-gather along a ring (Patarasuk and Yuan, 2009).
//!
//! 2(P − 1) rounds, 2n(P − 1)/P words received by every worker, which is the least possible.

use super::{Collective, CostRange, Shape, Structure};
use crate::Rank;
use crate::schedule::{After, Cost, How, Receive, Send, Slots, Step};

/// See the module.
#[derive(Clone, Debug)]
pub struct Ring;

impl Collective for Ring {
    type State = ();

    fn name(&self) -> &'static str {
        "ring"
    }

    fn summary(&self) -> &'static str {
        "dense ring: 2(P−1) rounds, 2n(P−1)/P words"
    }

    fn is_sparse(&self) -> bool {
        false
    }

    fn steps(&self, rank: Rank, shape: &Shape, _: &Structure) -> Vec<Step> {
        let workers = shape.workers;
        let (w, p) = (rank.0, workers);
        let pass = |sent: u32, received: u32, after, how| Step::Exchange {
            sends: vec![Send { to: Rank((w + 1) % p), slots: Slots::cyclic(sent, 1, p), after }],
            receives: vec![Receive {
                from: Rank((w + p - 1) % p),
                slots: Slots::cyclic(received, 1, p),
                how,
            }],
        };
        let reduce_scatter = (0..p - 1).map(|t| pass(w + p - t, w + p - t - 1, After::Drop, How::Add));
        let all_gather = (0..p - 1).map(|t| pass(w + 1 + p - t, w + p - t, After::Retain, How::Place));
        reduce_scatter.chain(all_gather).collect()
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let (p, n) = (u64::from(shape.workers), shape.n as u64);
        let (shortest, longer) = (n / p, n % p);
        // Every worker receives all blocks but its own, and again all but the next one; the busiest misses short ones.
        let missed = if longer + 1 == p { 2 * shortest + 1 } else { 2 * shortest };
        Some(CostRange::fixed(Cost {
            rounds: 2 * (p - 1),
            messages: 2 * (p - 1),
            words_received: if p == 1 { 0 } else { 2 * n - missed },
            words_critical: 2 * (p - 1) * n.div_ceil(p),
        }))
    }
}
