//! Where numbers stand on an axis, and how they are written.

use crate::report::figure::Unit;
use gleaner_units::grouped;

/// From so many times the smallest value on, an axis is logarithmic.
const LOGARITHMIC: f64 = 12.0;

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    from: f64,
    to: f64,
    /// Whether equal distances are equal ratios.
    pub logarithmic: bool,
}

impl Scale {
    /// An axis that holds all these values; nothing less than the first is drawn where it begins at zero.
    pub fn fit(values: impl Iterator<Item = f64> + Clone, from_zero: bool) -> Self {
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        if !least.is_finite() || !most.is_finite() {
            return Self { from: 0.0, to: 1.0, logarithmic: false };
        }
        if least > 0.0 && most / least >= LOGARITHMIC {
            return Self { from: least / 1.3, to: most * 1.3, logarithmic: true };
        }
        let begin_at_zero = least >= 0.0 && (from_zero || least < 0.5 * most);
        let room = if most > least { 0.06 * (most - least) } else { 0.1 * most.abs().max(f64::MIN_POSITIVE) };
        let from = if begin_at_zero { 0.0 } else { least - room };
        Self { from, to: (most + room).max(from + f64::MIN_POSITIVE), logarithmic: false }
    }

    /// An axis of measured places, which begins and ends a little beside them.
    pub fn around(places: impl Iterator<Item = f64> + Clone) -> Self {
        let scale = Self::fit(places.clone(), false);
        let least = places.clone().fold(f64::INFINITY, f64::min);
        let most = places.fold(f64::NEG_INFINITY, f64::max);
        if scale.logarithmic || most <= least {
            return scale;
        }
        let room = 0.08 * (most - least);
        Self { from: least - room, to: most + room, logarithmic: false }
    }

    /// Where a value stands: 0 at the beginning, 1 at the end.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// About so many round values on it.
    pub fn ticks(&self, about: usize) -> Vec<f64> {
        if !self.logarithmic {
            return self.level_ticks(about);
        }
        let decades = || self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        let on_axis = |tick: &f64| (self.from..=self.to).contains(tick);
        let every = |digits: &[f64]| -> Vec<f64> {
            decades().flat_map(|d| digits.iter().map(move |m| m * 10f64.powi(d))).filter(on_axis).collect()
        };
        let mut ticks = every(&[1.0]);
        if ticks.len() < 3 {
            ticks = every(&[1.0, 2.0, 5.0]);
        }
        let step = ticks.len().div_ceil(2 * about.max(1)).max(1);
        ticks.into_iter().step_by(step).collect()
    }

    fn level_ticks(&self, about: usize) -> Vec<f64> {
        let raw = (self.to - self.from) / about.max(1) as f64;
        let decade = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * decade).find(|s| *s >= raw).unwrap_or(raw);
        let (first, last) = ((self.from / step).ceil() as i64, (self.to / step).floor() as i64);
        (first..=last).map(|i| i as f64 * step).collect()
    }
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

/// A number with three significant digits, or four, and without an exponent.
pub fn written(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "–".into() };
    }
    let size = value.abs().log10().floor() as i32;
    let decimals = (digits - 1 - size).clamp(0, 12) as usize;
    if decimals == 0 && value >= 10_000.0 {
        grouped(value.round() as u64)
    } else {
        format!("{value:.decimals$}")
    }
}

/// A number on an axis: without zeros at its end.
pub fn tick(value: f64) -> String {
    let text = written(value, 4);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_axes() {
        let scale = Scale::fit([2.0, 10.0].into_iter(), false);
        assert_eq!((scale.place(0.0), scale.logarithmic), (0.0, false));
        assert_eq!(scale.ticks(5), [0.0, 5.0, 10.0]);
        // Values that are close together do not begin at zero, unless bars are drawn.
        let close = [8.0, 10.0].into_iter();
        assert!(Scale::fit(close.clone(), false).place(8.0) < 0.1);
        assert!(Scale::fit(close, true).place(8.0) > 0.7);
    }

    #[test]
    fn logarithmic_axes() {
        let scale = Scale::fit([0.001, 1.0].into_iter(), true);
        assert!(scale.logarithmic);
        let ticks: Vec<String> = scale.ticks(6).into_iter().map(tick).collect();
        assert_eq!(ticks, ["0.001", "0.01", "0.1", "1"]);
        let (a, b, c) = (scale.place(0.001), scale.place(0.01), scale.place(0.1));
        assert!((b - a - (c - b)).abs() < 1e-12);
    }

    #[test]
    fn any_values_stand_on_their_axis() {
        for values in
            [&[][..], &[0.0], &[5.0], &[-1.0, 1.0], &[1e-9, 1e9], &[f64::NAN], &[3.0, 3.0], &[-5.0, -4.0]]
        {
            for from_zero in [false, true] {
                let scale = Scale::fit(values.iter().copied(), from_zero);
                for value in values {
                    assert!((0.0..=1.0).contains(&scale.place(*value)), "{values:?}");
                }
                assert!((1..20).contains(&scale.ticks(5).len()), "{values:?}: {:?}", scale.ticks(5));
            }
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(written(123.456, 4), "123.5");
        assert_eq!(written(0.001_234_56, 3), "0.00123");
        assert_eq!(written(14_728_266.0, 4), "14_728_266");
        assert_eq!(tick(0.5), "0.5");
        assert_eq!(tick(100.0), "100");
        assert_eq!(suited(Unit::Seconds, 0.25), (1e3, "ms"));
        assert_eq!(suited(Unit::Bytes, 2e6), (1e-6, "MB"));
    }
}
