//! A step of the timeline as a picture: three lanes for each rank, time to the right.

use std::collections::BTreeMap;

use gleaner_charts::{Axis, DrawError, Fill, Row, Rows};
use serde::Deserialize;

/// What is distinguished: the first words of events, a lane, a look, and the words of the legend.
const KINDS: [(&[&str], usize, Fill, &str); 7] = [
    (&["forward"], 0, Fill::FORWARD, "forward"),
    (&["backward"], 0, Fill::BACKWARD, "backward"),
    (&["wait"], 0, Fill::REST, "waits"),
    (&["apply"], 0, Fill::APPLY, "apply"),
    (&["select"], 1, Fill::SELECT, "select"),
    (&["merge", "commit"], 1, Fill::MERGE, "merge, commit"),
    (&["receive"], 2, Fill::EXCHANGE, "receive"),
];
const LANES: [&str; 3] = ["compute", "select", "exchange"];

const WIDTH: i32 = 1000;
/// Of a lane.
const LANE: i32 = 20;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace_events: Vec<Event>,
}

#[derive(Clone, Deserialize)]
struct Event {
    ph: char,
    name: String,
    pid: u32,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    args: Args,
}

#[derive(Clone, Deserialize)]
struct Args {
    step: Option<u64>,
}

impl Event {
    fn kind(&self) -> Option<(usize, Fill)> {
        let word = self.name.split(' ').next()?;
        let (_, lane, fill, _) = KINDS.iter().find(|(words, ..)| words.contains(&word))?;
        (self.ph == 'X').then_some((*lane, *fill))
    }
}

/// The picture of a trace as SVG text: of the second half of its steps the one whose length is the median. Nothing if it has no
/// step.
pub fn svg(heading: &str, trace: &str) -> Result<Option<String>, DrawError> {
    let Ok(Trace { trace_events }) = serde_json::from_str(trace) else { return Ok(None) };
    let mut steps: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for event in trace_events.into_iter().filter(|event| event.kind().is_some()) {
        if let Some(step) = event.args.step {
            steps.entry(step).or_default().push(event);
        }
    }
    let whole = steps.len() / 2;
    let mut late: Vec<(u64, Vec<Event>)> = steps.into_iter().skip(whole).collect();
    late.sort_by(|(_, a), (_, b)| length(a).total_cmp(&length(b)));
    let median = late.len().saturating_sub(1) / 2;
    late.into_iter().nth(median).map(|(step, events)| draw(heading, step, &events)).transpose()
}

/// Microseconds.
fn length(events: &[Event]) -> f64 {
    let (begin, end) = ends(events);
    end - begin
}

fn ends(events: &[Event]) -> (f64, f64) {
    let begin = events.iter().map(|event| event.ts).fold(f64::INFINITY, f64::min);
    (begin, events.iter().map(|event| event.ts + event.dur).fold(begin, f64::max))
}

fn draw(heading: &str, step: u64, events: &[Event]) -> Result<String, DrawError> {
    let (begin, end) = ends(events);
    let ranks = events.iter().map(|event| event.pid as usize + 1).max().unwrap_or(1);
    let named = |name: &str| Row { name: name.to_owned(), ..Row::default() };
    let of_rank = |rank| {
        let heading = Row { heading: format!("rank {rank}"), ..Row::default() };
        [heading, named(LANES[0]), named(LANES[1]), named(LANES[2])]
    };
    let mut rows: Vec<Row> = (0..ranks).flat_map(of_rank).collect();
    for event in events {
        let Some((lane, fill)) = event.kind() else { continue };
        let milliseconds = |at: f64| (at - begin) / 1e3;
        let row = &mut rows[event.pid as usize * (LANES.len() + 1) + 1 + lane];
        row.bars.push((milliseconds(event.ts), milliseconds(event.ts + event.dur), fill));
    }
    let rows = Rows { axis: Axis::level("time, ms", 0.0, (end - begin) / 1e3), rows, high: LANE };
    rows.svg(WIDTH, format!("{heading}: step {step}"), &KINDS.map(|(.., fill, words)| (fill, words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_of_median_length_is_drawn() {
        let event = |name: &str, step: u64, ts: f64, dur: f64| {
            format!(
                "{{\"ph\":\"X\",\"name\":\"{name}\",\"pid\":0,\"ts\":{ts},\"dur\":{dur},\"args\":{{\"step\":{step}}}}}"
            )
        };
        // The first half does not count; of the others, step 4 takes neither least nor most.
        let lengths = [9e3, 9e3, 9e3, 5e3, 6e3, 7e3];
        let of_step = |(step, dur): (u64, f64)| {
            [
                event("forward", step, 1e4 * step as f64, dur / 2.0),
                event("wait", step, 1e4 * step as f64, dur),
            ]
        };
        let events: Vec<String> = (0..).zip(lengths).flat_map(of_step).collect();
        let trace = format!("{{\"traceEvents\":[{}]}}", events.join(","));
        let picture = svg("mlp", &trace).unwrap().unwrap();
        assert!(picture.contains("mlp: step 4") && picture.contains("rank 0"), "{picture}");
        assert_eq!(svg("mlp", "{\"traceEvents\":[]}").unwrap(), None);
    }
}
