//! What selecting costs, as multiples of a plain read and of the bare traffic: `cargo bench -p gleaner-algorithms --bench select`.
//!
//! Plays the steps of one worker in their steady state: every step a fresh heavy-tailed gradient, accumulated into the
//! residual with the threshold that the step before predicts; the exact top k among the candidates;
//! the kept entries zeroed in the residual. One core; all implementations take turns within each step; medians over the steps.
//!
//! Options: `--params ENTRIES`, `--density SHARE`, `--steps STEPS` and `--json` (one line of JSON instead of the table).

use std::hint::black_box;
use std::str::FromStr;
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
    let mut bench = Bench::new(option("--params", 14_728_266), option("--density", 0.01));
    let steps = option("--steps", 21);
    assert!(steps > 0, "--steps is 0; expected at least 1");
    for step in 0..WARM_UP + steps {
        if step == WARM_UP {
            bench.rows.iter_mut().for_each(|row| row.seconds.clear());
        }
        bench.step(step);
    }
    bench.report(std::env::args().any(|argument| argument == "--json"));
}

fn option<T: FromStr>(name: &str, default: T) -> T {
    let given = std::env::args().skip_while(|argument| argument != name).nth(1);
    given.map_or(default, |value| {
        value.parse().unwrap_or_else(|_| panic!("{name} is {value}; expected a number"))
    })
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
    gradient: Vec<f32>,
    traffic: [Vec<f32>; 3],
    k: usize,
    residual: Vec<f32>,
    threshold: f32,
    found: Entries,
    kept: Entries,
    dropped: Entries,
    candidates: usize,
    missed: usize,
    rows: Vec<Row>,
}

impl Bench {
    fn new(n: usize, density: f64) -> Bench {
        Bench {
            gradient: vec![0.0; n],
            traffic: [vec![1.0; n], vec![2.0; n], vec![3.0; n]],
            k: ((density * n as f64) as usize).max(1),
            residual: vec![0.0; n],
            threshold: 0.0,
            found: Entries::default(),
            kept: Entries::default(),
            dropped: Entries::default(),
            candidates: 0,
            missed: 0,
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
        let Bench { traffic: [a, b, c], rows, .. } = self;
        Self::time(rows, "plain read", || read(black_box(a)));
        Self::time(rows, "bare traffic", || add(black_box(a), black_box(b), black_box(c)));
        Self::time(rows, "bare traffic in place", || add_in_place(black_box(a), black_box(b)));
        self.select();

        let Bench { gradient, traffic: [.., c], threshold, found, rows, .. } = self;
        found.clear();
        Self::time(rows, "scan", || scan(gradient, *threshold, 0, found));
        found.clear();
        let replaced = Self::time(rows, "replace", || replace(c, gradient, *threshold, 0, found));
        assert_eq!(replaced, Ok(()));
        for (name, k) in [("4 of every 512", 4), ("16 of every 512", 16)] {
            found.clear();
            Self::time(rows, name, || bucketed(gradient, 512, k, found));
        }
    }

    /// What a worker does in a step.
    fn select(&mut self) {
        let Bench { gradient, k, residual, found, kept, dropped, rows, .. } = self;
        let mut threshold = self.threshold;
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
        Self::note(rows, "total", end);
        Self::note(rows, "accumulate", between);
        Self::note(rows, "top k", end - between);

        let again = Self::time(rows, "top k dense", || top_k_dense(residual, *k));
        assert!(again == *kept, "the prediction changed the selection");
        Self::time(rows, "zero", || kept.indices.iter().for_each(|&index| residual[index as usize] = 0.0));
        self.candidates = found.len();
        self.threshold = predict_threshold(threshold, found.len(), smallest, *k);
    }

    fn report(&self, json: bool) {
        let (n, k, simd) = (self.gradient.len(), self.k, Simd::current());
        let (candidates, missed) = (self.candidates, self.missed);
        if json {
            let seconds: Vec<String> = (self.rows.iter())
                .map(|row| format!(r#""seconds_{}":{:e}"#, row.name.replace(' ', "_"), row.median()))
                .collect();
            println!(
                r#"{{"params":{n},"k":{k},"simd":"{simd:?}","candidates":{candidates},"missed":{missed},{}}}"#,
                seconds.join(",")
            );
            return;
        }
        let of = |name| self.rows.iter().find(|row| row.name == name).map_or(f64::NAN, Row::median);
        let (read, traffic) = (of("plain read"), of("bare traffic"));
        println!("n = {n}, k = {k}, {simd:?}, medians");
        println!("{:28} {:>10} {:>14} {:>16}", "", "ms", "/ plain read", "/ bare traffic");
        for row in &self.rows {
            let (name, seconds) = (row.name, row.median());
            println!(
                "{name:28} {:>10.3} {:>14.2} {:>16.2}",
                seconds * 1e3,
                seconds / read,
                seconds / traffic
            );
        }
        println!("{candidates} candidates in the last step, {missed} predictions too high");
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
