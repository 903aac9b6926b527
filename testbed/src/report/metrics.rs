//! Figures of synchronies: the metrics of OSP's evaluation (Chen et al., 2023, §5.1.4).

use std::collections::BTreeMap;

use super::figure::{Figure, Point, Shape, Unit, panels};
use super::sample::Sample;
use gleaner_statistics::Spread;

/// A figure, and where its number is.
struct Metric {
    /// Its name.
    id: &'static str,
    title: &'static str,
    /// What is shown, and in what unit.
    value: (&'static str, Unit),
    caption: &'static str,
    /// Fields of a training's JSON object, of which the first that is there has the number.
    fields: &'static [&'static str],
}

const SPEED: (&str, Unit) = ("samples in a second", Unit::None);
const STEP: (&str, Unit) = ("time of a step", Unit::Seconds);

const METRICS: [Metric; 6] = [
    Metric {
        id: "throughput",
        title: "Throughput",
        value: SPEED,
        caption: "Samples that all workers together processed in a second of their steps' time.",
        fields: &["throughput"],
    },
    Metric {
        id: "throughput-at-bound",
        title: "Throughput at the bound",
        value: SPEED,
        caption: "The same over the steps in which as much was to travel during the next pass as that leaves time for.",
        fields: &["throughput_at_bound"],
    },
    Metric {
        id: "batch-synchronisation",
        title: "Batch synchronisation time",
        value: STEP,
        caption: "From the end of a pass until the next could begin, the mean over steps and workers.",
        fields: &["seconds_batch_synchronisation"],
    },
    Metric {
        id: "batch-computation",
        title: "Batch computation time",
        value: STEP,
        caption: "What a pass takes, the mean over steps and workers, without those in whose processes a server lives.",
        fields: &["seconds_batch_computation_apart", "seconds_batch_computation"],
    },
    Metric {
        id: "batch-computation-colocated",
        title: "Batch computation time beside a server",
        value: STEP,
        caption: "What a pass takes, the mean over steps and the workers in whose processes a server lives.",
        fields: &["seconds_batch_computation_colocated"],
    },
    Metric {
        id: "best-after",
        title: "Steps to the best evaluation",
        value: ("steps", Unit::None),
        caption: "After how many steps the accuracy was highest, or the loss lowest, of all evaluations.",
        fields: &["best_step"],
    },
];

/// The numbers of a training, by the names of their figures.
pub fn numbers(number: &dyn Fn(&str) -> Option<f64>) -> BTreeMap<&'static str, f64> {
    let found =
        METRICS.into_iter().map(|metric| (metric.id, metric.fields.iter().find_map(|name| number(name))));
    found.filter_map(|(id, found)| Some((id, found?))).collect()
}

/// All of them; without any measurement that is of a synchrony, none has a panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    let figure = |Metric { id, title, value, caption, .. }: Metric| {
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
