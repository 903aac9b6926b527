//! What the paper plots: actual against set density (Fig. 6), what an all-gather carries beyond what it needs (Fig. 9), and
//! the threshold against the global error (Fig. 10).

use std::error::Error;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::ExDyna;
use gleaner_algorithms::selectors::Selector;
use gleaner_charts::{Axis, Line};

use crate::panel::{line, panel, picture};
use crate::streams::{Followed, STEPS, Stream, follow};
use crate::{Job, mean, steady};

/// Prints the table and draws the picture.
pub fn run(job: &Job) -> Result<String, Box<dyn Error>> {
    let hard = Selector::Threshold(first_threshold(job).into());
    let ways = [
        ("top-k", Method::named("topka")?),
        ("hard threshold", Method::named("topka")?.selector(hard)),
        ("SIDCo", Method::named("topka")?.selector("sidco-exp".parse()?)),
        ("ExDyna printed", Method::of(ExDyna::PRINTED)),
        ("ExDyna", Method::of(ExDyna::CORRECTED)),
    ];
    println!(
        "{:16} {:>20} {:>12} {:>20} {:>22}",
        "steady", "actual/set density", "build-up", "all-gather carries", "threshold and error"
    );
    let mut all = Vec::new();
    for (name, method) in ways {
        let followed = follow(method.k(job.k), job.workers, job.n, STEPS)?;
        let (union, own) = (
            mean(steady(&followed).map(|f| f.delivered as f64)),
            mean(steady(&followed).map(|f| f.count() as f64)) / of_union(name, job),
        );
        println!(
            "{name:16} {:>20.3} {:>12.3} {:>19.3}x {:>22}",
            union / job.k as f64,
            union / own,
            mean(steady(&followed).filter(|f| f.count() > 0).map(Followed::imbalance)),
            correlation(&followed).map_or("-".into(), |r| format!("{r:.3}")),
        );
        all.push((name, followed));
    }
    svg(&all, job)
}

/// Of how many workers the choices are counted together: all workers' parts make one choice in ExDyna.
fn of_union(name: &str, job: &Job) -> f64 {
    if name.starts_with("ExDyna") { 1.0 } else { job.workers as f64 }
}

/// The magnitude that k entries of the first worker's first gradient reach.
fn first_threshold(job: &Job) -> f32 {
    let mut gradients = vec![vec![0.0; job.n]; job.workers];
    Stream::new(job.n).fill(0, &mut gradients);
    let mut sizes: Vec<f32> = gradients[0].iter().map(|value| value.abs()).collect();
    sizes.sort_by(|a, b| b.total_cmp(a));
    sizes[job.k.min(job.n) - 1]
}

/// How well the logarithms of the threshold follow those of the global error: Pearson's r over the steady steps.
fn correlation(followed: &[Followed]) -> Option<f64> {
    let of = |number: fn(&Followed) -> f64| steady(followed).map(move |f| number(f).ln());
    let (threshold, error) = (of(|f| f.threshold), of(|f| f.error));
    let (a, b): (Vec<f64>, Vec<f64>) = threshold.zip(error).unzip();
    let (mean_a, mean_b) = (mean(a.iter().copied()), mean(b.iter().copied()));
    let products = |x: &[f64], from_x: f64, y: &[f64], from_y: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - from_x) * (y - from_y)).sum()
    };
    let r = products(&a, mean_a, &b, mean_b)
        / (products(&a, mean_a, &a, mean_a) * products(&b, mean_b, &b, mean_b)).sqrt();
    r.is_finite().then_some(r)
}

fn svg(all: &[(&str, Vec<Followed>)], job: &Job) -> Result<String, Box<dyn Error>> {
    let lines = |number: &dyn Fn(&Followed) -> f64| -> Vec<Line> {
        all.iter().enumerate().map(|(i, (_, followed))| line(i, followed.iter().map(number))).collect()
    };
    let shares = lines(&|f| f.delivered.max(1) as f64 / job.k as f64);
    let mut thresholds = Vec::new();
    if let Some((_, exdyna)) = all.last() {
        let sum = |number: fn(&Followed) -> f64| exdyna.iter().map(number).sum::<f64>();
        let factor = sum(|f| f.threshold) / sum(|f| f.error);
        thresholds.push(line(all.len(), exdyna.iter().map(|f| factor * f.error)));
        thresholds.push(line(all.len() - 1, exdyna.iter().map(|f| f.threshold)));
    }
    let panels = [
        panel(
            Axis::logarithmic("Fig. 6: actual density, as a multiple of the set density", 0.1, 30.0),
            shares,
        ),
        panel(
            Axis::level(
                "Fig. 9: what an all-gather of equal lengths carries, as a multiple of what it needs",
                1.0,
                job.workers as f64,
            ),
            lines(&Followed::imbalance),
        ),
        panel(Axis::logarithmic("Fig. 10: ExDyna's threshold", 1e-4, 10.0), thresholds),
    ];
    let names = all.iter().map(|(name, _)| *name).chain(["the global error, scaled to the threshold's mean"]);
    Ok(picture(&panels, names)?)
}
