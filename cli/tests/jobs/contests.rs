//! `gleaner bench` with several methods, which take turns.

use std::fs;

use gleaner_algorithms::Method;
use serde_json::Value;

use crate::job::{Job, end};
use crate::process::{Ended, gleaner, run};
use crate::reports::times_make_sense;

/// Small jobs of so many workers.
fn bench(workers: u32, arguments: &[&str]) -> Ended {
    let mut command = gleaner();
    command.args(["bench", "--params", "30000", "--warmup", "1", "--steps", "4"]);
    command.args(["--workers", &workers.to_string()]).args(arguments);
    run(command)
}

#[track_caller]
fn reports(ended: &Ended) -> Vec<Value> {
    let report = ended.report();
    let fields: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["methods", "refused"], "{report}");
    report["methods"].as_array().unwrap().clone()
}

/// What neither other methods nor time may change.
fn lasting(report: &Value) -> Vec<Value> {
    ["method", "workers", "params", "k", "steps", "rounds", "entries_per_step", "l2_share", "lost", "digest"]
        .map(|field| report[field].clone())
        .to_vec()
}

#[test]
fn taking_turns_changes_no_update() {
    for workers in [1, 3, 4] {
        let alone = ["spardl", "ring", "rabenseifner"].map(|method| {
            lasting(&bench(workers, &["--json", "--density", "0.01", "--method", method]).report())
        });
        for order in [[0, 1, 2], [2, 0, 1], [0, 0, 1]] {
            let names = order.map(|i| alone[i][0].as_str().unwrap()).join(",");
            let together = reports(&bench(workers, &["--json", "--density", "0.01", "--method", &names]));
            for (report, i) in together.iter().zip(order) {
                times_make_sense(report);
                assert_eq!(lasting(report), alone[i], "{names} among {workers}");
            }
            assert_eq!(together.len(), order.len());
        }
    }
}

#[test]
fn all_are_listed_by_the_time_they_take() {
    let ended = bench(3, &["--json", "--method", "all"]);
    let (methods, report) = (reports(&ended), ended.report());
    assert!(methods.is_sorted_by_key(|report| report["seconds"].as_f64().unwrap()), "{ended:?}");
    let mut names: Vec<&str> = methods
        .iter()
        .chain(report["refused"].as_array().unwrap())
        .map(|m| m["method"].as_str().unwrap())
        .collect();
    let mut known: Vec<&str> = Method::all().map(|m| m.collective().name()).collect();
    names.sort_unstable();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn turns_begin_with_another_method_in_every_step() {
    let names = ["spardl", "ring", "rabenseifner"];
    let job = Job::new(
        2,
        &["--params", "1000", "--warmup", "2", "--steps", "5", "--method", "spardl,ring,rabenseifner"],
    );
    let mut ranks = job.start();
    let ended = end(&mut ranks);
    assert!(ended.iter().all(|ended| ended.code == 0), "{ended:?}");
    let events = ranks[0].events();
    let taken: Vec<&str> = events
        .lines()
        .filter(|line| line.contains("\"kind\":\"progress\""))
        .map(|line| *names.iter().find(|name| line.contains(&format!("\"{name}: "))).unwrap())
        .collect();
    let expected: Vec<&str> =
        (0..7).flat_map(|step| (0..3).map(move |turn| names[(step + turn) % 3])).collect();
    assert_eq!(taken, expected);
    assert!(events.contains("\"done\":21,\"of\":21"), "{events}");
}

#[test]
fn the_share_of_the_norm_is_whole_for_dense_methods_and_grows_with_density() {
    let share = |method, density| {
        let report = bench(3, &["--json", "--method", method, "--density", density]).report();
        report["l2_share"].as_f64().unwrap()
    };
    // Entries whose sum is zero are not delivered, and next to nothing.
    assert!(share("ring", "0.01") > 1.0 - 1e-9);
    let mut last = 0.0;
    for density in ["0.001", "0.01", "0.1", "0.5"] {
        let share = share("spardl", density);
        // Large entries are chosen, and in heavy tails they count for much more than their number.
        assert!(share > last && share > 1.5 * density.parse::<f64>().unwrap() && share < 1.0, "{share}");
        last = share;
    }
    assert!(share("spardl", "1") > 1.0 - 1e-9);
}

#[test]
fn the_table_has_a_row_for_each_method() {
    for (names, order) in
        [("ring,spardl", &["ring", "spardl"][..]), ("spardl,ring,spardl", &["spardl", "ring", "spardl"])]
    {
        let ended = bench(2, &["--method", names, "--residual", "local"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        let rows: Vec<Vec<&str>> = ended
            .out
            .lines()
            .skip(2)
            .map(|line| line.split("  ").filter(|c| !c.is_empty()).map(str::trim).collect())
            .collect();
        assert!(ended.out.starts_with("2 workers, 30_000 entries"), "{ended:?}");
        assert_eq!(rows[1..].iter().map(|row| row[0]).collect::<Vec<_>>(), order);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{ended:?}");
        let widths: Vec<usize> = ended.out.lines().skip(2).map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{ended:?}");
        let column = |heading| {
            let place = rows[0].iter().position(|cell| *cell == heading).unwrap();
            rows[1..].iter().map(move |row| row[place]).collect::<Vec<_>>()
        };
        assert!(column("/ fastest").contains(&"1.00"), "{ended:?}");
        for (method, (rounds, lost)) in order.iter().zip(column("rounds").iter().zip(column("lost"))) {
            assert_eq!(*rounds, "2");
            assert_eq!(lost.parse::<f64>().unwrap() > 0.0, *method == "spardl", "{ended:?}");
        }
    }
}

/// The number behind `name="` in a line of SVG.
fn attribute(line: &str, name: &str) -> f64 {
    let value = line.split(&format!(" {name}=\"")).nth(1).unwrap();
    value.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn bars_are_as_long_as_their_medians() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.svg");
    let ended =
        bench(3, &["--json", "--method", "ring,spardl,recursive-doubling", "--svg", file.to_str().unwrap()]);
    let methods = reports(&ended);
    let svg = fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for words in
        ["A step of 3 workers, n = 30_000", "time of a step in milliseconds", "kB", "select", "merge"]
    {
        assert!(svg.contains(words), "no '{words}' in\n{svg}");
    }
    // Parts of bars have these colours; those of the legend are the first.
    let is_part = |line: &&str| {
        line.starts_with("<rect") && ["#16385C", "#DE812A", "#F4E2BE"].iter().any(|c| line.contains(c))
    };
    let parts: Vec<&str> = svg.lines().filter(is_part).skip(3).collect();
    let mut rows: Vec<f64> = parts.iter().map(|part| attribute(part, "y")).collect();
    rows.dedup();
    assert_eq!(rows.len(), methods.len());
    // Behind the last of these is what was between them, in white.
    let all: Vec<&str> = svg.lines().filter(|line| line.starts_with("<rect")).collect();
    let start = attribute(parts[0], "x");
    let length = |row: &f64| {
        let of_row = all.iter().filter(|bar| attribute(bar, "y") == *row);
        of_row.map(|bar| attribute(bar, "x") + attribute(bar, "width")).fold(0.0, f64::max) - start
    };
    let lengths: Vec<f64> = rows.iter().map(length).collect();
    let seconds: Vec<f64> = methods.iter().map(|report| report["seconds"].as_f64().unwrap()).collect();
    let pixels = lengths.iter().sum::<f64>() / seconds.iter().sum::<f64>();
    for (report, (length, time)) in methods.iter().zip(lengths.iter().zip(&seconds)) {
        assert!((length - time * pixels).abs() <= 2.0, "{length} pixels for {time} s\n{svg}");
        assert!(svg.contains(&format!("{:.2} ms, ", time * 1e3)), "{report}");
        assert!(svg.contains(report["method"].as_str().unwrap()));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the picture");
}

#[test]
fn what_cannot_be_starts_no_worker() {
    for (arguments, words) in [
        (
            &["--method", "ring,spradl"][..],
            &["no method 'spradl'", "did you mean spardl?", "choose one of spardl"][..],
        ),
        (&["--method", "ring,spardl,"], &["no method ''"]),
        (&["--method", "all", "--k", "30001"], &["k is 30001", "30000 entries"]),
        (&["--method", "all", "--density", "0"], &["density is 0"]),
        (
            &["--method", "ring,recursive-doubling", "--params", "8_589_934_592", "--workers", "16"],
            &["recursive-doubling cuts 8589934592 entries", "more workers"],
        ),
        (&["--method", "ring", "--svg", "/nowhere/x.svg"], &["/nowhere/x.svg cannot be written"]),
    ] {
        let mut command = gleaner();
        command.arg("bench");
        if !arguments.contains(&"--params") {
            command.args(["--params", "30000"]);
        }
        // A worker is started by a shell, and there is none.
        command.args(arguments).env("PATH", "/nowhere");
        let ended = run(command);
        ended.failed_with(words);
        let code = if arguments.contains(&"--svg") { 1 } else { 2 };
        assert_eq!((ended.code, ended.err.lines().count()), (code, 1), "{ended:?}");
    }
}

#[test]
fn ranks_with_other_methods_are_named() {
    for (ours, theirs) in [("ring,spardl", "ring"), ("ring", "ring,spardl"), ("ring,spardl", "spardl,ring")] {
        let job = |names| Job::new(3, &["--params", "1000", "--method", names]);
        let (common, odd) = (job(ours), Job { port: 0, ..job(theirs) });
        let odd = Job { port: common.port, ..odd };
        let mut ranks = [common.rank(0), odd.rank(1), common.rank(2)];
        for ended in end(&mut ranks) {
            let [theirs, ours] = [theirs, ours].map(|names| format!("with --method {names}"));
            ended.failed_with(&["rank 1", &theirs, "rank 0", &ours, "start all ranks with the same"]);
        }
    }
}

#[test]
fn a_launcher_starts_ranks_that_take_the_same_turns() {
    let arguments =
        ["bench", "--json", "--params", "30000", "--warmup", "1", "--steps", "4", "--method", "spardl,ring"];
    let mut command = gleaner();
    command.args(["launch", "--workers", "3", "--", env!("CARGO_BIN_EXE_gleaner")]).args(arguments);
    let launched: Vec<_> = reports(&run(command)).iter().map(lasting).collect();
    let alone: Vec<_> =
        reports(&bench(3, &["--json", "--method", "spardl,ring"])).iter().map(lasting).collect();
    assert_eq!(launched, alone);
}

/// A choice reports its result; with few steps it is still trying, with 230 it has chosen the fastest it tried.
#[test]
fn auto_reports_what_it_chose() {
    let arguments = ["bench", "--workers", "3", "--params", "5000", "--steps", "1", "--json"];
    let chosen = |method: &str, warmup: &str| {
        let mut command = gleaner();
        command.args(arguments).args(["--method", method, "--warmup", warmup]);
        run(command).report()["auto"].clone()
    };
    let known: Vec<&str> = Method::all().map(|m| m.collective().name()).collect();
    for (warmup, has_chosen) in [("3", false), ("14", false), ("229", true)] {
        let auto = chosen("auto", warmup);
        assert_eq!(auto["decided"], has_chosen, "{auto}");
        let tried = auto["tried"].as_array().unwrap();
        assert_eq!(tried.is_empty(), warmup == "3", "{auto}");
        for method in tried.iter().chain([&auto]) {
            assert!(known.contains(&method["method"].as_str().unwrap()), "{auto}");
            assert!(method["seconds_expected"].as_f64().unwrap() > 0.0, "{auto}");
            let named = Method::named(method["method"].as_str().unwrap()).unwrap();
            let options: Vec<&str> = named.collective().options().iter().map(|option| option.name).collect();
            let reported = method["options"].as_object().unwrap();
            assert!(reported.keys().all(|name| options.contains(&&**name)), "{auto}");
            assert_eq!(reported.len(), options.len(), "{auto}");
            let set =
                |method: Method, (name, value): (&String, &Value)| method.with(name, value.as_str().unwrap());
            assert!(reported.iter().try_fold(named, set).unwrap().shape(3, 5000).is_ok(), "{auto}");
        }
        let measured = |method: &Value| method["seconds_measured"].as_f64();
        assert!(tried.iter().all(|method| measured(method).unwrap() > 0.0), "{auto}");
        assert!(tried.is_sorted_by(|a, b| measured(a) <= measured(b)), "{auto}");
        if has_chosen {
            let fields = ["method", "options", "seconds_expected", "seconds_measured"];
            assert!(fields.iter().all(|field| tried[0][field] == auto[field]), "{auto}");
        }
    }
    assert!(chosen("ring", "0").is_null());
}
