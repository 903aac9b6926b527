//! The report for readers: one method line by line, several as a table, and all as a picture.

use gleaner_charts::{Axis, DrawError, Fill, Key, Page, Row, Rows};
use gleaner_statistics::Spread;
use gleaner_units::{self as units, grouped};

use super::summary::{Report, Summary};
use crate::report::{counted, ms, table};

/// A time as people read it.
fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

/// One method, a line for each thing to know.
pub fn one(s: &Summary) -> String {
    let ratio = s.dense_bytes_per_step as f64 / (s.bytes_per_step as f64).max(1.0);
    let [entries, delivered] = [s.params, s.entries_per_step].map(|count| grouped(count as u64));
    let [received, dense] =
        [s.bytes_per_step, s.dense_bytes_per_step].map(|count| units::bytes(count as f64));
    let [step, low, high] = [s.seconds, s.seconds_p25, s.seconds_p75].map(milliseconds);
    let [select, exchange, merge] = [s.seconds_select, s.seconds_exchange, s.seconds_merge].map(milliseconds);
    let rows = [
        ("method", s.method.to_owned()),
        ("workers", s.workers.to_string()),
        ("entries", format!("{entries}, of which {delivered} delivered a step")),
        ("L2 share", format!("{:.4} of the gradients' squared norm is delivered at once", s.l2_share)),
        ("time per step", format!("{step} (select {select}, exchange {exchange}, merge {merge})")),
        ("quartiles", format!("{low} to {high} a step")),
        (
            "bytes received",
            format!("{received} per worker and step; a dense ring: {dense} ({ratio:.1} times as many)"),
        ),
        ("rounds", s.rounds.to_string()),
        ("digest", format!("{}… on every rank", &s.digest[..16])),
    ];
    let floor = s.seconds_floor.zip(s.seconds_floor_in_place).map(|(floor, in_place)| {
        let [times, times_in_place] = [floor, in_place].map(|floor| s.seconds / floor);
        let [floor, in_place] = [floor, in_place].map(milliseconds);
        let text = format!(
            "{floor}: bare memory traffic and bytes; a step takes {times:.2} times as long. In place: {in_place}, {times_in_place:.2} times"
        );
        ("floor", text)
    });
    let lost = (s.lost > 0.0).then(|| ("lost", format!("{:.4} a step, over all ranks", s.lost)));
    rows.into_iter().chain(floor).chain(lost).map(|(name, value)| format!("{name:15} {value}\n")).collect()
}

const HEADINGS: &str = "method|step|25%|75%|select|exchange|merge|received|rounds|entries|L2 share|/ fastest";

/// Several methods, a row each, and below them those that were passed over.
pub fn several(report: &Report) -> String {
    let methods = &report.methods;
    let Some(first) = methods.first() else { return String::new() };
    let fastest = methods.iter().map(|s| s.seconds).fold(f64::INFINITY, f64::min);
    let loses = methods.iter().any(|s| s.lost > 0.0);
    let floors = methods.iter().any(|s| s.seconds_floor.is_some());
    let headings = HEADINGS.split('|').chain(floors.then_some("/ floor")).chain(loses.then_some("lost"));
    let rows = methods.iter().map(|s| {
        let step = [s.seconds, s.seconds_p25, s.seconds_p75];
        let parts = [s.seconds_select, s.seconds_exchange, s.seconds_merge];
        let mut row = vec![s.method.to_owned()];
        row.extend(step.into_iter().chain(parts).map(ms));
        row.extend([units::bytes(s.bytes_per_step as f64), s.rounds.to_string()]);
        row.extend([grouped(s.entries_per_step as u64), format!("{:.4}", s.l2_share)]);
        row.push(format!("{:.2}", s.seconds / fastest));
        row.extend(s.seconds_floor.map(|floor| format!("{:.2}", s.seconds / floor)));
        row.extend(loses.then(|| format!("{:.4}", s.lost)));
        row
    });
    let refused = report.refused.iter().map(|r| format!("not measured: {}: {}\n", r.method, r.reason));
    format!(
        "{} workers, {} entries; times in ms: medians of {} steps, with quartiles; all ranks hold the same updates\n\n{}{}",
        first.workers,
        grouped(first.params as u64),
        first.steps,
        table(headings, rows),
        refused.collect::<String>()
    )
}

/// The parts of a step.
const PARTS: [(Fill, &str); 4] =
    [(Fill::SELECT, "select"), (Fill::EXCHANGE, "exchange"), (Fill::MERGE, "merge"), (Fill::REST, "between")];

const WIDTH: i32 = 960;
const ROW: i32 = 36;

/// A bar for each method, as long as its step takes.
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

#[cfg(test)]
mod tests {
    use gleaner_algorithms::Method;

    use super::*;
    use crate::bench::Entrant;
    use crate::bench::summary::{Record, Sample};
    use crate::choice::Refusal;

    fn taking(method: Method, seconds: f64) -> Summary {
        let sample = Sample { seconds, ..Sample::default() };
        let digest = "0".repeat(64);
        let (entrant, records) = (Entrant { method, k: 10 }, [Record::of(&[sample], 10, 0.25)]);
        Summary { digest, ..Summary::of(&entrant, &records, None, (5, 1000)) }
    }

    #[test]
    fn methods_that_were_passed_over_are_named_with_the_reason() {
        let refused = Refusal { method: "square".into(), reason: "5 workers make no square".into() };
        let methods = vec![taking(Method::ring(), 0.003), taking(Method::spardl(), 0.002)];
        let text = several(&Report { methods, refused: vec![refused] });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[5..], ["not measured: square: 5 workers make no square"]);
        assert!(lines[3].starts_with("ring ") && lines[3].ends_with("  1.50"), "{text}");
        assert!(lines[4].starts_with("spardl ") && lines[4].ends_with("  1.00"), "{text}");
        assert!(!lines[2].contains("lost"), "{text}");
    }
}
