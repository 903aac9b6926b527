//! Figures of steps that were measured by themselves.

use std::collections::BTreeSet;

use super::figure::{Figure, Panel, Point, Quantity, Shape, Unit, along, panels, spans};
use super::sample::Sample;
use gleaner_statistics::Spread;

/// The dense method that others are compared with.
pub const REFERENCE: &str = "ring";

/// The parts of a step, in the order in which they are drawn.
const PARTS: [&str; 4] = ["select", "exchange", "merge", "between"];

/// The part of bytes that were counted by the interface, which has a mark of its own.
pub const ON_THE_INTERFACE: &str = "on the interface";

/// What the error bars are, wherever measurements are put together.
pub const BARS: &str = "Where a setting was measured several times, the mark is the median of the turns and its bar \
     reaches from the least to the largest; where it was measured once, the bar reaches from quartile to quartile of its steps.";

/// All figures for which there may be numbers; those without have no panel.
pub fn figures(samples: &[&Sample]) -> Vec<Figure> {
    let against_workers = speed_up("speed-up", samples);
    let speed_up = match against_workers.panels.is_empty() {
        true => times_the_ring("step-speed-up", "Speed-up of a step", "a step", samples),
        false => against_workers,
    };
    vec![
        step_time("step-time", "Time of a step", samples),
        split(samples),
        bytes("bytes", samples),
        speed_up,
        against_density(samples),
        delivered(samples),
    ]
}

pub fn step_time(id: &'static str, title: &'static str, samples: &[&Sample]) -> Figure {
    let spread = |of_label: &[&Sample], _: &[&Sample]| one(of_label, |s| s.seconds);
    Figure::new(
        id,
        title,
        Shape::Rows,
        ("time of a step", Unit::Seconds),
        format!("From handing over the gradient to holding the update, on the slowest worker. {BARS}"),
        panels(samples, None, spread),
    )
}

fn one(samples: &[&Sample], value: impl Fn(&Sample) -> Option<Spread>) -> Vec<Point> {
    Point::over(None, samples, value, Spread::over).into_iter().collect()
}

fn split(samples: &[&Sample]) -> Figure {
    Figure::new(
        "split",
        "What a step is spent on",
        Shape::Stacks,
        ("time of a step", Unit::Seconds),
        "The slowest worker's time: choosing entries (select), waiting for messages (exchange), taking \
         them in (merge), and what was spent between these. Means over the turns, so that the parts add up.",
        panels(samples, None, |of_label, _| parts(PARTS, of_label, whole)),
    )
}

/// The three parts of a step and the rest of it.
pub fn whole(sample: &Sample) -> Option<[f64; 4]> {
    let [a, b, c] = sample.parts?;
    // The parts are scaled to the median step, so what is below nothing is rounding.
    Some([a, b, c, (sample.whole? - a - b - c).max(0.0)])
}

pub fn parts<const N: usize>(
    names: [&'static str; N],
    samples: &[&Sample],
    of: fn(&Sample) -> Option<[f64; N]>,
) -> Vec<Point> {
    let point = |(i, name): (usize, &'static str)| {
        let mean = Point::over(None, samples, |s| Some(of(s)?[i]), Spread::mean)?;
        Some(Point { part: Some(name), ..mean })
    };
    names.into_iter().enumerate().filter_map(point).collect()
}

/// Bytes received in a step, by the method's count and on the interface.
pub fn bytes(id: &'static str, samples: &[&Sample]) -> Figure {
    let points = |of_label: &[&Sample], _: &[&Sample]| {
        let counted = one(of_label, |s| s.bytes.map(Spread::exact));
        let crossed = one(of_label, |s| s.interface_bytes.map(Spread::exact));
        let crossed = crossed.into_iter().map(|point| Point { part: Some(ON_THE_INTERFACE), ..point });
        counted.into_iter().map(|point| Point { part: Some("counted"), ..point }).chain(crossed).collect()
    };
    Figure::new(
        id,
        "Bytes received by a worker in a step",
        Shape::Rows,
        ("bytes received in a step", Unit::Bytes),
        "The worker that receives most. A filled mark is the method's own count, headers of its messages \
         included. A hollow diamond is what the host's interface received, where the method had a job for itself: with all headers, acknowledgements, \
         and what starting the job took, divided by all steps, those of the warm-up included. Where a setting \
         was measured several times, the mark is the median and its bar reaches from the least to the largest.",
        panels(samples, None, points),
    )
}

/// How many times as fast as the dense ring, or, where there is none, as with the fewest workers.
pub fn speed_up(id: &'static str, samples: &[&Sample]) -> Figure {
    let has_reference = samples.iter().any(|s| s.method == REFERENCE && !s.disturbed);
    let (name, caption, panels) = if has_reference {
        let points = |of_label: &[&Sample], all: &[&Sample]| {
            along("workers", of_label, |s| times_the_reference(s, all))
        };
        let caption = format!(
            "The time of a step of the dense {REFERENCE} divided by the method's, among as many workers, in the same \
             run and turn and with the same seed: above 1 the method is faster. Of several rings it is the one whose options are most like the \
             method's. With several turns or seeds, the mark is the median of their ratios and \
             its bar reaches from the least to the largest; with one, the {REFERENCE}'s median is divided by the \
             method's quartiles."
        );
        ("speed-up over the dense ring", caption, lines("workers", samples, points))
    } else {
        let points = |of_label: &[&Sample], _: &[&Sample]| efficiency(of_label);
        let caption = "The method's own time of a step with the fewest workers, divided by that with as many: 1 means \
                       that more workers cost nothing (weak scaling, since every worker has a gradient of its own). What was disturbed on \
                       purpose is left out. The bars are those of the time of a step."
            .to_owned();
        ("weak scaling efficiency", caption, lines("workers", samples, points))
    };
    Figure::new(id, "Speed-up against workers", Shape::Lines, (name, Unit::None), caption, panels)
        .along("workers", Unit::None)
}

/// How many times as fast as the dense ring, a row for each of the other methods. `what` is what their time is of.
pub fn times_the_ring(id: &'static str, title: &'static str, what: &str, samples: &[&Sample]) -> Figure {
    let points = |of_label: &[&Sample], all: &[&Sample]| {
        let of_others: Vec<&Sample> = of_label.iter().copied().filter(|s| s.method != REFERENCE).collect();
        one(&of_others, |s| times_the_reference(s, all))
    };
    Figure::new(
        id,
        title,
        Shape::Rows,
        ("speed-up over the dense ring", Unit::None),
        format!(
            "The time of {what} of the dense {REFERENCE} divided by the method's, in the same run and turn and with the same seed: above 1 the \
             method is faster. Of several rings it is the one whose options are most like the method's. With several turns, the mark is the median of their \
             ratios and its bar reaches from the least to the largest."
        ),
        panels(samples, None, points),
    )
}

/// The ratio to the reference in the same run, turn, seed and number of workers; none where it was not measured there, or only while
/// something was done to it on purpose. Of several, the reference is the one that differs least from the method in what references state,
/// such as whether links are encrypted.
fn times_the_reference(sample: &Sample, all: &[&Sample]) -> Option<Spread> {
    let seed = |r: &Sample| r.seed.is_none() || sample.seed.is_none() || r.seed == sample.seed;
    let beside = |r: &Sample| {
        r.method == REFERENCE
            && !r.disturbed
            && (r.run, r.turn) == (sample.run, sample.turn)
            && r.axes.get("workers") == sample.axes.get("workers")
            && seed(r)
    };
    let references: Vec<&Sample> = all.iter().copied().filter(|r| beside(r)).collect();
    let stated: BTreeSet<&String> = references.iter().flat_map(|r| r.of_method.keys()).collect();
    let differences = |r: &Sample| {
        stated.iter().filter(|axis| r.of_method.get(**axis) != sample.of_method.get(**axis)).count()
    };
    let reference = references.iter().min_by_key(|r| differences(r))?.seconds?.value;
    let ratio = divided(reference, sample.seconds?);
    [ratio.low, ratio.value, ratio.high].iter().all(|r| r.is_finite()).then_some(ratio)
}

/// A method's step with the fewest workers over its step with more, where nothing was done to either on purpose.
fn efficiency(samples: &[&Sample]) -> Vec<Point> {
    let mut points = along("workers", samples, |s| s.seconds.filter(|_| !s.disturbed));
    let Some(fewest) = points.first().map(|p| p.spread.value) else { return points };
    for point in &mut points {
        point.spread = divided(fewest, point.spread);
    }
    points
}

fn divided(number: f64, by: Spread) -> Spread {
    Spread { value: number / by.value, low: number / by.high, high: number / by.low }
}

/// Panels of lines along an axis on which there are several places.
fn lines(
    axis: &str,
    samples: &[&Sample],
    points: impl Fn(&[&Sample], &[&Sample]) -> Vec<Point>,
) -> Vec<Panel> {
    let mut panels = panels(samples, Some(axis), points);
    panels.retain(spans);
    panels
}

fn against_density(samples: &[&Sample]) -> Figure {
    Figure::new(
        "density",
        "Time of a step against density",
        Shape::Lines,
        ("time of a step", Unit::Seconds),
        format!(
            "A level line without marks is a method whose time does not depend on a density, such as a dense one; its band is what bars are \
             elsewhere. {BARS}"
        ),
        lines("density", samples, |of_label, _| along("density", of_label, |s| s.seconds)),
    )
    .along("density asked for", Unit::None)
}

/// Against the density asked for where that varies, else against workers where these vary, else a row for each method.
fn delivered(samples: &[&Sample]) -> Figure {
    // Dense methods deliver everything, which is no news and hides the others.
    let sparse: Vec<&Sample> = samples.iter().copied().filter(|s| s.asked.is_some_and(|d| d < 1.0)).collect();
    let delivered = |s: &Sample| s.delivered.map(Spread::exact);
    let lines = |axis: &str| lines(axis, &sparse, |of_label, _| along(axis, of_label, delivered));
    let candidates = [("density", "density asked for"), ("workers", "workers")];
    let found = candidates.into_iter().map(|(axis, name)| (name, lines(axis))).find(|(_, p)| !p.is_empty());
    let (shape, against, panels) = match found {
        Some((name, panels)) => {
            (Shape::Lines, Some(Quantity { name: name.into(), unit: Unit::None }), panels)
        }
        None => (Shape::Rows, None, panels(&sparse, None, |of_label, _| one(of_label, delivered))),
    };
    Figure {
        against,
        ..Figure::new(
            "delivered",
            "Density delivered",
            shape,
            ("density delivered", Unit::None),
            "Entries of an update that are not zero, as a share of all entries. Methods that were asked for all \
             entries are left out. Where a setting was measured several times, the mark is the median and its bar reaches \
             from the least to the largest.",
            panels,
        )
    }
}
