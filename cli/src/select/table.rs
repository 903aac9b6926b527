//! The report for readers.

use super::Report;
use crate::report::{counted, ms, table};
use gleaner_units::grouped;

const HEADINGS: &str = "selector|ms|x read|entries|of k|L2 share|overlap|build-up|padding|threshold|idling";

pub fn text(report: &Report) -> String {
    let (n, k) = (grouped(report.params as u64), grouped(report.k as u64));
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let rows = report.selectors.iter().map(|row| {
        let mut cells = vec![row.selector.clone(), ms(row.seconds), format!("{:.1}", row.times_read)];
        cells.extend([grouped(row.entries.round() as u64), share(Some(row.times_k))]);
        let shares = [Some(row.l2_share), row.jaccard, Some(row.build_up), row.padding, row.threshold_error];
        cells.extend(shares.into_iter().chain([Some(row.idling)]).map(share));
        cells
    });
    format!(
        "{} of n = {n}, k = {k}; one read of a gradient takes {} ms\n\n{}",
        counted(report.workers, "gradient"),
        ms(report.seconds_read),
        table(HEADINGS.split('|'), rows)
    )
}
