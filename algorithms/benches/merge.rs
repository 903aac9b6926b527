//! What adding sorted entries costs, as multiples of a plain read of the same entries:
//! `cargo bench -p gleaner-algorithms --bench merge`.
//!
//! Every round merges two fresh sets of random indices. One core; all implementations take turns; medians over the rounds.
//!
//! Options: `--k ENTRIES` of each set, `--density SHARE` of the vector that they are, `--rounds ROUNDS`.

use std::hint::black_box;
use std::time::Instant;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::select::Simd;
use gleaner_algorithms::{Element, Reduction};
use gleaner_statistics::median;
use gleaner_statistics::random::Generator;
use half::{bf16, f16};

/// Sets that take turns: more than a second-level cache holds.
const SETS: usize = 8;
/// The row whose entries are those of all sets, each of which is merged three times.
const MANY: &str = "sum of all eight sets";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: f64| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
    };
    let (k, density) = (number("--k", 24_000.0) as usize, number("--density", 0.01));
    let rounds = number("--rounds", 400.0) as usize;
    let n = (k as f64 / density) as usize;

    println!("2 × {k} entries of {n}, {:?}, medians", Simd::current());
    println!("{:34} {:>10} {:>14}", "", "ns / entry", "/ plain read");
    Bench::<f32>::new(n, k, rounds).report();
    Bench::<f64>::new(n, k, rounds).report();
    Bench::<bf16>::new(n, k, rounds).report();
    Bench::<f16>::new(n, k, rounds).report();
}

/// Sets of entries of one type.
struct Bench<T> {
    sets: Vec<Entries<T>>,
    /// Of every set, another one that shares half of its indices.
    near: Vec<Entries<T>>,
    dense: Vec<T>,
    rounds: usize,
}

impl<T: Element> Bench<T> {
    fn new(n: usize, k: usize, rounds: usize) -> Self {
        let mut numbers = Numbers(Generator::seeded(1));
        let sets: Vec<Entries<T>> = (0..SETS).map(|_| numbers.entries(n, k)).collect();
        let near = sets.iter().map(|set| numbers.beside(set, n)).collect();
        Self { sets, near, dense: vec![T::ONE; n], rounds }
    }

    fn report(&mut self) {
        let mut rows: Vec<(&str, Vec<f64>)> = Vec::new();
        let mut out = Entries::default();
        for round in 0..self.rounds {
            let (a, b) = (&self.sets[round % SETS], &self.sets[(round + 1) % SETS]);
            let near = &self.near[round % SETS];
            let all: usize = self.sets.iter().map(Entries::len).sum();
            let mut time = |name, work: &mut dyn FnMut()| {
                let entries = if name == MANY { all } else { a.len() + b.len() };
                let start = Instant::now();
                work();
                let each = start.elapsed().as_secs_f64() / entries as f64;
                match rows.iter_mut().find(|row| row.0 == name) {
                    Some(row) => row.1.push(each),
                    None => rows.push((name, vec![each])),
                }
            };
            time("plain read", &mut || {
                black_box((read(black_box(a)), read(black_box(b))));
            });
            time("sum", &mut || black_box(a).merge_into(black_box(b), &Reduction::Sum, &mut out));
            time("sum, half of the indices shared", &mut || {
                black_box(a).merge_into(black_box(near), &Reduction::Sum, &mut out);
            });
            time("max", &mut || black_box(a).merge_into(black_box(b), &Reduction::Max, &mut out));
            time("sum into new memory", &mut || {
                black_box(black_box(a).merge(black_box(b)));
            });
            time(MANY, &mut || {
                black_box(Entries::sum_of(black_box(&self.sets)));
            });
            time("one after the other", &mut || one_by_one(black_box(a), black_box(b), &mut out));
            let dense = &mut self.dense;
            time("both into a dense vector", &mut || {
                Reduction::Sum.combine_entries(dense, black_box(a));
                Reduction::Sum.combine_entries(dense, black_box(b));
            });
        }
        let medians: Vec<_> = rows.into_iter().map(|(name, seconds)| (name, median(seconds))).collect();
        let read = medians[0].1;
        for (name, each) in medians {
            println!("{:34} {:>10.3} {:>14.2}", format!("{}: {name}", T::NAME), each * 1e9, each / read);
        }
    }
}

/// The simplest merge: takes whichever entry is next, one at a time.
fn one_by_one<T: Element>(a: &Entries<T>, b: &Entries<T>, out: &mut Entries<T>) {
    out.clear();
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(&(i, v)), Some(&(j, w))) = (a.peek(), b.peek()) {
        let value = if i == j {
            v + w
        } else if i < j {
            v
        } else {
            w
        };
        if value != T::ZERO {
            out.push(i.min(j), value);
        }
        if i <= j {
            a.next();
        }
        if j <= i {
            b.next();
        }
    }
    a.chain(b).for_each(|(i, v)| out.push(i, v));
}

/// Reads every entry and does as little else as can be.
fn read<T: Element>(entries: &Entries<T>) -> (u32, T::Magnitude) {
    let indices = entries.indices.iter().fold(0, |all, index| all | index);
    let least = T::Magnitude::default();
    (indices, entries.values.iter().fold(least, |all, value| all.max(value.magnitude())))
}

/// Deterministic numbers without a pattern.
struct Numbers(Generator);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        (self.0.bits() % bound as u64) as usize
    }

    /// `k` entries at indices below `n`.
    fn entries<T: Element>(&mut self, n: usize, k: usize) -> Entries<T> {
        let mut indices: Vec<u32> = (0..k).map(|_| self.below(n) as u32).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.into_iter().map(|i| (i, T::from_f64(self.below(1000) as f64 / 500.0 - 1.001))).collect()
    }

    /// As many entries, about half of which have indices of `set`.
    fn beside<T: Element>(&mut self, set: &Entries<T>, n: usize) -> Entries<T> {
        let other: Entries<T> = self.entries(n, set.len());
        let mut both: Vec<(u32, T)> = set.iter().chain(other.iter()).filter(|_| self.below(2) == 0).collect();
        both.sort_by_key(|entry| entry.0);
        both.dedup_by_key(|entry| entry.0);
        both.into_iter().collect()
    }
}
