//! A diagram of numbers over the steps of a training.

use std::error::Error;

use plotters::coord::Shift;
use plotters::element::{PathElement, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, WHITE};

use crate::streams::{JUMPS, STEPS};

/// Steps of which a line shows the mean.
const MEAN: usize = 10;

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub const LEFT: i32 = 84;
const WIDTH: i32 = 660;
const TOP: i32 = 84;
const HEIGHT: i32 = 150;
const GAP: i32 = 46;
pub const INK: RGBColor = RGBColor(30, 30, 30);
const GREY: RGBColor = RGBColor(214, 214, 214);

/// A diagram of one number over the steps.
pub struct Panel {
    pub name: &'static str,
    pub row: i32,
    /// The least and the greatest; logarithms where the axis is logarithmic.
    pub range: (f64, f64),
    /// Lines across, with their labels.
    pub marks: Vec<(f64, String)>,
}

impl Panel {
    fn top(&self) -> i32 {
        TOP + self.row * (HEIGHT + GAP)
    }

    fn x(step: f64) -> i32 {
        LEFT + (step / STEPS as f64 * f64::from(WIDTH)).round() as i32
    }

    fn y(&self, value: f64) -> i32 {
        let (least, greatest) = self.range;
        let share = (value.clamp(least, greatest) - least) / (greatest - least);
        self.top() + HEIGHT - (share * f64::from(HEIGHT)).round() as i32
    }

    pub fn axes(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        write(area, self.name, (LEFT, self.top() - 14), HPos::Left)?;
        for (value, label) in &self.marks {
            let y = self.y(*value);
            area.draw(&PathElement::new(vec![(LEFT, y), (LEFT + WIDTH, y)], GREY.stroke_width(1)))?;
            write(area, label, (LEFT - 8, y), HPos::Right)?;
        }
        for (at, _) in JUMPS {
            let x = Self::x(at as f64);
            let line = vec![(x, self.top()), (x, self.top() + HEIGHT)];
            area.draw(&PathElement::new(line, GREY.stroke_width(3)))?;
        }
        Ok(())
    }

    /// A number of each step, as means over a few.
    pub fn line(
        &self,
        area: &Area<'_>,
        numbers: impl Iterator<Item = f64>,
        style: (RGBColor, u32),
    ) -> Result<(), Box<dyn Error>> {
        let numbers: Vec<f64> = numbers.collect();
        let points = numbers.chunks(MEAN).enumerate().map(|(i, some)| {
            let mean = some.iter().sum::<f64>() / some.len() as f64;
            (Self::x((i * MEAN) as f64 + MEAN as f64 / 2.0), self.y(mean))
        });
        area.draw(&PathElement::new(points.collect::<Vec<_>>(), style.0.stroke_width(style.1)))?;
        Ok(())
    }
}

pub fn write(area: &Area<'_>, words: &str, at: (i32, i32), side: HPos) -> Result<(), Box<dyn Error>> {
    let style = ("sans-serif", 14).into_font().color(&INK).pos(Pos::new(side, VPos::Center));
    Ok(area.draw(&Text::new(words.to_owned(), at, style))?)
}

/// A picture of some panels, with a legend of names and colours; the lines are drawn by `lines`.
pub fn picture(
    panels: &[&Panel],
    legend: &[(&str, RGBColor)],
    lines: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    {
        let bottom = TOP + panels.len() as i32 * (HEIGHT + GAP);
        let area = SVGBackend::with_string(&mut text, ((LEFT + WIDTH + 30) as u32, (bottom + 10) as u32));
        let area = area.into_drawing_area();
        area.fill(&WHITE)?;
        let mut x = LEFT;
        for (name, colour) in legend {
            area.draw(&PathElement::new(vec![(x, 28), (x + 28, 28)], colour.stroke_width(3)))?;
            write(&area, name, (x + 36, 28), HPos::Left)?;
            x += 60 + 8 * name.len() as i32;
        }
        for panel in panels {
            panel.axes(&area)?;
        }
        lines(&area)?;
        let below = bottom - GAP + 18;
        for step in (0..=STEPS).step_by(500) {
            write(&area, &step.to_string(), (Panel::x(step as f64), below), HPos::Center)?;
        }
        write(&area, "step", (LEFT - 8, below), HPos::Right)?;
        area.present()?;
    }
    Ok(text)
}

/// Marks on a logarithmic axis.
pub fn logarithms(numbers: &[f64]) -> Vec<(f64, String)> {
    numbers.iter().map(|number| (number.log10(), number.to_string())).collect()
}
