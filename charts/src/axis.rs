//! An axis: level or logarithmic, with the places that are written beside it.

use std::ops::Range;

use gleaner_units::tick;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::page::width;

/// From so many times the smallest value on, an axis is logarithmic.
const LOGARITHMIC: f64 = 12.0;

/// How long the shortest axis with places of its own is, in pixels, and how many of them are written at the most.
const SHORT: f64 = 370.0;
const MOST: usize = 12;

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with its unit; empty for an axis that speaks for itself.
    name: String,
    from: f64,
    to: f64,
    /// Whether equal distances are equal ratios.
    logarithmic: bool,
    /// The places that are written, where they are no round numbers.
    places: Vec<f64>,
    label: fn(f64) -> String,
}

impl Axis {
    /// A level axis between two values; of which the first may be the greater.
    pub fn level(name: &str, from: f64, to: f64) -> Self {
        let (from, to) = (drawn(from), drawn(to));
        Self { name: name.into(), from, to, logarithmic: false, places: Vec::new(), label: tick }
    }

    /// A logarithmic axis between two values, both above zero.
    pub fn logarithmic(name: &str, from: f64, to: f64) -> Self {
        Self { logarithmic: true, ..Self::level(name, from, to) }
    }

    /// An axis that holds all these values, from zero on unless they lie close together; always from zero on for bars, unless it has to be
    /// logarithmic.
    pub fn fit(name: &str, values: impl Iterator<Item = f64>, is_for_bars: bool) -> Self {
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        if !least.is_finite() || !most.is_finite() {
            return Self::level(name, 0.0, 1.0);
        }
        if least > 0.0 && most / least >= LOGARITHMIC {
            return Self::logarithmic(name, least / 1.3, most * 1.3);
        }
        let begins_at_zero = least >= 0.0 && (is_for_bars || least < 0.5 * most);
        let room = if most > least { 0.06 * (most - least) } else { 0.1 * most.abs().max(f64::MIN_POSITIVE) };
        let from = if begins_at_zero { 0.0 } else { least - room };
        Self::level(name, from, (most + room).max(from + f64::MIN_POSITIVE))
    }

    /// An axis of places at which something was measured, and which are written if they are few.
    pub fn around(name: &str, mut places: Vec<f64>) -> Self {
        places.sort_by(f64::total_cmp);
        places.dedup();
        let mut axis = Self::fit(name, places.iter().copied(), false);
        if let [least, .., most] = places[..]
            && !axis.logarithmic
        {
            let room = 0.08 * (most - least);
            (axis.from, axis.to) = (drawn(least - room), drawn(most + room));
        }
        if places.len() <= MOST {
            // Where two would touch, the second is left out.
            let mut end = f64::NEG_INFINITY;
            places.retain(|place| {
                let (middle, half) = (SHORT * axis.share(*place), f64::from(width(&tick(*place)) / 2 + 3));
                let is_apart = middle - half > end;
                end = if is_apart { middle + half } else { end };
                is_apart
            });
            axis.places = places;
        }
        axis
    }

    /// A level axis of whole numbers between two values, each of which is written; of which the first may be the greater.
    pub fn of_numbers(name: &str, from: f64, to: f64) -> Self {
        let numbers = from.min(to).ceil() as i64..=from.max(to).floor() as i64;
        Self { places: numbers.map(|number| number as f64).collect(), ..Self::level(name, from, to) }
    }

    /// An axis of so many rows, the first at its end.
    pub(crate) fn of_rows(rows: usize) -> Self {
        let places = (0..rows).map(|row| row as f64 + 0.5).collect();
        Self { places, ..Self::level("", rows as f64, 0.0) }
    }

    /// The same with another way to write its places.
    pub fn written(self, label: fn(f64) -> String) -> Self {
        Self { label, ..self }
    }

    /// Whether equal distances are equal ratios.
    pub fn is_logarithmic(&self) -> bool {
        self.logarithmic
    }

    /// Where it begins and ends.
    pub fn ends(&self) -> (f64, f64) {
        (self.from, self.to)
    }

    /// What stands beside it.
    pub(crate) fn title(&self) -> String {
        let logarithmic = if self.logarithmic { " (logarithmic)" } else { "" };
        format!("{}{logarithmic}", self.name)
    }

    /// Where a value stands: 0 at the beginning, 1 at the end.
    fn share(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// About so many multiples of 1, 2 or 5 times a power of ten. Not those of plotters, which are without end where the ends of an axis are so
    /// close that no step lies between them.
    fn steps(&self, about: usize) -> Vec<f64> {
        let raw = (self.to - self.from) / about.max(1) as f64;
        let decade = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * decade).find(|s| *s >= raw).unwrap_or(raw);
        let (first, last) = ((self.from / step).ceil() as i64, (self.to / step).floor() as i64);
        (first..=last).map(|i| i as f64 * step).collect()
    }

    /// Powers of ten, or with twice and five times these where they are few.
    fn decades(&self, about: usize) -> Vec<f64> {
        let decades = || self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let on_axis = |place: &f64| (self.from * (1.0 - 1e-9)..=self.to * (1.0 + 1e-9)).contains(place);
        let every = |digits: &[f64]| -> Vec<f64> {
            decades().flat_map(|d| digits.iter().map(move |m| m * 10f64.powi(d))).filter(on_axis).collect()
        };
        let mut places = every(&[1.0]);
        if places.len() < 3 {
            places = every(&[1.0, 2.0, 5.0]);
        }
        let step = places.len().div_ceil(about.max(1)).max(1);
        places.into_iter().step_by(step).collect()
    }
}

/// An end of an axis. One that is not finite would have places without end, and near the largest number there is no room beside it.
fn drawn(end: f64) -> f64 {
    const LARGEST: f64 = 1e290;
    end.clamp(-LARGEST, LARGEST)
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        begin + (self.share(*value) * f64::from(end - begin)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            axis if !axis.places.is_empty() => axis.places.clone(),
            axis if axis.logarithmic => axis.decades(hint.bold_points()),
            axis => axis.steps(hint.bold_points()),
        }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.label)(*value)
    }
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    fn fit(values: &[f64], is_for_bars: bool) -> Axis {
        Axis::fit("", values.iter().copied(), is_for_bars)
    }

    #[test]
    fn the_largest_numbers_have_an_axis() {
        for values in [&[0.0, f64::MAX][..], &[f64::MAX], &[1e-12, f64::MAX], &[-f64::MAX, f64::MAX]] {
            let axis = fit(values, true);
            assert!(axis.from.is_finite() && axis.to.is_finite(), "{values:?}");
            assert!(axis.key_points(BoldPoints(6)).len() < 20, "{values:?}");
        }
    }

    #[test]
    fn level_axes() {
        let axis = fit(&[2.0, 10.0], false);
        assert_eq!((axis.share(0.0), axis.logarithmic), (0.0, false));
        // Values that are close together do not begin at zero, unless bars are drawn.
        assert!(fit(&[8.0, 10.0], false).share(8.0) < 0.1);
        assert!(fit(&[8.0, 10.0], true).share(8.0) > 0.7);
    }

    #[test]
    fn logarithmic_axes() {
        let axis = fit(&[0.001, 1.0], true);
        assert!(axis.logarithmic);
        let places: Vec<String> = axis.decades(6).iter().map(|place| axis.format_ext(place)).collect();
        assert_eq!(places, ["0.001", "0.01", "0.1", "1"]);
        let (a, b, c) = (axis.share(0.001), axis.share(0.01), axis.share(0.1));
        assert!((b - a - (c - b)).abs() < 1e-12);
    }

    #[test]
    fn places_that_were_measured_are_written_unless_they_touch() {
        let axis = Axis::around("workers", vec![8.0, 2.0, 4.0, 2.0, 4.1]);
        assert_eq!(axis.key_points(BoldPoints(5)), [2.0, 4.0, 8.0]);
    }

    #[test]
    fn whole_numbers_are_written_from_either_end() {
        let axis = Axis::of_numbers("rank", 2.5, -0.5);
        assert_eq!((axis.key_points(BoldPoints(1)), axis.share(0.0)), (vec![0.0, 1.0, 2.0], 2.5 / 3.0));
    }

    #[test]
    fn any_values_stand_on_their_axis() {
        for values in
            [&[][..], &[0.0], &[5.0], &[-1.0, 1.0], &[1e-9, 1e9], &[f64::NAN], &[3.0, 3.0], &[-5.0, -4.0]]
        {
            for is_for_bars in [false, true] {
                let axis = fit(values, is_for_bars);
                for value in values {
                    assert!((0.0..=1.0).contains(&axis.share(*value)), "{values:?}");
                }
                let places = axis.key_points(BoldPoints(6));
                assert!((1..20).contains(&places.len()), "{values:?}: {places:?}");
            }
        }
    }
}
