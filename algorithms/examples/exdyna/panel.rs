//! Panels of numbers over the steps of a training.

use gleaner_charts::{Axis, DrawError, Key, Line, Lines, Look, Page};

use crate::streams::{JUMPS, STEPS};

/// Steps of which a line shows the mean.
const MEAN: usize = 10;

const WIDTH: i32 = 780;
/// Of a panel.
const HIGH: i32 = 240;

/// Lines over the steps, with the jumps marked.
pub fn panel(y: Axis, lines: Vec<Line>) -> Lines {
    let marked = JUMPS.iter().map(|(at, _)| *at as f64).collect();
    Lines { x: Axis::level("step", 0.0, STEPS as f64), y, lines, marked }
}

/// A number of each step, as means over a few.
pub fn line(look: usize, numbers: impl Iterator<Item = f64>) -> Line {
    let numbers: Vec<f64> = numbers.collect();
    let points = numbers.chunks(MEAN).enumerate().map(|(i, some)| {
        let mean = some.iter().sum::<f64>() / some.len() as f64;
        ((i * MEAN) as f64 + MEAN as f64 / 2.0, mean)
    });
    Line::exact(look, points)
}

/// A picture of panels below each other, with one legend.
pub fn picture<'a>(panels: &[Lines], legend: impl IntoIterator<Item = &'a str>) -> Result<String, DrawError> {
    let legend = legend.into_iter().enumerate().map(|(i, name)| (Key::Line(Look::new(i)), name.to_owned()));
    let page = Page { width: WIDTH, legend: legend.collect(), ..Page::default() };
    page.svg(HIGH * panels.len() as i32, |area| {
        let areas = area.split_evenly((panels.len(), 1));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| panel.draw(area))
    })
}
