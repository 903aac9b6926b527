//! Figures of synchronies: the metrics of OSP's evaluation (Chen et al., 2023, §5.1.4).

use std::collections::BTreeMap;

use super::figure::{Figure, Point, Shape, Unit, panels};
use super::sample::Sample;
use gleaner_statistics::Spread;

/// Of a figure its name, its title, what is shown, and its caption; and the fields of a training's JSON object, of which the first that
/// is there has the number.
type Metric = (&'static str, &'static str, (&'static str, Unit), &'static str, &'static [&'static str]);

const SPEED: (&str, Unit) = ("samples in a second", Unit::None);
const STEP: (&str, Unit) = ("time of a step", Unit::Seconds);

const METRICS: [Metric; 6] = [
    (
        "throughput",
        "Throughput",
        SPEED,
        "Samples that all workers together processed in a second of their steps' time.",
        &["throughput"],
    ),
    (
        "throughput-at-bound",
        "Throughput at the bound",
        SPEED,
        "The same over the steps in which as much was to travel during the next pass as that leaves time for.",
        &["throughput_at_bound"],
    ),
    (
        "batch-synchronisation",
        "Batch synchronisation time",
        STEP,
        "From the end of a pass until the next could begin, the mean over steps and workers.",
        &["seconds_batch_synchronisation"],
    ),
    (
        "batch-computation",
        "Batch computation time",
        STEP,
        "What a pass takes, the mean over steps and workers, without those in whose processes a server lives.",
        &["seconds_batch_computation_apart", "seconds_batch_computation"],
    ),
    (
        "batch-computation-colocated",
        "Batch computation time beside a server",
        STEP,
        "What a pass takes, the mean over steps and the workers in whose processes a server lives.",
        &["seconds_batch_computation_colocated"],
    ),
    (
        "best-after",
        "Steps to the best evaluation",
        ("steps", Unit::None),
        "After how many steps the accuracy was highest, or the loss lowest, of all evaluations.",
        &["best_step"],
    ),
];

/// The numbers of a training, by the names of their figures.
pub fn numbers(number: &dyn Fn(&str) -> Option<f64>) -> BTreeMap<&'static str, f64> {
    let found = METRICS.into_iter().map(|(id, .., fields)| (id, fields.iter().find_map(|name| number(name))));
    found.filter_map(|(id, found)| Some((id, found?))).collect()
}

/// All of them; without any measurement that is of a synchrony, none has a panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    let figure = |(id, title, value, caption, _): Metric| {
        let caption =
            format!("{caption} Means over seeds and turns; bars reach from the least to the largest.");
        let mean = |of_label: &[&Sample], _: &[&Sample]| {
            let mean = Point::over(None, of_label, |s| s.metrics.get(id).copied(), Spread::mean);
            mean.into_iter().collect()
        };
        Figure::new(id, title, Shape::Rows, value, caption, panels(samples, None, mean))
    };
    METRICS.into_iter().map(figure).collect()
}
