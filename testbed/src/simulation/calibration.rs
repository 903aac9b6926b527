//! A machine's numbers from measurements: those with which simulated steps come nearest to measured ones.
//!
//! Least squares over the logarithms of the ratios, so that a short step counts as much as a long one (Gauss-Newton with
//! Levenberg's damping). The time that steps spend on selecting and on merging counts a little, too, so that the prices of the
//! processor cannot take each other's place. What the measurements do not say stays as it was: each number is held at where
//! it started by a weak spring.

use super::machine::{Machine, NUMBERS};
use super::measured::Measured;
use super::network::Network;
use super::on_all_cores;
use super::replay::{Replayed, replay};
use super::trace::Trace;

/// What the parts of a step count, where the whole counts 1.
const PART: f64 = 0.25;

/// Parts that are a smaller share of the step say little.
const SMALL: f64 = 0.05;

/// What a number's distance from where it started counts.
const SPRING: f64 = 0.02;

/// The most that TCP leaves of a link's rate: 1448 of 1514 bytes.
const GOODPUT: f64 = 1448.0 / 1514.0;

/// By how much the logarithm of a number is moved to see what that changes, first and last: far enough to be no matter of who
/// comes first at a link, and first so far that the numbers come near theirs past whatever small steps get stuck at.
const MOVES: [f64; 3] = [0.5, 0.25, 0.05];

/// By how much slower the processors of the machines are that are begun with.
const STARTS: [f64; 3] = [1.0, 1.2, 1.4];

/// How often each step is repeated with other random choices.
const REPETITIONS: usize = 5;

/// Hosts, at most, for which steps are repeated.
const MOST_REPEATED: usize = 64;

/// Rounds of improvement, at most, with each of the moves.
const ROUNDS: usize = 25;

/// A case that was measured, ready to be simulated.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What was measured.
    pub measured: Measured,
    /// One step, or several of a method that learns.
    pub traces: Vec<Trace>,
    /// What it ran on.
    pub network: Network,
}

/// The step of the middle length: of several steps, and of several repetitions where who begins first, or what is lost, is sampled at random.
pub fn median(traces: &[Trace], machine: &Machine, network: &Network, spans: bool) -> Replayed {
    let repetitions =
        if network.is_random() && network.hosts.len() <= MOST_REPEATED { REPETITIONS } else { 1 };
    let mut network = network.clone();
    let mut all = Vec::new();
    for trace in traces {
        for _ in 0..repetitions {
            all.push(replay(trace, machine, &network, spans));
            network.seed = network.seed.wrapping_add(1);
        }
    }
    all.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    let middle = all.len().saturating_sub(1) / 2;
    all.into_iter().nth(middle).unwrap_or_default()
}

/// Fits a machine to measurements, beginning with this one and with slower ones: what small steps end at depends on where they
/// begin, and the best of the ends counts.
pub fn fit(cases: &[Prepared], start: &Machine, mut report: impl FnMut(usize, usize)) -> Machine {
    let origin = start.numbers().map(|number| number.max(1e-6).ln());
    let rounds = MOVES.len() * ROUNDS;
    let ends = STARTS.iter().enumerate().map(|(i, factor)| {
        let mut begin = origin;
        begin[..NUMBERS - 1].iter_mut().for_each(|number| *number += factor.ln());
        descend(cases, begin, &origin, |round| report(i * rounds + round, STARTS.len() * rounds))
    });
    let best = ends.min_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map_or_else(|| start.clone(), |(_, numbers)| Machine::of(start.about.clone(), numbers.map(f64::exp)))
}

/// From these numbers to better ones, as long as they become better, and how good they are.
fn descend(
    cases: &[Prepared],
    mut present: [f64; NUMBERS],
    origin: &[f64; NUMBERS],
    mut report: impl FnMut(usize),
) -> (f64, [f64; NUMBERS]) {
    let mut errors = residuals(cases, &present, origin);
    for (phase, by) in MOVES.into_iter().enumerate() {
        let mut damping = 1e-2;
        for round in 0..ROUNDS {
            report(phase * ROUNDS + round);
            let columns: Vec<Vec<f64>> = (0..NUMBERS)
                .map(|i| {
                    let mut moved = present;
                    moved[i] += by;
                    let changed = residuals(cases, &moved, origin);
                    changed.iter().zip(&errors).map(|(a, b)| (a - b) / by).collect()
                })
                .collect();
            let mut better = false;
            for _ in 0..6 {
                let mut tried = present;
                for (number, change) in tried.iter_mut().zip(step(&columns, &errors, damping)) {
                    // No further than a factor of two at once.
                    *number += change.clamp(-0.7, 0.7);
                }
                tried[NUMBERS - 1] = tried[NUMBERS - 1].min(GOODPUT.ln());
                let found = residuals(cases, &tried, origin);
                let (before, after) = (square(&errors), square(&found));
                if after < before {
                    better = before - after > 1e-4 * before;
                    (present, errors) = (tried, found);
                    damping = (damping * 0.3).max(1e-6);
                    break;
                }
                damping *= 4.0;
            }
            if !better {
                break;
            }
        }
    }
    (square(&errors), present)
}

fn square(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// What is to become small.
fn residuals(cases: &[Prepared], numbers: &[f64; NUMBERS], origin: &[f64; NUMBERS]) -> Vec<f64> {
    let machine = Machine::of(String::new(), numbers.map(f64::exp));
    let of = |Prepared { measured, traces, network }: &Prepared| {
        let replayed = median(traces, &machine, network, false);
        let slowest = replayed.slowest();
        let part = |found: f64, expected: f64| {
            let counts = expected > SMALL * measured.seconds;
            if counts { PART * (found.max(1e-9) / expected).ln().clamp(-2.0, 2.0) } else { 0.0 }
        };
        let whole = (slowest.seconds / measured.seconds).ln();
        [whole, part(slowest.select, measured.select), part(slowest.merge, measured.merge)]
    };
    // In the order of the cases, in whichever order they are found.
    let mut found = vec![[0.0; 3]; cases.len()];
    on_all_cores(cases.iter().zip(&mut found), |(case, error)| *error = of(case));
    let mut errors = found.concat();
    errors.extend(numbers.iter().zip(origin).map(|(number, start)| SPRING * (number - start)));
    errors
}

/// The change of all numbers that Gauss and Newton propose: (JᵀJ + λD)·x = −Jᵀr.
fn step(columns: &[Vec<f64>], errors: &[f64], damping: f64) -> [f64; NUMBERS] {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut rows: Vec<Vec<f64>> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let mut row: Vec<f64> = columns.iter().map(|other| dot(column, other)).collect();
            row[i] += damping * (row[i] + 1e-6);
            row.push(-dot(column, errors));
            row
        })
        .collect();
    // Gauss, with pivots: the matrix is small and positive.
    for i in 0..NUMBERS {
        let pivot = (i..NUMBERS).max_by(|&a, &b| rows[a][i].abs().total_cmp(&rows[b][i].abs())).unwrap_or(i);
        rows.swap(i, pivot);
        let row = rows[i].clone();
        for below in rows.iter_mut().skip(i + 1) {
            let factor = below[i] / row[i];
            below.iter_mut().zip(&row).skip(i).for_each(|(value, above)| *value -= factor * above);
        }
    }
    let mut solution = [0.0; NUMBERS];
    for i in (0..NUMBERS).rev() {
        let known: f64 = (i + 1..NUMBERS).map(|j| rows[i][j] * solution[j]).sum();
        solution[i] = (rows[i][NUMBERS] - known) / rows[i][i];
    }
    solution
}
