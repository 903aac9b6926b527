//! `gleaner simulate` as its users see it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn simulate(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.current_dir(folder).arg("simulate").args(arguments.split_whitespace()).output().unwrap()
}

fn text(folder: &Path, arguments: &str) -> String {
    let output = simulate(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(Path::new("."), &format!("{arguments} --json"))).unwrap()
}

fn refused(arguments: &str) -> String {
    refused_in(Path::new("."), arguments)
}

fn refused_in(folder: &Path, arguments: &str) -> String {
    let output = simulate(folder, arguments);
    let sentence = String::from_utf8(output.stderr).unwrap();
    // What is wrong is in a file, or in the arguments.
    let of_files = ["cannot be read", "no speeds", "no measurement", "has no times"];
    let code = if of_files.iter().any(|words| sentence.contains(words)) { 1 } else { 2 };
    assert_eq!(output.status.code(), Some(code), "{arguments}: {sentence}");
    assert!(output.stdout.is_empty(), "{arguments}");
    sentence
}

#[test]
fn all_methods_are_predicted_or_refused_for_a_reason() {
    let all = json("--method all --workers 3 --params 20_000");
    let methods = all["methods"].as_array().unwrap();
    assert_eq!(methods.len() + all["refused"].as_array().unwrap().len(), 15);
    for row in methods {
        let part = |name: &str| row[name].as_f64().unwrap();
        let sum = part("seconds_select") + part("seconds_exchange") + part("seconds_merge");
        assert!((sum - part("seconds")).abs() < 1e-9, "{row}");
    }
    let table = text(Path::new("."), "--method all --workers 3 --params 20_000");
    assert!(methods.iter().all(|row| table.contains(row["method"].as_str().unwrap())), "{table}");
}

/// The same command gives the same numbers, with losses too.
#[test]
fn predictions_repeat() {
    let command = "--method ring,spardl --workers 4 --params 50_000 --loss 1% --link-latency 500us --seed 7";
    assert_eq!(json(command), json(command));
    assert_ne!(json(command), json(&command.replace("--seed 7", "--seed 8")));
}

/// The command, which gets so many bytes of addresses and no more. What the shell says last is the time that it took of
/// processors.
fn simulate_within(bytes: u64, arguments: &str) -> Output {
    let limited = format!("ulimit -v {} && \"$0\" simulate --json $1 && times >&2", bytes / 1024);
    Command::new("sh").args(["-c", &limited, env!("CARGO_BIN_EXE_gleaner"), arguments]).output().unwrap()
}

/// Seconds of processors, as `times` tells them: for the user and for the system.
fn processor_seconds(said: &str) -> f64 {
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    };
    said.lines().last().unwrap().split_whitespace().map(seconds).sum()
}

/// Thousands of workers, with the memory of a small machine and within seconds: SparDL in its 2⌈log2 P⌉ rounds, and a ring, of
/// which one worker is simulated, by symmetry. The time is that of the processors: how long they had other things to do does not matter.
#[test]
fn thousands_of_workers_fit_into_four_gibibytes() {
    for (method, workers, n, rounds, most) in [
        ("spardl", 1024u64, 14_728_266u64, 20u64, 10.0),
        ("spardl", 4096, 10_000_000_000, 24, 60.0),
        ("ring", 4096, 10_000_000_000, 8190, 60.0),
    ] {
        let arguments = format!("--method {method} --workers {workers} --params {n} --bandwidth 10gbit");
        let output = simulate_within(4 << 30, &arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["methods"][0]["rounds"], rounds, "{report}");
        let taken = processor_seconds(&said);
        println!("{method} among {workers} workers, n = {n}: {taken:.2} s of a processor");
        assert!(taken < most, "{method} among {workers} workers took {taken} s");
    }
    // The limit is one.
    let arguments = "--workers 4096 --params 10_000_000_000";
    assert!(!simulate_within(64 << 20, arguments).status.success());
}

#[test]
fn a_straggler_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    text(folder.path(), "--workers 6 --params 100_000 --slow 3=2 --svg steps.svg");
    let picture = fs::read_to_string(folder.path().join("steps.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("3 (2× slower)"));
}

/// Profiled: the bytes and entries of what is executed, and times that are this machine's.
#[test]
fn bags_are_timed_on_request() {
    let arguments = "--workers 3 --params 20_000 --method spardl,ring";
    let (timed, real) = (json(&format!("{arguments} --workload profiled")), json(arguments));
    for (timed, real) in [0, 1].map(|i| (&timed["methods"][i], &real["methods"][i])) {
        assert_eq!((&timed["workload"], &real["workload"]), (&"profiled".into(), &"executed".into()));
        assert_eq!((&timed["rounds"], &timed["messages"]), (&real["rounds"], &real["messages"]));
        for key in ["payload_bytes_per_step", "entries_per_step"] {
            let (a, b) = (timed[key].as_f64().unwrap(), real[key].as_f64().unwrap());
            assert!((a / b - 1.0).abs() < 0.05, "{key}: {a} instead of {b}");
        }
        assert!(timed["seconds"].as_f64().unwrap() > 0.0);
    }
}

/// Steps that an experiment measured twice, made of what `bench` prints.
fn two_turns(experiment: &str) -> String {
    let bench = ["bench", "--workers", "2", "--params", "20000", "--steps", "2", "--json"];
    let output = Command::new(env!("CARGO_BIN_EXE_gleaner")).args(bench).output().unwrap();
    let mut summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut record = |turn: u64, seconds: f64| {
        summary["seconds"] = seconds.into();
        let traffic = json!([{ "host": "host0", "received": 1, "sent": 1 }]);
        let machine = json!({ "processor": "any", "cores": 2, "memory": 1 << 30, "kernel": "any", "congestion": "cubic" });
        let case = json!({ "command": "bench", "method": "spardl", "bandwidth": "1gbit" });
        json!({
            "version": 1, "experiment": experiment, "case": case, "turn": turn, "started": 0.0, "seconds": 1.0, "machine": machine,
            "commit": "0", "command": [], "chaos": [], "traffic": traffic, "outcome": { "done": summary },
        })
        .to_string()
    };
    [(0, 0.002), (1, 0.004)].map(|(turn, seconds)| record(turn, seconds) + "\n").concat()
}

/// One case, measured by its median, and a machine whose speeds are found.
#[test]
fn turns_of_a_case_are_compared_as_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("measurements.jsonl"), two_turns("two")).unwrap();
    for workload in ["auto", "profiled", "profiled --turns 2 --times kept"] {
        let arguments =
            format!("--workload {workload} --fit-machine machine.json --against measurements.jsonl");
        let said = text(folder.path(), &format!("{arguments} --json"));
        let found: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(found["cases"].as_array().unwrap().len(), 1, "{said}");
        let case = &found["cases"][0];
        assert_eq!((&case["method"], &case["workers"]), (&"spardl".into(), &2.into()));
        assert_eq!(
            (&case["seconds_measured"], &case["seconds_of_turns"]),
            (&0.003.into(), &json!([0.002, 0.004]))
        );
        assert!(case["seconds_predicted"].as_f64().unwrap() > 0.0);
        assert_eq!(case["bandwidth_bits_per_second"], 1e9);
        let off = (case["ratio"].as_f64().unwrap() - 1.0).abs();
        assert_eq!(found["near"], u64::from(off <= 0.15), "{said}");
        let table = text(folder.path(), &format!("{arguments} --machine machine.json"));
        assert!(table.contains("2.00 … 4.00") && table.contains("Mbit/s"), "{table}");
        // The one case is among those within 15%, or it is marked.
        let row = table.lines().find(|line| line.contains("spardl")).unwrap();
        let near = u32::from(!row.contains("off"));
        assert!(table.contains(&format!("\n{near} of 1 cases within 15%; the worst is off by ")), "{table}");
    }
    // What was timed is not timed again: from the same times comes the same prediction.
    let arguments =
        "--workload profiled --turns 2 --times kept --machine machine.json --against measurements.jsonl";
    assert_eq!(text(folder.path(), arguments), text(folder.path(), arguments));
    let kept: Vec<_> =
        fs::read_dir(folder.path().join("kept")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    fs::write(&kept[0], "[]").unwrap();
    let sentence = refused_in(folder.path(), arguments);
    assert!(sentence.contains("has no times"), "{sentence}");
}

/// What is written for pages is what was measured, turn by turn, each with the prediction that is printed.
#[test]
fn predictions_are_written_beside_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let lines = two_turns("two");
    fs::write(at("measurements.jsonl"), &lines).unwrap();
    fs::write(at("experiment.toml"), "title = \"Two\"\n").unwrap();
    let arguments = "--against measurements.jsonl --predicted runs/two";
    let printed: Value = serde_json::from_str(&text(folder.path(), &format!("{arguments} --json"))).unwrap();
    let written = fs::read_to_string(at("runs/two/measurements.jsonl")).unwrap();
    assert_eq!((written.lines().count(), lines.lines().count()), (2, 2));
    for (written, measured) in written.lines().zip(lines.lines()) {
        let [mut written, measured] =
            [written, measured].map(|line| serde_json::from_str::<Value>(line).unwrap());
        let added = written["outcome"]["done"].as_object_mut().unwrap().remove("predicted_seconds");
        assert_eq!(added.as_ref(), Some(&printed["cases"][0]["seconds_predicted"]));
        assert_eq!(written, measured);
    }
    assert_eq!(fs::read(at("runs/two/experiment.toml")).unwrap(), fs::read(at("experiment.toml")).unwrap());
    // The pages take it as any run.
    fs::create_dir(at("pages")).unwrap();
    let page = "# Title\n\n<!-- measured\nexperiment = \"two\"\nrows = [\"method\"]\ncolumns = [\
                { head = \"measured\", value = \"1e3 * seconds\", show = \"range\", digits = 2 }, \
                { head = \"ratio\", value = \"predicted_seconds / seconds\", show = \"most\", digits = 2 }]\n-->\n<!-- end -->\n";
    fs::write(at("pages/page.md"), page).unwrap();
    let mut pages = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    pages.current_dir(folder.path()).args(["testbed", "pages", "pages", "--from", "runs/two"]);
    let output = pages.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ratio = printed["cases"][0]["seconds_predicted"].as_f64().unwrap() / 0.002;
    let page = fs::read_to_string(at("pages/page.md")).unwrap();
    assert!(page.contains(&format!("| spardl | 3.00 (2.00 to 4.00) | {ratio:.2} |")), "{page}");

    // What is there stays, several experiments are no run, and neither is what bench printed: all of that is seen before anything is timed.
    let bench = lines.lines().next().map(|line| serde_json::from_str::<Value>(line).unwrap()).unwrap();
    fs::write(at("bench.jsonl"), bench["outcome"]["done"].to_string()).unwrap();
    fs::write(at("other.jsonl"), two_turns("other")).unwrap();
    for (against, into, words) in [
        (
            "measurements.jsonl",
            "runs/two",
            "runs/two/measurements.jsonl is there already; expected a folder without a run",
        ),
        ("measurements.jsonl", ".", "./measurements.jsonl is there already"),
        (
            "measurements.jsonl other.jsonl",
            "runs/both",
            "is for one experiment, and --against has other and two",
        ),
        ("measurements.jsonl bench.jsonl", "runs/both", "spardl among 2 workers is of no experiment"),
    ] {
        let output = simulate(
            folder.path(),
            &format!("--workload profiled --times kept --predicted {into} --against {against}"),
        );
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && sentence.contains(words), "{against}: {sentence}");
    }
    assert_eq!(fs::read_to_string(at("runs/two/measurements.jsonl")).unwrap(), written);
    assert_eq!(fs::read_to_string(at("measurements.jsonl")).unwrap(), lines);
    assert!(!at("kept").exists() && !at("runs/both").exists());
}

/// Predictions name the commit of the checkout that they are made in, which others have to be able to build.
#[test]
fn predictions_name_their_commit() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &str| {
        let mut git = Command::new("git");
        git.current_dir(folder.path()).args(["-c", "user.name=any", "-c", "user.email=any"]);
        git.args(arguments.split_whitespace()).output()
    };
    if git("init").is_err() {
        return gleaner_skips::skip("git", "git is not installed");
    }
    let file = folder.path().join("measurements.jsonl");
    let lines = two_turns("two");
    fs::write(&file, &lines).unwrap();
    for arguments in ["add measurements.jsonl", "commit --message one"] {
        let output = git(arguments).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let commit = String::from_utf8(git("rev-parse HEAD").unwrap().stdout).unwrap();
    text(folder.path(), "--against measurements.jsonl --predicted clean");
    for line in fs::read_to_string(folder.path().join("clean/measurements.jsonl")).unwrap().lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&record["commit"], &record["predicted_commit"]), (&json!("0"), &json!(commit.trim())));
    }

    fs::write(&file, lines + "\n").unwrap();
    let output = simulate(folder.path(), "--against measurements.jsonl --predicted changed");
    let sentence = String::from_utf8(output.stderr).unwrap();
    let words = format!("files differ from commit {}; expected with --predicted", commit.trim());
    assert!(output.status.code() == Some(1) && sentence.contains(&words), "{sentence}");
    assert!(!folder.path().join("changed").exists());
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    for (arguments, words) in [
        ("--workers 0 --params 10", "expected a whole number from 1 to 4096"),
        ("--workers 65 --params 1000 --workload profiled", "expected at most 64 workers"),
        (
            "--workers 2 --params 200_000_000 --workload profiled",
            "expected at most 64 workers and 268435456 entries",
        ),
        ("--workers 5000 --params 10", "expected a whole number from 1 to 4096"),
        ("--workers 4", "--params"),
        ("--workers 4 --params 0", "expected at least one"),
        ("--workers 4 --params 100 --bandwidth fast", "'fast' is no bandwidth"),
        ("--workers 4 --params 100 --loss 0.9", "carries no job"),
        ("--workers 4 --params 100 --slow 9=2", "no rank 9"),
        ("--workers 4 --params 100 --slow 1=0", "no slow host"),
        ("--workers 4 --params 100 --cores 0", "no number of cores"),
        ("--workers 4 --params 100 --machine nowhere.json", "cannot be read"),
        ("--workers 4 --params 100 --machine Cargo.toml", "no speeds"),
        ("--workers 4 --params 100 --topology nowhere.toml", "cannot be read"),
        ("--workers 4 --params 100 --overlap 2,1", "no overlap"),
        ("--workers 65 --params 1000 --svg x.svg", "cannot be drawn"),
        ("--method nothing --workers 4 --params 100", "no method"),
        ("--method auto --workers 4 --params 100", "auto is a choice"),
        ("--method ring --workers 4096 --params 100000 --loss 1%", "links that lose nothing"),
        ("--workers 2000 --params 1000000 --workload executed", "too many to execute"),
        ("--against nowhere.jsonl", "cannot be read"),
        ("--against Cargo.toml", "no measurement"),
        ("--against measurements.jsonl --slow 1=2", "cannot be used with"),
        ("--against measurements.jsonl --method ring", "cannot be used with"),
        ("--against measurements.jsonl --turns 3", "say --workload profiled"),
        ("--fit-machine speeds.json", "--against"),
    ] {
        let sentence = refused(arguments);
        assert!(sentence.contains(words), "{arguments}: {sentence}");
    }
}

/// The evaluator of merging, with costs that are simulated: all layers at once take a step more than computing, and no grouping is
/// better than the one that is reported.
#[test]
fn an_iteration_of_a_model_is_a_step_more_than_computing() {
    let network = "--method ring,spardl,topka --workers 4 --bandwidth 100mbit --workload expected";
    let steps = json(&format!("{network} --params 14_728_266"));
    let model = json(&format!("{network} --model vgg16 --compute 180ms"));
    let rows = model["methods"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap();
        let step = steps["methods"].as_array().unwrap().iter().find(|step| step["method"] == row["method"]);
        let expected = 0.18 + step.unwrap()["seconds"].as_f64().unwrap();
        assert!((number("seconds_single") - expected).abs() < 1e-9, "{row}");
        assert!(
            number("seconds_iteration") <= number("seconds_single").min(number("seconds_layer_wise")),
            "{row}"
        );
        assert!(number("seconds_iteration") >= 0.18, "{row}");
    }
    assert!(
        rows.windows(2)
            .all(|two| two[0]["seconds_iteration"].as_f64() <= two[1]["seconds_iteration"].as_f64())
    );
    let table = text(Path::new("."), &format!("{network} --model vgg16 --compute 180ms"));
    assert!(table.contains("is the fastest, with") && table.contains("54 layers"), "{table}");
    assert!(refused("--model vgg16 --workers 4").contains("has no time"));
    assert!(refused("--model vgg16 --compute 1s --workers 4 --params 100").contains("--params"));
}

/// Percentages, thousands and underscores are read as in every other option.
#[test]
fn numbers_are_read_as_everywhere() {
    let usual = "--method ring --workers 4 --params 100_000 --workload expected";
    let plain = json(&format!("{usual} --cores 1000 --slow 3=1.5"));
    assert_eq!(json(&format!("{usual} --cores 1k --slow 3=150%")), plain);
    assert_eq!(json(&format!("{usual} --cores 1_000 --slow 3=1.5e0")), plain);
}

/// No job measures a network by which `auto` could choose.
#[test]
fn auto_is_not_listed() {
    let output = Command::new(env!("CARGO_BIN_EXE_gleaner")).args(["simulate", "-h"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let method = help.lines().find(|line| line.contains("The all-reduce:")).unwrap();
    assert!(method.contains("spardl") && !method.contains("auto"), "{method}");
}

/// The closed form beside the simulation: what `plan --compare` prints for the same machine and links, and how far the two are apart. Left out
/// is ExDyna, whose steps search for thresholds: the closed form is of one that has found them.
#[test]
fn the_closed_form_is_near_the_simulation() {
    let job = "--workers 8 --params 1_000_000 --density 0.01";
    let network = format!("{job} --link-latency 150us");
    let steps = json(&format!("{network} --method all --bandwidth 100mbit"));
    let price = |name: &str| steps["machine_speeds"][name].as_f64().unwrap();
    let speed = [
        ("select", price("accumulate")),
        ("encode", price("choose") + price("clear") + price("encode")),
        ("merge", 2.0 * price("merge") + price("commit")),
        ("add", price("dense") + price("commit_dense")),
        ("message", 2e3 * price("message")),
    ];
    let speed = speed.map(|(name, ns)| format!("{name}={ns}")).join(",");
    let byte = 8.0 / (price("goodput") * 1e8) + 2e-9 * price("byte");
    let mut plan = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    // A message crosses two links.
    plan.args(["plan", "--compare", "--json", "--speed", &speed, "--latency", "300us"]).args(job.split(' '));
    plan.args(["--bandwidth", &format!("{:.9}mbit", 8e-6 / byte)]);
    let plan: Value = serde_json::from_slice(&plan.output().unwrap().stdout).unwrap();
    let near = |what: &Value, forecast: &Value, simulated: f64| {
        let ratio = forecast.as_f64().unwrap() / simulated;
        assert!((0.6..1.6).contains(&ratio), "{what}: {ratio}");
    };
    let mut compared = 0;
    for row in steps["methods"].as_array().unwrap() {
        let method = row["method"].as_str().unwrap();
        let planned = plan["methods"].as_array().unwrap().iter();
        let planned = planned.filter(|other| {
            let teams = &other["options"]["teams"];
            other["method"] == method && (teams.is_null() || teams == "1")
        });
        for planned in planned {
            let ratio = planned["seconds"].as_f64().unwrap() / row["seconds_expected"].as_f64().unwrap();
            assert!((ratio - 1.0).abs() < 1e-6, "{method}: {ratio}");
            compared += 1;
        }
        if !method.starts_with("exdyna") {
            near(&row["method"], &row["seconds_expected"], row["seconds"].as_f64().unwrap());
        }
    }
    assert!(compared >= 8, "{compared} methods in both");
    let iterations = json(
        "--model vgg16 --compute 180ms --method ring,spardl,topka --workers 4 --bandwidth 100mbit --workload expected",
    );
    for row in iterations["methods"].as_array().unwrap() {
        near(&row["method"], &row["seconds_expected"], row["seconds_iteration"].as_f64().unwrap());
    }
    let shared = json(&format!("{network} --method spardl --bandwidth 100mbit --shared"));
    assert!(
        shared["methods"][0]["seconds_expected"].is_null(),
        "the closed form knows of no cores that are shared"
    );
}
