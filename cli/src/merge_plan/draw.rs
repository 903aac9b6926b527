//! The four pipelines of OMGS-SGD's Fig. 1, for one model: lanes for computing, selecting and exchanging, time to the right.

use gleaner_algorithms::merging::{
    LayerWise, Optimal, Pass, Placement, Problem, Single, Span, Strategy, Timeline, evaluate,
};
use gleaner_charts::{Axis, Fill, Row, Rows};

use super::table::Plan;
use crate::report::{CommandError, counted};

const KINDS: [(Fill, &str); 5] = [
    (Fill::FORWARD, "forward"),
    (Fill::BACKWARD, "backward, layer by layer"),
    (Fill::SELECT, "selection"),
    (Fill::EXCHANGE, "exchange"),
    (Fill::REST, "latency, if no exchange goes on"),
];

const WIDTH: i32 = 1000;
/// Of a lane.
const LANE: i32 = 26;

/// Up to so many times the longer of the merged pipelines' iterations are drawn.
const MOST: f64 = 1.4;

pub fn svg(
    plan: &Plan<'_>,
    pass: &Pass,
    (problem, dense): (&Problem<'_>, &Timeline),
) -> Result<String, CommandError> {
    let of = |strategy: &dyn Strategy| evaluate(problem, &strategy.group(problem)?);
    let (single, layers, merged) = (of(&Single)?, of(&LayerWise)?, of(&Optimal)?);
    let pipelines = [
        ("(a) P-SGD: layer-wise, dense", dense),
        ("(b) TopK-SGD: all layers at once", &single),
        ("(c) LAGS-SGD: layer-wise", &layers),
        ("(d) merged, optimal", &merged),
    ];
    let longest = pipelines.iter().map(|(_, timeline)| timeline.iteration).fold(0.0, f64::max);
    let end = longest.min(MOST * single.iteration.max(merged.iteration));
    let mut rows = Vec::new();
    for (name, timeline) in pipelines {
        let groups = counted(timeline.groups.len(), "group");
        let heading = format!("{name}: {groups}, {:.2} ms", 1e3 * timeline.iteration);
        rows.push(Row { heading, ..Row::default() });
        rows.extend(lanes(timeline, pass, problem.place, end));
    }
    let rows = Rows { axis: Axis::level("time, ms", 0.0, 1e3 * end), rows, high: LANE };
    let heading = format!("{}: {} among {} workers", plan.model, plan.label, plan.workers);
    Ok(rows.svg(WIDTH, heading, &KINDS)?)
}

/// The lanes of a pipeline. Selection has one of its own beside the backward pass.
fn lanes(timeline: &Timeline, pass: &Pass, place: Placement, end: f64) -> Vec<Row> {
    let names: &[&str] = match place {
        Placement::Beside => &["compute", "select", "exchange"],
        Placement::InBackward => &["compute", "exchange"],
    };
    let mut rows: Vec<Row> =
        names.iter().map(|name| Row { name: (*name).to_owned(), ..Row::default() }).collect();
    let last = rows.len() - 1;
    let mut bar = |lane: usize, span: Span, fill: Fill| {
        if span.begin < end {
            rows[lane].bars.push((1e3 * span.begin, 1e3 * span.end.min(end), fill));
        }
    };
    bar(0, Span { begin: 0.0, end: pass.forward() }, Fill::FORWARD);
    // Behind what is exchanged meanwhile.
    for group in timeline.groups.iter().filter(|group| group.done > group.exchange.end) {
        bar(last, Span { begin: group.exchange.end, end: group.done }, Fill::REST);
    }
    for group in &timeline.groups {
        let mut begin = group.compute.begin;
        for layer in &pass.layers()[group.layers.clone()] {
            bar(0, Span { begin, end: begin + layer.backward }, Fill::BACKWARD);
            begin += layer.backward;
        }
        bar(last - 1, group.select, Fill::SELECT);
        bar(last, group.exchange, Fill::EXCHANGE);
    }
    if timeline.iteration > end {
        rows[last].value = "…".into();
    }
    rows
}
