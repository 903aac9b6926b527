//! SparDL's Table 1 and SparCML's bounds, from bags that really travel.
//!
//! The papers' bandwidth terms depend on which entries the workers choose. Both ends are tested: all choose the same
//! entries, or no two choose the same, spread evenly over the gradient.

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::{CostRange, Sag, Shape};
use gleaner_algorithms::schedule::Cost;

use super::harness::{Team, methods, spardl};

/// What a step of P workers with k entries each of n is made for: P divides k, n is so long that no sum turns dense, and P and
/// the power of two below it divide n, so that all blocks are equally long.
#[derive(Clone, Copy)]
struct Case {
    p: u64,
    k: u64,
    n: u64,
}

impl Case {
    fn of(p: u64, each: u64) -> Self {
        // An entry takes two words, and a block may get those of all workers.
        let (k, core) = (each * p, (p.next_power_of_two() / 2).max(1));
        Self { p, k, n: (k * (2 * p + 1)).next_multiple_of(k * core) }
    }

    fn shape(self, method: Method) -> Shape {
        method.k(self.k as usize).shape(self.p as u32, self.n as usize).unwrap()
    }

    /// Every worker has k entries, evenly spread: at the same places, or each at its own.
    fn gradients(self, same: bool) -> Vec<Vec<f32>> {
        let apart = self.n / self.k;
        let gradient = |w: u64| {
            let mut gradient = vec![0.0; self.n as usize];
            for j in 0..self.k {
                let place = j * apart + if same { 0 } else { w };
                gradient[place as usize] = 1.0 + (j * self.p + w) as f32 / (self.k * self.p) as f32;
            }
            gradient
        };
        (0..self.p).map(gradient).collect()
    }

    /// Rounds and messages of the schedules, and the words of the bags that travel in the step that comes after so many.
    fn cost(self, method: Method, same: bool, after: usize) -> Cost {
        let mut team: Team = Team::of(method.k(self.k as usize), self.p as usize, self.n as usize);
        let gradients = self.gradients(same);
        for _ in 0..after {
            team.step(&gradients);
        }
        let Cost { rounds, messages, .. } = team.ensemble.cost();
        let outcome = team.step(&gradients);
        let words_received = outcome.words_received.iter().copied().max().unwrap();
        Cost { rounds, messages, words_received, words_critical: outcome.words_critical }
    }

    /// A step of B-SAG with this h.
    fn cost_with_h(self, method: Method, same: bool, h: u64) -> Cost {
        let method = method.k(self.k as usize);
        let mut team: Team = Team::of(method, self.p as usize, self.n as usize);
        let mut memories = team.ensemble.memories();
        memories.iter_mut().for_each(|memory| memory.agreed[0] = h as f64);
        team.ensemble.restore(memories).unwrap();
        let Cost { rounds, messages, .. } = team.ensemble.cost();
        let outcome = team.step(&self.gradients(same));
        let words_received = outcome.words_received.iter().copied().max().unwrap();
        Cost { rounds, messages, words_received, words_critical: outcome.words_critical }
    }

    fn range(self, method: Method) -> CostRange {
        CostRange { low: self.cost(method.clone(), true, 0), high: self.cost(method, false, 0) }
    }
}

fn named(name: &str) -> Method {
    Method::named(name).unwrap()
}

fn powers() -> impl Iterator<Item = (u64, u64)> {
    (1..=6).map(|log| (1 << log, log))
}

/// The last round of a schedule, and the messages of its busiest worker: the papers count either.
fn latency(cost: Cost) -> u64 {
    cost.rounds.max(cost.messages)
}

/// "TopkA": log P α + 2(P − 1)k β, whatever is chosen; SparCML's sparse all-gather at its upper end, L1(P) + (P − 1)k β_s.
#[test]
fn topka() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        for same in [true, false] {
            let cost = case.cost(named("topka"), same, 0);
            assert_eq!((latency(cost), cost.words_critical), (log, 2 * (p - 1) * case.k), "P {p}");
        }
    }
}

/// Lemma 4.1 of SparCML: no all-reduce is faster than log2(P) α + (P − 1)k β_d where no two choose the same entries, or than
/// log2(P) α + 2(P − 1)/P k β_d where all do. Methods that deliver all that was chosen keep to it, with β_s for β_d; for the
/// sparse all-gather the first is reached.
#[test]
fn nothing_is_below_sparcmls_lower_bounds() {
    let all = ["topka", "topkdsa", "ssar-recursive-double", "ssar-split-all-gather", "dsar-split-all-gather"];
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        for method in all.map(named) {
            let CostRange { low, high } = case.range(method.clone());
            assert!(latency(low) >= log && latency(high) >= log, "{method}, P {p}");
            assert!(low.words_critical >= 2 * (2 * case.k * (p - 1) / p), "{method}, P {p}");
            if method.collective().name() != "dsar-split-all-gather" {
                assert!(high.words_critical >= 2 * (p - 1) * case.k, "{method}, P {p}");
            }
        }
        let high = case.range(named("topka")).high;
        assert_eq!((latency(high), high.words_critical), (log, 2 * (p - 1) * case.k), "P {p}");
    }
}

/// "TopkDSA": (P + 2 log P) α + [4k(P − 1)/P, (2k + n)(P − 1)/P] β. Ours sends no lengths ahead: P − 1 + log P.
#[test]
fn topkdsa() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        let (k, n) = (case.k, case.n);
        let CostRange { low, high } = case.range(named("topkdsa"));
        assert!(latency(low) == p - 1 + log && latency(low) <= p + 2 * log, "P {p}");
        assert_eq!(low.words_critical, 4 * k * (p - 1) / p, "P {p}");
        assert_eq!(high.words_critical, 2 * k * (p - 1) / p + 2 * k * (p - 1), "P {p}");
        assert!(high.words_critical <= (2 * k + n) * (p - 1) / p, "P {p}");
        // Where the sums are dense, the upper end is reached.
        let dense = Case { p, k: 4 * p, n: 4 * p * p };
        let words = dense.cost(named("topkdsa"), false, 0).words_critical;
        assert_eq!(words, (2 * dense.k + dense.n) * (p - 1) / p, "P {p}");
    }
}

/// "gTopk": 2 log P α + 4(log P)k β.
#[test]
fn gtopk() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        for same in [true, false] {
            let cost = case.cost(named("gtopk"), same, 0);
            assert_eq!((latency(cost), cost.words_critical), (2 * log, 4 * log * case.k), "P {p}");
        }
    }
}

/// "Ok-Topk": 2(P + log P) α + [2k(P − 1)/P, 6k(P − 1)/P] β. With exact thresholds (all choose the same in every step, so
/// that the thresholds of the first are exact in the next) ours is in the middle, also where it balances.
#[test]
fn oktopk() {
    for (p, log) in powers() {
        // A region's entries are cut into P pieces where they are balanced.
        let case = Case::of(p, p);
        let k = case.k;
        let (lower, upper) = (2 * k * (p - 1) / p, 6 * k * (p - 1) / p);
        let cost = case.cost(named("oktopk"), true, 1);
        assert!(latency(cost) == p - 1 + log && latency(cost) <= 2 * (p + log), "P {p}");
        assert_eq!(cost.words_critical, 4 * k * (p - 1) / p, "P {p}");
        assert!((lower..=upper).contains(&cost.words_critical), "P {p}");
        // The same step, balanced: what was learnt says so.
        let mut team: Team = Team::of(named("oktopk").k(k as usize), p as usize, case.n as usize);
        let gradients = case.gradients(true);
        team.step(&gradients);
        let mut memories = team.ensemble.memories();
        memories.iter_mut().for_each(|memory| memory.agreed[1] = 1.0);
        team.ensemble.restore(memories).unwrap();
        assert_eq!(team.ensemble.cost().messages, 2 * (p - 1) + log, "P {p}");
        assert!(team.ensemble.cost().messages <= 2 * (p + log), "P {p}");
        let outcome = team.step(&gradients);
        let words = outcome.words_critical;
        assert_eq!(words, 4 * k * (p - 1) / p + 2 * k * (p - 1) / (p * p), "P {p}");
        assert_eq!(outcome.words_received, vec![words; p as usize], "P {p}");
        assert!((lower..=upper).contains(&words), "P {p}");
    }
}

/// The step that finds Ok-Topk's thresholds gathers all sums: 2k(P − 1)/P words of the split, and of the all-gather as many
/// where all choose the same, or P times as many where no two do. The first of these steps renews the cuts, too: a number with
/// each bag of both, of two words.
#[test]
fn oktopk_finding_its_thresholds() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        let (split, notes) = (2 * case.k * (p - 1) / p, 2 * 2 * (p - 1));
        for (same, gathered) in [(true, split), (false, p * split)] {
            let cost = case.cost(named("oktopk"), same, 0);
            assert_eq!(
                (latency(cost), cost.words_critical),
                (p - 1 + log, split + gathered + notes),
                "P {p}, same {same}"
            );
        }
        // Nothing remains where all choose the same, so that the step after 32 is the first one again but for its cuts, and
        // only that.
        let again = |after| case.cost(named("oktopk"), true, after);
        if p <= 8 {
            let Cost { words_received, words_critical, .. } = again(0);
            let uncut = (words_received - notes, words_critical - notes);
            let found = again(32);
            assert_eq!((found.words_received, found.words_critical), uncut, "P {p}");
            assert_eq!((found.rounds, found.messages), (again(0).rounds, again(0).messages), "P {p}");
        }
        // The checker counts the notes as well: all else is what the next exact step has at most.
        let mut team: Team = Team::of(named("oktopk").k(case.k as usize), p as usize, case.n as usize);
        let first = team.ensemble.cost();
        let mut memories = team.ensemble.memories();
        memories.iter_mut().for_each(|memory| memory.steps = 32);
        team.ensemble.restore(memories).unwrap();
        assert_eq!(first.words_critical, team.ensemble.cost().words_critical + notes, "P {p}");
    }
}

/// Of the words that travel in the 64 steps from one renewal of the cuts to the next, the formula is the mean: notes are counted.
/// All choose the same in every step, so that steps which find thresholds have no more words than others.
#[test]
fn oktopk_costs_its_notes_too() {
    for p in 2..=8 {
        let case = Case::of(p, 2);
        let formula = named("oktopk").cost(&case.shape(named("oktopk"))).unwrap().low;
        let mut team: Team = Team::of(named("oktopk").k(case.k as usize), p as usize, case.n as usize);
        let gradients = case.gradients(true);
        let steps: Vec<_> = (0..64).map(|_| team.step(&gradients)).collect();
        let critical: u64 = steps.iter().map(|outcome| outcome.words_critical).sum();
        let received: u64 = steps.iter().map(|outcome| outcome.words_received[0]).sum();
        let means = (received.div_ceil(64), critical.div_ceil(64));
        assert_eq!((formula.words_received, formula.words_critical), means, "P {p}");
    }
}

/// "SparDL (R-SAG)": (2⌈log P/d⌉ + log d) α + 2k((2P − 2d)/P + (d/P) log d) β (equation 5).
#[test]
fn spardl_with_recursive_teams() {
    for (p, log) in powers() {
        for (d, log_d) in (0..=log).map(|log_d| (1 << log_d, log_d)) {
            let case = Case::of(p, 2);
            let method = spardl(d as usize, Sag::Recursive);
            let words = 2 * case.k * (2 * p - 2 * d + d * log_d) / p;
            for same in [true, false] {
                // Blocks of a team have dk/P entries, and so has every swap.
                let cost = case.cost(method.clone(), same, 0);
                assert_eq!(latency(cost), 2 * (log - log_d) + log_d, "P {p}, d {d}");
                assert_eq!(cost.words_critical, words, "P {p}, d {d}, same {same}");
            }
            // Full bags: the bound that the checker derives.
            let team: Team = Team::of(method.k(case.k as usize), p as usize, case.n as usize);
            assert_eq!(team.ensemble.cost().words_critical, words, "P {p}, d {d}");
        }
    }
}

/// "SparDL (B-SAG)": (2⌈log P/d⌉ + ⌈log d⌉) α, and from 2k(Pd + P − 2d)/(Pd) (the table's lower end omits the
/// reduce-scatter) to 2k(d² + 2P − 3d)/P β (equation 7). N, a number of two words, comes with each block of the last all-gather.
#[test]
fn spardl_with_teams_by_bruck() {
    for (p, log) in powers() {
        for (d, log_d) in (1..=log).map(|log_d| (1 << log_d, log_d)) {
            let case = Case::of(p, 2);
            let k = case.k;
            let method = spardl(d as usize, Sag::Bruck);
            let notes = 2 * (p / d - 1);
            let lower = 2 * k * (p * d + p - 2 * d) / (p * d) + notes;
            let upper = 2 * k * (d * d + 2 * p - 3 * d) / p + notes;
            // The lower end: h is least, and where all choose the same, the teams' largest are the same too. The upper one:
            // h is most, and the last selection leaves dk/P.
            for (same, h, words) in
                [(true, k / p, lower), (true, d * k / p, upper), (false, d * k / p, upper)]
            {
                let cost = case.cost_with_h(method.clone(), same, h);
                assert_eq!(latency(cost), 2 * (log - log_d) + log_d, "P {p}, d {d}");
                assert_eq!(cost.words_critical, words, "P {p}, d {d}, h {h}");
            }
            let team: Team = Team::of(method.k(k as usize), p as usize, case.n as usize);
            assert_eq!(team.ensemble.cost().words_critical, upper, "P {p}, d {d}");
        }
    }
}

/// L1(P) + log2(P) k β_s ≤ T ≤ L1(P) + (P − 1)k β_s, where β_s is the time of two words.
#[test]
fn ssar_recursive_double() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        let CostRange { low, high } = case.range(named("ssar-recursive-double"));
        assert_eq!((latency(low), low.words_critical), (log, 2 * log * case.k), "P {p}");
        assert_eq!((latency(high), high.words_critical), (log, 2 * (p - 1) * case.k), "P {p}");
    }
}

/// L2(P) + 2(P − 1)/P k β_s ≤ T ≤ L2(P) + Pk β_s with L2(P) = (P − 1)α + L1(P).
#[test]
fn ssar_split_all_gather() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        let CostRange { low, high } = case.range(named("ssar-split-all-gather"));
        assert_eq!((latency(low), low.words_critical), (p - 1 + log, 4 * case.k * (p - 1) / p), "P {p}");
        // Spread evenly, no worker gets more than its share of the split: a little below the bound.
        assert_eq!(high.words_critical, 2 * case.k * (p * p - 1) / p, "P {p}");
        assert!(latency(high) == p - 1 + log && high.words_critical <= 2 * p * case.k, "P {p}");
    }
}

/// L2(P) + (P − 1)/P N β_d ≤ T ≤ L2(P) + k β_s + (P − 1)/P N β_d.
#[test]
fn dsar_split_all_gather() {
    for (p, log) in powers() {
        let case = Case::of(p, 2);
        let dense = case.n * (p - 1) / p;
        for same in [true, false] {
            let cost = case.cost(named("dsar-split-all-gather"), same, 0);
            assert_eq!(latency(cost), p - 1 + log, "P {p}");
            assert_eq!(cost.words_critical, 2 * case.k * (p - 1) / p + dense, "P {p}");
            assert!((dense..=2 * case.k + dense).contains(&cost.words_critical), "P {p}");
        }
    }
}

/// For every P, the formula in the method's file is what its schedules and bags cost at both ends.
#[test]
fn every_formula_is_what_it_costs() {
    for p in 1..=64u64 {
        let case = Case::of(p, 1 + p % 2);
        let teams = (2..=p as u32).filter(|d| (p as u32).is_multiple_of(*d));
        let teams = teams.flat_map(|d| {
            let both = [Sag::Recursive, Sag::Bruck].map(|sag| spardl(d as usize, sag));
            both.into_iter().filter(move |both| both.shape(p as u32, 1).is_ok())
        });
        for method in methods().chain(teams) {
            let name = method.clone().k(case.k as usize).to_string();
            let formula = method.clone().cost(&case.shape(method.clone())).unwrap();
            let checked = Team::<f32>::of(method.clone().k(case.k as usize), p as usize, case.n as usize)
                .ensemble
                .cost();
            let agrees = |formula: Cost| (formula.rounds, formula.messages);
            let words = |cost: Cost| (cost.words_received, cost.words_critical);
            match method.collective().name() {
                // The first step finds its thresholds; the next one is what the formula is about.
                "oktopk" => {
                    let cost = case.cost(method, true, 1);
                    // A 64th of the notes of the cuts.
                    let notes = (4 * (p - 1)).div_ceil(64);
                    assert_eq!(agrees(formula.low), agrees(cost), "{name}, P {p}");
                    let without = |cost: Cost| (cost.words_received - notes, cost.words_critical - notes);
                    assert_eq!(without(formula.low), words(cost), "{name}, P {p}");
                    continue;
                }
                // What h lets through of each team, and what the last selection leaves of that.
                "spardl" if formula.low != formula.high => {
                    let d = method.option("teams").unwrap().parse::<u64>().unwrap();
                    let block = d * case.k / p;
                    for same in [true, false] {
                        for h in [case.k / p, (case.k / p + block) / 2, block] {
                            let left = if same { h } else { block.min(d * h) };
                            let others = p / d - 1;
                            let expected = 2 * (others * block + (d - 1) * h + others * (left + 1));
                            let cost = case.cost_with_h(method.clone(), same, h);
                            assert_eq!(
                                words(cost),
                                (expected, expected),
                                "{name}, P {p}, h {h}, same {same}"
                            );
                            let ends = formula.low.words_critical..=formula.high.words_critical;
                            assert!(ends.contains(&expected), "{name}, P {p}, h {h}");
                            for (end, least) in
                                [(formula.low, same && h == case.k / p), (formula.high, h == block)]
                            {
                                assert!(!least || words(end) == (expected, expected), "{name}, P {p}, h {h}");
                            }
                        }
                    }
                    assert_eq!(words(checked), words(formula.high), "{name}, P {p}");
                }
                "spardl" => {
                    assert_eq!(words(checked), words(formula.high), "{name}, P {p}");
                    let range = case.range(method);
                    assert_eq!(words(range.low), words(formula.low), "{name}, P {p}");
                    assert_eq!(words(range.high), words(formula.high), "{name}, P {p}");
                }
                // Blocks of several entries, and what they leave is the last partition's: choices are not spread evenly.
                "exdyna-printed" if case.n >= 1024 => {}
                _ if !method.collective().is_sparse() => {
                    assert_eq!(formula.low, formula.high, "{name}, P {p}");
                    let cost = case.cost(method, true, 0);
                    for words in [checked.words_critical, cost.words_critical] {
                        assert_eq!(words, formula.high.words_critical, "{name}, P {p}");
                    }
                }
                _ => {
                    let range = case.range(method);
                    for (formula, found) in [(formula.low, range.low), (formula.high, range.high)] {
                        assert_eq!(formula.words_critical, found.words_critical, "{name}, P {p}");
                        assert!(
                            found.words_received <= formula.words_received.max(formula.words_critical),
                            "{name}, P {p}"
                        );
                    }
                }
            }
            assert_eq!(agrees(formula.low), agrees(checked), "{name}, P {p}");
            assert_eq!(agrees(formula.high), agrees(checked), "{name}, P {p}");
        }
    }
}
