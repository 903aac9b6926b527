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

/// What all do.
pub struct Measured {
    /// One plain read of a gradient, the median of the runs in seconds.
    pub read: f64,
    /// In the order of the entrants.
    pub selectors: Vec<One>,
}

/// Lets them choose in turn, several times.
pub fn measure(entrants: &[Entrant], gradients: &[Vec<f32>], layers: &Layers, k: usize) -> Measured {
    let slices: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
    let jobs: Vec<Job> = entrants.iter().map(|entrant| Job::new(entrant, &slices, layers, k)).collect();
    let workers = gradients.len();
    let mut reads = Vec::new();
    let mut times = vec![vec![Vec::new(); workers]; jobs.len()];
    for run in 0..RUNS {
        for (w, gradient) in slices.iter().enumerate() {
            reads.push(timed(|| read(gradient)));
            for (job, times) in jobs.iter().zip(&mut times) {
                times[w].push(timed(|| job.choose(&slices, w, run as u64)));
            }
        }
    }
    let selectors = jobs
        .iter()
        .zip(times)
        .map(|(job, times)| {
            let done: Vec<_> = (0..workers).map(|w| job.choose(&slices, w, 0)).collect();
            let (chosen, thresholds): (Vec<Entries>, Vec<Option<f64>>) = done.into_iter().unzip();
            let seconds = times.into_iter().map(median).collect();
            One { chosen, thresholds: thresholds.into_iter().collect(), seconds }
        })
        .collect();
    Measured { read: median(reads), selectors }
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

/// A selector with all that it knows from the steps before.
enum Job {
    Own { selection: Selection, memories: Vec<Vec<f64>> },
    ExDyna { partition: Partition, threshold: f32 },
    CltK { k: usize },
}

impl Job {
    fn new(entrant: &Entrant, gradients: &[&[f32]], layers: &Layers, k: usize) -> Self {
        match *entrant {
            Entrant::Own(selector) => {
                let selection = Selection { selector, k, layers: layers.clone() };
                let memories = gradients.iter().map(|gradient| learnt(&selection, gradient)).collect();
                Job::Own { selection, memories }
            }
            Entrant::ExDyna => {
                let chosen = exdyna::choose(gradients, k);
                let smallest = chosen.iter().flat_map(|entries| &entries.values).map(|v| v.abs());
                let threshold = smallest.reduce(f32::min).unwrap_or(f32::INFINITY);
                Job::ExDyna { partition: Partition::even(gradients[0].len(), gradients.len()), threshold }
            }
            Entrant::CltK => Job::CltK { k },
        }
    }

    /// What a worker chooses itself, and by which magnitude.
    fn choose(&self, gradients: &[&[f32]], w: usize, seed: u64) -> (Entries, Option<f64>) {
        match self {
            Job::Own { selection, memories } => {
                // Each worker samples for itself.
                let seed = seed ^ ((w as u64) << 32);
                let chosen = selection.choose(gradients[w], &Candidates::default(), &memories[w], seed);
                let threshold = match selection.selector {
                    Selector::Top => Some(smallest(&chosen.entries)),
                    _ => chosen.threshold.map(f64::from),
                };
                (chosen.entries, threshold)
            }
            Job::ExDyna { partition, threshold } => {
                let range = partition.range(Block(w as u32));
                let mut chosen = Entries::default();
                select::scan(&gradients[w][range.clone()], *threshold, range.start as u32, &mut chosen);
                (chosen, Some(f64::from(*threshold)))
            }
            Job::CltK { k } if w == LEADER.index() => {
                let chosen = clt_k::choose(gradients, LEADER, *k);
                let threshold = smallest(&chosen);
                (chosen, Some(threshold))
            }
            Job::CltK { .. } => (Entries::default(), None),
        }
    }
}

fn smallest(entries: &Entries) -> f64 {
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
