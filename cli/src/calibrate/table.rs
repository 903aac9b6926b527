//! A calibration as a table, and as a picture like OMGS-SGD's Fig. 2.

use gleaner_algorithms::merging::growth;
use gleaner_charts::{Axis, DrawError, Key, Line, Lines, Look, Page};
use gleaner_units::grouped;

use super::file::{Calibration, Fit, Size};
use crate::report;

/// Milliseconds, to the microsecond.
fn ms(seconds: f64) -> String {
    format!("{:.3}", seconds * 1e3)
}

/// What was measured beside what was fitted.
pub fn table(calibration: &Calibration) -> String {
    let Calibration { method, workers, transport, machine, .. } = calibration;
    let Calibration { select, growth: gamma, exchange, dense, sizes, .. } = calibration;
    let headings = "entries|selection|fitted|exchange|fitted|step|expected|dense|fitted".split('|');
    let times = sizes.iter().map(|s| {
        let of = |fit: &Fit| fit.line().at(s.entries);
        let (selection, exchanging) = (s.seconds_select, s.seconds_exchange);
        let step = [selection, of(select), exchanging, of(exchange), selection + exchanging];
        let times = step.into_iter().chain([s.seconds_expected, s.seconds_dense, of(dense)]);
        std::iter::once(grouped(s.entries as u64)).chain(times.map(ms)).collect::<Vec<String>>()
    });
    let line =
        |fit: &Fit| format!("{:.1} µs + {:.3} ns · n", fit.seconds_fixed * 1e6, fit.seconds_per_entry * 1e9);
    let rows = [
        ("selection, a + γ n", line(select), select),
        ("selection, γ n log2 n", format!("γ = {:.4} ns", gamma.seconds_per_entry * 1e9), gamma),
        ("exchange, α + β n", line(exchange), exchange),
        ("dense ring, α + β n", line(dense), dense),
    ];
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let fits = rows.map(|(name, line, fit)| vec![name.to_owned(), line, percent(fit.rms), percent(fit.most)]);
    let (latency, rate) = (calibration.seconds_latency * 1e6, calibration.bandwidth_bits_per_second * 1e-6);
    format!(
        "{method} among {workers} workers over {transport}; rank 0 on {} cores of {}\nthe probe: a latency of {latency:.0} µs, {rate:.1} \
         Mbit/s a link; medians of the slowest rank, in ms\n\n{}\n{}",
        machine.cores,
        machine.processor,
        report::table(headings, times),
        report::table(["fit", "", "rms error", "largest"], fits)
    )
}

/// How wide and high a panel of the picture is.
const PANEL: (i32, i32) = (480, 330);

/// The same as two panels side by side: selection and exchange against the number of entries.
pub fn svg(calibration: &Calibration) -> Result<String, DrawError> {
    let Calibration { select, growth: gamma, exchange, sizes, .. } = calibration;
    let panel = |name: &str, curves: &[&dyn Fn(&Size) -> f64]| {
        let entries = |s: &Size| s.entries as f64;
        let milliseconds = || sizes.iter().flat_map(|s| curves.iter().map(|curve| 1e3 * curve(s)));
        let line = |(number, curve): (usize, &&dyn Fn(&Size) -> f64)| {
            Line::exact(number, sizes.iter().map(|s| (entries(s), 1e3 * curve(s))))
        };
        Lines {
            x: Axis::around("entries", sizes.iter().map(entries).collect()),
            y: Axis::fit(&format!("time of {name}, ms"), milliseconds(), false),
            lines: curves.iter().enumerate().map(line).collect(),
            marked: Vec::new(),
        }
    };
    let panels = [
        panel(
            "a selection",
            &[&|s| s.seconds_select, &|s| select.line().at(s.entries), &|s| {
                gamma.seconds_per_entry * growth(s.entries as f64)
            }],
        ),
        panel("an exchange", &[&|s| s.seconds_exchange, &|s| exchange.line().at(s.entries)]),
    ];
    let names = ["measured", "fitted: a + γ n, or α + β n", "fitted: γ n log2 n"];
    let page = Page {
        width: 2 * PANEL.0,
        legend: (0..).zip(names).map(|(i, name)| (Key::Line(Look::new(i)), name.to_owned())).collect(),
        ..Page::default()
    };
    page.svg(PANEL.1, |area| {
        let areas = area.split_evenly((1, panels.len()));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| panel.draw(area))
    })
}
