//! Ok-Topk: thresholds instead of exact selections, regions of equal counts instead of equal lengths (Li and Hoefler:
//! Near-Optimal Sparse Allreduce for Distributed Deep Learning, PPoPP 2022, Algorithms 1 and 2; a baseline of SparDL).
//!
//! 1. Each worker selects what reaches its own threshold, which is found exactly every 32 steps and nudged in between when
//!    the count leaves [2k/3, 4k/3].
//! 2. Split and reduce: region j of every selection goes to worker j, in rotated order, a few destinations at a time. The
//!    regions are cut so that the counts are equal: each cut is the mean over the workers of their own, renewed every 64
//!    steps.
//! 3. The owner selects what reaches a threshold that all agree on, found exactly every 32 steps and nudged likewise.
//! 4. Balance and all-gather: where a region was more than four times as full as the mean in the step before, each
//!    owner spreads its entries evenly over all workers first.
//!
//! P − 1 + ⌈log2 P⌉ messages, P − 1 more where the regions are balanced, and with exact thresholds 4k(P − 1)/P words,
//! 2k(P − 1)/P² more where they are balanced: within the published 2(P + log2 P) and [2k(P − 1)/P, 6k(P − 1)/P]. Bags tell their own lengths, and cuts travel with the bags of
//! the all-gather, so neither takes rounds of its own. A step of exact thresholds gathers all sums: more words, once in 32
//! steps. No selection of one worker keeps more than 2k entries, so a threshold that has become too low cannot flood the network.

use super::{Collective, CostRange, Shape, Structure, bruck, ceil_log2, direct};
use crate::schedule::{After, Cost, How, Memory, Note, Observed, Receive, Register, Rule, Send, Slots, Step};
use crate::{Block, Partition, Rank};

/// See the module.
#[derive(Debug)]
pub struct OkTopk;

/// Steps between two exact thresholds.
const EXACT_EVERY: u64 = 32;
/// Steps between two cuts.
const CUT_EVERY: u64 = 64;
/// How full a region may be, as a multiple of the mean, before it is balanced.
const FULL: f64 = 4.0;
/// By what a threshold is nudged.
const NUDGE: f64 = 1.05;
/// Destinations that are served in a round.
const WINDOW: u32 = 4;

/// The threshold of a worker's own selection.
const LOCAL: Register = Register::Own(0);
/// The threshold of the sums.
const GLOBAL: Register = Register::Agreed(0);
/// Of the agreed numbers: whether the next step balances; after it come the cuts.
const BALANCE: usize = 1;
const CUTS: usize = 2;

/// Which program a step runs.
#[derive(Clone, Copy)]
struct Kind {
    exact: bool,
    cut: bool,
    balance: bool,
}

impl Kind {
    fn of(structure: &Structure) -> Self {
        let bit = |bit: u32| structure.kind & bit != 0;
        Self { exact: bit(1), cut: bit(2), balance: bit(4) }
    }

    fn number(self) -> u32 {
        u32::from(self.exact) + 2 * u32::from(self.cut) + 4 * u32::from(self.balance)
    }
}

impl Collective for OkTopk {
    fn name(&self) -> &'static str {
        "oktopk"
    }

    fn summary(&self) -> &'static str {
        "Ok-Topk: P−1 + ⌈log2 P⌉ messages, 4k(P−1)/P words; P−1 and 2k(P−1)/P² more where it balances"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn blocks(&self, shape: &Shape) -> u32 {
        shape.workers
    }

    fn lanes(&self, shape: &Shape, structure: &Structure) -> u32 {
        if Kind::of(structure).balance { shape.workers } else { 1 }
    }

    fn memory(&self, shape: &Shape) -> Memory {
        let even = Partition::even(shape.n, shape.workers as usize);
        let cuts = (1..shape.workers).map(|b| even.range(Block(b)).start as f64);
        Memory { agreed: [0.0, 0.0].into_iter().chain(cuts).collect(), own: vec![0.0], ..Memory::default() }
    }

    fn structure(&self, shape: &Shape, memory: &Memory) -> Structure {
        let cuts = memory.agreed.iter().skip(CUTS).map(|&cut| cut as usize);
        // A threshold of 0, of a step in which all sums were zero, says nothing about the next and cannot be nudged.
        let unknown = memory.agreed.first().is_none_or(|&threshold| threshold == 0.0);
        let exact = memory.steps.is_multiple_of(EXACT_EVERY) || unknown;
        let cut = memory.steps.is_multiple_of(CUT_EVERY) && shape.workers > 1;
        let balance = !cut && !exact && memory.agreed.get(BALANCE).is_some_and(|&b| b != 0.0);
        Structure::of(Partition::at(shape.n, cuts), shape.k, Kind { exact, cut, balance }.number())
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let Kind { exact, cut, balance } = Kind::of(structure);
        let (w, p) = (rank.0, shape.workers);
        let (all, own) = (Slots::range(0, p), Slots::one(Block(w)));
        let above = |register| Rule::Above { register, most: 2 * shape.k };
        let mut steps = vec![shape.keep(all, if exact { Rule::Jointly(shape.k) } else { above(LOCAL) })];
        steps.extend(direct::reduce_scatter(w, p, WINDOW));
        steps.push(shape.keep(own, if exact { Rule::Every } else { above(GLOBAL) }));
        if cut {
            steps.push(Step::Annotate { slots: own, note: Note::Cuts(p) });
        }
        if balance {
            steps.extend(spread(w, p));
            let shares = |first, count| all.in_lanes(first, count, p);
            steps.extend(bruck::all_gather(w, p, Rank, shares));
            steps.push(Step::Sum { slots: all });
        } else {
            steps.extend(bruck::all_gather_blocks(w, p));
        }
        if exact {
            steps.push(shape.keep(all, Rule::Jointly(shape.k)));
        }
        steps
    }

    fn learn(&self, shape: &Shape, structure: &Structure, memory: &mut Memory, observed: &Observed) {
        let kind = Kind::of(structure);
        let counts = &observed.counts;
        let (total, fullest) = (counts.iter().sum::<usize>(), counts.iter().max().copied().unwrap_or(0));
        let nudged = |threshold: f64, count: usize, smallest: f64| match 3 * count {
            // Nothing is known of a gradient that was zero: no factor leads away from 0.
            _ if threshold == 0.0 => smallest,
            count if count > 4 * shape.k => threshold * NUDGE,
            count if count < 2 * shape.k => threshold / NUDGE,
            _ => threshold,
        };
        if kind.exact {
            memory.agreed[0] = observed.smallest;
            memory.own[0] = observed.own.smallest;
        } else {
            memory.agreed[0] = nudged(memory.agreed[0], total, observed.smallest);
            memory.own[0] = nudged(memory.own[0], observed.own.entries, observed.own.smallest);
        }
        let mean = total as f64 / f64::from(shape.workers);
        memory.agreed[BALANCE] = f64::from(u8::from(fullest as f64 > FULL * mean));
        let notes: Vec<_> = observed.notes.iter().flatten().collect();
        if kind.cut && notes.len() == shape.workers as usize {
            for (j, cut) in memory.agreed[CUTS..].iter_mut().enumerate() {
                // Sums of whole numbers below 2^53: the same on every worker.
                let sum: u64 = notes.iter().filter_map(|note| note.get(j)).sum();
                *cut = (sum / notes.len() as u64) as f64;
            }
        }
    }

    /// Thresholds are nudged where the count leaves [2k/3, 4k/3].
    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        let k = shape.k as u64;
        // Until its thresholds have settled it delivers more than the 4k/3 that it aims to stay below.
        (2 * k / 3, (2 * k).min(shape.n as u64))
    }

    /// A threshold that has become too high lets nothing through until it is found again.
    fn drains_within(&self, shape: &Shape) -> Option<u64> {
        Some(shape.passes()?.saturating_mul(EXACT_EVERY))
    }

    fn cost(&self, shape: &Shape) -> CostRange {
        let others = u64::from(shape.workers - 1);
        let l = u64::from(ceil_log2(shape.workers));
        let len = (shape.n as u64).div_ceil(u64::from(shape.workers));
        let share = (2 * (shape.k as u64).div_ceil(u64::from(shape.workers))).min(len);
        let split = others.div_ceil(u64::from(WINDOW));
        let cost = |balancing: u64| {
            let words = others * (2 * share + balancing * 2 * (share / 2).div_ceil(u64::from(shape.workers)));
            let rounds = split + l + balancing * u64::from(others > 0);
            let messages = (1 + balancing) * others + l;
            Cost { rounds, messages, words_received: words, words_critical: words }
        };
        CostRange { low: cost(0), high: cost(1) }
    }
}

/// Cuts the own region into P pieces of equal counts and sends each worker one: every worker then has one piece of
/// every region, in its own lane.
fn spread(w: u32, p: u32) -> Vec<Step> {
    let others = || (1..p).map(move |d| (w + d) % p);
    let own = Slots::one(Block(w));
    vec![
        Step::Split { slots: own },
        Step::Exchange {
            sends: others()
                .map(|to| Send { to: Rank(to), slots: own.in_lane(to), after: After::Drop })
                .collect(),
            receives: others()
                .map(|from| Receive {
                    from: Rank(from),
                    slots: Slots::one(Block(from)).in_lane(w),
                    how: How::Place,
                })
                .collect(),
        },
    ]
}
