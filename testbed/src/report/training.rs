//! Figures of trainings, of synchronies, and of regressions.

use std::collections::BTreeMap;

use super::exchange;
use super::figure::{Figure, Panel, Point, Series, Shape, Unit, by_label, panels, panels_of, settings};
use super::sample::{Evaluation, Sample};
use gleaner_statistics::Spread;
use gleaner_units::written;

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
    let mut figures = Vec::from(curves(samples));
    figures.extend([
        reached(samples),
        frontier("frontier-training", "training loss", samples, |e| e.last()?.training_loss),
        frontier("frontier", "lowest held-out loss", samples, |e| {
            e.iter().map(|evaluation| evaluation.loss).min_by(f64::total_cmp)
        }),
        step,
        breakdown(samples),
        bytes,
        speed_up,
        delivered(samples),
    ]);
    figures
}

/// OMGS-SGD's Fig. 4. Its selection stalls the backward pass; here it runs beside it, or within it where cores are shared.
fn breakdown(samples: &[&Sample]) -> Figure {
    let names = ["forward", "backward", "exposed", "between"];
    Figure::new(
        "iteration",
        "What an iteration is spent on",
        Shape::Stacks,
        ("time of an iteration", Unit::Seconds),
        "The worker that waited least, for which all others waited: the forward pass, the backward pass, in which gradients \
         are exchanged as well, what the exchange takes after it (exposed), and what was spent between these or waiting for \
         other workers to begin. Medians over the steps, means over seeds and turns.",
        panels(samples, None, |of_label, _| exchange::parts(names, of_label, exchange::whole)),
    )
}

const SEEDS: &str = "Means over seeds and turns at the same step, on both axes; the band reaches from the least to the largest.";

/// What a curve goes along.
struct Along {
    name: &'static str,
    unit: Unit,
    at: Value,
}

const TIME: Along = Along { name: "time of training", unit: Unit::Seconds, at: |e| Some(e.seconds) };
const STEPS: Along = Along { name: "steps", unit: Unit::None, at: |e| Some(e.step as f64) };
/// Of the model before its first step nothing is known but the few bytes of joining, far to the left of all that steps take.
const BYTES: Along =
    Along { name: "received by a worker", unit: Unit::Bytes, at: |e| e.bytes.filter(|_| e.step > 0) };

/// Accuracy against time, the loss on held-out examples against each of the three, and that of the batches.
fn curves(samples: &[&Sample]) -> [Figure; 5] {
    let accuracy: (_, Value, _) = (
        "held-out accuracy",
        |e| e.accuracy,
        "The share of held-out examples that are classified correctly.",
    );
    let held_out: (_, Value, _) =
        ("held-out loss", |e| Some(e.loss), "The loss on held-out examples; the lower, the better.");
    let training: (_, Value, _) = (
        "training loss",
        |e| e.training_loss,
        "The mean loss of all workers' batches since the evaluation before. Where it falls and the held-out loss does not, a method is \
         as good an optimiser and generalises worse.",
    );
    [
        ("time-to-accuracy", "Accuracy against time", accuracy, TIME),
        ("time-to-loss", "Loss against time", held_out, TIME),
        ("steps-to-loss", "Loss against steps", held_out, STEPS),
        ("bytes-to-loss", "Loss against bytes", held_out, BYTES),
        ("training-loss", "Training loss against steps", training, STEPS),
    ]
    .map(|(id, title, (name, value, caption), along)| {
        let panels = panels(samples, None, |of_label, _| {
            stages(of_label, along.at, value).into_iter().map(|(_, point)| point).collect()
        });
        let caption = format!("{caption} {SEEDS}");
        Figure::new(id, title, Shape::Lines, (name, Unit::None), caption, panels)
            .along(along.name, along.unit)
    })
}

/// A number that evaluations have.
type Value = fn(&Evaluation) -> Option<f64>;

/// How long it took until an accuracy or a loss that every method reached.
fn reached(samples: &[&Sample]) -> Figure {
    let mut panels = Vec::new();
    for (setting, members) in settings(samples, None) {
        // The accuracy where there is one, with its sign changed: less is better in both.
        let accuracy: Value = |e| e.accuracy.map(|a| -a);
        let loss: Value = |e| Some(e.loss);
        for (name, value) in [("accuracy", accuracy), ("loss", loss)] {
            let curves: Vec<(String, Vec<(Spread, Point)>)> = by_label(&members)
                .into_iter()
                .map(|(label, of_label)| (label, stages(&of_label, TIME.at, value)))
                .filter(|(_, stages)| !stages.is_empty())
                .collect();
            let best = |stages: &[(Spread, Point)]| {
                stages.iter().map(|(_, point)| point.spread.value).fold(f64::INFINITY, f64::min)
            };
            let Some(target) = curves.iter().map(|(_, stages)| best(stages)).reduce(f64::max) else {
                continue;
            };
            let series = curves.into_iter().filter_map(|(label, stages)| {
                let (at, point) = stages.into_iter().find(|(_, point)| point.spread.value <= target)?;
                Some(Series { label, style: 0, points: vec![Point { x: None, spread: at, ..point }] })
            });
            let mut setting = setting.clone();
            setting.insert(format!("until held-out {name}"), written(target.abs(), 3));
            panels.push(Panel { setting, series: series.collect() });
            break;
        }
    }
    Figure::new(
        "time-to-target",
        "Time until what all reach",
        Shape::Rows,
        ("time of training", Unit::Seconds),
        "The time of training until the mean over seeds and turns is, for the first time, as good as the worst method's \
         best, so that every method reaches it. The bar reaches from the least to the largest time of a training \
         up to that evaluation.",
        panels,
    )
}

/// The result of a training, against what its steps cost in bytes: a line for each method, along densities, and along the number at the
/// end of a name, such as the rank of PowerSGD.
fn frontier(
    id: &'static str,
    name: &str,
    samples: &[&Sample],
    value: fn(&[Evaluation]) -> Option<f64>,
) -> Figure {
    let point = |of_place: &Vec<&Sample>| {
        let bytes: Vec<f64> = of_place.iter().filter_map(|s| s.bytes).collect();
        let losses: Vec<f64> = of_place.iter().filter_map(|s| value(&s.evaluations)).collect();
        Some(Point::of(Some(Spread::mean(&bytes)?.value), Spread::mean(&losses)?, of_place))
    };
    let panels = panels_of(samples, Some("density"), |members| {
        let mut lines: BTreeMap<&str, BTreeMap<_, Vec<&Sample>>> = BTreeMap::new();
        for &sample in members {
            let place = (&sample.label, sample.axes.get("density"));
            lines.entry(without_number(&sample.label)).or_default().entry(place).or_default().push(sample);
        }
        let series = lines.into_iter().map(|(label, places)| {
            let mut points: Vec<Point> = places.values().filter_map(point).collect();
            points.sort_by(|a, b| a.x.unwrap_or_default().total_cmp(&b.x.unwrap_or_default()));
            Series { label: label.to_owned(), style: 0, points }
        });
        let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
        // It has something to compare.
        let is_worth = series.iter().map(|series| series.points.len()).sum::<usize>() > 2;
        if is_worth { series } else { Vec::new() }
    });
    let caption = format!(
        "The {name} of a whole training against what the worker that receives most receives in a step; lower and further to the left is \
         better. A line goes along densities, or along the number at the end of a name. Bytes are counted by the program; of PyTorch's hooks, they are \
             those of the interface, with headers. {SEEDS}"
    );
    Figure::new(id, "Loss against bytes of a step", Shape::Lines, (name, Unit::None), caption, panels)
        .along("received in a step", Unit::Bytes)
}

/// A label without the number that its last word ends with, after a slash or a hyphen.
fn without_number(label: &str) -> &str {
    let short = label.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = if short.len() == label.len() { None } else { short.strip_suffix(['/', '-']) };
    // Not in 1e-5.
    let is_word = |name: &&str| {
        let word = name.rsplit(' ').next().unwrap_or_default();
        word.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
    };
    name.filter(is_word).unwrap_or(label)
}

/// How many entries updates had between one evaluation and the next.
fn delivered(samples: &[&Sample]) -> Figure {
    let sparse: Vec<&Sample> = samples.iter().copied().filter(|s| s.asked.is_some_and(|d| d < 1.0)).collect();
    let between = |pair: &[Evaluation]| {
        let steps = pair[1].step.checked_sub(pair[0].step).filter(|s| *s > 0)?;
        Some((pair[1].step, (pair[1].entries? - pair[0].entries?) / steps as f64))
    };
    let points = |of_label: &[&Sample], _: &[&Sample]| {
        let mut steps: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (step, share) in of_label.iter().flat_map(|s| s.evaluations.windows(2)).filter_map(between) {
            steps.entry(step).or_default().push(share);
        }
        let point = |(step, shares): (u64, Vec<f64>)| {
            Some(Point::of(Some(step as f64), Spread::mean(&shares)?, of_label))
        };
        steps.into_iter().filter_map(point).collect()
    };
    let caption = "Entries of an update that are not zero, as a share of all entries: means over the steps from one evaluation to \
                   the next, and over seeds and turns; the band reaches from the least to the largest. Methods that were asked for \
                   all entries are left out.";
    let (id, title, panels) =
        ("delivered-in-training", "Density delivered in training", panels(&sparse, None, points));
    Figure::new(id, title, Shape::Lines, ("density delivered", Unit::None), caption, panels)
        .along("steps", Unit::None)
}

/// A point for each step after which every one of these trainings was evaluated, so that a mean never jumps where one
/// of them ends, and the spread of its place.
fn stages(samples: &[&Sample], at: Value, value: Value) -> Vec<(Spread, Point)> {
    let from: Vec<&Sample> = samples.iter().copied().filter(|s| !s.evaluations.is_empty()).collect();
    let mut steps: BTreeMap<u64, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for evaluation in from.iter().flat_map(|s| &s.evaluations) {
        if let Some((at, value)) = at(evaluation).zip(value(evaluation)) {
            let (places, values) = steps.entry(evaluation.step).or_default();
            places.push(at);
            values.push(value);
        }
    }
    let whole = steps.values().filter(|(places, _)| places.len() == from.len());
    let stage = |(places, values): &(Vec<f64>, Vec<f64>)| {
        let at = Spread::mean(places)?;
        Some((at, Point::of(Some(at.value), Spread::mean(values)?, &from)))
    };
    whole.filter_map(stage).collect()
}

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

/// The metrics of OSP's evaluation (Chen et al., 2023, §5.1.4); without any measurement that is of a synchrony, none has a panel.
pub fn synchronies(samples: &[&Sample]) -> Vec<Figure> {
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

/// All figures of regressions on sparse data, epoch by epoch, for which there may be numbers.
pub fn regressions(samples: &[&Sample]) -> Vec<Figure> {
    let mut time = exchange::step_time("epoch-time", "Time of an epoch", samples);
    time.value.name = "time of an epoch".into();
    time.caption = "A pass over the data, on the slowest worker, without evaluations. Where a setting was measured several times, the mark \
                    is the median of the turns and its bar reaches from the least to the largest; where it was measured once, the bar reaches from \
                    quartile to quartile of its epochs."
        .into();
    let mut bytes = exchange::bytes("epoch-bytes", samples);
    bytes.title = "Bytes received by a worker in an epoch";
    bytes.value.name = "bytes received in an epoch".into();
    bytes.caption =
        "The worker that receives most, by the method's own count, headers of its messages included.".into();
    // SparCML's Table 2, as the split is.
    let speed_up = exchange::times_the_ring("epoch-speed-up", "Speed-up of an epoch", "an epoch", samples);
    vec![time, split(samples), speed_up, bytes]
}

/// SparCML's Table 2: the communication part beside the whole.
fn split(samples: &[&Sample]) -> Figure {
    let of_epoch = |s: &Sample| s.parts.map(|[computing, communication, _]| [computing, communication]);
    Figure::new(
        "epoch-split",
        "What an epoch is spent on",
        Shape::Stacks,
        ("time of an epoch", Unit::Seconds),
        "Communication is what a worker spends on handing its gradients over and waiting for their sums, the mean over the workers; \
         computing is the rest of the slowest worker's epoch. Means over the epochs and turns.",
        panels(samples, None, |of_label, _| {
            exchange::parts(["computing", "communication"], of_label, of_epoch)
        }),
    )
}
