//! Arrows between places of two axes.

use plotters::prelude::{DrawingBackend, RGBColor};
use plotters::style::Color;
use plotters_backend::{BackendCoord, DrawingErrorKind};

use crate::axis::Axis;
use crate::lines::chart;
use crate::look::{Element, Marker};
use crate::page::{Area, DrawError, INK};

/// How strong pale arrows are.
const PALE: f64 = 0.3;

/// The distance of a tip from its place, and how much longer and wider than its line the smallest head is, in pixels.
const GAP: f64 = 2.0;
const LENGTH: f64 = 7.0;
const HALF: f64 = 2.5;

/// A panel of arrows.
pub struct Arrows {
    /// From left to right.
    pub x: Axis,
    /// Its name stands above the panel.
    pub y: Axis,
    /// In the order in which they are drawn.
    pub arrows: Vec<Arrow>,
    /// What stands at which places, over the arrows.
    pub marks: Vec<(Marker, (f64, f64))>,
}

/// An arrow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrow {
    /// Where it begins.
    pub from: (f64, f64),
    /// Where its tip is.
    pub to: (f64, f64),
    /// How it looks.
    pub shaft: Shaft,
}

/// How an arrow looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaft {
    /// Its head.
    pub head: Head,
    /// The width of its line, in pixels.
    pub width: u32,
    /// Whether it stands back behind others.
    pub is_pale: bool,
}

/// The head of an arrow. The colours are dark and light, so that the lines differ without colours as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Full, of a dark arrow.
    Full,
    /// Hollow, of a light one.
    Hollow,
}

impl Arrows {
    /// Draws the panel.
    pub fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let mut chart = chart(area, &self.x, &self.y)?;
        chart.draw_series(
            self.arrows.iter().map(|arrow| Element::arrow([arrow.from, arrow.to], arrow.shaft)),
        )?;
        chart.draw_series(self.marks.iter().map(|(marker, at)| Element::mark(*at, *marker, INK)))?;
        Ok(())
    }
}

impl Shaft {
    /// Draws an arrow, the tip of whose head is a little before its end.
    pub(crate) fn draw<DB: DrawingBackend>(
        self,
        backend: &mut DB,
        from: BackendCoord,
        to: BackendCoord,
    ) -> Result<(), DrawingErrorKind<DB::ErrorType>> {
        let colour = match self.head {
            Head::Full => RGBColor(22, 56, 92),
            Head::Hollow => RGBColor(222, 129, 42),
        };
        let colour = colour.mix(if self.is_pale { PALE } else { 1.0 });
        let (x, y) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let length = x.hypot(y).max(1.0);
        let (x, y) = (x / length, y / length);
        let (back, half) = (GAP + LENGTH + f64::from(self.width), HALF + 0.6 * f64::from(self.width));
        // So many pixels before the end, and beside the line.
        let at = |before: f64, beside: f64| {
            let (right, down) = (before * x + beside * y, before * y - beside * x);
            ((f64::from(to.0) - right).round() as i32, (f64::from(to.1) - down).round() as i32)
        };
        backend.draw_path([at(length - GAP, 0.0), at(back, 0.0)], &colour.stroke_width(self.width))?;
        let [tip, left, right] = [at(GAP, 0.0), at(back, half), at(back, -half)];
        match self.head {
            Head::Full => backend.fill_polygon([tip, left, right], &colour.filled()),
            Head::Hollow => backend.draw_path([tip, left, right, tip], &colour.stroke_width(1)),
        }
    }
}
