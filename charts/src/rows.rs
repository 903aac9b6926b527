//! Rows beside one axis: bars, spans of time, and marks with their spreads.

use gleaner_statistics::Spread;
use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::element::{EmptyElement, ErrorBar, Text};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, TRANSPARENT};

use crate::axis::Axis;
use crate::look::{Element, Fill, Marker};
use crate::page::{Area, DrawError, GREY, INK, Key, Page, font, width, write};

/// What lies above the rows and below them, in pixels: the name of the axis, and the values on it.
const ABOVE: i32 = 30;
const BELOW: i32 = 28;

/// A panel of rows.
pub struct Rows {
    /// From left to right; its name stands above the panel.
    pub axis: Axis,
    /// From top to bottom.
    pub rows: Vec<Row>,
    /// The height of a row, in pixels.
    pub high: i32,
}

/// A row.
#[derive(Default)]
pub struct Row {
    /// Left of the axis.
    pub name: String,
    /// In the row, at its beginning: of one that has nothing else.
    pub heading: String,
    /// From where to where.
    pub bars: Vec<(f64, f64, Fill)>,
    /// Values; one whose spread is exact has no whisker.
    pub marks: Vec<(Marker, Spread)>,
    /// A whisker alone.
    pub spread: Option<Spread>,
    /// Behind the row.
    pub value: String,
}

impl Rows {
    /// How high the panel is, in pixels.
    pub fn height(&self) -> i32 {
        ABOVE + self.rows.len() as i32 * self.high + BELOW
    }

    /// The panel on a page of its own, with the words of its fills.
    pub fn svg(&self, width: i32, heading: String, legend: &[(Fill, &str)]) -> Result<String, DrawError> {
        let legend = legend.iter().map(|(fill, words)| (Key::Fill(*fill), (*words).to_owned())).collect();
        let page = Page { width, heading, legend, ..Page::default() };
        page.svg(self.height(), |area| self.draw(area))
    }

    /// Draws the panel.
    pub fn draw(&self, area: &Area<'_>) -> Result<(), DrawError> {
        let widest = |of: fn(&Row) -> &String| self.rows.iter().map(|row| width(of(row))).max().unwrap_or(0);
        let (names, values) = (widest(|row| &row.name), widest(|row| &row.value));
        let left = if names > 0 { names + 20 } else { 8 };
        write(area, &self.axis.title(), (left, ABOVE / 2), HPos::Left)?;
        let rows = Axis::of_rows(self.rows.len());
        let mut chart = ChartBuilder::on(area)
            .margin_top(ABOVE)
            .margin_right(values + 20)
            .y_label_area_size(left)
            .x_label_area_size(BELOW)
            .build_cartesian_2d(self.axis.clone(), rows)?;
        let name = |row: &f64| self.rows.get(*row as usize).map_or_else(String::new, |row| row.name.clone());
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_labels(8)
            .y_label_formatter(&name)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GREY)
            .axis_style(INK)
            .set_tick_mark_size(LabelAreaPosition::Left, 0)
            .label_style(font(HPos::Left))
            .draw()?;
        let inset = (self.high / 6).max(1);
        let (from, to) = self.axis.ends();
        for (number, row) in self.rows.iter().enumerate() {
            let (top, middle) = (number as f64, number as f64 + 0.5);
            let bar = |&(from, to, fill): &(f64, f64, Fill)| {
                Element::bar([(from, top), (to, top + 1.0)], fill, inset)
            };
            chart.draw_series(row.bars.iter().filter(|(from, to, _)| to > from).map(bar))?;
            let spreads = row.marks.iter().map(|(_, spread)| spread).chain(&row.spread);
            chart.draw_series(spreads.filter(|s| s.low < s.high).map(|s| {
                ErrorBar::new_horizontal(middle, s.low, s.value, s.high, INK.stroke_width(2), 10)
            }))?;
            let mark =
                |(marker, spread): &(Marker, Spread)| Element::mark((spread.value, middle), *marker, INK);
            chart.draw_series(row.marks.iter().rev().map(mark))?;
            let words = [(from, &row.heading), (to, &row.value)];
            chart.draw_series(words.into_iter().filter(|(_, words)| !words.is_empty()).map(
                |(at, words)| {
                    EmptyElement::at((at, middle)) + Text::new(words.clone(), (8, 0), font(HPos::Left))
                },
            ))?;
        }
        Ok(())
    }
}
