//! The page: one HTML file that needs nothing else.

use std::collections::{BTreeMap, BTreeSet};

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::figure::{Figure, Panel, Point, Series, common, suited};
use super::plot::{legend, named, pictures};
use super::read::Run;
use super::sample::{Axes, in_order, text};
use super::summary::{Summary, command, date};
use crate::record::{Outcome, Record};
use gleaner_charts::DrawError;
use gleaner_units::{bytes, grouped, tick, written};

/// Nothing is loaded, nothing runs; only the page's own style counts.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

const STYLE: &str = include_str!("style.css");

/// More settings than this are tabulated and not drawn.
const MOST_PANELS: usize = 36;

/// The whole page.
pub fn page(runs: &[Run], summary: &Summary<'_>) -> Result<String, DrawError> {
    let experiments: BTreeSet<&str> =
        summary.runs.iter().flat_map(|r| r.experiments.iter().copied()).collect();
    let titles: Vec<&str> = summary.runs.iter().filter_map(|run| run.of.title.as_deref()).collect();
    let title = match titles.as_slice() {
        [title] if summary.runs.len() == 1 => (*title).to_owned(),
        _ => experiments.into_iter().collect::<Vec<_>>().join(", "),
    };
    let sections: Vec<Markup> =
        summary.figures.iter().map(|figure| section(figure, runs)).collect::<Result<_, _>>()?;
    let troubles = !summary.failures.is_empty() || summary.runs.iter().any(|r| !r.of.notes.is_empty());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " – Gleaner" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p.lead { (measured(summary)) }
                    @for run in &summary.runs { (facts(run, summary.runs.len() > 1)) }
                    nav aria-label="Contents" {
                        ol {
                            @if troubles { li { a href="#troubles" { "What failed or was left out" } } }
                            @for figure in summary.figures { li { a href={ "#" (figure.id) } { (figure.title) } } }
                            @if !summary.chaos.is_empty() { li { a href="#chaos" { "What was done on purpose" } } }
                            li { a href="#measurements" { "All measurements" } }
                        }
                    }
                }
                main {
                    @if troubles { (self::troubles(summary)) }
                    @for section in &sections { (section) }
                    @if summary.figures.is_empty() {
                        p { "No measurement ended with numbers that can be shown." }
                    }
                    @if !summary.chaos.is_empty() { (chaos(summary)) }
                    (all(runs))
                }
                footer { p { "Made by " code { "gleaner testbed report" } " " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    Ok(page.into_string())
}

fn measured(summary: &Summary<'_>) -> String {
    let done: usize = summary.runs.iter().map(|r| r.done).sum();
    let runs =
        if summary.runs.len() == 1 { String::new() } else { format!(" of {} runs", summary.runs.len()) };
    let failed = summary.failures.len();
    let failed = if failed == 0 { "none".to_owned() } else { failed.to_string() };
    let on_purpose = match summary.runs.iter().map(|r| r.failed_on_purpose).sum::<usize>() {
        0 => String::new(),
        count => format!(", {count} failed on purpose"),
    };
    let measurements = if done == 1 { "measurement" } else { "measurements" };
    format!("{done} {measurements}{runs}, {failed} failed{on_purpose}.")
}

fn facts(run: &super::summary::RunSummary<'_>, several: bool) -> Markup {
    let commits: Vec<&str> = run.commits.iter().copied().collect();
    html! {
        @if several { h2.run { (run.of.title.as_ref().unwrap_or(&run.of.name)) } }
        @if let Some(description) = &run.of.description { p.description { (description) } }
        dl.facts {
            dt { "Measured" }
            dd { (run.done) " done, " (run.failed) " failed, " (run.failed_on_purpose) " failed on purpose, from " time { (run.began) } " to " time { (run.ended) } }
            @for machine in &run.machines {
                dt { "Machine" }
                dd {
                    (machine.processor) ", " (machine.cores) " cores, " (bytes(machine.memory as f64))
                    " of memory, kernel " (machine.kernel)
                    @if !machine.congestion.is_empty() { ", TCP's " (machine.congestion) }
                }
            }
            dt { "Commit" }
            dd { @if commits.is_empty() { "not known" } @else { code { (commits.join(", ")) } } }
            dt { "Directory" }
            dd { code { (run.of.directory.display()) } }
        }
    }
}

fn troubles(summary: &Summary<'_>) -> Markup {
    html! {
        section #troubles {
            h2 { "What failed or was left out" }
            @for Run { name, notes, .. } in summary.runs.iter().map(|r| r.of).filter(|r| !r.notes.is_empty()) {
                ul { @for note in notes { li { code { (name) } ": " (note) "." } } }
            }
            @if !summary.failures.is_empty() {
                div.scroll { table {
                    thead { tr { th { "run" } th { "case" } th.number { "turn" } th.number { "exit code" } th { "reason" } } }
                    tbody {
                        @for failure in &summary.failures {
                            tr {
                                td { (failure.run) } td.words { (case(failure.case)) } td.number { (failure.turn) }
                                td.number { (failure.exit_code) } td.words { (failure.reason) }
                            }
                        }
                    }
                } }
            }
        }
    }
}

fn chaos(summary: &Summary<'_>) -> Markup {
    html! {
        section #chaos {
            h2 { "What was done on purpose" }
            div.scroll { table {
                thead { tr { th { "run" } th { "case" } th.number { "turn" } th { "what was done" } } }
                tbody {
                    @for chaos in &summary.chaos {
                        tr {
                            td { (chaos.run) } td.words { (case(chaos.case)) } td.number { (chaos.turn) }
                            td.words {
                                ol { @for event in chaos.events { li { (event) } } }
                                @for missed in chaos.missed { p.missed { strong { "Did not happen: " } (missed) } }
                            }
                        }
                    }
                }
            } }
        }
    }
}

fn section(figure: &Figure, runs: &[Run]) -> Result<Markup, DrawError> {
    let everywhere = common(&figure.panels);
    let drawn = figure.panels.iter().take(MOST_PANELS).enumerate();
    let legend = legend(figure)?;
    let panels: Vec<Markup> = drawn
        .map(|(i, panel)| {
            let svgs = pictures(figure, panel, &format!("{}-{i}", figure.id), legend.is_some())?;
            let differs = differing(panel, &everywhere);
            Ok(html! {
                figure {
                    @if !differs.is_empty() { figcaption { (differs) } }
                    @for svg in &svgs { (PreEscaped(svg)) }
                }
            })
        })
        .collect::<Result<_, DrawError>>()?;
    let commands: BTreeSet<String> =
        figure.sources().into_iter().map(|(run, record)| command(&runs[run].records[record])).collect();
    Ok(html! {
        section id=(figure.id) {
            h2 { (figure.title) }
            p { (figure.caption) }
            @if !everywhere.is_empty() { p.everywhere { "Throughout: " (setting(&everywhere)) "." } }
            @if let Some(legend) = &legend { figure.legend { (PreEscaped(legend)) } }
            div.panels { @for panel in &panels { (panel) } }
            @if figure.panels.len() > MOST_PANELS {
                p { "The first " (MOST_PANELS) " of " (figure.panels.len()) " settings are drawn; the table has all." }
            }
            details { summary { "The numbers" } (table(figure, &everywhere)) }
            details {
                summary { "The commands to measure again" }
                pre tabindex="0" { code { @for command in &commands { (command) "\n" } } }
            }
        }
    })
}

/// The setting of a panel without what all have.
fn differing(panel: &Panel, everywhere: &Axes) -> String {
    let mut axes = panel.setting.clone();
    axes.retain(|name, _| !everywhere.contains_key(name));
    setting(&axes)
}

/// A row for each point of a figure.
fn table(figure: &Figure, everywhere: &Axes) -> Markup {
    let points = || figure.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
    let most = points().map(|p| p.spread.value).fold(0.0, f64::max);
    let (factor, unit) = suited(figure.value.unit, most);
    let parts = points().any(|p| p.part.is_some());
    let most_x = points().filter_map(|p| p.x).fold(0.0, f64::max);
    let against = figure.against.as_ref().map(|q| (q, suited(q.unit, most_x)));
    let settings = figure.panels.iter().any(|p| p.setting.len() > everywhere.len());
    let row = |panel: &Panel, series: &Series, point: &Point| {
        let Point { spread, .. } = point;
        html! {
            tr {
                @if settings { td { (differing(panel, everywhere)) } }
                td { (series.label) }
                @if parts { td { (point.part.unwrap_or("")) } }
                @if let Some((_, (factor, _))) = against { td.number { (point.x.map_or("any".into(), |x| tick(x * factor))) } }
                td.number { (written(spread.value * factor, 4)) }
                td.number { (written(spread.low * factor, 4)) }
                td.number { (written(spread.high * factor, 4)) }
                td.number { (point.measurements) }
            }
        }
    };
    html! {
        div.scroll { table {
            thead { tr {
                @if settings { th { "setting" } }
                th { "method" }
                @if parts { th { "what" } }
                @if let Some((quantity, (_, unit))) = against { th.number { (named(&quantity.name, unit)) } }
                th.number { (named(&figure.value.name, unit)) }
                th.number { "low" } th.number { "high" } th.number { "measurements" }
            } }
            tbody {
                @for panel in &figure.panels { @for series in &panel.series { @for point in &series.points {
                    (row(panel, series, point))
                } } }
            }
        } }
    }
}

/// Every record that was read, also those that no figure shows.
fn all(runs: &[Run]) -> Markup {
    let count: usize = runs.iter().map(|r| r.records.len()).sum();
    html! {
        section #measurements {
            h2 { "All measurements" }
            details {
                summary { (grouped(count as u64)) @if count == 1 { " record" } @else { " records" } }
                div.scroll { table {
                    thead { tr {
                        th { "run" } th { "case" } th.number { "turn" } th { "began" } th.number { "job, s" }
                        th.number { "step or run, s" } th { "outcome" } th { "command" }
                    } }
                    tbody { @for run in runs { @for r in &run.records { (record(run, r)) } } }
                } }
            }
        }
    }
}

fn record(run: &Run, record: &Record) -> Markup {
    let (outcome, seconds) = match &record.outcome {
        Outcome::Done(value) => {
            let outcome = if record.unlike_its_case().is_some() { "done, not as planned" } else { "done" };
            (outcome, value.get("seconds").or(value.get("seconds_run")).and_then(Value::as_f64))
        }
        Outcome::Failed { .. } if record.failed_on_purpose => ("failed on purpose", None),
        Outcome::Failed { .. } => ("failed", None),
    };
    html! {
        tr.record {
            td { (run.name) } td { (case(&record.case)) } td.number { (record.turn) } td { (date(record.started)) }
            td.number { (written(record.seconds, 4)) }
            td.number { (seconds.map_or("–".into(), |s| written(s, 4))) }
            td { (outcome) }
            td { code { (command(record)) } }
        }
    }
}

/// What was measured: every axis of the record, the method first.
fn case(axes: &BTreeMap<String, Value>) -> String {
    let others = axes.iter().filter(|(name, _)| *name != "method");
    let others = others.map(|(name, value)| axis(name, &text(value)));
    axes.get("method").map(text).into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// What surrounds a method, in words.
pub fn setting(axes: &Axes) -> String {
    in_order(axes).map(|(name, value)| axis(name, value)).collect::<Vec<_>>().join(", ")
}

fn axis(name: &str, value: &str) -> String {
    match name {
        "workers" if value == "1" => "1 worker".into(),
        "workers" => format!("{value} workers"),
        "params" => format!("n = {value}"),
        "bandwidth" => format!("links of {value}"),
        _ => format!("{name} {value}"),
    }
}
