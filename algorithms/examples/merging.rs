//! How far strategies of merging are from the optimum, and how long the optimum takes to find:
//! `cargo run --release -p gleaner-algorithms --example merging`.
//!
//! Options: `--seed S`, and `--instances N` for each kind of costs.

#[path = "../tests/merging/clock.rs"]
mod clock;
#[path = "../tests/merging/instances.rs"]
mod instances;

use std::error::Error;
use std::time::Duration;

use clock::Clock;
use gleaner_algorithms::merging::{Optimal, Placement, Problem, STRATEGIES, evaluate};
use instances::{FAMILIES, Random, instance};

type Done = Result<(), Box<dyn Error>>;

const PLACES: [(Placement, &str); 2] =
    [(Placement::InBackward, "in the backward pass"), (Placement::Beside, "beside it")];

/// A share of iterations that counts as no difference: sums of floating-point numbers in another order.
const EQUAL: f64 = 1e-12;

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut seed, mut instances) = (18, 2000);
    for pair in arguments.chunks(2) {
        match pair {
            [name, value] if name == "--seed" => seed = value.parse()?,
            [name, value] if name == "--instances" => instances = value.parse()?,
            other => {
                return Err(format!("expected --seed S or --instances N, found {other:?}").into());
            }
        }
    }
    if instances > 0 {
        compare(seed, instances)?;
    }
    time(seed)
}

/// All strategies against the optimum.
fn compare(seed: u64, instances: usize) -> Done {
    println!(
        "{instances} passes of 2 to 60 layers for each kind of costs, seed {seed}; iterations against the optimum's:"
    );
    for family in FAMILIES {
        for (place, words) in PLACES {
            println!("\n{family:?}, selection {words}");
            println!("{:14} {:>8} {:>10} {:>10} {:>10}", "strategy", "optimal", "mean", "95%", "most");
            for strategy in STRATEGIES.iter().map(|strategy| strategy()) {
                let mut random = Random::new(seed);
                let mut worse = Vec::new();
                for _ in 0..instances {
                    let layers = 2 + random.below(59);
                    let (pass, costs) = instance(&mut random, layers, family)?;
                    let problem = Problem { pass: &pass, costs: costs.as_ref(), place };
                    let least = Optimal::solve(&problem)?.iteration;
                    worse.push(evaluate(&problem, &strategy.group(&problem)?)?.iteration / least - 1.0);
                }
                worse.sort_by(f64::total_cmp);
                let count = worse.len() as f64;
                let optimal = worse.iter().filter(|&&worse| worse <= EQUAL).count() as f64 / count;
                let mean = worse.iter().sum::<f64>() / count;
                let [often, most] =
                    [0.95, 1.0].map(|share| worse[((count * share) as usize).min(worse.len() - 1)]);
                let percent = |share: f64| format!("{:.1}%", 100.0 * share);
                let [optimal, mean, often, most] = [
                    percent(optimal),
                    format!("+{}", percent(mean)),
                    format!("+{}", percent(often)),
                    format!("+{}", percent(most)),
                ];
                println!("{:14} {optimal:>8} {mean:>10} {often:>10} {most:>10}", strategy.name());
            }
        }
    }
    Ok(())
}

/// How long planning takes a processor.
fn time(seed: u64) -> Done {
    const PASSES: usize = 20;
    println!(
        "\nplanning 1000 layers, {PASSES} passes of each kind: the median and the most of a processor's time"
    );
    for family in FAMILIES {
        for (place, words) in PLACES {
            let (mut times, mut largest) = (Vec::new(), 0);
            let mut random = Random::new(seed);
            for _ in 0..PASSES {
                let (pass, costs) = instance(&mut random, 1000, family)?;
                let problem = Problem { pass: &pass, costs: costs.as_ref(), place };
                let clock = Clock::start();
                largest = Optimal::solve(&problem)?.largest_frontier.max(largest);
                times.push(clock.elapsed());
            }
            times.sort();
            let [median, most] =
                [times[PASSES / 2], times[PASSES - 1]].map(|time: Duration| 1e3 * time.as_secs_f64());
            let family = format!("{family:?}");
            println!(
                "{family:10} selection {words:20} {median:5.0} ms, at most {most:5.0} ms, largest frontier {largest}"
            );
        }
    }
    Ok(())
}
