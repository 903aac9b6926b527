//! Lines over two axes.

use std::iter::once;

use gleaner_statistics::Spread;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::{DashedPathElement, ErrorBar, PathElement, Polygon};
use plotters::prelude::SVGBackend;
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, TRANSPARENT};

use crate::axis::Axis;
use crate::look::{Element, Look};
use crate::page::{Area, DrawError, GREY, INK, font, write};

/// So many markers stand on a line at most.
const MARKS: usize = 8;

/// How strong the bands behind lines are.
const BAND: f64 = 0.18;

/// A panel of lines.
pub struct Lines {
    /// From left to right.
    pub x: Axis,
    /// From bottom to top; its name stands above the panel.
    pub y: Axis,
    /// In the order in which they are drawn.
    pub lines: Vec<Line>,
    /// Places on the first axis that are marked by a line from bottom to top.
    pub marked: Vec<f64>,
}

/// A line.
pub struct Line {
    /// How it looks.
    pub look: Look,
    /// Its points from left to right.
    pub points: Vec<(f64, Spread)>,
    /// Whether spreads are a band behind it, and not a bar at each point.
    pub has_band: bool,
    /// Whether some of its points have markers.
    pub has_markers: bool,
}

impl Line {
    /// The line with this number through exact values.
    pub fn exact(number: usize, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| (x, Spread::exact(y))).collect();
        Self { look: Look::new(number), points, has_band: false, has_markers: true }
    }
}

/// What is drawn over two axes.
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;

/// Draws two axes, from left to right and from bottom to top, whose name stands above the panel.
pub(crate) fn chart<'a>(area: &Area<'a>, x: &Axis, y: &Axis) -> Result<Chart<'a>, DrawError> {
    write(area, &y.title(), (8, 14), HPos::Left)?;
    let below = if x.title().is_empty() { 26 } else { 50 };
    let mut chart = ChartBuilder::on(area)
        .margin_top(30)
        .margin_right(40)
        .y_label_area_size(66)
        .x_label_area_size(below)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .x_labels(8)
        .y_labels(6)
        .light_line_style(TRANSPARENT)
        .bold_line_style(GREY)
        .axis_style(INK)
        .label_style(font(HPos::Left))
        .x_desc(x.title())
        .draw()?;
    Ok(chart)
}

impl Lines {
    /// Draws the panel.
    pub fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut chart = chart(area, &self.x, &self.y)?;
        let (bottom, top) = self.y.ends();
        let upright = |at: &f64| PathElement::new(vec![(*at, bottom), (*at, top)], GREY.stroke_width(3));
        chart.draw_series(self.marked.iter().map(upright))?;
        for Line { look, points, .. } in self.lines.iter().filter(|line| line.has_band) {
            let back = points.iter().rev().map(|(x, y)| (*x, y.high));
            let outline: Vec<_> = points.iter().map(|(x, y)| (*x, y.low)).chain(back).collect();
            chart.draw_series(once(Polygon::new(outline, look.colour.mix(BAND).filled())))?;
        }
        for Line { look, points, has_band, has_markers } in &self.lines {
            let path: Vec<_> = points.iter().map(|(x, y)| (*x, y.value)).collect();
            let stroke = look.colour.stroke_width(2);
            match look.dash {
                (0, _) => chart.draw_series(once(PathElement::new(path.clone(), stroke)))?,
                (dash, gap) => {
                    chart.draw_series(once(DashedPathElement::new(path.clone(), dash, gap, stroke)))?
                }
            };
            let spreads = points.iter().filter(|(_, y)| !has_band && y.low < y.high);
            chart.draw_series(spreads.map(|(x, y)| {
                ErrorBar::new_vertical(*x, y.low, y.value, y.high, look.colour.stroke_width(1), 8)
            }))?;
            // From the end, so that the last point has one.
            let step = path.len().div_ceil(MARKS).max(1);
            let marked = path.into_iter().rev().step_by(step).filter(|_| *has_markers);
            chart.draw_series(marked.map(|at| Element::mark(at, look.marker, look.colour)))?;
        }
        Ok(())
    }
}
