//! What selecting costs, as multiples of a plain read and of the bare traffic: `cargo bench -p gleaner-algorithms`.
//!
//! Plays the steps of one worker in their steady state: every step a fresh heavy-tailed gradient, accumulated into the
//! residual with the threshold that the step before predicts; the exact top k among the candidates;
//! the kept entries zeroed in the residual. One core; all implementations take turns within each step; medians over the steps.
//!
//! Options: `--n ENTRIES`, `--steps STEPS` and `--json` (one line of JSON instead of the table).

use std::hint::black_box;
use std::time::Instant;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::select::{
    Simd, accumulate, bucketed, estimate_threshold, predict_threshold, replace, scan, top_k, top_k_dense,
};
use gleaner_statistics::median;
use gleaner_statistics::random::Generator;

/// Steps before the first that counts: the residuals reach a steady state.
const WARM_UP: usize = 4;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
    };
    let (n, steps) = (number("--n", 14_728_266), number("--steps", 21));
    let json = arguments.iter().any(|argument| argument == "--json");

    let mut bench = Bench::new(n);
    for step in 0..WARM_UP + steps {
        if step == WARM_UP {
            bench.rows.iter_mut().for_each(|row| row.seconds.clear());
        }
        bench.step(step);
    }
    bench.report(json);
}

/// One thing measured, and its times.
struct Row {
    name: &'static str,
    seconds: Vec<f64>,
}

impl Row {
    fn median(&self) -> f64 {
        median(self.seconds.iter().copied())
    }
}

struct Bench {
    n: usize,
    gradient: Vec<f32>,
    traffic: [Vec<f32>; 3],
    workers: Vec<Worker>,
    rows: Vec<Row>,
}

/// A worker that sends a share of its entries each step.
struct Worker {
    names: [&'static str; 5],
    k: usize,
    residual: Vec<f32>,
    threshold: f32,
    found: Entries,
    kept: Entries,
    dropped: Entries,
    candidates: usize,
    missed: usize,
}

impl Bench {
    fn new(n: usize) -> Bench {
        let worker = |names, k: usize| Worker {
            names,
            k: k.max(1),
            residual: vec![0.0; n],
            threshold: 0.0,
            found: Entries::default(),
            kept: Entries::default(),
            dropped: Entries::default(),
            candidates: 0,
            missed: 0,
        };
        let one =
            ["1%: total", "1%:   accumulate", "1%:   top_k", "1%: zero what was kept", "1%: top_k_dense"];
        let tenth = [
            "0.1%: total",
            "0.1%:   accumulate",
            "0.1%:   top_k",
            "0.1%: zero what was kept",
            "0.1%: top_k_dense",
        ];
        Bench {
            n,
            gradient: vec![0.0; n],
            traffic: [vec![1.0; n], vec![2.0; n], vec![3.0; n]],
            workers: vec![worker(one, n / 100), worker(tenth, n / 1000)],
            rows: Vec::new(),
        }
    }

    /// Notes how long `work` took under `name`; returns its result.
    fn time<T>(rows: &mut Vec<Row>, name: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = black_box(work());
        Self::note(rows, name, start.elapsed().as_secs_f64());
        result
    }

    fn note(rows: &mut Vec<Row>, name: &'static str, seconds: f64) {
        match rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.seconds.push(seconds),
            None => rows.push(Row { name, seconds: vec![seconds] }),
        }
    }

    fn step(&mut self, step: usize) {
        generate(&mut self.gradient, step as u64);
        let Bench { gradient, traffic, workers, rows, .. } = self;
        let [a, b, c] = traffic;
        Self::time(rows, "plain read", || read(black_box(a)));
        Self::time(rows, "bare traffic", || add(black_box(a), black_box(b), black_box(c)));
        Self::time(rows, "bare traffic in place", || add_in_place(black_box(a), black_box(b)));
        for worker in workers.iter_mut() {
            worker.step(gradient, rows);
        }
        let mut found = std::mem::take(&mut workers[0].found);
        found.clear();
        let threshold = workers[0].threshold;
        Self::time(rows, "scan", || scan(gradient, threshold, 0, &mut found));
        found.clear();
        let replaced =
            Self::time(rows, "replace", || replace(&mut traffic[2], gradient, threshold, 0, &mut found));
        assert_eq!(replaced, Ok(()));
        for (name, k) in [("4 of every 512", 4), ("16 of every 512", 16)] {
            found.clear();
            Self::time(rows, name, || bucketed(gradient, 512, k, &mut found));
        }
        workers[0].found = found;
    }

    fn report(&self, json: bool) {
        let of = |name| self.rows.iter().find(|row| row.name == name).map_or(f64::NAN, Row::median);
        let (read, traffic) = (of("plain read"), of("bare traffic"));
        if json {
            let rows: Vec<String> = (self.rows.iter())
                .map(|row| {
                    let ms = row.median() * 1e3;
                    let (reads, traffics) = (row.median() / read, row.median() / traffic);
                    format!(
                        r#"{{"name":"{}","ms":{ms:.4},"reads":{reads:.4},"traffics":{traffics:.4}}}"#,
                        row.name
                    )
                })
                .collect();
            println!(r#"{{"n":{},"simd":"{:?}","rows":[{}]}}"#, self.n, Simd::current(), rows.join(","));
            return;
        }
        println!("n = {}, {:?}, medians", self.n, Simd::current());
        println!("{:28} {:>10} {:>14} {:>16}", "", "ms", "/ plain read", "/ bare traffic");
        for row in &self.rows {
            let seconds = row.median();
            println!(
                "{:28} {:>10.3} {:>14.2} {:>16.2}",
                row.name,
                seconds * 1e3,
                seconds / read,
                seconds / traffic
            );
        }
        for worker in &self.workers {
            let (k, found, missed) = (worker.k, worker.candidates, worker.missed);
            println!("k = {k}: {found} candidates in the last step, {missed} predictions too high");
        }
    }
}

impl Worker {
    fn step(&mut self, gradient: &[f32], rows: &mut Vec<Row>) {
        let Worker { names, k, residual, found, kept, dropped, .. } = self;
        let mut threshold = self.threshold;
        let [total, first, second, zero, dense] = *names;
        [&mut *found, &mut *kept, &mut *dropped].into_iter().for_each(Entries::clear);

        let start = Instant::now();
        let accumulated = accumulate(residual, gradient, threshold, 0, found);
        let between = start.elapsed().as_secs_f64();
        self.missed += usize::from(found.len() < *k);
        for lower in [estimate_threshold, |_: &[f32], _| 0.0] {
            if found.len() < *k {
                found.clear();
                threshold = lower(residual, *k);
                scan(residual, threshold, 0, found);
            }
        }
        let smallest = top_k(&found.indices, &found.values, *k, kept, Some(&mut *dropped));
        let end = start.elapsed().as_secs_f64();
        assert_eq!(accumulated, Ok(()));
        Bench::note(rows, total, end);
        Bench::note(rows, first, between);
        Bench::note(rows, second, end - between);

        let again = Bench::time(rows, dense, || top_k_dense(residual, *k));
        assert!(again == *kept, "the prediction changed the selection");
        Bench::time(rows, zero, || kept.indices.iter().for_each(|&index| residual[index as usize] = 0.0));
        self.candidates = found.len();
        self.threshold = predict_threshold(threshold, found.len(), smallest, *k);
    }
}

/// Fills with the cubes of nearly normal numbers, another series for each seed.
fn generate(gradient: &mut [f32], seed: u64) {
    let mut random = Generator::seeded(seed);
    gradient.fill_with(|| random.normal().powi(3));
}

/// The maximum of all bits: reads every entry and does as little else as can be.
fn read(values: &[f32]) -> u32 {
    let mut largest = [0; 64];
    for chunk in values.as_chunks::<64>().0 {
        for (largest, value) in largest.iter_mut().zip(chunk) {
            *largest |= value.to_bits();
        }
    }
    largest.into_iter().fold(0, |all, bits| all | bits)
}

/// Reads two arrays and writes a third.
fn add(a: &[f32], b: &[f32], sum: &mut [f32]) {
    for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
        *sum = a + b;
    }
}

/// Reads two arrays and writes one of them: what accumulating must do at the least.
fn add_in_place(sum: &mut [f32], b: &[f32]) {
    for (sum, b) in sum.iter_mut().zip(b) {
        *sum += b;
    }
}
