//! The report for readers.

use super::Report;
use crate::report::{counted, table};
use gleaner_units::grouped;

const HEADINGS: [&str; 11] = [
    "selector",
    "ms",
    "x read",
    "entries",
    "of k",
    "L2 share",
    "overlap",
    "build-up",
    "padding",
    "threshold",
    "idling",
];

pub fn text(report: &Report) -> String {
    let (n, k) = (grouped(report.params as u64), grouped(report.k as u64));
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let rows = report.selectors.iter().map(|row| {
        vec![
            row.selector.clone(),
            format!("{:.2}", 1e3 * row.seconds),
            format!("{:.1}", row.times_read),
            grouped(row.entries.round() as u64),
            format!("{:.3}", row.times_k),
            share(Some(row.l2_share)),
            share(row.jaccard),
            share(Some(row.build_up)),
            share(row.padding),
            share(row.threshold_error),
            share(Some(row.idling)),
        ]
    });
    format!(
        "{} of n = {n}, k = {k}; one read of a gradient takes {:.2} ms\n\n{}",
        counted(report.workers, "gradient"),
        1e3 * report.seconds_read,
        table(HEADINGS, rows)
    )
}
