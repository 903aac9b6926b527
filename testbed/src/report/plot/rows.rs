//! A row for each method: a mark with its spread, or a bar of parts.

use plotters::element::{Circle, PathElement, Rectangle};
use plotters::prelude::RGBColor;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, ShapeStyle, WHITE};

use super::marks::diamond;
use super::scale::{Scale, suited, tick, written};
use super::{TEXT, WIDTH, draw, short, stroke, width};
use crate::report::exchange::ON_THE_INTERFACE;
use crate::report::figure::{Figure, Panel, Series, Unit};
use gleaner_charts::{Area, DrawError, INK, write};

/// The height of a row, of a bar in it, and of what stands above and below, in pixels.
const ROW: i32 = 26;
const BAR: i32 = 14;
const TOP: i32 = 12;
const BOTTOM: i32 = 52;
const LEGEND: i32 = 30;

/// In one picture of bars of parts, the longest is at most so many times the shortest.
const LONGER: f64 = 8.0;

/// A bar behind a mark.
const BAND: RGBColor = RGBColor(168, 190, 212);

/// The parts of a step: from dark to light, each with its own hatching.
const PARTS: [RGBColor; 4] = [RGBColor(22, 56, 92), RGBColor(222, 129, 42), RGBColor(244, 226, 190), WHITE];

/// Where rows and values stand.
struct Frame {
    left: i32,
    right: i32,
    bottom: i32,
    scale: Scale,
    kind: Unit,
    factor: f64,
    unit: &'static str,
}

impl Frame {
    fn new(figure: &Figure, series: &[&Series], values: &[f64]) -> Self {
        let most = values.iter().copied().fold(0.0, f64::max);
        let (factor, unit) = suited(figure.value.unit, most);
        let names = series.iter().map(|s| width(&short(&s.label))).max().unwrap_or(0);
        Self {
            left: names + 18,
            right: WIDTH - 84,
            bottom: TOP + series.len() as i32 * ROW,
            scale: Scale::fit(values.iter().map(|v| v * factor), true),
            kind: figure.value.unit,
            factor,
            unit,
        }
    }

    fn x(&self, value: f64) -> i32 {
        let wide = f64::from(self.right - self.left);
        self.left + (self.scale.place(value * self.factor) * wide).round() as i32
    }

    fn axis(&self, area: &Area<'_>, name: &str) -> Result<(), DrawError> {
        let mut end = i32::MIN;
        for value in self.scale.ticks(5) {
            let x = self.x(value / self.factor);
            stroke(area, &[(x, TOP - 4), (x, self.bottom + 4)])?;
            // Where two would touch, the second is left out.
            let half = width(&tick(value)) / 2;
            if x - half > end {
                write(area, &tick(value), (x, self.bottom + 15), TEXT, HPos::Center, INK)?;
                end = x + half + 4;
            }
        }
        let unit = if self.unit.is_empty() { String::new() } else { format!(", {}", self.unit) };
        let kind = if self.scale.logarithmic { " (logarithmic)" } else { "" };
        let middle = (self.left + self.right) / 2;
        // Words that are wider than the axis are centred in the picture instead.
        let words = format!("{name}{unit}{kind}");
        let half = width(&words) / 2;
        let at = middle.clamp(half.min(WIDTH / 2), (WIDTH - half).max(WIDTH / 2));
        write(area, &words, (at, self.bottom + 36), TEXT, HPos::Center, INK)
    }

    fn name(&self, area: &Area<'_>, y: i32, label: &str) -> Result<(), DrawError> {
        write(area, &short(label), (self.left - 10, y), TEXT, HPos::Right, INK)
    }

    fn value(&self, area: &Area<'_>, y: i32, value: f64) -> Result<(), DrawError> {
        // In its own unit: where the largest is in megabytes, the smallest may be in kilobytes.
        let (factor, unit) = suited(self.kind, value);
        let words = format!("{} {unit}", written(value * factor, 3));
        write(area, words.trim(), (WIDTH - 6, y), TEXT, HPos::Right, INK)
    }
}

/// A mark with its spread for each method, the smallest first.
pub fn marks(figure: &Figure, panel: &Panel) -> Result<String, DrawError> {
    let series = sorted(panel, |s| s.points.first().map_or(0.0, |p| p.spread.value));
    let spreads = || series.iter().flat_map(|s| &s.points).map(|p| p.spread);
    let values: Vec<f64> = spreads().flat_map(|s| [s.low, s.value, s.high]).collect();
    let frame = Frame::new(figure, &series, &values);
    let parts = series.iter().any(|s| s.points.len() > 1);
    let legend = if parts { LEGEND } else { 0 };
    draw(frame.bottom + BOTTOM + legend, |area| {
        frame.axis(area, &figure.value.name)?;
        for (row, s) in series.iter().enumerate() {
            mark_row(area, &frame, TOP + row as i32 * ROW + ROW / 2, s)?;
        }
        if parts {
            let y = frame.bottom + BOTTOM + LEGEND / 2 - 4;
            area.draw(&Circle::new((frame.left, y), 3, INK.filled()))?;
            write(area, "counted", (frame.left + 14, y), TEXT, HPos::Left, INK)?;
            diamond(area, (frame.left + 104, y), INK)?;
            write(area, ON_THE_INTERFACE, (frame.left + 118, y), TEXT, HPos::Left, INK)?;
        }
        Ok(())
    })
}

fn mark_row(area: &Area<'_>, frame: &Frame, y: i32, series: &Series) -> Result<(), DrawError> {
    frame.name(area, y, &series.label)?;
    if frame.scale.logarithmic {
        stroke(area, &[(frame.left, y), (frame.right, y)])?;
    }
    for (i, point) in series.points.iter().enumerate().rev() {
        let spread = point.spread;
        let x = frame.x(spread.value);
        // A bar's length says something only where it begins at zero.
        if !frame.scale.logarithmic && i == 0 {
            let corners = [(frame.left, y - BAR / 2), (x, y + BAR / 2)];
            area.draw(&Rectangle::new(corners, BAND.filled()))?;
        }
        whisker(area, y, (frame.x(spread.low), frame.x(spread.high)))?;
        if point.part == Some(ON_THE_INTERFACE) {
            diamond(area, (x, y), INK)?;
        } else {
            area.draw(&Circle::new((x, y), 3, INK.filled()))?;
        }
    }
    frame.value(area, y, series.points.first().map_or(0.0, |p| p.spread.value))
}

fn whisker(area: &Area<'_>, y: i32, (low, high): (i32, i32)) -> Result<(), DrawError> {
    if low == high {
        return Ok(());
    }
    for line in [[(low, y), (high, y)], [(low, y - 5), (low, y + 5)], [(high, y - 5), (high, y + 5)]] {
        area.draw(&PathElement::new(line.to_vec(), INK.stroke_width(2)))?;
    }
    Ok(())
}

/// A bar of parts for each method, the shortest first. Bars begin at zero, so where some are many times as long as
/// others, these have a picture and an axis of their own.
pub fn stacks(figure: &Figure, panel: &Panel) -> Result<Vec<String>, DrawError> {
    let mut groups: Vec<Vec<&Series>> = Vec::new();
    for series in sorted(panel, whole) {
        match groups.last_mut() {
            Some(group) if whole(series) <= LONGER * whole(group[0]) => group.push(series),
            _ => groups.push(vec![series]),
        }
    }
    groups.iter().map(|group| stack(figure, group)).collect()
}

fn whole(series: &Series) -> f64 {
    series.points.iter().map(|p| p.spread.value).sum()
}

fn stack(figure: &Figure, series: &[&Series]) -> Result<String, DrawError> {
    let values: Vec<f64> = series.iter().map(|s| whole(s)).collect();
    let frame = Frame::new(figure, series, &values);
    draw(frame.bottom + BOTTOM + LEGEND, |area| {
        frame.axis(area, &figure.value.name)?;
        for (row, (s, whole)) in series.iter().zip(&values).enumerate() {
            let y = TOP + row as i32 * ROW + ROW / 2;
            frame.name(area, y, &s.label)?;
            frame.value(area, y, *whole)?;
            let mut from = 0.0;
            for (part, point) in s.points.iter().enumerate() {
                let to = from + point.spread.value;
                section(area, ((frame.x(from), y - BAR / 2), (frame.x(to), y + BAR / 2)), part)?;
                from = to;
            }
        }
        let names =
            series.first().map_or(Vec::new(), |s| s.points.iter().filter_map(|point| point.part).collect());
        let (y, step) = (frame.bottom + BOTTOM + LEGEND / 2 - 4, WIDTH / 4);
        for (part, name) in names.into_iter().enumerate() {
            let x = 12 + part as i32 * step;
            section(area, ((x, y - 7), (x + 28, y + 7)), part)?;
            write(area, name, (x + 36, y), TEXT, HPos::Left, INK)?;
        }
        Ok(())
    })
}

/// A part of a bar with its colour, hatching and outline; nothing where it has no width.
fn section(area: &Area<'_>, (from, to): ((i32, i32), (i32, i32)), part: usize) -> Result<(), DrawError> {
    if from.0 >= to.0 {
        return Ok(());
    }
    area.draw(&Rectangle::new([from, to], ShapeStyle::from(&PARTS[part]).filled()))?;
    let high = to.1 - from.1;
    // Slanting lines in the second part and upright ones in the third.
    let (step, slant) = [(0, 0), (7, high), (6, 0), (0, 0)][part];
    let mut x = from.0 + 3 - if slant > 0 { high } else { 0 };
    while step > 0 && x < to.0 {
        // Cut where the part begins and ends.
        let (begin, end) = (x.max(from.0), (x + slant).min(to.0 - 1));
        let y = |at: i32| if slant > 0 { to.1 - (at - x) } else { from.1 };
        if end >= begin {
            let lower = if slant > 0 { y(begin) } else { to.1 };
            let line = vec![(begin, lower), (end, y(end))];
            area.draw(&PathElement::new(line, INK.stroke_width(1)))?;
        }
        x += step;
    }
    Ok(area.draw(&Rectangle::new([from, to], INK.stroke_width(1)))?)
}

fn sorted(panel: &Panel, key: impl Fn(&Series) -> f64) -> Vec<&Series> {
    let mut series: Vec<&Series> = panel.series.iter().collect();
    series.sort_by(|a, b| key(a).total_cmp(&key(b)));
    series
}
