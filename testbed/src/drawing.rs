//! What all pictures have in common: what they are drawn on, the colours of words and lines, and how words are written.

use plotters::coord::Shift;
use plotters::element::Text;
use plotters::prelude::{DrawingArea, IntoFont, RGBColor, SVGBackend};
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
