//! The report as a picture: for each selector a bar for its cost, one for its count, and one for what it captures.

use gleaner_charts::{Axis, DrawError, Fill, Page, Row, Rows, width};
use gleaner_units::grouped;

use super::Report;
use super::evaluate::Row as Evaluated;
use crate::report::counted;

/// How wide a panel is without the names of its rows, and how high a row is.
const PANEL: i32 = 270;
const ROW: i32 = 28;

/// One measure of all selectors.
struct Measure {
    title: &'static str,
    value: fn(&Evaluated) -> f64,
    unit: &'static str,
}

const MEASURES: [Measure; 4] = [
    Measure { title: "cost, reads of the gradient", value: |row| row.times_read, unit: "×" },
    Measure { title: "entries, multiples of k", value: |row| row.times_k, unit: "×" },
    Measure { title: "L2 share", value: |row| row.l2_share, unit: "" },
    Measure { title: "build-up, union / Pk", value: |row| row.build_up, unit: "" },
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
    let panels = MEASURES.map(|measure| measure.panel(rows));
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

impl Measure {
    fn panel(&self, rows: &[Evaluated]) -> Rows {
        let most = rows.iter().map(self.value).fold(1.0, f64::max);
        let row = |row: &Evaluated| {
            let value = (self.value)(row);
            let digits = if value < 10.0 { 2 } else { 0 };
            Row {
                name: row.selector.clone(),
                bars: vec![(0.0, value, Fill::BEHIND)],
                value: format!("{value:.digits$}{}", self.unit),
                ..Row::default()
            }
        };
        Rows { axis: Axis::level(self.title, 0.0, most), rows: rows.iter().map(row).collect(), high: ROW }
    }
}
