//! Dashes, markers and hatchings, which distinguish things without colours, and colours.

use std::slice;

use plotters::element::{DashedPathElement, Drawable, PathElement, PointCollection};
use plotters::prelude::{DrawingBackend, RGBColor};
use plotters::style::{Color, ShapeStyle, WHITE};
use plotters_backend::{BackendCoord, DrawingErrorKind};

use crate::arrows::Shaft;
use crate::page::{Area, DrawError, INK};

/// Colours of lines, of different lightness. The style of the report's page names each of them once more, for dark screens.
const COLOURS: [RGBColor; 7] = [
    RGBColor(22, 56, 92),
    RGBColor(194, 96, 26),
    RGBColor(0, 121, 107),
    RGBColor(123, 63, 160),
    RGBColor(179, 38, 58),
    RGBColor(107, 122, 0),
    RGBColor(47, 127, 193),
];

/// Lengths of dashes and of the gaps behind them, in pixels; the first is a whole line.
const DASHES: [(i32, i32); 4] = [(0, 0), (9, 4), (3, 3), (16, 5)];

const MARKERS: [Marker; 6] =
    [Marker::Dot, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Circle, Marker::Cross];

/// What stands at a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// A full circle.
    Dot,
    /// A full square.
    Square,
    /// A full triangle.
    Triangle,
    /// A hollow diamond.
    Diamond,
    /// A hollow circle.
    Circle,
    /// Two lines.
    Cross,
}

/// How a line looks. Markers and dashes together differ for 24 lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// At some of its points.
    pub marker: Marker,
    /// Of the line and its markers.
    pub colour: RGBColor,
    pub(crate) dash: (i32, i32),
}

impl Look {
    /// The look of the line with this number.
    pub fn new(number: usize) -> Self {
        Self {
            marker: MARKERS[number % MARKERS.len()],
            colour: COLOURS[number % COLOURS.len()],
            dash: DASHES[(number + number / MARKERS.len()) % DASHES.len()],
        }
    }

    /// Draws a line.
    pub(crate) fn path(self, area: &Area<'_>, points: Vec<(i32, i32)>) -> Result<(), DrawError> {
        let stroke = self.colour.stroke_width(2);
        match self.dash {
            (0, _) => area.draw(&PathElement::new(points, stroke))?,
            (dash, gap) => area.draw(&DashedPathElement::new(points, dash, gap, stroke))?,
        }
        Ok(())
    }
}

/// A marker at a point of a chart or of an area, a bar between two corners, or an arrow between two points.
pub(crate) struct Element<C> {
    points: Vec<C>,
    shape: Shape,
}

enum Shape {
    Mark(Marker, RGBColor),
    /// It keeps so many pixels off the upper and the lower end.
    Bar(Fill, i32),
    Arrow(Shaft),
}

impl<C> Element<C> {
    pub fn mark(at: C, marker: Marker, colour: RGBColor) -> Self {
        Self { points: vec![at], shape: Shape::Mark(marker, colour) }
    }

    pub fn bar(corners: [C; 2], fill: Fill, inset: i32) -> Self {
        Self { points: corners.into(), shape: Shape::Bar(fill, inset) }
    }

    pub fn arrow(ends: [C; 2], shaft: Shaft) -> Self {
        Self { points: ends.into(), shape: Shape::Arrow(shaft) }
    }
}

impl<'a, C: 'a> PointCollection<'a, C> for &'a Element<C> {
    type Point = &'a C;
    type IntoIter = slice::Iter<'a, C>;

    fn point_iter(self) -> Self::IntoIter {
        self.points.iter()
    }
}

impl<C, DB: DrawingBackend> Drawable<DB> for Element<C> {
    fn draw<I: Iterator<Item = BackendCoord>>(
        &self,
        points: I,
        backend: &mut DB,
        _: (u32, u32),
    ) -> Result<(), DrawingErrorKind<DB::ErrorType>> {
        let points: Vec<BackendCoord> = points.collect();
        match (&self.shape, points.as_slice()) {
            (Shape::Mark(marker, colour), &[at]) => marker.draw(backend, at, *colour),
            (Shape::Bar(fill, inset), &[(left, top), (right, bottom)]) => {
                fill.draw(backend, (left, top + inset), (right.max(left + 1), bottom - inset))
            }
            (Shape::Arrow(shaft), &[from, to]) => shaft.draw(backend, from, to),
            _ => Ok(()),
        }
    }
}

impl Marker {
    fn draw<DB: DrawingBackend>(
        self,
        backend: &mut DB,
        (x, y): BackendCoord,
        colour: RGBColor,
    ) -> Result<(), DrawingErrorKind<DB::ErrorType>> {
        let full = ShapeStyle::from(&colour).filled();
        let stroke = colour.stroke_width(2);
        match self {
            Marker::Dot => backend.draw_circle((x, y), 4, &full, true),
            Marker::Square => backend.draw_rect((x - 4, y - 4), (x + 4, y + 4), &full, true),
            Marker::Triangle => backend.fill_polygon([(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], &full),
            Marker::Diamond => {
                let corners = [(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y), (x, y - 6)];
                backend.fill_polygon(corners, &WHITE)?;
                backend.draw_path(corners, &stroke)
            }
            Marker::Circle => {
                backend.draw_circle((x, y), 4, &WHITE, true)?;
                backend.draw_circle((x, y), 4, &stroke, false)
            }
            Marker::Cross => {
                backend.draw_line((x - 4, y - 4), (x + 4, y + 4), &stroke)?;
                backend.draw_line((x - 4, y + 4), (x + 4, y - 4), &stroke)
            }
        }
    }
}

/// Lines in a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hatch {
    /// None.
    Plain,
    /// Rising to the right.
    Rising,
    /// From top to bottom.
    Upright,
    /// From left to right.
    Level,
    /// Falling to the right.
    Falling,
}

/// How a bar looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    colour: RGBColor,
    hatch: Hatch,
}

impl Fill {
    /// What is behind a mark.
    pub const BEHIND: Fill = Fill::new((168, 190, 212), Hatch::Plain);
    /// The forward pass.
    pub const FORWARD: Fill = Fill::new((150, 150, 150), Hatch::Plain);
    /// The backward pass, and all computing where it is not parted.
    pub const BACKWARD: Fill = Fill::new((168, 190, 212), Hatch::Level);
    /// Choosing entries.
    pub const SELECT: Fill = Fill::new((22, 56, 92), Hatch::Plain);
    /// Messages, and waiting for them.
    pub const EXCHANGE: Fill = Fill::new((222, 129, 42), Hatch::Rising);
    /// Taking in what was received.
    pub const MERGE: Fill = Fill::new((244, 226, 190), Hatch::Upright);
    /// Applying the update.
    pub const APPLY: Fill = Fill::new((244, 226, 190), Hatch::Falling);
    /// Nothing of these.
    pub const REST: Fill = Fill::new((255, 255, 255), Hatch::Plain);

    const fn new((red, green, blue): (u8, u8, u8), hatch: Hatch) -> Self {
        Self { colour: RGBColor(red, green, blue), hatch }
    }

    /// A bar with lines and an outline.
    fn draw<DB: DrawingBackend>(
        self,
        backend: &mut DB,
        from: BackendCoord,
        to: BackendCoord,
    ) -> Result<(), DrawingErrorKind<DB::ErrorType>> {
        backend.draw_rect(from, to, &self.colour, true)?;
        for (from, to) in self.hatch.lines(from, to) {
            backend.draw_line(from, to, &INK)?;
        }
        // A thin one would be all outline.
        if to.0 - from.0 > 3 { backend.draw_rect(from, to, &INK, false) } else { Ok(()) }
    }
}

impl Hatch {
    /// Lines within a rectangle.
    fn lines(
        self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
    ) -> Vec<(BackendCoord, BackendCoord)> {
        let high = bottom - top;
        let (from, slant) = match self {
            Hatch::Plain => return Vec::new(),
            Hatch::Level => {
                return (top + 4..bottom).step_by(4).map(|y| ((left, y), (right, y))).collect();
            }
            Hatch::Upright => (left + 3, 0),
            Hatch::Rising | Hatch::Falling => (left + 3 - high, high),
        };
        // Cut where the rectangle begins and ends.
        let cut = |x: i32| {
            let (begin, end) = (x.max(left), (x + slant).min(right));
            let [a, b] = if slant > 0 { [begin - x, end - x] } else { [0, high] };
            let (a, b) = if self == Hatch::Falling { (top + a, top + b) } else { (bottom - a, bottom - b) };
            (begin <= end).then_some(((begin, a), (end, b)))
        };
        (from..right).step_by(7).filter_map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lines_differ_without_colours() {
        let looks: BTreeSet<_> =
            (0..24).map(Look::new).map(|look| (format!("{:?}", look.marker), look.dash)).collect();
        assert_eq!(looks.len(), 24);
    }

    #[test]
    fn bars_differ_without_colours() {
        let fills = [Fill::BACKWARD, Fill::EXCHANGE, Fill::MERGE, Fill::APPLY];
        let hatches: BTreeSet<_> = fills.iter().map(|fill| format!("{:?}", fill.hatch)).collect();
        assert_eq!(hatches.len(), fills.len());
        // Those without lines are dark, grey and white.
        let plain = [Fill::SELECT, Fill::FORWARD, Fill::REST].map(|fill| fill.colour.1);
        assert!(plain.is_sorted_by(|a, b| a + 90 < *b), "{plain:?}");
    }

    #[test]
    fn hatchings_stay_within_their_bars() {
        for hatch in [Hatch::Rising, Hatch::Upright, Hatch::Level, Hatch::Falling] {
            for (right, bottom) in [(11, 8), (40, 20), (10, 40)] {
                for ((a, b), (c, d)) in hatch.lines((9, 5), (right, bottom)) {
                    let inside = |x, y| (9..=right).contains(&x) && (5..=bottom).contains(&y);
                    assert!(inside(a, b) && inside(c, d), "{hatch:?}: {a} {b} {c} {d}");
                }
            }
        }
    }
}
