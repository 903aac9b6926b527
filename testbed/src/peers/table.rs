//! The comparison: medians over the turns, and ratios to ours.

use serde::Serialize;
use serde_json::Value;

use crate::record::{Outcome, Record};

/// One library's or method's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Whose: `spardl`, `ring`, `open-mpi`, `mpich`, `gloo` or `ddp`.
    pub method: String,
    /// The library's own name and version, for peers.
    pub library: Option<String>,
    /// Turns that ended well.
    pub turns: usize,
    /// A step: the median over the turns of the medians over their steps.
    pub seconds: f64,
    /// The fastest turn.
    pub seconds_least: f64,
    /// The slowest turn.
    pub seconds_most: f64,
    /// What the host that received most received in a step, all headers, start and barriers included: the median over the
    /// turns.
    pub bytes_received: f64,
    /// Its time over that of `spardl`.
    pub seconds_to_spardl: Option<f64>,
    /// Its time over that of `ring`.
    pub seconds_to_ring: Option<f64>,
    /// Its bytes over those of `spardl`.
    pub bytes_to_spardl: Option<f64>,
    /// Its bytes over those of `ring`.
    pub bytes_to_ring: Option<f64>,
}

impl Row {
    /// Whether a dense all-reduce of so many float32 cannot have crossed the emulated links: every host has to receive as
    /// many bytes as the sum has, at the least.
    pub fn went_around(&self, params: usize) -> bool {
        self.bytes_received < 4.0 * params as f64
    }
}

/// A row for each method, in the order of its first record. Failed jobs have none.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let mut names: Vec<&Value> = Vec::new();
    for name in records.iter().filter_map(|record| record.case.get("method")) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut rows: Vec<Row> = names.into_iter().filter_map(|name| row(name, records)).collect();
    let of = |name: &str, rows: &[Row]| {
        let ours = rows.iter().find(|row| row.method == name);
        ours.map(|row| (row.seconds, row.bytes_received))
    };
    let (spardl, ring) = (of("spardl", &rows), of("ring", &rows));
    for row in &mut rows {
        row.seconds_to_spardl = spardl.map(|(seconds, _)| row.seconds / seconds);
        row.bytes_to_spardl = spardl.map(|(_, bytes)| row.bytes_received / bytes);
        row.seconds_to_ring = ring.map(|(seconds, _)| row.seconds / seconds);
        row.bytes_to_ring = ring.map(|(_, bytes)| row.bytes_received / bytes);
    }
    rows
}

fn row(name: &Value, records: &[Record]) -> Option<Row> {
    let (mut seconds, mut bytes, mut library) = (Vec::new(), Vec::new(), None);
    for record in records.iter().filter(|record| record.case.get("method") == Some(name)) {
        let Outcome::Done(report) = &record.outcome else { continue };
        let count = |key: &str| record.case.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        // A training's seconds are those of all its steps.
        let step = report.get("iteration_seconds").or_else(|| report.get("seconds"));
        seconds.extend(step.and_then(Value::as_f64));
        let most = record.traffic.iter().map(|traffic| traffic.received).max().unwrap_or(0);
        bytes.push(most as f64 / (count("steps") + count("warmup")).max(1.0));
        library = report.get("library").and_then(Value::as_str).map(str::to_owned);
    }
    let turns = seconds.len();
    Some(Row {
        method: name.as_str()?.to_owned(),
        library,
        turns,
        seconds_least: seconds.iter().copied().reduce(f64::min)?,
        seconds_most: seconds.iter().copied().reduce(f64::max)?,
        seconds: median(seconds)?,
        bytes_received: median(bytes)?,
        seconds_to_spardl: None,
        seconds_to_ring: None,
        bytes_to_spardl: None,
        bytes_to_ring: None,
    })
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::record::{Machine, Traffic, VERSION};

    fn record(method: &str, turn: u32, outcome: Outcome, received: [u64; 2]) -> Record {
        let traffic = received.map(|received| Traffic { host: "h".into(), received, sent: 0 });
        let machine = Machine {
            processor: String::new(),
            cores: 1,
            memory: 1,
            kernel: String::new(),
            congestion: String::new(),
        };
        let case = [("method", json!(method)), ("steps", json!(8)), ("warmup", json!(2))];
        Record {
            version: VERSION,
            experiment: "peers".into(),
            case: case.map(|(key, value)| (key.to_owned(), value)).into(),
            turn,
            started: 0.0,
            seconds: 1.0,
            machine,
            commit: None,
            command: Vec::new(),
            chaos: Vec::new(),
            traffic: traffic.to_vec(),
            outcome,
        }
    }

    #[test]
    fn rows_are_medians_over_turns_as_ratios_to_ours() {
        let done = |seconds: f64| Outcome::Done(json!({"seconds": seconds}));
        let failed = || Outcome::Failed { exit_code: 1, reason: "r".into() };
        let records = [
            record("spardl", 0, done(0.1), [1000, 900]),
            record("ring", 0, done(0.4), [4000, 4000]),
            record("mpich", 0, failed(), [7, 7]),
            record("gloo", 0, done(0.6), [4000, 8000]),
            record("spardl", 1, done(0.3), [1000, 800]),
            record("ring", 1, done(0.4), [4000, 3000]),
            record("gloo", 1, failed(), [7, 7]),
        ];
        let rows = rows(&records);
        let names: Vec<&str> = rows.iter().map(|row| &*row.method).collect();
        assert_eq!(names, ["spardl", "ring", "gloo"]);
        let [spardl, ring, gloo] = &rows[..] else { panic!("{rows:?}") };
        assert!((spardl.seconds - 0.2).abs() < 1e-12 && spardl.turns == 2 && gloo.turns == 1);
        assert_eq!((spardl.bytes_received, ring.bytes_received, gloo.bytes_received), (100.0, 400.0, 800.0));
        assert_eq!((ring.bytes_to_spardl, gloo.bytes_to_ring), (Some(4.0), Some(2.0)));
        let trained = Outcome::Done(json!({"seconds": 60.0, "iteration_seconds": 0.2}));
        assert_eq!(super::rows(&[record("ring", 0, trained, [7, 7])])[0].seconds, 0.2);
        assert!((gloo.seconds_to_ring.unwrap() - 1.5).abs() < 1e-12);
        assert!((gloo.seconds_to_spardl.unwrap() - 3.0).abs() < 1e-12);
    }
}
