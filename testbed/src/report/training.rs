//! Figures of trainings.

use std::collections::BTreeMap;

use super::exchange;
use super::figure::{Figure, Point, Quantity, Shape, Unit, panels, settings};
use super::sample::{Evaluation, Sample};
use super::statistics::Spread;

/// All figures for which there may be numbers; those without have no panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    let mut step = exchange::step_time("training-step-time", "Time of a training step", samples);
    step.caption =
        "The whole training divided by its steps, evaluations included. Where a setting was measured \
                    several times, the mark is the median and its bar reaches from the least to the largest."
            .into();
    let mut speed_up = exchange::speed_up("training-speed-up", samples);
    speed_up.title = "Speed-up of training against workers";
    let mut bytes = exchange::bytes("training-bytes", samples);
    bytes.title = "Bytes received by a worker in a training step";
    vec![accuracy(samples), loss(samples), step, bytes, speed_up]
}

const SEEDS: &str = "Means over seeds and turns at the same step, in time and in value; the band reaches from the least \
     to the largest.";

fn accuracy(samples: &[&Sample]) -> Figure {
    let caption = format!("The share of held-out examples that are classified correctly. {SEEDS}");
    curve("time-to-accuracy", "Accuracy against time", "held-out accuracy", caption, samples, |e| e.accuracy)
}

fn loss(samples: &[&Sample]) -> Figure {
    let caption = format!("The loss on held-out examples; the lower, the better. {SEEDS}");
    curve("time-to-loss", "Loss against time", "held-out loss", caption, samples, |e| Some(e.loss))
}

fn curve(
    id: &'static str,
    title: &'static str,
    name: &str,
    caption: String,
    samples: &[&Sample],
    value: impl Fn(&Evaluation) -> Option<f64>,
) -> Figure {
    Figure {
        id,
        title,
        caption,
        shape: Shape::Lines,
        value: Quantity { name: name.into(), unit: Unit::None },
        against: Some(Quantity { name: "time of training".into(), unit: Unit::Seconds }),
        panels: panels(&settings(samples, None), |of_label, _| means(of_label, &value)),
    }
}

/// A point for each step after which every one of these trainings was evaluated, so that a mean never jumps where one
/// of them ends.
fn means(samples: &[&Sample], value: impl Fn(&Evaluation) -> Option<f64>) -> Vec<Point> {
    let with: Vec<&Sample> = samples.iter().copied().filter(|s| !s.evaluations.is_empty()).collect();
    let mut steps: BTreeMap<u64, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for evaluation in with.iter().flat_map(|s| &s.evaluations) {
        if let Some(value) = value(evaluation) {
            let (times, values) = steps.entry(evaluation.step).or_default();
            times.push(evaluation.seconds);
            values.push(value);
        }
    }
    let whole = steps.values().filter(|(times, _)| times.len() == with.len());
    let point = |(times, values): &(Vec<f64>, Vec<f64>)| {
        Some(Point::of(Some(Spread::mean(times)?.value), Spread::mean(values)?, &with))
    };
    whole.filter_map(point).collect()
}
