//! Lines on two logarithmic axes, distinguished by their dashes, so that they differ without colours.

use plotters::element::{DashedPathElement, PathElement};
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, WHITE};

use gleaner_charts::{Area, DrawError, GREY, INK, write};

const LEFT: i32 = 90;
const WIDTH: i32 = 640;
const RIGHT: i32 = 230;
const TOP: i32 = 84;
const HEIGHT: i32 = 460;
/// Between two labels at the ends of lines.
const LABEL: i32 = 17;

/// Lengths of dashes and of the gaps between them, in pixels: no two lines look alike without colours.
const DASHES: [(i32, i32); 6] = [(1, 0), (12, 5), (3, 4), (22, 6), (7, 12), (2, 9)];

/// A logarithmic axis with a tick at each power of its base.
pub struct Axis {
    /// The base of the powers.
    pub base: f64,
    /// The least and the greatest power that is shown.
    pub powers: (f64, f64),
    /// What is written at a tick.
    pub label: fn(f64) -> String,
}

impl Axis {
    fn share(&self, value: f64) -> f64 {
        let (from, to) = self.powers;
        (value.max(1e-12).log(self.base) - from) / (to - from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.powers.0.ceil() as i32..=self.powers.1.floor() as i32).map(|power| self.base.powi(power))
    }
}

/// A line by its name.
pub type Line = (String, Vec<(f64, f64)>);

/// What is drawn.
pub struct Chart<'a> {
    /// Above the chart.
    pub heading: &'a str,
    /// Below the heading, smaller.
    pub subtitle: &'a str,
    /// Below the axis.
    pub x_title: &'a str,
    pub x: Axis,
    pub y: Axis,
}

impl Chart<'_> {
    /// The lines as a picture.
    ///
    /// # Errors
    /// What the plotting library refuses.
    pub fn svg(&self, lines: &[Line]) -> Result<String, DrawError> {
        let mut text = String::new();
        {
            let size = (LEFT as u32 + WIDTH as u32 + RIGHT as u32, (TOP + HEIGHT + 70) as u32);
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            area.fill(&WHITE)?;
            write(&area, self.heading, (24, 24), 22, HPos::Left, INK)?;
            write(&area, self.subtitle, (24, 50), 15, HPos::Left, INK)?;
            self.axes(&area)?;
            self.lines(&area, lines)?;
            area.present()?;
        }
        Ok(text)
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let x = LEFT + (self.x.share(x) * f64::from(WIDTH)).round() as i32;
        (x, TOP + ((1.0 - self.y.share(y)) * f64::from(HEIGHT)).round() as i32)
    }

    fn axes(&self, area: &Area<'_>) -> Result<(), DrawError> {
        for tick in self.y.ticks() {
            let (_, y) = self.at((1.0, tick));
            area.draw(&PathElement::new(vec![(LEFT, y), (LEFT + WIDTH, y)], GREY.stroke_width(1)))?;
            write(area, &(self.y.label)(tick), (LEFT - 10, y), 14, HPos::Right, INK)?;
        }
        for tick in self.x.ticks() {
            let (x, _) = self.at((tick, 1.0));
            area.draw(&PathElement::new(vec![(x, TOP), (x, TOP + HEIGHT + 6)], GREY.stroke_width(1)))?;
            write(area, &(self.x.label)(tick), (x, TOP + HEIGHT + 20), 14, HPos::Center, INK)?;
        }
        write(area, self.x_title, (LEFT + WIDTH / 2, TOP + HEIGHT + 46), 14, HPos::Center, INK)
    }

    fn lines(&self, area: &Area<'_>, lines: &[Line]) -> Result<(), DrawError> {
        let mut ends: Vec<((i32, i32), &str)> = Vec::new();
        for (i, (name, points)) in lines.iter().enumerate() {
            let path: Vec<(i32, i32)> = points.iter().map(|point| self.at(*point)).collect();
            let (dash, gap) = DASHES[i % DASHES.len()];
            // With each turn through the dashes, lines become thicker.
            let style = INK.stroke_width(1 + (i / DASHES.len()) as u32);
            if gap == 0 {
                area.draw(&PathElement::new(path.clone(), style))?;
            } else {
                area.draw(&DashedPathElement::new(path.clone(), dash, gap, style))?;
            }
            ends.extend(path.last().map(|end| (*end, name.as_str())));
        }
        ends.sort_unstable_by_key(|((_, y), name)| (*y, *name));
        // Labels make room for each other, and a thin line leads from each to its line's last point.
        let mut below = TOP - LABEL;
        for ((x, y), name) in ends {
            let at = y.max(below + LABEL);
            below = at;
            area.draw(&PathElement::new(vec![(x, y), (LEFT + WIDTH + 14, at)], GREY.stroke_width(1)))?;
            write(area, name, (LEFT + WIDTH + 18, at), 14, HPos::Left, INK)?;
        }
        Ok(())
    }
}
