//! A line for each method, with its name at the end.

use plotters::element::{PathElement, Polygon};
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::marks::Look;
use super::scale::{Scale, suited, tick};
use super::{MOST_LINES, TEXT, WIDTH, draw, short, stroke, width};
use crate::report::figure::{Figure, Panel, Point, Series, Unit};
use gleaner_charts::{Area, DrawError, INK, write};

/// What lies above and below the axes, and left of them, and how high they are, in pixels.
const TOP: i32 = 34;
const BOTTOM: i32 = 50;
const LEFT: i32 = 58;
const HIGH: i32 = 250;

/// The distance of two names.
const LINE: i32 = 16;

/// So many markers stand on a line at most.
const MARKS: usize = 8;

/// How strong the bands behind lines are.
const BAND: f64 = 0.18;

/// One picture, or several where there are many lines: the lines with the lowest ends first, all on equal axes.
pub fn charts(figure: &Figure, panel: &Panel) -> Result<Vec<String>, DrawError> {
    let mut series: Vec<&Series> = panel.series.iter().collect();
    let end = |s: &Series| s.points.last().map_or(0.0, |p| p.spread.value);
    series.sort_by(|a, b| end(a).total_cmp(&end(b)));
    // As even as can be: nine lines are five and four, not eight and one.
    let pictures = series.len().div_ceil(MOST_LINES).max(1);
    let each = series.len().div_ceil(pictures).max(1);
    series.chunks(each).map(|lines| Chart::new(figure, panel, lines).svg()).collect()
}

struct Chart<'a> {
    figure: &'a Figure,
    lines: &'a [&'a Series],
    x: Scale,
    y: Scale,
    /// What values are multiplied with to be in the units of the axes.
    factors: (f64, f64),
    units: (&'static str, &'static str),
    right: i32,
    /// Where values were measured, if the axis is no time.
    places: Vec<f64>,
}

impl<'a> Chart<'a> {
    fn new(figure: &'a Figure, panel: &Panel, lines: &'a [&'a Series]) -> Self {
        let points = || panel.series.iter().flat_map(|s| &s.points);
        let time = figure.against.as_ref().map_or(Unit::None, |q| q.unit);
        let most_x = points().filter_map(|p| p.x).fold(0.0, f64::max);
        let most_y = points().map(|p| p.spread.high).fold(0.0, f64::max);
        let (fx, unit_x) = suited(time, most_x);
        let (fy, unit_y) = suited(figure.value.unit, most_y);
        let mut places: Vec<f64> = points().filter_map(|p| p.x).map(|x| x * fx).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let names = panel.series.iter().map(|s| width(&short(&s.label))).max().unwrap_or(0);
        let ys = points().flat_map(|p| [p.spread.low * fy, p.spread.high * fy]);
        Self {
            figure,
            lines,
            x: if time == Unit::None {
                Scale::around(places.iter().copied())
            } else {
                Scale::fit(places.iter().copied(), true)
            },
            y: Scale::fit(ys, false),
            factors: (fx, fy),
            units: (unit_x, unit_y),
            right: WIDTH - names - 26,
            places: if time == Unit::None { places } else { Vec::new() },
        }
    }

    fn at(&self, x: f64, y: f64) -> (i32, i32) {
        let wide = f64::from(self.right - LEFT);
        let across = LEFT + (self.x.place(x * self.factors.0) * wide).round() as i32;
        let down = TOP + HIGH - (self.y.place(y * self.factors.1) * f64::from(HIGH)).round() as i32;
        (across, down)
    }

    fn svg(&self) -> Result<String, DrawError> {
        draw(TOP + HIGH + BOTTOM, |area| {
            self.axes(area)?;
            for line in self.lines {
                self.band(area, line)?;
            }
            for line in self.lines {
                self.line(area, line)?;
            }
            self.names(area)
        })
    }

    fn axes(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let bottom = TOP + HIGH;
        for value in self.y.ticks(5) {
            let y = self.at(0.0, value / self.factors.1).1;
            stroke(area, &[(LEFT, y), (self.right, y)])?;
            write(area, &tick(value), (LEFT - 8, y), TEXT, HPos::Right, INK)?;
        }
        let mut end = i32::MIN;
        let ticks = if self.places.len() > 8 || self.places.is_empty() {
            self.x.ticks(5)
        } else {
            self.places.clone()
        };
        for value in ticks {
            let x = self.at(value / self.factors.0, 0.0).0;
            stroke(area, &[(x, TOP), (x, bottom + 4)])?;
            let words = tick(value);
            // Where two would touch, the second is left out.
            if x - width(&words) / 2 > end {
                write(area, &words, (x, bottom + 16), TEXT, HPos::Center, INK)?;
                end = x + width(&words) / 2 + 4;
            }
        }
        area.draw(&PathElement::new(
            vec![(LEFT, TOP), (LEFT, bottom), (self.right, bottom)],
            INK.stroke_width(1),
        ))?;
        let name = axis_name(&self.figure.value.name, self.units.1, self.y.logarithmic);
        write(area, &name, (8, 14), TEXT, HPos::Left, INK)?;
        let against = self.figure.against.as_ref().map_or("", |q| q.name.as_str());
        let name = axis_name(against, self.units.0, self.x.logarithmic);
        let half = width(&name) / 2;
        let middle = ((LEFT + self.right) / 2).max(half + 4);
        write(area, &name, (middle, bottom + 38), TEXT, HPos::Center, INK)
    }

    /// The places of a line's points; across the whole picture for what does not depend on the axis.
    fn path(&self, series: &Series, value: impl Fn(&Point) -> f64) -> Vec<(i32, i32)> {
        match series.points.as_slice() {
            [Point { x: None, .. }] => {
                let y = self.at(0.0, value(&series.points[0])).1;
                vec![(LEFT, y), (self.right, y)]
            }
            points => points.iter().filter_map(|p| Some(self.at(p.x?, value(p)))).collect(),
        }
    }

    /// A band behind a curve over time.
    fn band(&self, area: &Area<'_>, series: &Series) -> Result<(), DrawError> {
        if !self.places.is_empty() || series.points.len() < 2 {
            return Ok(());
        }
        let mut outline = self.path(series, |p| p.spread.low);
        outline.extend(self.path(series, |p| p.spread.high).into_iter().rev());
        Ok(area.draw(&Polygon::new(outline, Look::new(series.style).colour().mix(BAND).filled()))?)
    }

    fn line(&self, area: &Area<'_>, series: &Series) -> Result<(), DrawError> {
        let look = Look::new(series.style);
        let path = self.path(series, |p| p.spread.value);
        look.line(area, path.clone())?;
        if !self.places.is_empty() && path.len() == series.points.len() {
            let (low, high) = (self.path(series, |p| p.spread.low), self.path(series, |p| p.spread.high));
            for ((x, low), (_, high)) in low.into_iter().zip(high).filter(|(low, high)| low != high) {
                let bar =
                    [[(x, low), (x, high)], [(x - 4, low), (x + 4, low)], [(x - 4, high), (x + 4, high)]];
                for line in bar {
                    area.draw(&PathElement::new(line.to_vec(), look.colour().stroke_width(1)))?;
                }
            }
        }
        let step = path.len().div_ceil(MARKS).max(1);
        // From the end, so that the last point has one.
        path.into_iter().rev().step_by(step).try_for_each(|at| look.mark(area, at))
    }

    /// Names beside the ends of lines, moved apart where these are close.
    fn names(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut ends: Vec<((i32, i32), &Series)> = Vec::new();
        for line in self.lines {
            ends.extend(self.path(line, |p| p.spread.value).last().map(|end| (*end, *line)));
        }
        ends.sort_by_key(|((_, y), _)| *y);
        let places = apart(&ends.iter().map(|((_, y), _)| *y).collect::<Vec<_>>(), TOP, TOP + HIGH);
        for ((end, line), y) in ends.into_iter().zip(places) {
            let look = Look::new(line.style);
            // Beside its line's last point, wherever that is: a line across the picture would read as data.
            let leader = vec![(end.0 + 7, end.1), (end.0 + 14, y)];
            area.draw(&PathElement::new(leader, look.colour().mix(0.45).stroke_width(1)))?;
            write(area, &short(&line.label), (end.0 + 18, y), TEXT, HPos::Left, look.colour())?;
        }
        Ok(())
    }
}

fn axis_name(name: &str, unit: &str, logarithmic: bool) -> String {
    let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
    format!("{name}{unit}{}", if logarithmic { " (logarithmic)" } else { "" })
}

/// Sorted places, moved no more than is needed for a line's height between two of them, within the bounds.
fn apart(places: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let mut moved = places.to_vec();
    for i in 1..moved.len() {
        moved[i] = moved[i].max(moved[i - 1] + LINE);
    }
    let mut limit = bottom;
    for place in moved.iter_mut().rev() {
        *place = (*place).min(limit).max(top);
        limit = *place - LINE;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_touch() {
        for places in [vec![], vec![40], vec![40, 40, 40, 41], vec![270, 280, 284, 284], vec![100; 8]] {
            let moved = apart(&places, TOP, TOP + HIGH);
            assert!(moved.windows(2).all(|two| two[1] - two[0] >= LINE), "{moved:?}");
            assert!(moved.iter().all(|y| (TOP..=TOP + HIGH).contains(y)), "{moved:?}");
        }
        assert_eq!(apart(&[50, 200], TOP, TOP + HIGH), [50, 200]);
    }
}
