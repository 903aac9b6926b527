//! Selection where the prediction is right, and where it is not: `cargo bench -p gleaner-algorithms --bench hostile`.
//!
//! One worker's part of a step as a session runs it: the gradient is added to the residual, and the exact top 1% is
//! selected. Each stream of gradients has a residual of its own; all of them take turns within each step, beside the
//! bare traffic of reading two arrays and writing a third. Medians over the steps of a stream that count, on one core.
//!
//! Options: `--params ENTRIES`, `--steps STEPS` (8 to 40), `--method NAME` (`spardl`, whose selection looks at one block; that of `topka`
//! looks at all blocks together) and `--json` (one line of JSON instead of the table).

use std::hint::black_box;
use std::str::FromStr;
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

/// A stream of gradients: its name, which of its steps count, and its entry i of n in a step, made of a random number.
struct Stream {
    name: &'static str,
    counts: fn(usize) -> bool,
    entry: fn(usize, usize, usize, f32) -> f32,
}

fn scale(large: bool) -> f32 {
    if large { 1000.0 } else { 1.0 }
}

/// Whether the scale is the large one between jumps.
fn is_large(step: usize) -> bool {
    step / PERIOD % 2 == 1
}

fn jumping(step: usize, _: usize, _: usize, random: f32) -> f32 {
    random * scale(is_large(step))
}

fn alternating(step: usize, _: usize, _: usize, random: f32) -> f32 {
    random * scale(step % 2 == 1)
}

const STREAMS: [Stream; 9] = [
    Stream {
        name: "drifting",
        counts: |_| true,
        entry: |step, _, _, random| random * (1.0 + 0.1 * (step as f32 * 0.3).sin()),
    },
    Stream {
        name: "times 1000",
        counts: |step| step.is_multiple_of(PERIOD) && is_large(step),
        entry: jumping,
    },
    // Gradients are so small before that nothing of them is left over in comparison.
    Stream {
        name: "times 1000 from nothing",
        counts: |step| step.is_multiple_of(PERIOD),
        entry: |step, _, _, random| random * 1e-18 * 1e3f32.powi((step / PERIOD) as i32),
    },
    Stream {
        name: "divided by 1000",
        counts: |step| step.is_multiple_of(PERIOD) && !is_large(step),
        entry: jumping,
    },
    Stream { name: "alternating large", counts: |step| step % 2 == 1, entry: alternating },
    Stream { name: "alternating small", counts: |step| step.is_multiple_of(2), entry: alternating },
    Stream { name: "equal", counts: |_| true, entry: |_, _, _, _| 1.0 },
    Stream { name: "sorted", counts: |_| true, entry: |_, i, n, _| i as f32 / n as f32 },
    Stream {
        name: "one huge entry",
        counts: |_| true,
        entry: |_, i, n, random| if i == n / 2 { 1e30 } else { random },
    },
];

fn option<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::args().skip_while(|argument| argument != name).nth(1)?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value}; expected a number")))
}

fn main() {
    let n = option("--params").unwrap_or(14_728_266);
    let steps = option("--steps").unwrap_or(24);
    // Each stream has a step that counts in two periods of jumps, and what becomes 1000 times as large each time is infinite in the end.
    assert!((2 * PERIOD..=40).contains(&steps), "--steps is {steps}; expected 8 to 40");
    let name: String = option("--method").unwrap_or_else(|| "spardl".into());
    let method = Method::named(&name).expect("a method").density(0.01);
    let ensemble = || Ensemble::new(method.clone(), 1, n).expect("at least one entry");
    let mut rows: Vec<_> = STREAMS.iter().map(|stream| (stream, ensemble(), Vec::new())).collect();

    let [a, b] = [vec![1.0f32; n], vec![2.0; n]];
    let mut sum = vec![3.0f32; n];
    let mut gradient = vec![0.0; n];
    let mut traffic = Vec::new();
    for step in 0..WARM_UP + steps {
        let clock = Instant::now();
        sum.iter_mut().zip(black_box(&a).iter().zip(black_box(&b))).for_each(|(sum, (a, b))| *sum = a + b);
        black_box(&mut sum);
        if step >= WARM_UP {
            traffic.push(clock.elapsed().as_secs_f64());
        }
        for (stream, ensemble, taken) in &mut rows {
            fill(&mut gradient, stream, step);
            let clock = Instant::now();
            ensemble.residuals[0].accumulate(0, &gradient).expect(stream.name);
            let run = ensemble.begin(0).expect(stream.name);
            let finished = lockstep(vec![run]).expect(stream.name);
            if step >= WARM_UP && (stream.counts)(step) {
                taken.push(clock.elapsed().as_secs_f64());
            }
            black_box(ensemble.commit(finished, Collection::Global).expect(stream.name));
        }
    }

    let (bare, simd) = (median(traffic), Simd::current());
    let medians: Vec<(&str, f64)> =
        rows.into_iter().map(|(stream, _, taken)| (stream.name, median(taken))).collect();
    if std::env::args().any(|argument| argument == "--json") {
        let seconds: Vec<String> = (medians.iter())
            .map(|(name, seconds)| format!(r#""seconds_{}":{seconds:e}"#, name.replace(' ', "_")))
            .collect();
        let seconds = seconds.join(",");
        println!(r#"{{"params":{n},"simd":"{simd:?}","seconds_bare_traffic":{bare:e},{seconds}}}"#);
        return;
    }
    println!("n = {n}, top 1%, {name}, {simd:?}, medians; the bare traffic takes {:.3} ms", 1e3 * bare);
    println!("{:24} {:>10} {:>16}", "", "ms", "/ bare traffic");
    for (name, seconds) in medians {
        println!("{name:24} {:>10.3} {:>16.2}", 1e3 * seconds, seconds / bare);
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
