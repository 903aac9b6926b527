//! What the paper plots: actual against set density (Fig. 6), what an all-gather carries beyond what it needs (Fig. 9), and
//! the threshold against the global error (Fig. 10).

use std::error::Error;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::ExDyna;
use gleaner_algorithms::selectors::Selector;
use plotters::prelude::RGBColor;

use crate::panel::{Panel, logarithms, picture};
use crate::streams::{Followed, STEPS, Stream, follow};
use crate::{Job, mean, steady};

const COLOURS: [RGBColor; 5] = [
    RGBColor(150, 150, 150),
    RGBColor(92, 150, 92),
    RGBColor(160, 60, 120),
    RGBColor(222, 129, 42),
    RGBColor(22, 56, 92),
];

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
    let density = Panel {
        name: "Fig. 6: actual density, as a multiple of the set density",
        row: 0,
        range: (-1.0, 1.5),
        marks: logarithms(&[0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
    };
    let padding = Panel {
        name: "Fig. 9: what an all-gather of equal lengths carries, as a multiple of what it needs",
        row: 1,
        range: (1.0, job.workers as f64),
        marks: (1..=job.workers).map(|times| (times as f64, times.to_string())).collect(),
    };
    let threshold = Panel {
        name: "Fig. 10: ExDyna's threshold; light, its global error, scaled to the same mean",
        row: 2,
        range: (-4.0, 1.0),
        marks: (-4..=1).map(|power| (f64::from(power), format!("1e{power}"))).collect(),
    };
    let legend: Vec<_> = all.iter().zip(COLOURS).map(|((name, _), colour)| (*name, colour)).collect();
    picture(&[&density, &padding, &threshold], &legend, |area| {
        for ((_, followed), colour) in all.iter().zip(COLOURS) {
            let shares = followed.iter().map(|f| (f.delivered.max(1) as f64 / job.k as f64).log10());
            density.line(area, shares, (colour, 2))?;
            padding.line(area, followed.iter().map(Followed::imbalance), (colour, 2))?;
        }
        let Some((_, exdyna)) = all.last() else { return Ok(()) };
        let sum = |number: fn(&Followed) -> f64| exdyna.iter().map(number).sum::<f64>();
        let factor = sum(|f| f.threshold) / sum(|f| f.error);
        threshold.line(
            area,
            exdyna.iter().map(|f| (factor * f.error).log10()),
            (RGBColor(140, 180, 220), 4),
        )?;
        threshold.line(area, exdyna.iter().map(|f| f.threshold.log10()), (COLOURS[4], 2))
    })
}
