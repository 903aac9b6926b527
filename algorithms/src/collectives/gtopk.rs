//! gTopk: pairs of workers add their selections and select k again, up a binomial tree, and the root's k go down again
//! (Shi et al.: A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification, ICDCS 2019, Algorithm 2).
//!
//! Published for powers of two; a binomial tree serves any P. 2⌈log2 P⌉ rounds and 4k⌈log2 P⌉ words along the critical
//! path; no single worker receives that many. What is dropped on the way is collected as residuals.

use super::{Collective, CostRange, Shape, Structure, ceil_log2};
use crate::schedule::{After, Cost, How, Receive, Rule, Send, Slots, Step};
use crate::{Block, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct GTopk;

impl Collective for GTopk {
    type State = ();

    fn name(&self) -> &'static str {
        "gtopk"
    }

    fn summary(&self) -> &'static str {
        "gTopk: 2⌈log2 P⌉ rounds, 4k⌈log2 P⌉ words on the critical path"
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let (w, p) = (rank.0, shape.workers);
        let all = Slots::one(Block(0));
        let send = |to, after| Step::Exchange {
            sends: vec![Send { to: Rank(to), slots: all, after }],
            receives: vec![],
        };
        let receive = |from, how| Step::Exchange {
            sends: vec![],
            receives: vec![Receive { from: Rank(from), slots: all, how }],
        };
        // The parent of w lacks its lowest set bit; the root has no such bit, and so all levels.
        let below = if w == 0 { ceil_log2(p) } else { w.trailing_zeros() };
        let children = || (0..below).map(|t| w + (1 << t)).filter(|&child| child < p);
        let mut steps = vec![shape.first_selection(all)];
        for child in children() {
            steps.push(receive(child, How::Add));
            steps.push(shape.keep(all, Rule::Top(structure.allotment.clone())));
        }
        if w > 0 {
            let parent = w & (w - 1);
            steps.push(send(parent, After::Drop));
            steps.push(receive(parent, How::Place));
        }
        steps
            .extend(children().collect::<Vec<_>>().into_iter().rev().map(|child| send(child, After::Retain)));
        steps
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let l = u64::from(ceil_log2(shape.workers));
        let words = (2 * shape.k as u64).min(shape.n as u64);
        // The root receives from each of its children; the worker that received most.
        Some(CostRange::fixed(Cost {
            rounds: 2 * l,
            messages: l,
            words_received: l * words,
            words_critical: 2 * l * words,
        }))
    }
}
