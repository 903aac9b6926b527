//! Predictions as a table.

use gleaner_testbed::simulation::{Machine, Replayed, Trace, Workload};
use gleaner_units::{self as units, grouped};
use serde::Serialize;

use super::Simulate;
use crate::choice::Refusal;
use crate::report::{ms, table};

/// The predicted step of one method. The names are those of the JSON object.
#[derive(Debug, Serialize)]
pub struct Row {
    pub method: String,
    /// Entries that one entry of a sample stands for; none with expected lengths.
    pub scale: Option<usize>,
    /// In words: executed, profiled or expected.
    pub workload: String,
    pub rounds: u64,
    pub messages: u64,
    pub payload_bytes_per_step: u64,
    pub entries_per_step: u64,
    pub seconds: f64,
    pub seconds_select: f64,
    pub seconds_exchange: f64,
    pub seconds_merge: f64,
    /// The step by the closed form, with the same machine and links; none where it does not know of them.
    pub seconds_expected: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Prediction {
    pub workers: u32,
    pub params: usize,
    pub machine_speeds: Machine,
    pub methods: Vec<Row>,
    pub refused: Vec<Refusal>,
}

impl Row {
    pub fn new(
        method: String,
        workers: u32,
        workload: Workload,
        traces: &[Trace],
        (replayed, forecast): (&Replayed, Option<f64>),
    ) -> Self {
        let slowest = replayed.slowest();
        let middle = Trace::middle(traces);
        let (workload, scale) = match workload {
            Workload::Executed { scale: 1, .. } => ("executed".to_owned(), Some(1)),
            Workload::Executed { scale, .. } => (format!("executed, 1 in {scale}"), Some(scale)),
            Workload::Profiled { .. } => ("profiled".to_owned(), Some(1)),
            Workload::Expected(_) => ("expected".to_owned(), None),
        };
        Self {
            method,
            workload,
            scale,
            rounds: middle.map_or(0, |(_, trace)| trace.rounds),
            // A trace of one worker may stand for all.
            messages: middle.map_or(0, |(_, trace)| {
                trace.messages() * u64::from(workers) / trace.workers.len().max(1) as u64
            }),
            payload_bytes_per_step: middle.map_or(0, |(bytes, _)| bytes),
            entries_per_step: middle.map_or(0, |(_, trace)| trace.delivered.round() as u64),
            seconds: slowest.seconds,
            seconds_select: slowest.select,
            seconds_exchange: slowest.exchange,
            seconds_merge: slowest.merge,
            seconds_expected: forecast,
        }
    }
}

impl Prediction {
    pub fn table(&self, simulate: &Simulate) -> String {
        let header =
            ["method", "step", "select", "exchange", "merge", "received", "rounds", "entries", "workload"];
        let has_forecast = self.methods.iter().any(|row| row.seconds_expected.is_some());
        let header = header.into_iter().chain(has_forecast.then_some("expected"));
        let rows = self.methods.iter().map(|row| {
            let times = [row.seconds, row.seconds_select, row.seconds_exchange, row.seconds_merge].map(ms);
            let mut cells = vec![row.method.clone()];
            cells.extend(times);
            cells.extend([units::bytes(row.payload_bytes_per_step as f64), grouped(row.rounds)]);
            cells.extend([grouped(row.entries_per_step), row.workload.clone()]);
            cells.extend(has_forecast.then(|| row.seconds_expected.map_or_else(String::new, ms)));
            cells
        });
        format!(
            "{} workers with {}, n = {}; predicted ms\n\n{}{}\nSpeeds of {}.\n",
            self.workers,
            simulate.links(),
            grouped(self.params as u64),
            table(header, rows),
            Refusal::all(&self.refused),
            self.machine_speeds.about
        )
    }
}
