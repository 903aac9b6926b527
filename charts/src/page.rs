//! A page: what it is drawn on, its heading and its legend.

use plotters::coord::Shift;
use plotters::element::Text;
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{TextStyle, WHITE};

use crate::arrows::{Head, Shaft};
use crate::look::{Element, Fill, Look, Marker};

/// Words and outlines.
pub(crate) const INK: RGBColor = RGBColor(30, 30, 30);
/// Lines that stand back.
pub(crate) const GREY: RGBColor = RGBColor(214, 214, 214);
/// The size of words, as plotters counts; about 13 pixels in SVG.
const TEXT: i32 = 16;

/// The size of a heading, and of the distance of two lines of words, in pixels.
const HEADING: i32 = 24;
const LINE: i32 = 22;
/// What lies around a page's words.
const MARGIN: i32 = 16;
/// How wide a sample in a legend is.
const SAMPLE: i32 = 30;

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

/// What a legend shows beside its words.
#[derive(Clone, Copy)]
pub enum Key {
    /// A line with a marker on it.
    Line(Look),
    /// A bar.
    Fill(Fill),
    /// A marker.
    Mark(Marker),
    /// An arrow.
    Arrow(Head),
}

/// A picture with what stands above its panels.
#[derive(Default)]
pub struct Page {
    /// In pixels.
    pub width: i32,
    /// In large letters; empty for none.
    pub heading: String,
    /// Below the heading, a line each.
    pub notes: Vec<String>,
    /// One for all panels.
    pub legend: Vec<(Key, String)>,
}

impl Page {
    /// The page as SVG text, with a body of this height in pixels that `paint` draws.
    pub fn svg(
        &self,
        height: i32,
        paint: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
    ) -> Result<String, DrawError> {
        let heading = if self.heading.is_empty() { 0 } else { HEADING + MARGIN };
        let notes = heading + self.notes.len() as i32 * LINE;
        let (places, legend) = self.places(notes + MARGIN);
        let head = if places.is_empty() { notes } else { legend };
        let mut text = String::new();
        {
            let size = (self.width as u32, (head + height) as u32);
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            area.fill(&WHITE)?;
            if heading > 0 {
                let style = sized(HEADING, HPos::Left);
                area.draw(&Text::new(self.heading.clone(), (MARGIN, heading - LINE / 2), style))?;
            }
            for (note, y) in self.notes.iter().zip((heading + LINE / 2..).step_by(LINE as usize)) {
                write(&area, note, (MARGIN, y), HPos::Left)?;
            }
            for ((key, words), at) in self.legend.iter().zip(places) {
                key.draw(&area, at)?;
                write(&area, words, (at.0 + SAMPLE + 8, at.1), HPos::Left)?;
            }
            let (_, body) = area.split_vertically(head);
            paint(&body)?;
            area.present()?;
        }
        Ok(text)
    }

    /// Where the entries of the legend stand, from a place down, and where it ends.
    fn places(&self, top: i32) -> (Vec<(i32, i32)>, i32) {
        let (mut x, mut y) = (MARGIN, top);
        let mut places = Vec::new();
        for (_, words) in &self.legend {
            let wide = SAMPLE + width(words) + 30;
            if x > MARGIN && x + wide > self.width {
                (x, y) = (MARGIN, y + LINE);
            }
            places.push((x, y));
            x += wide;
        }
        (places, y + LINE)
    }
}

impl Key {
    fn draw(self, area: &Area<'_>, (x, y): (i32, i32)) -> Result<(), DrawError> {
        let middle = (x + SAMPLE / 2, y);
        match self {
            Key::Line(look) => {
                look.path(area, vec![(x, y), (x + SAMPLE, y)])?;
                Ok(area.draw(&Element::mark(middle, look.marker, look.colour))?)
            }
            Key::Fill(fill) => Ok(area.draw(&Element::bar([(x, y - 7), (x + SAMPLE, y + 7)], fill, 0))?),
            Key::Mark(marker) => Ok(area.draw(&Element::mark(middle, marker, INK))?),
            Key::Arrow(head) => {
                let shaft = Shaft { head, width: 2, is_pale: false };
                Ok(area.draw(&Element::arrow([(x, y), (x + SAMPLE, y)], shaft))?)
            }
        }
    }
}

/// How words are written: in the middle of their height, on a side of their point.
pub(crate) fn font(side: HPos) -> TextStyle<'static> {
    sized(TEXT, side)
}

fn sized(size: i32, side: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK).pos(Pos::new(side, VPos::Center))
}

/// Writes words beside a point.
pub(crate) fn write(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos) -> Result<(), DrawError> {
    Ok(area.draw(&Text::new(words.to_owned(), at, font(side)))?)
}

/// About how wide words are in pixels, rather more than less.
pub fn width(words: &str) -> i32 {
    words.chars().map(|c| if c.is_uppercase() || "mwMW%–".contains(c) { 10 } else { 7 }).sum()
}
