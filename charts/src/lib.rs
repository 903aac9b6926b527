//! What all pictures have in common: what they are drawn on, the colours of words and lines, and how words are written.

use plotters::coord::Shift;
use plotters::element::{PathElement, Text};
use plotters::prelude::{DrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Words and outlines.
pub const INK: RGBColor = RGBColor(30, 30, 30);
/// Lines that stand back.
pub const GREY: RGBColor = RGBColor(214, 214, 214);

/// What is drawn on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A drawing that the plotting library refuses.
#[derive(Debug, thiserror::Error)]
#[error("the picture cannot be drawn: {0}")]
pub struct DrawError(String);

impl<E: std::error::Error + Send + Sync> From<plotters::drawing::DrawingAreaErrorKind<E>> for DrawError {
    fn from(error: plotters::drawing::DrawingAreaErrorKind<E>) -> Self {
        DrawError(error.to_string())
    }
}

/// Writes words beside a point, in the middle of their height.
///
/// # Errors
/// What the plotting library refuses.
pub fn write(
    area: &Area<'_>,
    words: &str,
    at: (i32, i32),
    size: i32,
    side: HPos,
    colour: RGBColor,
) -> Result<(), DrawError> {
    let style = ("sans-serif", size).into_font().color(&colour).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(words.to_owned(), at, style))?)
}

/// An axis of time below rows: lines at whole steps of 1, 2 or 5 times a power of ten milliseconds, from a left edge on and so wide,
/// between a top and a bottom, all in pixels; the whole width is so many seconds.
///
/// # Errors
/// What the plotting library refuses.
pub fn milliseconds(
    area: &Area<'_>,
    (left, width): (i32, i32),
    (top, bottom): (i32, i32),
    seconds: f64,
) -> Result<(), DrawError> {
    let least = (seconds / 8.0).max(1e-12);
    let power = 10f64.powf(least.log10().floor());
    let tick = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|t| *t >= least).unwrap_or(least);
    for i in 0..=(seconds / tick).floor() as i32 {
        let at = f64::from(i) * tick;
        let x = left + (at / seconds.max(1e-12) * f64::from(width)).round() as i32;
        area.draw(&PathElement::new(vec![(x, top - 4), (x, bottom + 6)], GREY.stroke_width(1)))?;
        let decimals = (-(tick * 1e3).log10().floor()).max(0.0) as usize;
        write(area, &format!("{:.decimals$}", at * 1e3), (x, bottom + 18), 13, HPos::Center, INK)?;
    }
    write(area, "ms", (left + width / 2, bottom + 42), 14, HPos::Center, INK)
}
