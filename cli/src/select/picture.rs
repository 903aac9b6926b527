//! The report as a picture: for each selector a bar for its cost, one for its count, and one for what it captures.

use plotters::element::{PathElement, Rectangle};
use plotters::prelude::{IntoDrawingArea, RGBColor, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, WHITE};

use super::Report;
use super::judge::Row;
use gleaner_testbed::drawing::{Area, DrawError, GREY, INK, write};
use gleaner_testbed::quantity::grouped;

/// Where the bars begin, how long the longest of a panel is, and what lies around them, in pixels.
const LEFT: i32 = 190;
const LONGEST: i32 = 190;
const GAP: i32 = 90;
const TOP: i32 = 132;
const ROW: i32 = 30;
const BAR: i32 = 16;

/// One measure of all selectors.
struct Panel {
    title: &'static str,
    colour: RGBColor,
    value: fn(&Row) -> f64,
    /// Where a line says what would be right.
    right: Option<f64>,
    /// The value of the longest bar, if it is not the largest there is.
    full: Option<f64>,
    unit: &'static str,
}

const PANELS: [Panel; 4] = [
    Panel {
        title: "cost, reads of the gradient",
        colour: RGBColor(22, 56, 92),
        value: |row| row.times_read,
        right: Some(1.0),
        full: None,
        unit: "×",
    },
    Panel {
        title: "entries, multiples of k",
        colour: RGBColor(222, 129, 42),
        value: |row| row.times_k,
        right: Some(1.0),
        full: None,
        unit: "×",
    },
    Panel {
        title: "share of the L2 mass",
        colour: RGBColor(90, 140, 90),
        value: |row| row.mass,
        right: None,
        full: Some(1.0),
        unit: "",
    },
    Panel {
        title: "build-up, union / Pk",
        colour: RGBColor(140, 110, 160),
        value: |row| row.build_up,
        right: None,
        full: Some(1.0),
        unit: "",
    },
];

/// The picture as SVG text.
///
/// # Errors
/// What the plotting library refuses.
pub fn svg(report: &Report) -> Result<String, DrawError> {
    let rows = &report.selectors;
    let size =
        ((LEFT + PANELS.len() as i32 * (LONGEST + GAP)) as u32, (TOP + rows.len() as i32 * ROW + 24) as u32);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let (n, k) = (grouped(report.entries as u64), grouped(report.k as u64));
        let s = if report.workers == 1 { "" } else { "s" };
        let heading = format!("Selectors on {} gradient{s}, n = {n}, k = {k}", report.workers);
        let below = format!(
            "Medians of interleaved runs on the slowest worker; a read takes {:.2} ms. A line is at 1.",
            1e3 * report.read_seconds
        );
        write(&area, &heading, (24, 24), 22, HPos::Left, INK)?;
        write(&area, &below, (24, 54), 15, HPos::Left, INK)?;
        for (row, y) in rows.iter().zip((TOP + ROW / 2..).step_by(ROW as usize)) {
            write(&area, &row.selector, (LEFT - 12, y), 15, HPos::Right, INK)?;
        }
        for (panel, left) in PANELS.iter().zip((LEFT..).step_by((LONGEST + GAP) as usize)) {
            panel.draw(&area, left, rows)?;
        }
        area.present()?;
    }
    Ok(text)
}

impl Panel {
    fn draw(&self, area: &Area<'_>, left: i32, rows: &[Row]) -> Result<(), DrawError> {
        let largest = rows.iter().map(self.value).fold(self.right.unwrap_or(0.0), f64::max);
        let full = self.full.unwrap_or(largest).max(largest).max(f64::MIN_POSITIVE);
        let x = |value: f64| left + (value / full * f64::from(LONGEST)).round() as i32;
        write(area, self.title, (left, TOP - 24), 15, HPos::Left, INK)?;
        let bottom = TOP + rows.len() as i32 * ROW;
        area.draw(&PathElement::new(vec![(left, TOP - 6), (left, bottom)], INK.stroke_width(1)))?;
        if let Some(right) = self.right {
            let line = vec![(x(right), TOP - 6), (x(right), bottom)];
            area.draw(&PathElement::new(line, GREY.stroke_width(2)))?;
        }
        for (row, y) in rows.iter().zip((TOP + ROW / 2..).step_by(ROW as usize)) {
            let value = (self.value)(row);
            let bar = [(left, y - BAR / 2), (x(value), y + BAR / 2)];
            area.draw(&Rectangle::new(bar, self.colour.filled()))?;
            let digits = if value < 10.0 { 2 } else { 0 };
            let label = format!("{value:.digits$}{}", self.unit);
            write(area, &label, (x(value) + 6, y), 13, HPos::Left, INK)?;
        }
        Ok(())
    }
}
