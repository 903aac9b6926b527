//! A calibration as a table, and as a picture like OMGS-SGD's Fig. 2.

use std::fmt::Write as _;

use gleaner_algorithms::merging::growth;
use gleaner_charts::DrawError;
use gleaner_testbed::report::{Figure, gallery};
use gleaner_units::grouped;

use super::file::{Calibration, Fit};
use crate::report::columns;

/// Milliseconds, to the microsecond.
fn ms(seconds: f64) -> String {
    format!("{:.3}", seconds * 1e3)
}

/// What was measured beside what was fitted.
pub fn table(calibration: &Calibration) -> String {
    let Calibration { select, growth: gamma, exchange, dense, samples, .. } = calibration;
    let header =
        ["entries", "selection", "fitted", "exchange", "fitted", "step", "forecast", "dense", "fitted"];
    let mut cells = vec![header.map(String::from).to_vec()];
    for s in samples {
        let of = |fit: &Fit| ms(fit.line().at(s.entries));
        cells.push(vec![
            grouped(s.entries as u64),
            ms(s.select),
            of(select),
            ms(s.exchange),
            of(exchange),
            ms(s.select + s.exchange),
            ms(s.forecast),
            ms(s.dense),
            of(dense),
        ]);
    }
    let line = |fit: &Fit| format!("{:.1} µs + {:.3} ns · n", fit.fixed * 1e6, fit.per_entry * 1e9);
    let rows = [
        ("selection, a + γ n", line(select), select),
        ("selection, γ n log2 n", format!("γ = {:.4} ns", gamma.per_entry * 1e9), gamma),
        ("exchange, α + β n", line(exchange), exchange),
        ("dense ring, α + β n", line(dense), dense),
    ];
    let mut fits = vec![["fit", "", "rms error", "largest"].map(String::from).to_vec()];
    fits.extend(rows.map(|(name, line, fit)| {
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        vec![name.to_owned(), line, percent(fit.rms), percent(fit.most)]
    }));
    let mut text = String::new();
    let _ = write!(
        text,
        "{} among {} workers over {}; rank 0 on {} cores of {}\nthe probe: a latency of {:.0} µs, {:.1} mbit/s a link; medians of the slowest rank, \
         in ms\n\n{}\n{}",
        calibration.method,
        calibration.workers,
        calibration.transport,
        calibration.machine.cores,
        calibration.machine.processor,
        calibration.latency * 1e6,
        calibration.bytes_per_second * 8e-6,
        columns(&cells),
        columns(&fits)
    );
    text
}

/// The same as two panels side by side: selection and exchange against the number of entries.
///
/// # Errors
/// What the plotting library refuses.
pub fn svg(calibration: &Calibration) -> Result<String, DrawError> {
    let curve = |label: &str, at: &dyn Fn(usize) -> f64| {
        let points = calibration.samples.iter().map(|s| (s.entries as f64, at(s.entries))).collect();
        (label.to_owned(), points)
    };
    let measured = |of: fn(&super::file::Sample) -> f64| {
        let points = calibration.samples.iter().map(|s| (s.entries as f64, of(s))).collect();
        ("measured".to_owned(), points)
    };
    let figures = [
        Figure::of_times(
            "selection",
            "Time of a selection against the number of entries",
            "time of a selection",
            [
                measured(|s| s.select),
                curve("a + γ n", &|n| calibration.select.line().at(n)),
                curve("γ n log2 n", &|n| calibration.growth.per_entry * growth(n as f64)),
            ],
        ),
        Figure::of_times(
            "exchange",
            "Time of an exchange against the number of entries",
            "time of an exchange",
            [measured(|s| s.exchange), curve("α + β n", &|n| calibration.exchange.line().at(n))],
        ),
    ];
    let mut panels = String::new();
    for (i, (_, svg)) in gallery(&figures)?.into_iter().enumerate() {
        panels += &svg.replacen("<svg", &format!("<svg x=\"{}\"", i * 500), 1);
    }
    Ok(format!("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"980\" height=\"340\">\n{panels}\n</svg>\n"))
}
