//! The report as a picture: for each selector a bar for its cost, one for its count, and one for what it captures.

use gleaner_charts::{Axis, DrawError, Fill, Page, Row, Rows, width};
use gleaner_units::grouped;

use super::Report;
use super::evaluate::Row as Evaluated;
use crate::report::counted;

/// How wide a panel is without the names of its rows, and how high a row is.
const PANEL: i32 = 270;
const ROW: i32 = 28;

/// A measure of all selectors: its title, its value, and its unit.
type Measure = (&'static str, fn(&Evaluated) -> f64, &'static str);

const MEASURES: [Measure; 4] = [
    ("cost, reads of the gradient", |row| row.times_read, "×"),
    ("entries, multiples of k", |row| row.times_k, "×"),
    ("L2 share", |row| row.l2_share, ""),
    ("build-up, union / Pk", |row| row.build_up, ""),
];

pub fn svg(report: &Report) -> Result<String, DrawError> {
    let rows = &report.selectors;
    let names = rows.iter().map(|row| width(&row.selector)).max().unwrap_or(0) + 20;
    let (n, k) = (grouped(report.params as u64), grouped(report.k as u64));
    let page = Page {
        width: names + MEASURES.len() as i32 * PANEL,
        heading: format!("Selectors on {}, n = {n}, k = {k}", counted(report.workers, "gradient")),
        notes: vec![format!(
            "Medians of interleaved runs on the slowest worker; a read takes {:.2} ms.",
            1e3 * report.seconds_read
        )],
        legend: Vec::new(),
    };
    let panels = MEASURES.map(|measure| panel(measure, rows));
    page.svg(panels[0].height(), |area| {
        // The names of the rows stand once, beside the first.
        let ends: Vec<i32> = (1..MEASURES.len() as i32).map(|panel| names + panel * PANEL).collect();
        let areas = area.split_by_breakpoints(&ends, &[] as &[i32]);
        panels[0].draw(&areas[0])?;
        for (mut panel, area) in panels.into_iter().zip(&areas).skip(1) {
            panel.rows.iter_mut().for_each(|row| row.name.clear());
            panel.draw(area)?;
        }
        Ok(())
    })
}

fn panel((title, value, unit): Measure, rows: &[Evaluated]) -> Rows {
    let most = rows.iter().map(value).fold(1.0, f64::max);
    let row = |row: &Evaluated| {
        let value = value(row);
        let digits = if value < 10.0 { 2 } else { 0 };
        Row {
            name: row.selector.clone(),
            bars: vec![(0.0, value, Fill::BEHIND)],
            value: format!("{value:.digits$}{unit}"),
            ..Row::default()
        }
    };
    Rows { axis: Axis::level(title, 0.0, most), rows: rows.iter().map(row).collect(), high: ROW }
}
