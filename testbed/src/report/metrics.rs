//! Figures of synchronies: the metrics of OSP's evaluation (Chen et al., 2023, §5.1.4).

use serde_json::{Map, Value};

use super::figure::{Figure, Point, Shape, Unit, panels, settings};
use super::sample::Sample;
use gleaner_statistics::Spread;

/// What a training measured, where the experiment says under which synchrony.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Samples that all workers processed in a second.
    pub throughput: Option<f64>,
    /// The same where as much was in the background as the passes leave time for.
    pub at_bound: Option<f64>,
    /// Batch synchronisation time, in seconds.
    pub synchronising: Option<f64>,
    /// Batch computation time, of workers beside servers and of the others where servers live with workers, in seconds.
    pub computing: Option<f64>,
    pub colocated: Option<f64>,
    /// Steps before the best evaluation.
    pub best_step: Option<f64>,
}

impl Metrics {
    /// Of a training's JSON object.
    pub fn of(object: &Map<String, Value>) -> Self {
        let number = |name: &str| object.get(name).and_then(Value::as_f64).filter(|n| n.is_finite());
        Self {
            throughput: number("throughput"),
            at_bound: number("throughput_at_bound"),
            synchronising: number("seconds_batch_synchronisation"),
            computing: number("seconds_batch_computation_apart").or(number("seconds_batch_computation")),
            colocated: number("seconds_batch_computation_colocated"),
            best_step: number("best_step"),
        }
    }
}

/// A number of it.
type Metric = fn(&Metrics) -> Option<f64>;

/// All of them; without any measurement that is of a synchrony, none has a panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    const SPEED: (&str, Unit) = ("samples in a second", Unit::None);
    const STEP: (&str, Unit) = ("time of a step", Unit::Seconds);
    let all: [(_, _, (&str, Unit), &str, Metric); 6] = [
        (
            "throughput",
            "Throughput",
            SPEED,
            "Samples that all workers together processed in a second of their steps' time.",
            |m| m.throughput,
        ),
        (
            "throughput-at-bound",
            "Throughput at the bound",
            SPEED,
            "The same over the steps in which as much was to travel during the next pass as that leaves time for.",
            |m| m.at_bound,
        ),
        (
            "batch-synchronisation",
            "Batch synchronisation time",
            STEP,
            "From the end of a pass until the next could begin, the mean over steps and workers.",
            |m| m.synchronising,
        ),
        (
            "batch-computation",
            "Batch computation time",
            STEP,
            "What a pass takes, the mean over steps and workers, without those in whose processes a server lives.",
            |m| m.computing,
        ),
        (
            "batch-computation-colocated",
            "Batch computation time beside a server",
            STEP,
            "What a pass takes, the mean over steps and the workers in whose processes a server lives.",
            |m| m.colocated,
        ),
        (
            "best-after",
            "Steps to the best evaluation",
            ("steps", Unit::None),
            "After how many steps the accuracy was highest, or the loss lowest, of all evaluations.",
            |m| m.best_step,
        ),
    ];
    let figure = |(id, title, (name, unit), caption, metric): (_, _, (&str, Unit), &str, Metric)| {
        Figure::new(
            id,
            title,
            Shape::Rows,
            (name, unit),
            format!("{caption} Means over seeds and turns; bars reach from the least to the largest."),
            panels(&settings(samples, None), |of_label, _| point(of_label, metric).into_iter().collect()),
        )
    };
    all.into_iter().map(figure).collect()
}

fn point(samples: &[&Sample], metric: Metric) -> Option<Point> {
    let from: Vec<&Sample> =
        samples.iter().copied().filter(|sample| metric(&sample.metrics).is_some()).collect();
    let numbers: Vec<f64> = from.iter().filter_map(|sample| metric(&sample.metrics)).collect();
    Some(Point::of(None, Spread::mean(&numbers)?, &from))
}
