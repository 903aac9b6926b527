//! Numbers found from measurements: machines, overlap, and the files that they are read from.

use gleaner_algorithms::Method;
use gleaner_testbed::simulation::calibration::{Prepared, fit};
use gleaner_testbed::simulation::measured::{Measured, read};
use gleaner_testbed::simulation::{Machine, Network, Overlap, Steps, replay};

use super::{LINK, carried, steps};

/// A machine's numbers are found again from steps that were simulated with them.
#[test]
fn a_machine_is_fitted() {
    let machine = Machine { message: 90.0, byte: 1.5, accumulate: 3.0, ..Machine::default() };
    let mut cases = Vec::new();
    for workers in [2u32, 4] {
        for name in ["spardl", "ring", "gtopk", "topka", "dsar-split-all-gather"] {
            let method = Method::named(name).unwrap().density(0.01);
            let traces = carried(&method, workers, 100_000);
            let network = Network::star(workers, LINK, 2.0, true);
            let replayed = replay(&traces[0], &machine, &network, false);
            let slowest = replayed.slowest();
            let measured = Measured {
                label: name.into(),
                method,
                workers,
                n: 100_000,
                shape: None,
                cores: Some(2),
                steps: steps(1),
                seconds: slowest.seconds,
                turns: vec![slowest.seconds],
                select: slowest.select,
                merge: slowest.merge,
                bytes_received: 0.0,
                records: Vec::new(),
            };
            cases.push(Prepared { measured, traces, network });
        }
    }
    let off = |machine: &Machine| {
        let ratio = |case: &Prepared| {
            replay(&case.traces[0], machine, &case.network, false).seconds() / case.measured.seconds
        };
        cases.iter().map(|case| (ratio(case) - 1.0).abs()).fold(0.0, f64::max)
    };
    let start = Machine::default();
    let fitted = fit(&cases, &start, |_, _| {});
    assert!(off(&start) > 0.2, "nothing to find: {}", off(&start));
    assert!(off(&fitted) < 0.05, "off by {}: {fitted:?}", off(&fitted));
}

/// Files of measurements: what an experiment stored and what bench printed; other jobs are passed over, nonsense is refused.
#[test]
fn measurements_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measurements.jsonl");
    let summary = serde_json::json!({
        "method": "spardl/2", "workers": 4, "params": 1000, "k": 10, "steps": 5, "seconds": 0.5,
        "slowest_select": 0.1, "slowest_merge": 0.2, "bytes_per_step": 800,
    });
    let with = |case: serde_json::Value, chaos: &[&str], traffic: serde_json::Value| {
        serde_json::json!({
            "version": 1, "experiment": "e", "case": case, "turn": 0, "started": 0.0, "seconds": 1.0,
            "machine": { "processor": "p", "cores": 3, "memory": 1, "kernel": "k" }, "commit": null, "command": [],
            "chaos": chaos, "traffic": traffic, "outcome": { "done": summary },
        })
        .to_string()
    };
    let emulated = || serde_json::json!([{ "host": "host0", "received": 1, "sent": 1 }]);
    let record = |case: serde_json::Value, chaos: &[&str]| with(case, chaos, emulated());
    let shaped = serde_json::json!({ "command": "bench", "bandwidth": "100mbit", "link_latency": "1ms", "loss": "1%", "warmup": 8 });
    let train = serde_json::json!({ "command": "train" });
    let slower = |seconds: f64| {
        let mut record: serde_json::Value = serde_json::from_str(&record(shaped.clone(), &[])).unwrap();
        record["outcome"]["done"]["seconds"] = seconds.into();
        record.to_string()
    };
    let lines = [
        record(shaped.clone(), &[]),
        record(shaped.clone(), &["kill"]),
        // Two more turns of the first.
        slower(0.9),
        slower(0.6),
        record(train, &[]),
        // No link, links that are not alike, and links that vary.
        with(shaped.clone(), &[], serde_json::json!([])),
        record(serde_json::json!({ "command": "bench", "topology": "racks.toml" }), &[]),
        record(serde_json::json!({ "command": "bench", "jitter": "1ms" }), &[]),
        format!("[0] {}", serde_json::json!({ "methods": [summary, summary], "refused": [] })),
        "a launcher's words".into(),
        // A warm-up that only the command tells, and links without a limit.
        with(serde_json::json!({ "command": "bench", "seed": 2 }), &[], emulated())
            .replace("\"command\":[]", "\"command\":[\"gleaner\",\"bench\",\"--warmup\",\"7\"]"),
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let found = read(&path).unwrap();
    assert_eq!(found.len(), 4);
    assert_eq!((found[3].steps.warm_up, found[3].shape.unwrap().rate), (7, None));
    let shape = found[0].shape.unwrap();
    assert_eq!((shape.rate.unwrap().bytes_per_second(), shape.loss.share()), (1.25e7, 0.01));
    assert_eq!(shape.delay, std::time::Duration::from_millis(1));
    assert_eq!((found[0].cores, found[0].workers, found[0].label.as_str()), (Some(3), 4, "spardl/2"));
    assert_eq!(found[0].method.option("teams").unwrap(), "2");
    assert_eq!(found[0].steps, Steps { warm_up: 8, counted: 5 });
    assert_eq!(found[1].steps, steps(5), "bench has three steps before, if nothing else is said");
    assert_eq!((found[0].seconds, &found[0].turns[..]), (0.6, &[0.5, 0.9, 0.6][..]));
    assert_eq!((found[1].shape, found[1].cores), (None, None));
    // What is not of an experiment has no records to write.
    assert_eq!((found[0].records.len(), found[1].records.len()), (3, 0));
    // Options are those of the measurement.
    let options_of = |options: Option<serde_json::Value>| {
        let case = serde_json::json!({ "command": "bench" });
        let mut record: serde_json::Value = serde_json::from_str(&record(case, &[])).unwrap();
        if let Some(options) = options {
            record["outcome"]["done"]["options"] = options;
        }
        std::fs::write(&path, record.to_string()).unwrap();
        let method = read(&path).map(|found| found[0].method.clone()).map_err(|error| error.to_string())?;
        Ok::<_, String>(["teams", "sag"].map(|option| method.option(option).unwrap()))
    };
    let by = |sag: &str| Ok::<_, String>(["2".to_owned(), sag.to_owned()]);
    assert_eq!(options_of(None), by("auto"));
    let options = serde_json::json!({ "teams": "2", "sag": "recursive" });
    assert_eq!(options_of(Some(options)), by("recursive"));
    let unknown = options_of(Some(serde_json::json!({ "root": "1" })));
    assert!(unknown.unwrap_err().contains("root"));
    let none = summary.to_string().replace("\"steps\":5", "\"steps\":0");
    for (text, words) in
        [("{}", "line 1"), ("{\"method\": 3}", "no measurement"), (&none, "no steps"), ("", "no step of")]
    {
        std::fs::write(&path, text).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
    let error = read(&folder.path().join("nowhere")).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

/// The model of overlap finds its own numbers again, and never leaves its bounds.
#[test]
fn overlap_is_fitted() {
    for overlap in [(0.0, 1.0), (0.3, 0.5), (0.1, 0.05), (0.9, 1.0)] {
        let overlap = Overlap { shared: overlap.0, support: overlap.1 };
        let (k, n) = (1e4, 1e6);
        let unions: Vec<u64> = (1..=12).map(|m| overlap.union(f64::from(m), k, n).round() as u64).collect();
        let found = Overlap::fit(&unions, k as usize, n as usize);
        for (workers, &union) in (1..).map(f64::from).zip(&unions) {
            let model = found.union(workers, k, n);
            assert!((model / union as f64 - 1.0).abs() < 0.03, "{overlap:?}: {model} for {union}");
            assert!(model >= k * 0.999 && model <= k * workers * 1.001);
        }
    }
}
