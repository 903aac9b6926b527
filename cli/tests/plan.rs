//! `gleaner plan` as its users see it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn plan(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.current_dir(folder).arg("plan").args(arguments.split_whitespace()).output().unwrap()
}

fn text(arguments: &str) -> String {
    let output = plan(Path::new("."), arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &str) -> Value {
    serde_json::from_str(&text(&format!("{arguments} --json"))).unwrap()
}

fn refused(arguments: &str, code: i32) -> String {
    let output = plan(Path::new("."), arguments);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments}: {sentence}");
    assert!(output.stdout.is_empty());
    sentence
}

/// SparDL, equation 3: 2⌈log2 P⌉ rounds and 4k(P−1)/P words, for any P.
#[test]
fn spardl_costs_what_the_paper_says() {
    for p in [2u64, 3, 5, 6, 8, 14, 16, 20] {
        let k = 100 * p;
        let report = json(&format!("--method spardl --workers {p} --params {} --k {k}", 100 * k));
        let rounds = 2 * p.next_power_of_two().ilog2();
        let words = 4 * k * (p - 1) / p;
        let seconds = f64::from(rounds) * 50e-6 + words as f64 * 32.0 / 1e9;
        for (name, expected) in [
            ("workers", p),
            ("params", 100 * k),
            ("k", k),
            ("blocks", p),
            ("rounds", rounds.into()),
            ("messages", rounds.into()),
            ("words_received", words),
            ("words_critical", words),
        ] {
            assert_eq!(report[name], expected, "{name} of {p}");
        }
        assert_eq!(report["method"], "spardl");
        assert_eq!(report["checked"], true);
        assert!((report["seconds"].as_f64().unwrap() - seconds).abs() < 1e-8);
    }
}

#[test]
fn dense_methods_cost_what_is_known() {
    let (p, n) = (8u64, 8_000u64);
    for (method, rounds, words) in [
        ("ring", 2 * (p - 1), 2 * n * (p - 1) / p),
        ("rabenseifner", 6, 2 * n * (p - 1) / p),
        ("recursive-doubling", 3, 3 * n),
    ] {
        let report = json(&format!("--method {method} --workers {p} --params {n}"));
        assert_eq!((&report["rounds"], &report["messages"]), (&rounds.into(), &rounds.into()), "{method}");
        assert_eq!(report["words_received"], words, "{method}");
        assert_eq!(report["k"], n, "{method}");
    }
    // Six workers: two are folded in and out.
    let report = json("--method recursive-doubling --workers 6 --params 1000");
    assert_eq!(report["rounds"], 4);
}

#[test]
fn time_follows_latency_and_bandwidth() {
    let report = json("--method ring --workers 2 --params 1_000_000 --latency 1ms --bandwidth 32Mbit/s");
    // Two rounds; one word takes a microsecond.
    assert!((report["seconds"].as_f64().unwrap() - 1.002).abs() < 1e-9);
}

#[test]
fn the_schedule_is_printed_round_by_round() {
    // SparDL, Figure 2: six workers send two blocks, two blocks, one block.
    let text = text("--method spardl --workers 6 --params 6_000 --k 600");
    for line in [
        "round 1\n  rank 0: keeps the top 100 of each of blocks 4–5; sends blocks 4–5 to rank 4; adds blocks 0–1 from rank 2",
        "round 2\n  rank 0: keeps the top 100 of each of blocks 2–3; sends blocks 2–3 to rank 2; adds blocks 0–1 from rank 4",
        "round 3\n  rank 0: keeps the top 100 of block 1; sends block 1 to rank 1; adds block 0 from rank 5",
        "round 4\n  rank 0: keeps the top 100 of block 0; copies block 0 to rank 5; places block 1 from rank 1",
        "  rank 5: copies blocks 5, 0 to rank 3; places blocks 1–2 from rank 1",
        "checked: every contribution is counted once, all ranks end with the same sums, nothing deadlocks",
        "6α + 2_000β",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert!(!text.contains("round 7") && !text.contains("other ranks"));
}

#[test]
fn of_many_ranks_one_is_printed() {
    let shifted = text("--method spardl --workers 14 --params 14_728_266 --density 0.01");
    assert!(shifted.contains("n = 14_728_266, k = 147_283"), "{shifted}");
    assert_eq!(shifted.matches("  rank ").count(), 8);
    assert!(shifted.contains("The other ranks do the same"), "{shifted}");
    let other = text("--method rabenseifner --workers 16 --params 1000 --rank 5");
    assert!(
        other.contains("round 1\n  rank 5: sends blocks 8–15 to rank 13; adds blocks 0–7 from rank 13"),
        "{other}"
    );
    assert!(other.contains("--rank R"), "{other}");
    let alone = text("--method spardl --workers 1 --params 10 --k 3");
    assert!(alone.contains("at the end\n  rank 0: keeps the top 3 of everything"), "{alone}");
}

#[test]
fn a_dense_ring_is_compared_with_itself() {
    let text = text("--method ring --workers 7 --params 1000");
    assert_eq!(text.matches("1.0000").count(), 6, "{text}");
}

#[test]
fn a_picture_has_an_arrow_for_every_message() {
    let folder = TempDir::new().unwrap();
    for (method, workers, added, placed) in [
        ("spardl", 6, 18, 18),
        ("ring", 4, 12, 12),
        ("recursive-doubling", 3, 3, 1),
        ("spardl", 64, 384, 384),
    ] {
        let output = plan(
            folder.path(),
            &format!("--method {method} --workers {workers} --params 64_000 --svg plan.svg"),
        );
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("plan.svg"));
        let svg = fs::read_to_string(folder.path().join("plan.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        // One more of each in the legend: filled heads are polygons of the dark colour, hollow ones are thin lines.
        let filled = svg.lines().filter(|l| l.starts_with("<polygon") && l.contains("#16385C")).count();
        let corners = |line: &str| line.split("points=\"").nth(1).map_or(0, |p| p.matches(',').count());
        let hollow = svg.lines().filter(|l| l.contains("#DE812A") && corners(l) == 4);
        assert_eq!((filled, hollow.count()), (added + 1, placed + 1), "{method}");
        assert!(svg.contains("rank") && svg.contains("round") && svg.contains("words a message"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

/// Where all ranks do the same, rotated, one is checked in place of all, and several thousand are.
#[test]
fn thousands_of_workers_are_checked() {
    for (method, workers, rounds) in [
        ("spardl", 1024, 20),
        ("clt-k", 1024, 30),
        ("exdyna", 1024, 30),
        ("rabenseifner", 1024, 20),
        ("ring", 1024, 2046),
        ("spardl", 4096, 24),
        ("oktopk", 4096, 1024 + 12),
    ] {
        let report =
            json(&format!("--method {method} --workers {workers} --params 14_728_266 --density 0.01"));
        assert_eq!((&report["rounds"], &report["blocks"]), (&rounds.into(), &workers.into()), "{method}");
    }
}

#[test]
fn bad_choices_are_refused_with_a_sentence() {
    for (arguments, parts) in [
        ("--method spardl --workers 4 --params 0", &["0 parameters"][..]),
        ("--method spardl --workers 4 --params 100 --density 0", &["the density is 0"]),
        ("--method spardl --workers 4 --params 100 --density nan", &["the density is NaN"]),
        ("--method spardl --workers 4 --params 100 --k 101", &["k is 101", "from 1 to 100"]),
        ("--method none --workers 4 --params 100", &["no method 'none'; choose one of spardl, "]),
        (
            "--method spradl --workers 4 --params 100",
            &["no method 'spradl' (did you mean spardl?); choose one of"],
        ),
        (
            "--method ring --workers 4096 --params 100",
            &["33546240 steps", "at most 8388608", "fewer workers"],
        ),
        (
            "--method rabenseifner --workers 2048 --params 10000",
            &["4194304 slots", "2097152 slots", "fewer workers"],
        ),
        ("--method spardl --workers 4000000000 --params 10000", &["fewer workers"]),
        ("--method ring --workers 65 --params 1000 --svg /tmp/x.svg", &["65 ranks", "at most 64"]),
        ("--method ring --workers 4 --params 1000 --rank 4", &["no rank 4", "from 0 to 3"]),
        ("--method ring --workers 2 --params 10_000_000_000", &["5000000000", "more workers"]),
    ] {
        let sentence = refused(arguments, 2);
        assert!(sentence.starts_with("gleaner: ") && sentence.lines().count() == 1, "{sentence}");
        parts.iter().for_each(|part| assert!(sentence.contains(part), "{arguments}: {sentence}"));
    }
    // Arguments that can be, and a file that cannot.
    let sentence = refused("--method ring --workers 4 --params 1000 --svg /nowhere/x.svg", 1);
    assert!(sentence.contains("/nowhere/x.svg cannot be written"), "{sentence}");
    let ring = "--method ring --params 10 --workers";
    for (usage, part) in [
        (format!("{ring} 0"), "expected a whole number from 1 on"),
        (format!("{ring} 2 --latency 50"), "ns, us, ms or s"),
        (format!("{ring} 2 --bandwidth 1gbps"), "such as 1gbit"),
        (format!("{ring} 2 --bandwidth 0gbit"), "above 0"),
        ("--method ring --workers 2 --params 1.5".into(), "14_728_266, 25.6M or 1e6"),
        ("--method spardl --workers 2 --params 10 --density many".into(), "a percentage such as 1%"),
        ("--speedup --workers 2 --params 10".into(), "cannot be used with"),
        ("--method ring --workers 2".into(), "--params <N>"),
    ] {
        let sentence = refused(&usage, 2);
        assert!(sentence.contains(part), "{usage}: {sentence}");
    }
}

/// Numbers as people write them.
#[test]
fn counts_and_shares_may_have_units() {
    let plain = json("--method spardl --workers 4 --params 25_600_000 --density 0.01");
    assert_eq!(json("--method spardl --workers 4 --params 25.6M --density 1%"), plain);
    assert_eq!(json("--method ring --workers 2 --params 1e6")["params"], 1_000_000);
}

/// The slower the links, the more is gained, and on slow ones about as much as there are fewer bytes; one point by hand.
#[test]
fn speed_up_falls_with_bandwidth() {
    let report = json(
        "--speedup --workers 8 --density 1% --latency 0us --speed select=0,encode=0,merge=0,add=0,message=0",
    );
    let rows = report["rows"].as_array().unwrap();
    assert_eq!((rows.len(), rows[4]["params"].as_u64()), (5, Some(1_000_000_000)));
    let compared = json(
        "--compare --workers 8 --params 1e6 --density 1% --latency 0us --bandwidth 1gbit --speed select=0,encode=0,merge=0,add=0,message=0",
    );
    let seconds = |name: &str| {
        let methods = compared["methods"].as_array().unwrap();
        let of = |row: &&Value| {
            row["method"] == name && row["options"].get("teams").is_none_or(|teams| teams == "1")
        };
        methods.iter().find(of).unwrap()["seconds"].as_f64().unwrap()
    };
    let at = report["bandwidth_bits_per_second"]
        .as_array()
        .unwrap()
        .iter()
        .position(|b| (b.as_f64().unwrap() - 1e9).abs() < 1.0);
    let found = rows[1]["speedup"][at.unwrap()].as_f64().unwrap();
    assert!((found - seconds("ring") / seconds("spardl")).abs() < 1e-6 * found, "{found}");
    let usual = json("--speedup --workers 8 --density 1%");
    let speedup: Vec<f64> =
        usual["rows"][3]["speedup"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
    assert!(speedup.windows(2).all(|two| two[1] < two[0]), "{speedup:?}");
    let folder = TempDir::new().unwrap();
    let drawn = plan(folder.path(), "--speedup --workers 8 --svg speedup.svg");
    assert!(drawn.status.success());
    let picture = fs::read_to_string(folder.path().join("speedup.svg")).unwrap();
    assert!(picture.contains("1_000_000_000 parameters") && !picture.contains("NaN"), "{picture}");
}

/// The report, and the seconds of processors that it took, as the shell's `times` tells them last: for the user and for the system.
fn timed(arguments: &str) -> (Value, f64) {
    let script = "\"$0\" plan --json $1 && times >&2";
    let output =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_gleaner"), arguments]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    };
    let took = said.lines().last().unwrap().split_whitespace().map(seconds).sum();
    (serde_json::from_slice(&output.stdout).unwrap(), took)
}

/// A narrow network wants few bytes, and whatever is compared is sorted; thousands of workers are no more work.
#[test]
fn methods_are_ranked_for_a_network() {
    let (report, took) = timed("--compare --workers 4096 --params 14_728_266 --bandwidth 10gbit");
    assert!(took < 2.0, "{took} s");
    let rows = report["methods"].as_array().unwrap();
    let seconds: Vec<f64> = rows.iter().map(|row| row["seconds"].as_f64().unwrap()).collect();
    assert!(seconds.is_sorted() && rows[0]["ratio"] == 1.0);
    // Every divisor of 4096 above 1 is a number of teams, in both ways.
    assert_eq!(rows.iter().filter(|row| row["method"] == "spardl").count(), 1 + 2 * 12);
    for name in ["ring", "topka", "oktopk", "gtopk"] {
        assert_eq!(rows.iter().filter(|row| row["method"] == name).count(), 1, "{name}");
    }
    let slow = json("--compare --workers 8 --params 1_000_000 --bandwidth 10mbit");
    assert_eq!(slow["methods"][0]["method"], "spardl");
    // Nearly everything is selected, and sparse entries are dear.
    let dense = json(
        "--compare --workers 8 --params 1_000_000 --density 0.45 --bandwidth 100gbit --speed encode=100,merge=100",
    );
    assert!(
        ["ring", "rabenseifner", "recursive-doubling"]
            .contains(&dense["methods"][0]["method"].as_str().unwrap())
    );
    // Speeds are read as all numbers are.
    let speed = |speed: &str| text(&format!("--compare --workers 8 --params 1k --json --speed {speed}"));
    assert_eq!(speed("message=5k,encode=1_000,merge=50%"), speed("message=5000,encode=1000,merge=0.5"));
}

#[test]
fn a_comparison_is_printed_and_drawn() {
    let folder = TempDir::new().unwrap();
    let output = plan(folder.path(), "--compare --workers 6 --params 269_722 --svg compare.svg");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("spardl with 3 teams by B-SAG") && text.contains("compare.svg"), "{text}");
    let svg = fs::read_to_string(folder.path().join("compare.svg")).unwrap();
    for label in ["spardl", "ring", "gtopk", "4096", "workers, P"] {
        assert!(svg.contains(label), "{label}");
    }
    // In the order of the book's page.
    let object = self::text("--compare --workers 6 --params 1000 --json");
    assert!(object.starts_with("{\"workers\":6,\"params\":1000,\"seconds_latency\":"), "{object}");
    let resolved = self::text("--method auto --workers 6 --params 269_722");
    assert!(resolved.starts_with("auto takes spardl"), "{resolved}");
    assert!(refused("--compare --workers 6 --params 10 --speed merge=fast", 2).contains("merge=12"));
    assert!(refused("--compare --workers 6 --params 10 --k 11", 2).contains("k is 11"));
    assert!(refused("--compare --method ring --workers 6 --params 10", 2).contains("cannot be used with"));
    assert!(
        refused("--method spardl --sag some --workers 6 --params 10", 2).contains("auto, recursive or bruck")
    );
    assert!(refused("--compare --teams 4 --workers 6 --params 10", 2).contains("choose 1, 2, 3 or 6"));
}
