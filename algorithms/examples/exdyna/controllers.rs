//! How near the density comes to the one that was set, and f(t), which is how many times the mean the fullest partition
//! gives (equation 5 of the paper); both drawn, with the threshold.

use std::error::Error;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::{Controllers, Corrected, ExDyna};
use gleaner_charts::{Axis, Line};

use crate::panel::{line, panel, picture};
use crate::streams::{Followed, STEPS, follow, scale};
use crate::{Job, mean, steady};

/// With partitions of equal lengths, which never move.
static STATIC: ExDyna = ExDyna {
    name: "corrected, static partitions",
    controllers: Controllers::Corrected(Corrected { imbalance: f64::INFINITY, ..Corrected::DEFAULT }),
};
static PRINTED: ExDyna = ExDyna { name: "printed", ..ExDyna::PRINTED };
static CORRECTED: ExDyna = ExDyna { name: "corrected", ..ExDyna::CORRECTED };

const LINES: [&ExDyna; 3] = [&STATIC, &PRINTED, &CORRECTED];

/// Prints the table and draws the picture.
pub fn run(job: &Job) -> Result<String, Box<dyn Error>> {
    println!(
        "{:29} {:>12} {:>8} {:>8} {:>11} {:>8} {:>7}",
        "controllers, steady", "entries / k", "least", "most", "within 15%", "f(t)", "moves"
    );
    let mut all = Vec::new();
    for exdyna in LINES {
        let followed = follow(Method::of(*exdyna).k(job.k), job.workers, job.n, STEPS)?;
        report(exdyna.name, &followed, job.k);
        all.push(followed);
    }
    svg(&all, job)
}

/// A line of the table.
fn report(name: &str, followed: &[Followed], k: usize) {
    let shares = || steady(followed).map(|f| f.count() as f64 / k as f64);
    println!(
        "{name:29} {:>12.3} {:>8.3} {:>8.3} {:>10.1}% {:>8.3} {:>7}",
        mean(shares()),
        shares().fold(f64::INFINITY, f64::min),
        shares().fold(0.0, f64::max),
        100.0 * mean(shares().map(|share| f64::from(u8::from((share - 1.0).abs() <= 0.15)))),
        mean(steady(followed).map(Followed::imbalance)),
        followed.iter().filter(|f| f.moved).count(),
    );
}

fn svg(all: &[Vec<Followed>], job: &Job) -> Result<String, Box<dyn Error>> {
    let lines = |number: &dyn Fn(&Followed) -> f64| -> Vec<Line> {
        all.iter().enumerate().map(|(i, followed)| line(i, followed.iter().map(number))).collect()
    };
    let mut thresholds = lines(&|f| f.threshold);
    thresholds.push(line(LINES.len(), (0..STEPS).map(|step| scale(step).into())));
    let shares = lines(&|f| f.count().max(1) as f64 / job.k as f64);
    let panels = [
        panel(Axis::logarithmic("entries selected, as a multiple of k", 0.1, 10.0), shares),
        panel(
            Axis::level("f(t): the fullest partition, as a multiple of the mean", 1.0, job.workers as f64),
            lines(&Followed::imbalance),
        ),
        panel(Axis::logarithmic("the threshold", 1e-5, 10.0), thresholds),
    ];
    let names = LINES.map(|exdyna| exdyna.name).into_iter().chain(["the scale of the gradients"]);
    Ok(picture(&panels, names)?)
}
