//! What every selector chooses, and how long that takes.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::schedule::Candidates;
use gleaner_algorithms::selectors::{Selection, Selector, clt_k, exdyna};
use gleaner_algorithms::{Block, Layers, Partition, Rank, select};
use gleaner_statistics::median;

/// Times that everything is measured, in turn.
const RUNS: usize = 7;

/// Steps with the same gradients after which a selector that learns has learnt.
const LEARNS: usize = 25;

/// The worker whose choice is that of all in CLT-k.
const LEADER: Rank = Rank(0);

/// What takes part in the comparison.
#[derive(Clone, Copy, Debug)]
pub enum Entrant {
    /// Every worker chooses for itself.
    Own(Selector),
    /// Every worker chooses in its part for all.
    ExDyna,
    /// One worker chooses for all.
    CltK,
}

impl fmt::Display for Entrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entrant::Own(selector) => write!(f, "{selector}"),
            Entrant::ExDyna => f.write_str("exdyna"),
            Entrant::CltK => f.write_str("clt-k"),
        }
    }
}

/// What one selector does.
pub struct One {
    /// What each worker chooses itself, by rank.
    pub chosen: Vec<Entries>,
    /// The magnitude that its choice was by, by rank; None where it was not by one.
    pub thresholds: Option<Vec<f64>>,
    /// The time of each worker, the median of the runs in seconds.
    pub seconds: Vec<f64>,
}

/// Lets them choose in turn, several times: how long one plain read of a gradient takes, the median of the runs in seconds, and what each
/// entrant does.
pub fn measure(entrants: &[Entrant], gradients: &[Vec<f32>], layers: &Layers, k: usize) -> (f64, Vec<One>) {
    let slices: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
    let jobs: Vec<Job<'_>> = entrants.iter().map(|entrant| job(entrant, &slices, layers, k)).collect();
    let workers = gradients.len();
    let mut reads = Vec::new();
    let mut times = vec![vec![Vec::new(); workers]; jobs.len()];
    for run in 0..RUNS {
        for (w, gradient) in slices.iter().enumerate() {
            reads.push(timed(|| read(gradient)));
            for (job, times) in jobs.iter().zip(&mut times) {
                times[w].push(timed(|| job(w, run as u64)));
            }
        }
    }
    let one = |(job, times): (&Job<'_>, Vec<Vec<f64>>)| {
        let (chosen, thresholds): (Vec<Entries>, Vec<Option<f64>>) = (0..workers).map(|w| job(w, 0)).unzip();
        let seconds = times.into_iter().map(median).collect();
        One { chosen, thresholds: thresholds.into_iter().collect(), seconds }
    };
    (median(reads), jobs.iter().zip(times).map(one).collect())
}

fn timed<R>(job: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    black_box(job());
    start.elapsed().as_secs_f64()
}

/// Looks at every value and does as little as one can.
fn read(values: &[f32]) -> u32 {
    values.iter().fold(0, |sum: u32, value| sum.wrapping_add(value.to_bits()))
}

/// A selector with all that it knows from the steps before: what a worker chooses itself by a seed, and by which magnitude.
type Job<'a> = Box<dyn Fn(usize, u64) -> (Entries, Option<f64>) + 'a>;

fn job<'a>(entrant: &Entrant, gradients: &'a [&'a [f32]], layers: &Layers, k: usize) -> Job<'a> {
    match *entrant {
        Entrant::Own(selector) => {
            let selection = Selection { selector, k, layers: layers.clone() };
            let memories: Vec<_> = gradients.iter().map(|gradient| learnt(&selection, gradient)).collect();
            Box::new(move |w, seed| {
                // Each worker samples for itself.
                let seed = seed ^ ((w as u64) << 32);
                let chosen = selection.choose(gradients[w], &Candidates::default(), &memories[w], seed);
                let threshold = match selector {
                    Selector::Top => Some(smallest(&chosen.entries)),
                    _ => chosen.threshold.map(f64::from),
                };
                (chosen.entries, threshold)
            })
        }
        Entrant::ExDyna => {
            let chosen = exdyna::choose(gradients, k);
            let smallest = chosen.iter().flat_map(|entries| &entries.values).map(|v| v.abs());
            let threshold = smallest.reduce(f32::min).unwrap_or(f32::INFINITY);
            let partition = Partition::even(gradients[0].len(), gradients.len());
            Box::new(move |w, _| {
                let range = partition.range(Block(w as u32));
                let mut chosen = Entries::default();
                select::scan(&gradients[w][range.clone()], threshold, range.start as u32, &mut chosen);
                (chosen, Some(f64::from(threshold)))
            })
        }
        Entrant::CltK => Box::new(move |w, _| {
            let leads = w == LEADER.index();
            let chosen = if leads { clt_k::choose(gradients, LEADER, k) } else { Entries::default() };
            let threshold = leads.then(|| smallest(&chosen));
            (chosen, threshold)
        }),
    }
}

/// The smallest magnitude; 0 of no entries.
pub fn smallest(entries: &Entries) -> f64 {
    entries.values.iter().map(|v| v.abs()).reduce(f32::min).map_or(0.0, f64::from)
}

/// What a selector knows after steps with the same gradient.
fn learnt(selection: &Selection, gradient: &[f32]) -> Vec<f64> {
    let mut memory = selection.memory();
    let mut known: Option<(f64, usize)> = None;
    for _ in 0..if memory.is_empty() { 0 } else { LEARNS } {
        // The count changes only with the first number, which is what is learnt.
        let count = match known {
            Some((learnt, count)) if learnt == memory[0] => count,
            _ => selection.choose(gradient, &Candidates::default(), &memory, 0).entries.len(),
        };
        known = Some((memory[0], count));
        selection.learn(&mut memory, count);
    }
    memory
}
