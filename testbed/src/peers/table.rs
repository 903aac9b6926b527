//! The comparison: medians over the turns, and ratios to ours.

use gleaner_statistics::median;
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
    #[serde(rename = "bytes_per_step")]
    pub bytes_received: f64,
    /// Its time over that of `spardl`.
    pub seconds_to_spardl: Option<f64>,
    /// Its time over that of `ring`.
    pub seconds_to_ring: Option<f64>,
    /// The same turn by turn; with two turns or more.
    pub pairs_to_ring: Option<Pairs>,
    /// Its bytes over those of `spardl`.
    pub bytes_to_spardl: Option<f64>,
    /// Its bytes over those of `ring`.
    pub bytes_to_ring: Option<f64>,
}

/// Ratios of times of the same turn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pairs {
    /// Turns in which both ended well.
    pub count: usize,
    /// The geometric mean.
    pub mean: f64,
    /// Where the 95% confidence interval of the mean begins, by Student's t on the logarithms.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
}

impl Pairs {
    /// None of fewer than two ratios: nothing is known of how they spread.
    fn of(ratios: &[f64]) -> Option<Self> {
        let count = ratios.len();
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let freedom = count.checked_sub(2)?;
        let mean = logs.iter().sum::<f64>() / count as f64;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (freedom + 1) as f64;
        let reach = T95.get(freedom).copied().unwrap_or(T95_LAST) * (variance / count as f64).sqrt();
        Some(Self { count, mean: mean.exp(), low: (mean - reach).exp(), high: (mean + reach).exp() })
    }
}

/// Student's t for a two-sided 95%, from one degree of freedom on.
const T95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// With more degrees of freedom: that of 30, which is a little too wide.
const T95_LAST: f64 = T95[T95.len() - 1];

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
    let rings = turns("ring", records);
    for row in &mut rows {
        row.seconds_to_spardl = spardl.map(|(seconds, _)| row.seconds / seconds);
        row.bytes_to_spardl = spardl.map(|(_, bytes)| row.bytes_received / bytes);
        row.seconds_to_ring = ring.map(|(seconds, _)| row.seconds / seconds);
        row.bytes_to_ring = ring.map(|(_, bytes)| row.bytes_received / bytes);
        let ratio = |(turn, seconds): (u32, f64)| {
            rings.iter().find(|ring| ring.0 == turn).map(|(_, ring)| seconds / ring)
        };
        let ratios: Vec<f64> = turns(&row.method, records).into_iter().filter_map(ratio).collect();
        row.pairs_to_ring = Pairs::of(&ratios).filter(|_| row.method != "ring");
    }
    rows
}

/// The seconds of a step in each turn of a method that ended well.
fn turns(method: &str, records: &[Record]) -> Vec<(u32, f64)> {
    let of = records.iter().filter(|record| record.case.get("method").is_some_and(|name| name == method));
    of.filter_map(|record| match &record.outcome {
        Outcome::Done(report) => Some((record.turn, step(report)?)),
        Outcome::Failed { .. } => None,
    })
    .collect()
}

/// The seconds of a step. A training's `seconds` are those of all its steps.
fn step(report: &Value) -> Option<f64> {
    report.get("seconds_iteration").or_else(|| report.get("seconds"))?.as_f64()
}

fn row(name: &Value, records: &[Record]) -> Option<Row> {
    let (mut seconds, mut bytes, mut library) = (Vec::new(), Vec::new(), None);
    for record in records.iter().filter(|record| record.case.get("method") == Some(name)) {
        let Outcome::Done(report) = &record.outcome else { continue };
        let count = |key: &str| record.case.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        seconds.extend(step(report));
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
        seconds: median(seconds),
        bytes_received: median(bytes),
        seconds_to_spardl: None,
        seconds_to_ring: None,
        pairs_to_ring: None,
        bytes_to_spardl: None,
        bytes_to_ring: None,
    })
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
            missed: Vec::new(),
            failed_on_purpose: false,
            traffic: traffic.to_vec(),
            relay: None,
            outcome,
        }
    }

    #[test]
    fn a_step_of_a_training_is_its_iteration() {
        let ours = || Outcome::Done(json!({"seconds": 16.0, "seconds_iteration": 0.4}));
        let theirs = || Outcome::Done(json!({"seconds": 0.2}));
        let turn = |turn| [record("ring", turn, ours(), [9, 9]), record("ddp", turn, theirs(), [9, 9])];
        let rows = rows(&[turn(0), turn(1)].concat());
        let pairs = rows[1].pairs_to_ring.as_ref().unwrap();
        assert_eq!((rows[0].seconds, rows[1].seconds_to_ring), (0.4, Some(0.5)));
        assert!((pairs.mean - 0.5).abs() < 1e-12, "{pairs:?}");
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
        let trained = Outcome::Done(json!({"seconds": 60.0, "seconds_iteration": 0.2}));
        assert_eq!(super::rows(&[record("ring", 0, trained, [7, 7])])[0].seconds, 0.2);
        assert!((gloo.seconds_to_ring.unwrap() - 1.5).abs() < 1e-12);
        assert!((gloo.seconds_to_spardl.unwrap() - 3.0).abs() < 1e-12);
        assert_eq!((ring.pairs_to_ring, gloo.pairs_to_ring), (None, None));
        let pairs = spardl.pairs_to_ring.unwrap();
        assert_eq!(pairs.count, 2);
        assert!((pairs.mean - (0.25f64 * 0.75).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn intervals_by_hand() {
        assert_eq!(Pairs::of(&[1.5]), None);
        // Logarithms 0, 1 and 2: mean 1, standard error 1/√3, t with two degrees of freedom.
        let ratios = [0.0f64, 1.0, 2.0].map(f64::exp);
        let pairs = Pairs::of(&ratios).unwrap();
        let reach = 4.303 / 3.0f64.sqrt();
        assert!((pairs.mean.ln() - 1.0).abs() < 1e-12);
        assert!((pairs.low.ln() - (1.0 - reach)).abs() < 1e-12);
        assert!((pairs.high.ln() - (1.0 + reach)).abs() < 1e-12);
        let same = Pairs::of(&[2.0; 40]).unwrap();
        assert!((same.low - 2.0).abs() < 1e-12 && (same.high - 2.0).abs() < 1e-12);
    }
}
