//! Markers, dashes and colours that tell methods apart, each of them without the others.

use plotters::element::{Circle, DashedPathElement, PathElement, Polygon};
use plotters::prelude::RGBColor;
use plotters::style::{Color, ShapeStyle, WHITE};

use gleaner_charts::{Area, DrawError};

/// Colours of lines, of different lightness. The page's style names each of them once more, for dark screens.
pub const COLOURS: [RGBColor; 7] = [
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

/// Kinds of markers.
const MARKERS: usize = 6;

/// How a method looks. Markers and dashes together differ for 24 methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Look {
    marker: usize,
    dash: usize,
    colour: usize,
}

impl Look {
    /// The look of the method with this number.
    pub fn new(style: usize) -> Self {
        Self {
            marker: style % MARKERS,
            dash: (style + style / MARKERS) % DASHES.len(),
            colour: style % COLOURS.len(),
        }
    }

    /// Its colour.
    pub fn colour(self) -> RGBColor {
        COLOURS[self.colour]
    }

    /// A line with its dashes.
    pub fn line(self, area: &Area<'_>, points: Vec<(i32, i32)>) -> Result<(), DrawError> {
        let stroke = self.colour().stroke_width(2);
        match DASHES[self.dash] {
            (0, _) => area.draw(&PathElement::new(points, stroke))?,
            (dash, gap) => area.draw(&DashedPathElement::new(points, dash, gap, stroke))?,
        }
        Ok(())
    }

    /// Its marker.
    pub fn mark(self, area: &Area<'_>, (x, y): (i32, i32)) -> Result<(), DrawError> {
        let full = ShapeStyle::from(&self.colour()).filled();
        let stroke = self.colour().stroke_width(2);
        match self.marker {
            0 => area.draw(&Circle::new((x, y), 4, full))?,
            1 => area.draw(&Polygon::new(square(x, y, 4), full))?,
            2 => area.draw(&Polygon::new(vec![(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], full))?,
            3 => return diamond(area, (x, y), self.colour()),
            4 => {
                area.draw(&Circle::new((x, y), 4, WHITE.filled()))?;
                area.draw(&Circle::new((x, y), 4, stroke))?;
            }
            _ => {
                area.draw(&PathElement::new(vec![(x - 4, y - 4), (x + 4, y + 4)], stroke))?;
                area.draw(&PathElement::new(vec![(x - 4, y + 4), (x + 4, y - 4)], stroke))?;
            }
        }
        Ok(())
    }
}

/// A hollow diamond.
pub fn diamond(area: &Area<'_>, (x, y): (i32, i32), colour: RGBColor) -> Result<(), DrawError> {
    let corners = vec![(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y), (x, y - 6)];
    area.draw(&Polygon::new(corners.clone(), WHITE.filled()))?;
    Ok(area.draw(&PathElement::new(corners, colour.stroke_width(2)))?)
}

fn square(x: i32, y: i32, half: i32) -> Vec<(i32, i32)> {
    vec![(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn methods_differ_without_colours() {
        let looks: BTreeSet<_> = (0..24).map(Look::new).map(|l| (l.marker, l.dash)).collect();
        assert_eq!(looks.len(), 24);
    }
}
