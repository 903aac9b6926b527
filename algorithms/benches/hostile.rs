//! Selection where the prediction is right, and where it is not: `cargo bench -p gleaner-algorithms --bench hostile`.
//!
//! One worker's part of a step as a session runs it: the gradient is added to the residual, and the exact top 1% is
//! selected. Each stream of gradients has a residual of its own; all of them take turns within each step, beside the
//! bare traffic of reading two arrays and writing a third. Medians over the steps of a kind, on one core.
//!
//! Options: `--n ENTRIES`, `--steps STEPS`, `--method NAME` (`spardl`, whose selection looks at one block; that of `topka`
//! looks at all blocks together) and `--json` (one line of JSON instead of the table).

use std::hint::black_box;
use std::time::Instant;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::lockstep;
use gleaner_algorithms::select::Simd;
use gleaner_statistics::median;
use gleaner_statistics::random::Generator;

/// Steps before the first that counts: residuals reach a steady state, and buffers have been used once.
const WARM_UP: usize = 8;

/// Steps between two jumps.
const PERIOD: usize = 4;

/// A stream of gradients: its name, what step of it this is, and its entry i of n, made of a random number.
struct Stream {
    name: &'static str,
    /// The name of the row that a step belongs to.
    row: fn(usize) -> &'static str,
    entry: fn(usize, usize, usize, f32) -> f32,
}

fn scale(large: bool) -> f32 {
    if large { 1000.0 } else { 1.0 }
}

fn jumped(step: usize) -> &'static str {
    match (step.is_multiple_of(PERIOD), step / PERIOD % 2 == 1) {
        (true, true) => "scale times 1000",
        (true, false) => "scale divided by 1000",
        (false, _) => "between jumps of scale",
    }
}

const STREAMS: [Stream; 7] = [
    Stream {
        name: "drifting",
        row: |_| "drifting",
        entry: |step, _, _, random| random * (1.0 + 0.1 * (step as f32 * 0.3).sin()),
    },
    Stream {
        name: "jumping",
        row: jumped,
        entry: |step, _, _, random| random * scale(step / PERIOD % 2 == 1),
    },
    Stream {
        name: "alternating",
        row: |step| if step % 2 == 1 { "alternating, large" } else { "alternating, small" },
        entry: |step, _, _, random| random * scale(step % 2 == 1),
    },
    Stream {
        name: "growing",
        row: |step| {
            if step.is_multiple_of(PERIOD) { "times 1000, nothing left over" } else { "between those" }
        },
        entry: |step, _, _, random| random * 1e-18 * 1e3f32.powi((step / PERIOD) as i32),
    },
    Stream { name: "equal", row: |_| "all equal", entry: |_, _, _, _| 1.0 },
    Stream { name: "sorted", row: |_| "sorted", entry: |_, i, n, _| i as f32 / n as f32 },
    Stream {
        name: "huge",
        row: |_| "one huge entry",
        entry: |_, i, n, random| if i == n / 2 { 1e30 } else { random },
    },
];

/// Times by the name of the row, in the order in which they were first noted.
#[derive(Default)]
struct Rows(Vec<(&'static str, Vec<f64>)>);

impl Rows {
    fn note(&mut self, name: &'static str, seconds: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, taken)) => taken.push(seconds),
            None => self.0.push((name, vec![seconds])),
        }
    }

    fn medians(self) -> Vec<(&'static str, f64)> {
        self.0.into_iter().map(|(name, taken)| (name, median(taken))).collect()
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default| {
        let place = arguments.iter().position(|argument| argument == name);
        place.and_then(|place| arguments.get(place + 1)?.parse().ok()).unwrap_or(default)
    };
    let (n, steps) = (number("--n", 14_728_266), number("--steps", 24));

    let place = arguments.iter().position(|argument| argument == "--method");
    let name = place.and_then(|place| arguments.get(place + 1)).map_or("spardl", String::as_str);
    let method = Method::named(name).expect("a method").density(0.01);
    let ensemble = |_| Ensemble::new(method.clone(), 1, n).expect("at least one entry");
    let mut ensembles: Vec<Ensemble> = STREAMS.iter().map(ensemble).collect();
    let traffic = [vec![1.0f32; n], vec![2.0; n]];
    let mut sum = vec![3.0f32; n];
    let mut gradient = vec![0.0; n];
    let mut rows = Rows::default();
    for step in 0..WARM_UP + steps {
        let clock = Instant::now();
        let [a, b] = black_box(&traffic);
        sum.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum = a + b);
        black_box(&mut sum);
        let mut took = vec![("bare traffic", clock.elapsed().as_secs_f64())];
        for (stream, ensemble) in STREAMS.iter().zip(&mut ensembles) {
            fill(&mut gradient, stream, step);
            let clock = Instant::now();
            ensemble.residuals[0].accumulate(0, &gradient).expect(stream.name);
            let run = ensemble.begin(0).expect(stream.name);
            let finished = lockstep(vec![run]).expect(stream.name);
            took.push(((stream.row)(step), clock.elapsed().as_secs_f64()));
            black_box(ensemble.commit(finished, Collection::Global).expect(stream.name));
        }
        if step >= WARM_UP {
            took.into_iter().for_each(|(name, seconds)| rows.note(name, seconds));
        }
    }

    let medians = rows.medians();
    let bare = medians[0].1;
    if arguments.iter().any(|argument| argument == "--json") {
        let row = |(name, seconds): &(&str, f64)| {
            format!(r#"{{"name":"{name}","ms":{:.4},"traffics":{:.4}}}"#, 1e3 * seconds, seconds / bare)
        };
        let rows: Vec<String> = medians.iter().map(row).collect();
        println!(r#"{{"n":{n},"simd":"{:?}","rows":[{}]}}"#, Simd::current(), rows.join(","));
        return;
    }
    println!("n = {n}, top 1%, {name}, {:?}, medians", Simd::current());
    println!("{:30} {:>10} {:>16}", "", "ms", "/ bare traffic");
    for (name, seconds) in medians {
        println!("{name:30} {:>10.3} {:>16.2}", 1e3 * seconds, seconds / bare);
    }
}

/// The gradient of one step; random are the cubes of nearly normal numbers.
fn fill(gradient: &mut [f32], stream: &Stream, step: usize) {
    let n = gradient.len();
    let mut random = Generator::seeded(step as u64);
    for (i, entry) in gradient.iter_mut().enumerate() {
        *entry = (stream.entry)(step, i, n, random.normal().powi(3));
    }
}
