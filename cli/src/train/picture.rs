//! A step of the timeline as a picture: three lanes for each rank, time to the right.

use std::collections::BTreeMap;

use gleaner_charts::{Area, DrawError, GREY, INK, milliseconds, write};
use plotters::element::Rectangle;
use plotters::prelude::{IntoDrawingArea, RGBColor, SVGBackend};
use plotters::style::text_anchor::HPos;
use plotters::style::{Color, WHITE};
use serde::Deserialize;

/// What is distinguished: a lane, a colour, and the words of the legend. From dark to light, so that they differ without colours as
/// well.
struct Kind {
    lane: i32,
    colour: RGBColor,
    words: &'static str,
}

const KINDS: [Kind; 7] = [
    Kind { lane: 0, colour: RGBColor(150, 150, 150), words: "forward" },
    Kind { lane: 0, colour: RGBColor(22, 56, 92), words: "backward" },
    Kind { lane: 0, colour: RGBColor(238, 238, 238), words: "waits" },
    Kind { lane: 0, colour: RGBColor(96, 96, 96), words: "apply" },
    Kind { lane: 1, colour: RGBColor(222, 129, 42), words: "select" },
    Kind { lane: 1, colour: RGBColor(150, 70, 20), words: "merge, commit" },
    Kind { lane: 2, colour: RGBColor(120, 170, 210), words: "receive" },
];
const LANES: [&str; 3] = ["compute", "select", "exchange"];

const LEFT: i32 = 130;
const WIDTH: i32 = 900;
const RIGHT: i32 = 40;
const TOP: i32 = 90;
/// Of a lane, and of what is in it.
const LANE: i32 = 20;
const BAR: i32 = 16;
/// Between ranks.
const GAP: i32 = 10;

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
    fn kind(&self) -> Option<&'static Kind> {
        let number = match self.name.split(' ').next()? {
            "forward" => 0,
            "backward" => 1,
            "wait" => 2,
            "apply" => 3,
            "select" => 4,
            "merge" | "commit" => 5,
            "receive" => 6,
            _ => return None,
        };
        KINDS.get(number).filter(|_| self.ph == 'X')
    }
}

/// The picture of a trace as SVG text: of the second half of its steps the one whose length is the median. Nothing if it has no
/// step.
///
/// # Errors
/// What the plotting library refuses.
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
    let ranks = events.iter().map(|event| event.pid as i32 + 1).max().unwrap_or(1);
    let high = LANE * LANES.len() as i32 + GAP;
    let bottom = TOP + high * ranks;
    let mut text = String::new();
    {
        let size = ((LEFT + WIDTH + RIGHT) as u32, (bottom + 64) as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        write(&area, &format!("{heading}: step {step}"), (24, 24), 20, HPos::Left, INK)?;
        legend(&area)?;
        milliseconds(&area, (LEFT, WIDTH), (TOP, bottom), (end - begin) * 1e-6)?;
        for rank in 0..ranks {
            let top = TOP + high * rank;
            write(&area, &format!("rank {rank}"), (20, top + LANE * 3 / 2), 13, HPos::Left, INK)?;
            for (lane, name) in (0..).zip(LANES) {
                write(&area, name, (LEFT - 8, top + LANE * lane + LANE / 2), 11, HPos::Right, INK)?;
            }
        }
        let x = |at: f64| LEFT + ((at - begin) / (end - begin).max(1e-6) * f64::from(WIDTH)).round() as i32;
        for event in events {
            let Some(kind) = event.kind() else { continue };
            let y = TOP + high * event.pid as i32 + LANE * kind.lane + (LANE - BAR) / 2;
            let (from, to) = (x(event.ts), x(event.ts + event.dur));
            let corners = [(from, y), (to.max(from + 1), y + BAR)];
            area.draw(&Rectangle::new(corners, kind.colour.filled()))?;
            // Thin ones would be all outline.
            if to - from > 3 {
                area.draw(&Rectangle::new(corners, WHITE.stroke_width(1)))?;
            }
        }
        area.present()?;
    }
    Ok(text)
}

fn legend(area: &Area<'_>) -> Result<(), DrawError> {
    let mut left = 24;
    for Kind { colour, words, .. } in KINDS {
        area.draw(&Rectangle::new([(left, 46), (left + 22, 60)], colour.filled()))?;
        area.draw(&Rectangle::new([(left, 46), (left + 22, 60)], GREY.stroke_width(1)))?;
        write(area, words, (left + 28, 53), 13, HPos::Left, INK)?;
        left += 56 + 8 * words.len() as i32;
    }
    Ok(())
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
