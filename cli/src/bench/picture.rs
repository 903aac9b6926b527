//! The report as a picture: a bar for each method, as long as its step takes.

use gleaner_charts::{Axis, DrawError, Fill, Key, Page, Row, Rows};
use gleaner_statistics::Spread;
use gleaner_units::{self as units, grouped};

use super::summary::{Report, Summary};
use super::table::milliseconds;
use crate::report::counted;

/// The parts of a step.
const PARTS: [(Fill, &str); 4] =
    [(Fill::SELECT, "select"), (Fill::EXCHANGE, "exchange"), (Fill::MERGE, "merge"), (Fill::REST, "between")];

const WIDTH: i32 = 960;
const ROW: i32 = 36;

pub fn svg(report: &Report) -> Result<String, DrawError> {
    let methods = &report.methods;
    let longest = methods.iter().map(|s| s.seconds_p75.max(s.seconds)).fold(f64::MIN_POSITIVE, f64::max);
    // In seconds from one second on.
    let (unit, name) = if longest < 1.0 { (1e3, "milliseconds") } else { (1.0, "seconds") };
    let rows = methods.iter().map(|summary| row(summary, unit)).collect();
    let axis = Axis::level(&format!("time of a step in {name}"), 0.0, 1.03 * longest * unit);
    let rows = Rows { axis, rows, high: ROW };
    let heading = methods.first().map_or_else(String::new, |first| {
        format!("A step of {}, n = {}", counted(first.workers, "worker"), grouped(first.params as u64))
    });
    let steps = methods.first().map_or(0, |first| first.steps);
    let page = Page {
        width: WIDTH,
        heading,
        notes: vec![
            format!(
                "A bar ends at the median of {steps} steps on the slowest rank; a whisker reaches from quartile to quartile."
            ),
            "Bytes are those that the busiest worker receives in a step.".into(),
        ],
        legend: PARTS.map(|(fill, words)| (Key::Fill(fill), words.to_owned())).to_vec(),
    };
    page.svg(rows.height(), |area| rows.draw(area))
}

fn row(s: &Summary, unit: f64) -> Row {
    let k = if s.k == s.params { "all entries".to_owned() } else { format!("k = {}", grouped(s.k as u64)) };
    let rest = s.seconds - s.slowest_select - s.slowest_exchange - s.slowest_merge;
    let (mut bars, mut from) = (Vec::new(), 0.0);
    for ((fill, _), part) in
        PARTS.into_iter().zip([s.slowest_select, s.slowest_exchange, s.slowest_merge, rest])
    {
        let to = (from + part).clamp(from, s.seconds.max(from));
        bars.push((from * unit, to * unit, fill));
        from = to;
    }
    let spread = Spread { value: s.seconds, low: s.seconds_p25, high: s.seconds_p75 };
    Row {
        name: format!("{}, {k}", s.method),
        bars,
        spread: Some(spread.times(unit)),
        value: format!("{}, {}", milliseconds(s.seconds), units::bytes(s.bytes_per_step as f64)),
        ..Row::default()
    }
}
