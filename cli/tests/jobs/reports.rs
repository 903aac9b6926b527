//! What `gleaner bench --json` reports, against the papers' formulas.

use serde_json::Value;

use crate::process::{gleaner, run};

/// Divisible by every number of workers here, and so is 1% of it.
const N: u64 = 420_000;

const FIELDS: [&str; 29] = [
    "method",
    "options",
    "workers",
    "params",
    "k",
    "steps",
    "seconds",
    "seconds_select",
    "seconds_exchange",
    "seconds_merge",
    "bytes_per_step",
    "dense_bytes_per_step",
    "rounds",
    "entries_per_step",
    "lost",
    "digest",
    "seconds_p25",
    "seconds_p75",
    "seconds_select_p25",
    "seconds_select_p75",
    "seconds_steps",
    "seconds_exchange_p25",
    "seconds_exchange_p75",
    "seconds_merge_p25",
    "seconds_merge_p75",
    "slowest_select",
    "slowest_exchange",
    "slowest_merge",
    "l2_share",
];

fn bench(workers: u64, arguments: &[&str]) -> Value {
    let mut command = gleaner();
    command.args(["bench", "--json", "--warmup", "1", "--steps", "3", "--workers", &workers.to_string()]);
    command.args(arguments);
    run(command).report()
}

/// ⌈log2 P⌉
fn log2_up(workers: u64) -> u64 {
    (0..).find(|l| 1 << l >= workers).unwrap()
}

/// The papers' latency rounds, and words (an index or a value) at the worker that receives most.
fn expected(method: &str, p: u64, n: u64, k: u64) -> (u64, f64) {
    let (log, core) = (u64::from(p.ilog2()), 1 << p.ilog2());
    let (n, k, share) = (n as f64, k as f64, (p - 1) as f64 / p as f64);
    let core_share = (core - 1) as f64 / core as f64;
    // A worker that stands for a surplus one receives that one's gradient first.
    let surplus = u64::from(p > core);
    match method {
        "spardl" => (2 * log2_up(p), 4.0 * k * share),
        "ring" => (2 * (p - 1), 2.0 * n * share),
        "rabenseifner" => (2 * log + 2 * surplus, n * surplus as f64 + 2.0 * n * core_share),
        "recursive-doubling" => (log + 2 * surplus, n * (surplus + log) as f64),
        _ => panic!("no formula for {method}"),
    }
}

/// Medians lie between their quartiles, and what one rank did in a step fits into it.
pub fn times_make_sense(report: &Value) {
    let number = |field: &str| report[field].as_f64().unwrap();
    for field in ["seconds", "seconds_select", "seconds_exchange", "seconds_merge"] {
        let (low, high) = (number(&format!("{field}_p25")), number(&format!("{field}_p75")));
        assert!(0.0 <= low && low <= number(field) && number(field) <= high, "{field}: {report}");
    }
    let parts: f64 = ["slowest_select", "slowest_exchange", "slowest_merge"].map(number).iter().sum();
    assert!(0.0 < parts && parts <= number("seconds") * (1.0 + 1e-9), "{parts}: {report}");
}

/// The floor is a pass and the bytes at the rate of the link: at 1 Mbit/s the bytes, in bits, outweigh it by far.
#[test]
fn a_step_is_compared_with_its_floor() {
    let slow = ["--params", "420000", "--method", "spardl", "--bandwidth", "1mbit"];
    let report = bench(2, &slow);
    let number = |field: &str| report[field].as_f64().unwrap();
    let bytes = 8.0 * number("bytes_per_step") / 1e6;
    for field in ["seconds_floor", "seconds_floor_in_place"] {
        let pass = number(field) - bytes;
        assert!(0.0 < pass && pass < 6.0 * bytes, "{field}: {report}");
    }
}

fn every_number_of_workers(method: &str) {
    for p in [1, 2, 3, 5, 6, 7] {
        let report = bench(p, &["--params", &N.to_string(), "--density", "0.01", "--method", method]);
        let mut fields: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
        let mut known = FIELDS;
        fields.sort_unstable();
        known.sort_unstable();
        assert_eq!(fields, known);
        let k = if method == "spardl" { N / 100 } else { N };
        let (rounds, words) = expected(method, p, N, N / 100);
        for (field, value) in [
            ("workers", p),
            ("params", N),
            ("k", k),
            ("steps", 3),
            ("rounds", rounds),
            ("dense_bytes_per_step", 8 * N * (p - 1) / p),
        ] {
            assert_eq!(report[field], value, "{field}: {report}");
        }
        // A sum may be zero by chance, which the largest entries are not.
        let delivered = report["entries_per_step"].as_u64().unwrap();
        let least = if method == "spardl" { k } else { k - k / 10_000 };
        assert!((least..=k).contains(&delivered), "{report}");
        assert_eq!((&report["method"], &report["lost"]), (&method.into(), &0.0.into()), "{report}");
        assert_eq!(report["digest"].as_str().unwrap().len(), 64, "{report}");
        times_make_sense(&report);
        // A value takes 4 bytes. So does an index in the paper; at density 1% the entropy is 8.08 bits an entry, and a
        // Rice code is within 3% of it. Besides: headers, and control messages of ranks that were done earlier.
        let word = if method == "spardl" { (4.0 + 1.0) / 2.0 } else { 4.0 };
        let (bytes, least) = (report["bytes_per_step"].as_f64().unwrap(), word * words);
        let most = if p == 1 { 0.0 } else { least * 1.02 + 300.0 * p as f64 };
        assert!((least..=most).contains(&bytes), "expected {least} to {most}: {report}");
    }
}

#[test]
fn spardl_costs_what_the_paper_says() {
    every_number_of_workers("spardl");
}

#[test]
fn the_ring_costs_what_its_paper_says() {
    every_number_of_workers("ring");
}

#[test]
fn rabenseifner_costs_what_the_paper_says() {
    every_number_of_workers("rabenseifner");
}

#[test]
fn recursive_doubling_costs_what_the_paper_says() {
    every_number_of_workers("recursive-doubling");
}

#[test]
fn the_seed_alone_decides_the_updates() {
    for method in ["spardl", "ring"] {
        let digest = |seed| {
            let report = bench(3, &["--params", "30000", "--method", method, "--seed", seed]);
            report["digest"].clone()
        };
        assert_eq!(digest("7"), digest("7"));
        assert_ne!(digest("7"), digest("8"));
    }
}

#[test]
fn at_density_one_spardl_delivers_what_the_ring_delivers() {
    let delivered = |workers, method| {
        bench(workers, &["--params", "10000", "--density", "1", "--method", method])["entries_per_step"]
            .clone()
    };
    for workers in [3, 4] {
        assert_eq!(delivered(workers, "spardl"), delivered(workers, "ring"));
    }
}

#[test]
fn a_number_of_entries_may_stand_for_a_density() {
    let report = bench(3, &["--params", "10_000", "--k", "123", "--method", "spardl"]);
    assert_eq!((&report["k"], &report["entries_per_step"]), (&123.into(), &123.into()), "{report}");
    let report = bench(2, &["--params", "0", "--method", "spardl"]);
    assert_eq!((&report["k"], &report["entries_per_step"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn without_json_there_is_a_table() {
    let mut command = gleaner();
    command.args(["bench", "--workers", "2", "--params", "1000", "--method", "spardl", "--steps", "2"]);
    let ended = run(command);
    assert_eq!(ended.code, 0, "{ended:?}");
    for word in ["spardl", "time per step", "bytes received", "on every rank"] {
        assert!(ended.out.contains(word), "{ended:?}");
    }
}
