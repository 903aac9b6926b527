//! How near the density comes to the one that was set, and f(t), which is how many times the mean the fullest partition
//! gives (equation 5 of the paper); both drawn, with the threshold.

use std::error::Error;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::{Controllers, Corrected, ExDyna};
use plotters::prelude::RGBColor;

use crate::panel::{INK, Panel, logarithms, picture};
use crate::streams::{Followed, STEPS, follow, scale};
use crate::{Job, mean, steady};

/// With partitions of equal lengths, which never move.
static STATIC: ExDyna = ExDyna {
    name: "corrected, static partitions",
    controllers: Controllers::Corrected(Corrected { imbalance: f64::INFINITY, ..Corrected::DEFAULT }),
};
static PRINTED: ExDyna = ExDyna { name: "printed", ..ExDyna::PRINTED };
static CORRECTED: ExDyna = ExDyna { name: "corrected", ..ExDyna::CORRECTED };

/// Dark against light, so that the lines differ without colours as well.
const LINES: [(&ExDyna, RGBColor); 3] = [
    (&STATIC, RGBColor(150, 150, 150)),
    (&PRINTED, RGBColor(222, 129, 42)),
    (&CORRECTED, RGBColor(22, 56, 92)),
];

/// Prints the table and draws the picture.
pub fn run(job: &Job) -> Result<String, Box<dyn Error>> {
    println!(
        "{:29} {:>12} {:>8} {:>8} {:>11} {:>8} {:>7}",
        "controllers, steady", "entries / k", "least", "most", "within 15%", "f(t)", "moves"
    );
    let mut all = Vec::new();
    for (exdyna, _) in LINES {
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
    let density = Panel {
        name: "entries selected, as a multiple of k",
        row: 0,
        range: (-1.0, 1.0),
        marks: logarithms(&[0.1, 0.3, 1.0, 3.0, 10.0]),
    };
    let balance = Panel {
        name: "f(t): the fullest partition, as a multiple of the mean",
        row: 1,
        range: (1.0, job.workers as f64),
        marks: (1..=job.workers).map(|times| (times as f64, times.to_string())).collect(),
    };
    let threshold = Panel {
        name: "the threshold; thin, the scale of the gradients",
        row: 2,
        range: (-5.0, 1.0),
        marks: (-5..=1).map(|power| (f64::from(power), format!("1e{power}"))).collect(),
    };
    let legend: Vec<_> = LINES.iter().rev().map(|(exdyna, colour)| (exdyna.name, *colour)).collect();
    picture(&[&density, &balance, &threshold], &legend, |area| {
        for (followed, (_, colour)) in all.iter().zip(LINES) {
            let shares = followed.iter().map(|f| (f.count().max(1) as f64 / job.k as f64).log10());
            density.line(area, shares, (colour, 2))?;
            balance.line(area, followed.iter().map(Followed::imbalance), (colour, 2))?;
            threshold.line(area, followed.iter().map(|f| f.threshold.log10()), (colour, 2))?;
        }
        threshold.line(area, (0..STEPS).map(|step| f64::from(scale(step)).log10()), (INK, 1))
    })
}
