//! The report for readers.

use std::fmt::Write as _;

use super::Report;
use gleaner_units::grouped;

const HEADINGS: [&str; 10] =
    ["ms", "x read", "entries", "of k", "L2 mass", "overlap", "build-up", "padding", "threshold", "idling"];

/// A table, a row for each selector.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let (n, k) = (grouped(report.params as u64), grouped(report.k as u64));
    let s = if report.workers == 1 { "" } else { "s" };
    let _ = writeln!(
        text,
        "{} gradient{s} of n = {n}, k = {k}; one read of a gradient takes {:.2} ms\n",
        report.workers,
        1e3 * report.seconds_read
    );
    let widest = report.selectors.iter().map(|row| row.selector.len()).max().unwrap_or(0).max(8);
    let _ = write!(text, "{:widest$}", "selector");
    HEADINGS.iter().for_each(|heading| text.push_str(&format!("{heading:>11}")));
    text.push('\n');
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    for row in &report.selectors {
        let cells = [
            format!("{:.2}", 1e3 * row.seconds),
            format!("{:.1}", row.times_read),
            grouped(row.entries.round() as u64),
            format!("{:.3}", row.times_k),
            share(Some(row.mass)),
            share(row.jaccard),
            share(Some(row.build_up)),
            share(row.padding),
            share(row.threshold_error),
            share(Some(row.idling)),
        ];
        let _ = write!(text, "{:widest$}", row.selector);
        cells.iter().for_each(|cell| text.push_str(&format!("{cell:>11}")));
        text.push('\n');
    }
    text
}
