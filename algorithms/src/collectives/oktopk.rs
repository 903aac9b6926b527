//! Ok-Topk: thresholds instead of exact selections, regions of equal counts instead of equal lengths (Li and Hoefler:
//! Near-Optimal Sparse Allreduce for Distributed Deep Learning, PPoPP 2022, Algorithms 1 and 2; a baseline of SparDL).
//!
//! 1. Each worker selects what reaches its own threshold, which is found exactly every 32 steps, and after a step that
//!    delivered fewer than k/4 entries, and nudged in between when the count leaves [2k/3, 4k/3].
//! 2. Split and reduce: region j of every selection goes to worker j, in rotated order, a few destinations at a time. The
//!    regions are cut so that the counts are equal: each cut is the mean over the workers of their own, renewed every 64
//!    steps. Where region j would begin goes to worker j with its bag, and the sum of that to all with the sum's.
//! 3. The owner selects what reaches a threshold that all agree on, found exactly in the same steps and nudged likewise.
//! 4. Balance and all-gather: where a region was more than four times as full as the mean in the step before, each
//!    owner spreads its entries evenly over all workers first.
//!
//! P − 1 + ⌈log2 P⌉ messages, P − 1 more where the regions are balanced, and with exact thresholds 4k(P − 1)/P words,
//! 2k(P − 1)/P² more where they are balanced: within the published 2(P + log2 P) and [2k(P − 1)/P, 6k(P − 1)/P]. Bags carry their own lengths, and cuts travel with the bags,
//! a number of two words each, so neither takes rounds of its own: 4(P − 1) words more in a step of new cuts. A step of exact thresholds gathers all sums: more words, once in 32
//! steps. No selection of one worker keeps more than 2k entries, so a threshold that has become too low cannot flood the network.

use super::{
    Collective, CostRange, MethodError, Number, Shape, State, Structure, bruck, ceil_log2, direct, even,
    recut,
};
use crate::schedule::{After, Cost, How, Note, Observed, Receive, Register, Rule, Send, Slots, Step};
use crate::{Block, Partition, Rank};

/// See the module.
#[derive(Clone, Debug)]
pub struct OkTopk;

/// Steps between two exact thresholds.
const EXACT_EVERY: u64 = 32;
/// Steps between two cuts.
const CUT_EVERY: u64 = 64;
/// How full a region may be, as a multiple of the mean, before it is balanced.
const FULL: f64 = 4.0;
/// By what a threshold is nudged.
const NUDGE: f64 = 1.05;
/// Where only one in so many of k entries is delivered, thresholds are found exactly in the next step.
const FEW: usize = 4;
/// Destinations that are served in a round.
const WINDOW: u32 = 4;

/// The threshold of a worker's own selection.
const LOCAL: Register = Register::Own(0);
/// The threshold of the sums.
const GLOBAL: Register = Register::Agreed(0);

/// What Ok-Topk learns.
#[derive(Clone, Debug, Default)]
pub struct Learnt {
    /// The threshold of the sums.
    global: f64,
    /// Whether the next step balances.
    balance: bool,
    /// Where the regions but the first begin.
    cuts: Vec<usize>,
    /// The threshold of this worker's own selection.
    local: f64,
}

impl State for Learnt {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        let cuts = self.cuts.iter_mut().map(|cut| cut as &mut dyn Number);
        [&mut self.global as &mut dyn Number, &mut self.balance].into_iter().chain(cuts).collect()
    }

    fn own(&mut self) -> Vec<&mut dyn Number> {
        vec![&mut self.local]
    }

    fn migrate(self, from: &Shape, to: &Shape) -> Self {
        let starts: Vec<f64> = self.cuts.iter().map(|&cut| cut as f64).collect();
        let cuts = recut(&starts, from.n, to).into_iter().map(|cut| cut as usize).collect();
        Self { cuts, balance: false, ..self }
    }
}

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
    type State = Learnt;

    fn name(&self) -> &'static str {
        "oktopk"
    }

    fn summary(&self) -> &'static str {
        "Ok-Topk: P−1 + ⌈log2 P⌉ messages, 4k(P−1)/P words; P−1 and 2k(P−1)/P² more where it balances"
    }

    fn accepts(&self, shape: &Shape) -> Result<(), MethodError> {
        shape.pooled(self.name())
    }

    fn competes(&self) -> bool {
        false
    }

    /// Without new cuts an exact step has no notes.
    fn kinds(&self, _: &Shape) -> Vec<u32> {
        let kind = |exact, balance| Kind { exact, cut: exact, balance }.number();
        vec![kind(false, false), kind(false, true), kind(true, false)]
    }

    fn lanes(&self, shape: &Shape, structure: &Structure) -> u32 {
        if Kind::of(structure).balance { shape.workers } else { 1 }
    }

    fn start(&self, shape: &Shape) -> Learnt {
        Learnt { cuts: even(shape), ..Learnt::default() }
    }

    fn structure(&self, shape: &Shape, step: u64, learnt: &Learnt) -> Result<Structure, MethodError> {
        // A threshold of 0 says nothing about the next step and cannot be nudged.
        let exact = step.is_multiple_of(EXACT_EVERY) || learnt.global == 0.0;
        let cut = step.is_multiple_of(CUT_EVERY) && shape.workers > 1;
        let balance = !cut && !exact && learnt.balance;
        let partition = Partition::at(shape.n, learnt.cuts.iter().copied());
        Structure::of(partition, shape.k, Kind { exact, cut, balance }.number())
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let Kind { exact, cut, balance } = Kind::of(structure);
        let (w, p) = (rank.0, shape.workers);
        let (all, own) = (Slots::range(0, p), Slots::one(Block(w)));
        let above = |register| Rule::Above { register, most: 2 * shape.k };
        let mut steps = vec![shape.keep(all, if exact { Rule::Jointly(shape.k) } else { above(LOCAL) })];
        if cut {
            steps.push(Step::Annotate { slots: all, note: Note::Cut(p) });
        }
        steps.extend(direct::reduce_scatter(w, p, WINDOW));
        steps.push(shape.keep(own, if exact { Rule::Every } else { above(GLOBAL) }));
        if balance {
            steps.extend(spread(w, p));
            let shares = |first, count| all.in_relative_lanes(first, count, p);
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

    fn learn(&self, shape: &Shape, structure: &Structure, learnt: &mut Learnt, observed: &Observed) {
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
        let own = &observed.own;
        learnt.global = match kind.exact {
            true => observed.smallest,
            // So high that nudging it down would take long.
            false if FEW * total < shape.k => 0.0,
            false => nudged(learnt.global, total, observed.smallest),
        };
        learnt.local =
            if kind.exact { own.smallest } else { nudged(learnt.local, own.entries, own.smallest) };
        let mean = total as f64 / f64::from(shape.workers);
        learnt.balance = fullest as f64 > FULL * mean;
        if kind.cut {
            // The owner of a region has added up where all workers would begin it.
            let sums = observed.notes.iter().skip(1).flatten().filter_map(|note| note.first());
            for (cut, sum) in learnt.cuts.iter_mut().zip(sums) {
                *cut = (sum / u64::from(shape.workers)).min(shape.n as u64) as usize;
            }
        }
    }

    /// Thresholds are nudged where the count leaves [2k/3, 4k/3].
    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        let k = shape.k as u64;
        // Until its thresholds are steady it delivers more than the 4k/3 that it aims to stay below.
        (2 * k / 3, (2 * k).min(shape.n as u64))
    }

    /// Each step delivers at least one in [`FEW`] of k entries, or the next one is exact and delivers k.
    fn drains_within(&self, shape: &Shape) -> Option<u64> {
        Some(shape.passes()?.saturating_mul(FEW as u64))
    }

    /// Of steps that do not find thresholds, which is all but one in 32. The notes of the cuts, a number of two words with each of
    /// 2(P − 1) bags that a worker receives in the step that renews them, are shared out to the steps until the next one.
    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let others = u64::from(shape.workers - 1);
        let l = u64::from(ceil_log2(shape.workers));
        let len = (shape.n as u64).div_ceil(u64::from(shape.workers));
        let share = (2 * (shape.k as u64).div_ceil(u64::from(shape.workers))).min(len);
        let split = others.div_ceil(u64::from(WINDOW));
        let notes = (2 * 2 * others).div_ceil(CUT_EVERY);
        let cost = |balancing: u64| {
            let balanced = balancing * 2 * (share / 2).div_ceil(u64::from(shape.workers));
            let words = others * (2 * share + balanced) + notes;
            let rounds = split + l + balancing * u64::from(others > 0);
            let messages = (1 + balancing) * others + l;
            Cost { rounds, messages, words_received: words, words_critical: words }
        };
        Some(CostRange { low: cost(0), high: cost(1) })
    }
}

/// Cuts the own region into P pieces of equal counts and sends each worker one: every worker then has one piece of
/// every region. Piece d of a region lies in lane d and goes to the worker d ranks further on.
fn spread(w: u32, p: u32) -> Vec<Step> {
    let piece = |of: u32, d: u32| Slots::one(Block(of)).in_lane(d);
    vec![
        Step::Split { slots: Slots::one(Block(w)) },
        Step::Exchange {
            sends: (1..p)
                .map(|d| Send { to: Rank((w + d) % p), slots: piece(w, d), after: After::Drop })
                .collect(),
            receives: (1..p)
                .map(|d| ((w + p - d) % p, d))
                .map(|(from, d)| Receive { from: Rank(from), slots: piece(from, d), how: How::Place })
                .collect(),
        },
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Method, MethodError};
    use super::*;
    use crate::schedule::OwnChoice;

    fn observed(own: f64, note: u64) -> Observed {
        let notes = vec![Some(Arc::from([note])); 4];
        Observed {
            counts: vec![3; 4],
            smallest: 1.0,
            notes,
            own: OwnChoice { entries: 12, smallest: own },
            ..Observed::default()
        }
    }

    /// A threshold that lets fewer than a quarter through is found exactly in the next step, and not nudged for long.
    #[test]
    fn a_threshold_that_is_far_too_high_is_found_again() {
        let shape = Method::of(OkTopk).k(16).shape(4, 1000).unwrap();
        for (counts, exact) in [(vec![1, 1, 1, 0], true), (vec![1; 4], false), (vec![4; 4], false)] {
            let mut learnt = Learnt { global: 2.0, local: 1.0, ..OkTopk.start(&shape) };
            let structure = OkTopk.structure(&shape, 3, &learnt).unwrap();
            OkTopk.learn(&shape, &structure, &mut learnt, &Observed { counts, ..observed(0.5, 0) });
            assert_eq!(Kind::of(&OkTopk.structure(&shape, 4, &learnt).unwrap()).exact, exact);
        }
    }

    /// A gradient of zeros in an exact step leaves no threshold; the next gradient does.
    #[test]
    fn a_threshold_of_zero_does_not_stay() {
        let shape = Method::of(OkTopk).k(12).shape(4, 1000).unwrap();
        let mut learnt = OkTopk.start(&shape);
        for (step, own, local) in [(0, 0.0, 0.0), (1, 0.25, 0.25), (2, 0.5, 0.25)] {
            let structure = OkTopk.structure(&shape, step, &learnt).unwrap();
            OkTopk.learn(&shape, &structure, &mut learnt, &observed(own, 0));
            assert_eq!(learnt.local, local, "step {step}");
        }
    }

    #[test]
    fn hostile_cuts_stay_within_the_gradient() {
        let shape = Method::of(OkTopk).k(12).shape(4, 1000).unwrap();
        let mut learnt = OkTopk.start(&shape);
        let structure = OkTopk.structure(&shape, 0, &learnt).unwrap();
        OkTopk.learn(&shape, &structure, &mut learnt, &observed(0.5, u64::MAX));
        assert_eq!(learnt.cuts, [1000; 3]);
        assert_eq!(OkTopk.structure(&shape, 1, &learnt).unwrap().partition.entries(), 1000);
    }

    /// 2^31 entries of blocks that are short enough each.
    #[test]
    fn pools_that_32_bits_cannot_number_are_refused() {
        let (k, n) = (1usize << 31, 10_000_000_000);
        for name in ["oktopk", "clt-k", "topkdsa"] {
            let method = Method::named(name).unwrap();
            let refused = method.clone().k(k).shape(16, n).unwrap_err();
            assert_eq!(refused, MethodError::Pool { method: method.collective().name(), k, n });
            assert!(method.k(k / 2).shape(16, n).is_ok(), "{name}");
        }
    }
}
