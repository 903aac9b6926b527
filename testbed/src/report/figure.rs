//! Figures: numbers put together so that they can be drawn, tabulated and printed.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::read::Run;
use super::sample::{Axes, Sample, in_order, place, samples};
use super::{exchange, fit, training};
use crate::experiment::Workload;
use gleaner_statistics::Spread;
use gleaner_units::size;

/// A question and the numbers that answer it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name in the page's addresses and in JSON.
    pub id: &'static str,
    /// The question in a few words.
    pub title: &'static str,
    /// What is shown, how it was computed, and what the error bars are.
    pub caption: String,
    /// How it is drawn.
    pub shape: Shape,
    /// What the values are.
    pub value: Quantity,
    /// What they are drawn against, for lines.
    pub against: Option<Quantity>,
    /// One for each setting.
    pub panels: Vec<Panel>,
}

/// How a figure is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A row for each method, with a mark at its value.
    Rows,
    /// A row for each method, a bar of parts.
    Stacks,
    /// A line for each method.
    Lines,
}

/// What a number stands for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// In a few words.
    pub name: String,
    /// What it is counted in.
    pub unit: Unit,
}

/// What numbers are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// No unit: a share, a ratio, a loss or a count.
    None,
}

/// A unit that suits values up to `most`: how many of it one of the basic unit is, and its name.
pub fn suited(unit: Unit, most: f64) -> (f64, &'static str) {
    match unit {
        Unit::Seconds if most < 1e-3 => (1e6, "µs"),
        Unit::Seconds if most < 1.0 => (1e3, "ms"),
        Unit::Seconds => (1.0, "s"),
        Unit::Bytes if most < 1e3 => (1.0, "B"),
        Unit::Bytes if most < 1e6 => (1e-3, "kB"),
        Unit::Bytes if most < 1e9 => (1e-6, "MB"),
        Unit::Bytes => (1e-9, "GB"),
        Unit::None => (1.0, ""),
    }
}

/// The numbers of one setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Panel {
    /// What surrounds the methods, by axis.
    pub setting: Axes,
    /// One for each method.
    pub series: Vec<Series>,
}

/// The numbers of one method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The method, with what distinguishes several of its name.
    pub label: String,
    /// Which marker, dashes and colour it has, the same in all figures.
    #[serde(skip)]
    pub style: usize,
    /// In the order of the axis.
    pub points: Vec<Point>,
}

/// A spread as it is written.
#[derive(Serialize)]
#[serde(remote = "Spread")]
struct AsObject {
    value: f64,
    low: f64,
    high: f64,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Where it stands; none in rows, and for what does not depend on the axis, such as a dense method's step on density.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<f64>,
    /// Which part or which count, where a method has several in a figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
    /// The number.
    #[serde(flatten, with = "AsObject")]
    pub spread: Spread,
    /// From how many measurements.
    pub measurements: usize,
    /// Which they are: run and record.
    #[serde(skip)]
    pub sources: Vec<(usize, usize)>,
}

impl Point {
    /// Puts together the measurements that have a number; none where no one has it.
    pub fn over<T>(
        x: Option<f64>,
        samples: &[&Sample],
        value: impl Fn(&Sample) -> Option<T>,
        together: impl Fn(&[T]) -> Option<Spread>,
    ) -> Option<Self> {
        let with = samples.iter().filter_map(|s| Some((*s, value(s)?)));
        let (from, values): (Vec<&Sample>, Vec<T>) = with.unzip();
        Some(Self::of(x, together(&values)?, &from))
    }

    /// A number that was computed from all these measurements.
    pub fn of(x: Option<f64>, spread: Spread, from: &[&Sample]) -> Self {
        let sources = from.iter().map(|s| (s.run, s.record)).collect();
        Self { x, part: None, spread, measurements: from.len(), sources }
    }
}

impl Figure {
    /// One whose series go along no axis.
    pub fn new(
        id: &'static str,
        title: &'static str,
        shape: Shape,
        (name, unit): (&str, Unit),
        caption: impl Into<String>,
        panels: Vec<Panel>,
    ) -> Self {
        let value = Quantity { name: name.into(), unit };
        Self { id, title, caption: caption.into(), shape, value, against: None, panels }
    }

    /// The same along a quantity.
    pub fn along(self, name: &str, unit: Unit) -> Self {
        Self { against: Some(Quantity { name: name.into(), unit }), ..self }
    }

    /// The measurements that it is made of: run and record.
    pub fn sources(&self) -> BTreeSet<(usize, usize)> {
        let points = self.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
        points.flat_map(|p| p.sources.iter().copied()).collect()
    }
}

/// All figures for which there are numbers.
pub fn figures(runs: &[Run]) -> Vec<Figure> {
    let samples = samples(runs);
    let of = |workload: Workload| samples.iter().filter(|s| s.workload == workload).collect::<Vec<_>>();
    let (exchanges, trainings) = (of(Workload::Bench), of(Workload::Train));
    let mut figures = training::figures(&trainings);
    figures.extend(training::synchronies(&trainings));
    figures.extend(training::regressions(&of(Workload::Regress)));
    figures.extend(exchange::figures(&exchanges));
    figures.extend(fit::figures(&exchanges));
    figures.retain(|figure| !figure.panels.is_empty());
    let drawn = figures.iter().flat_map(|f| &f.panels).flat_map(|p| &p.series).map(|s| &s.label);
    let methods: BTreeSet<&String> = samples.iter().map(|s| &s.label).collect();
    // What was fitted has a style of its own, behind those of the methods.
    let fitted: BTreeSet<&String> = drawn.filter(|label| !methods.contains(label)).collect();
    let styles: BTreeMap<String, usize> = methods.into_iter().chain(fitted).cloned().zip(0..).collect();
    for series in figures.iter_mut().flat_map(|f| &mut f.panels).flat_map(|p| &mut p.series) {
        series.style = styles[&series.label];
    }
    figures
}

/// Measurements in the same setting, `without` regard to one axis.
///
/// A method that never says where it stands on an axis, such as a dense one on density, is in every setting that agrees
/// with it.
pub fn settings<'a>(samples: &[&'a Sample], without: Option<&str>) -> Vec<(Axes, Vec<&'a Sample>)> {
    let key = |sample: &Sample| -> Axes {
        let mut key = sample.axes.clone();
        key.retain(|name, _| Some(name.as_str()) != without);
        key
    };
    let mut groups: BTreeMap<(&str, Axes), Vec<&Sample>> = BTreeMap::new();
    for &sample in samples {
        groups.entry((&sample.label, key(sample))).or_default().push(sample);
    }
    let within = |small: &Axes, large: &Axes| {
        small.len() < large.len() && small.iter().all(|(name, value)| large.get(name) == Some(value))
    };
    // Where the same method does say more, what says less is something else.
    let is_open =
        |(label, key): &(&str, Axes)| !groups.keys().any(|(other, more)| other == label && within(key, more));
    let is_elsewhere =
        |group: &(&str, Axes)| is_open(group) && groups.keys().any(|(_, more)| within(&group.1, more));
    let mut whole: Vec<&Axes> =
        groups.keys().filter(|group| !is_elsewhere(group)).map(|(_, key)| key).collect();
    whole.sort_by(|a, b| order(a, b));
    whole.dedup();
    let members = |setting: &Axes| {
        let inside =
            |group: &(&str, Axes)| group.1 == *setting || is_open(group) && within(&group.1, setting);
        groups
            .iter()
            .filter(|(group, _)| inside(group))
            .flat_map(|(_, samples)| samples.iter().copied())
            .collect()
    };
    whole.into_iter().map(|setting| (setting.clone(), members(setting))).collect()
}

/// Axis by axis: by the numbers that the values stand for, and by their letters where they are none.
fn order(a: &Axes, b: &Axes) -> Ordering {
    let pairs = in_order(a).zip(in_order(b)).map(|(one, other)| {
        let names = place(one.0).cmp(&place(other.0)).then_with(|| one.0.cmp(other.0));
        names.then_with(|| by_number(one.1, other.1))
    });
    pairs.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
}

fn by_number(a: &str, b: &str) -> Ordering {
    let numbers = match (size(a), size(b)) {
        (Some(x), Some(y)) => x.total_cmp(&y),
        (x, y) => y.is_some().cmp(&x.is_some()),
    };
    numbers.then_with(|| a.cmp(b))
}

/// The measurements of each label.
pub fn by_label<'a>(samples: &[&'a Sample]) -> BTreeMap<String, Vec<&'a Sample>> {
    let mut labels: BTreeMap<String, Vec<&Sample>> = BTreeMap::new();
    for &sample in samples {
        labels.entry(sample.label.clone()).or_default().push(sample);
    }
    labels
}

/// A panel for each setting, `without` regard to one axis, in which there are series.
pub fn panels_of(
    samples: &[&Sample],
    without: Option<&str>,
    series: impl Fn(&[&Sample]) -> Vec<Series>,
) -> Vec<Panel> {
    let panel = |(setting, members): (Axes, Vec<&Sample>)| Panel { series: series(&members), setting };
    settings(samples, without).into_iter().map(panel).filter(|panel| !panel.series.is_empty()).collect()
}

/// The same with the series that come out of the measurements of each label.
pub fn panels(
    samples: &[&Sample],
    without: Option<&str>,
    points: impl Fn(&[&Sample], &[&Sample]) -> Vec<Point>,
) -> Vec<Panel> {
    panels_of(samples, without, |members| {
        let series = by_label(members).into_iter().map(|(label, of_label)| Series {
            label,
            style: 0,
            points: points(&of_label, members),
        });
        series.filter(|series| !series.points.is_empty()).collect()
    })
}

/// The axes in which all settings agree.
pub fn common(panels: &[Panel]) -> Axes {
    let mut common = panels.first().map(|panel| panel.setting.clone()).unwrap_or_default();
    common.retain(|name, value| panels.iter().all(|panel| panel.setting.get(name) == Some(&*value)));
    common
}

/// One point for each place on an axis at which a measurement has the number.
pub fn along(axis: &str, samples: &[&Sample], value: impl Fn(&Sample) -> Option<Spread>) -> Vec<Point> {
    let mut places: BTreeMap<Option<&str>, Vec<&Sample>> = BTreeMap::new();
    for &sample in samples {
        places.entry(sample.axes.get(axis).map(String::as_str)).or_default().push(sample);
    }
    let drawn = places.into_iter().filter(|(place, _)| place.is_none_or(|p| size(p).is_some()));
    let mut points: Vec<Point> = drawn
        .filter_map(|(place, of_place)| Point::over(place.and_then(size), &of_place, &value, Spread::over))
        .collect();
    points.sort_by(|a, b| a.x.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.x.unwrap_or(f64::NEG_INFINITY)));
    points
}

/// Whether there are points at two places or more.
pub fn spans(panel: &Panel) -> bool {
    let places = panel.series.iter().flat_map(|s| &s.points).filter_map(|p| p.x);
    places.map(f64::to_bits).collect::<BTreeSet<u64>>().len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_one_order() {
        let axes = |axes: &[(&str, &str)]| -> Axes {
            axes.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        // As they belong.
        let sorted = [
            axes(&[]),
            axes(&[("workers", "4")]),
            axes(&[("workers", "4"), ("density", "0.1")]),
            axes(&[("workers", "4"), ("bandwidth", "100 Mbit/s")]),
            axes(&[("workers", "4"), ("bandwidth", "1 Gbit/s")]),
            axes(&[("workers", "4"), ("link_latency", "50us")]),
            axes(&[("workers", "4"), ("link_latency", "1ms")]),
            axes(&[("workers", "4"), ("link_latency", "0.5s")]),
            axes(&[("workers", "14")]),
            axes(&[("workers", "many")]),
            axes(&[("density", "0.01")]),
            axes(&[("a", "01"), ("b", "1")]),
            axes(&[("a", "1")]),
            axes(&[("b", "1")]),
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(order(a, b), i.cmp(&j), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn units_suit_their_values() {
        assert_eq!(suited(Unit::Seconds, 0.25), (1e3, "ms"));
        assert_eq!(suited(Unit::Bytes, 2e6), (1e-6, "MB"));
    }
}
