//! Measurements that were never made: computed from simple formulas, with noise, in the format of real ones.

use std::fs;
use std::path::Path;

use gleaner_statistics::random::Generator;
use serde_json::{Value, json};

/// Numbers that look like noise, the same every time.
pub struct Noise(Generator);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(Generator::seeded(seed))
    }

    /// Between 1 − by and 1 + by.
    fn factor(&mut self, by: f64) -> f64 {
        1.0 + by * f64::from(self.0.symmetric())
    }
}

/// Name, share of the dense bytes that it needs at density 1, and whether it is dense.
const METHODS: [(&str, f64, bool); 14] = [
    ("spardl", 2.0, false),
    ("ssar-recursive-double", 3.1, false),
    ("ssar-split-all-gather", 2.6, false),
    ("dsar-split-all-gather", 2.2, false),
    ("topka", 7.0, false),
    ("topkdsa", 5.0, false),
    ("gtopk", 4.2, false),
    ("oktopk", 2.9, false),
    ("exdyna", 3.4, false),
    ("clt-k", 2.4, false),
    ("random-k", 1.9, false),
    ("ring", 1.0, true),
    ("rabenseifner", 1.1, true),
    ("recursive-doubling", 1.7, true),
];

const PARAMS: u64 = 14_728_266;

fn record(case: Value, turn: u32, command: &str, outcome: Value) -> Value {
    json!({
        "version": 1, "experiment": "synthetic sample", "case": case, "turn": turn,
        "started": 1_760_000_000.0 + 60.0 * f64::from(turn), "seconds": 12.5,
        "machine": {"processor": "A processor that does not exist", "cores": 2, "memory": 25_769_803_776u64, "kernel": "6.1.0"},
        "commit": "0123456789abcdef0123456789abcdef01234567", "command": command.split(' ').collect::<Vec<_>>(),
        "chaos": [], "traffic": [], "outcome": outcome,
    })
}

/// A step of a method among P workers; a tenth of a second for all dense entries.
pub fn bench(method: &str, workers: u32, density: f64, turn: u32, noise: &mut Noise) -> Value {
    let &(_, cost, dense) = METHODS.iter().find(|(name, _, _)| *name == method).unwrap();
    let p = f64::from(workers);
    let k = if dense { PARAMS as f64 } else { (density * PARAMS as f64).round() };
    let bytes = 8.0 * k * cost * (p - 1.0) / p;
    let exchange = (bytes / 111e6 + 0.0004 * p) * noise.factor(0.08);
    let select = if dense { 0.006 } else { 0.03 } * noise.factor(0.05);
    let merge = (k * 2.0e-9 + 0.004) * noise.factor(0.05);
    let seconds = select + exchange + merge + 0.002;
    let mut case = json!({"command": "bench", "method": method, "workers": workers, "params": PARAMS, "bandwidth": "1gbit"});
    if !dense {
        case["density"] = density.into();
    }
    let command = format!(
        "gleaner bench --workers {workers} --params 14728266 --density {density} --method {method} --steps 10 --warmup 3 --json"
    );
    let done = json!({
        "method": method, "workers": workers, "params": PARAMS, "k": k as u64, "steps": 10, "seconds": seconds,
        "seconds_p25": seconds * 0.96, "seconds_p75": seconds * 1.05, "seconds_select": select,
        "seconds_exchange": exchange, "seconds_merge": merge, "slowest_select": select,
        "slowest_exchange": exchange, "slowest_merge": merge, "bytes_per_step": bytes as u64,
        "entries_per_step": (k * if dense { 1.0 } else { noise.factor(0.1) }) as u64, "rounds": 4,
    });
    let mut record = record(case, turn, &command, json!({"done": done}));
    let host = |rank: u32| {
        let received = (bytes * 13.0 * 1.04 + 20_000.0) as u64;
        json!({"host": format!("host{rank}"), "received": received, "sent": received})
    };
    record["traffic"] = (0..workers).map(host).collect();
    record
}

/// A training whose loss falls towards a bound, the faster the shorter its steps are.
pub fn training(method: &str, workers: u32, seed: u32, noise: &mut Noise) -> Value {
    let step =
        if method == "ring" { 0.5 } else { 0.11 } * (1.0 + 0.05 * f64::from(workers)) * noise.factor(0.03);
    let bound = if method == "ring" { 0.30 } else { 0.33 };
    let evaluations: Vec<Value> = (0..=20)
        .map(|i| {
            let loss = (bound + 2.0 * f64::exp(-f64::from(i) / 5.0)) * noise.factor(0.03);
            json!({"step": 50 * i, "seconds": step * 50.0 * f64::from(i), "held_out_loss": loss, "held_out_accuracy": 1.0 - loss / 2.6})
        })
        .collect();
    let command = format!("gleaner train --workers {workers} --method {method} --seed {seed} --json");
    let case =
        json!({"command": "train", "method": method, "workers": workers, "model": "mlp", "seed": seed});
    let done = json!({
        "method": method, "workers": workers, "params": 235_146, "density": 0.01, "steps": 1000, "first_step": 0,
        "seconds_run": step * 1000.0, "bytes_per_step": if method == "ring" { 1.4e6 } else { 2.8e4 }, "held_out_loss": bound,
        "evaluations": evaluations,
    });
    record(case, 0, &command, json!({"done": done}))
}

/// Another library's dense all-reduce, which tells little.
pub fn peer(workers: u32, turn: u32, noise: &mut Noise) -> Value {
    let seconds = 1.3 * noise.factor(0.05);
    let case = json!({"command": "peer", "method": "gloo (dense)", "workers": workers, "params": PARAMS, "bandwidth": "1gbit"});
    let done = json!({"method": "gloo (dense)", "workers": workers, "params": PARAMS, "seconds": seconds});
    record(case, turn, "python3 gloo.py --params 14728266", json!({"done": done}))
}

/// A job that did not end well.
pub fn failed() -> Value {
    let case = json!({"command": "bench", "method": "gtopk", "workers": 6, "params": PARAMS, "density": 0.01, "bandwidth": "1gbit"});
    let reason = "rank 3 was silent for 30 s; see whether its machine runs & its <network> is up";
    record(case, 2, "gleaner bench --method gtopk", json!({"failed": {"exit_code": 1, "reason": reason}}))
}

/// A job that was disturbed.
pub fn disturbed(noise: &mut Noise) -> Value {
    let mut record = bench("spardl", 4, 0.01, 0, noise);
    record["chaos"] = json!(["at step 3: host2 slowed to 100 Mbit/s", "at step 6: host2 as before"]);
    record
}

/// Everything at once.
pub fn everything() -> Vec<Value> {
    let noise = &mut Noise::new(7);
    let mut records = Vec::new();
    for turn in 0..3 {
        for workers in [4, 6, 8, 14] {
            for (method, _, dense) in METHODS {
                let densities: &[f64] = if dense { &[1.0] } else { &[0.001, 0.01, 0.1] };
                for density in densities {
                    records.push(bench(method, workers, *density, turn, noise));
                }
            }
            records.push(peer(workers, turn, noise));
        }
    }
    for workers in [2, 4] {
        for seed in 1..=3 {
            for method in ["spardl", "ring", "oktopk", "gtopk"] {
                records.push(training(method, workers, seed, noise));
            }
        }
    }
    records.push(failed());
    records.push(disturbed(noise));
    records
}

/// Writes them as `gleaner testbed run` does.
pub fn write(folder: &Path, records: &[Value]) {
    fs::create_dir_all(folder).unwrap();
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    fs::write(folder.join("measurements.jsonl"), lines).unwrap();
}
