//! The command: what it writes, prints and refuses.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::samples::{self, Noise};

/// Runs the command in a folder.
pub fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.current_dir(folder).args(["testbed", "report"]).args(arguments).output().unwrap()
}

/// The page of these measurements.
pub fn page(folder: &Path, records: &[Value]) -> String {
    samples::write(&folder.join("run"), records);
    let output = report(folder, &["run"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "run/report.html\n");
    fs::read_to_string(folder.join("run/report.html")).unwrap()
}

fn json(folder: &Path, directories: &[&str]) -> Value {
    let output = report(folder, &[directories, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A figure of the JSON object.
fn figure<'a>(report: &'a Value, id: &str) -> &'a Value {
    report["figures"].as_array().unwrap().iter().find(|f| f["id"] == id).unwrap()
}

/// The first point of a method in the first panel of a figure.
fn point<'a>(figure: &'a Value, label: &str) -> &'a Value {
    let series = figure["panels"][0]["series"].as_array().unwrap();
    &series.iter().find(|s| s["label"] == label).unwrap_or_else(|| panic!("{label} in {series:?}"))["points"]
        [0]
}

/// The command fails with one sentence that has these words in it, and leaves no file behind.
fn refused(folder: &Path, arguments: &[&str], words: &[&str]) {
    let files = || fs::read_dir(folder).unwrap().count();
    let before = files();
    let output = report(folder, arguments);
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    for word in words {
        assert!(sentence.contains(word), "'{word}' in: {sentence}");
    }
    assert_eq!(files(), before, "{arguments:?} left something behind");
}

#[test]
fn the_numbers_are_those_that_were_measured() {
    let folder = TempDir::new().unwrap();
    let mut records = Vec::new();
    for (turn, (ring, spardl)) in [(0.9, 0.2), (1.0, 0.5), (1.4, 0.4)].into_iter().enumerate() {
        for workers in [4, 8] {
            for (method, seconds) in [("ring", ring), ("spardl", spardl)] {
                let mut record = samples::bench(method, workers, 0.01, turn as u32, &mut Noise::new(1));
                record["outcome"]["done"]["seconds"] = seconds.into();
                records.push(record);
            }
        }
    }
    samples::write(&folder.path().join("run"), &records);
    let report = json(folder.path(), &["run"]);
    let step = point(figure(&report, "step-time"), "spardl");
    assert_eq!((&step["value"], &step["low"], &step["high"]), (&json!(0.4), &json!(0.2), &json!(0.5)));
    assert_eq!(step["measurements"], 3);
    // Turn by turn the ratios are 4.5, 2 and 3.5.
    let ratio = point(figure(&report, "speed-up"), "spardl");
    let near = |name: &str, expected: f64| (ratio[name].as_f64().unwrap() - expected).abs() < 1e-12;
    assert!(near("value", 3.5) && near("low", 2.0) && near("high", 4.5), "{ratio}");
    // 13 steps with the warm-up, and 4% of headers on the way.
    let bytes = figure(&report, "bytes")["panels"][0]["series"][1]["points"].as_array().unwrap();
    let (counted, interface) = (bytes[0]["value"].as_f64().unwrap(), bytes[1]["value"].as_f64().unwrap());
    assert!((interface - (1.04 * counted + 20_000.0 / 13.0)).abs() < 1.0, "{bytes:?}");
    assert_eq!(report["runs"][0]["done"], 12);
    assert_eq!(report["failures"], json!([]));
    assert!(!folder.path().join("run/report.html").exists(), "--json alone writes no page");
}

#[test]
fn one_turn_keeps_its_quartiles() {
    let folder = TempDir::new().unwrap();
    let record = samples::bench("spardl", 4, 0.01, 0, &mut Noise::new(1));
    samples::write(&folder.path().join("run"), std::slice::from_ref(&record));
    let report = json(folder.path(), &["run"]);
    let step = point(figure(&report, "step-time"), "spardl");
    let done = &record["outcome"]["done"];
    for (shown, measured) in [("low", "seconds_p25"), ("value", "seconds"), ("high", "seconds_p75")] {
        let (shown, measured) = (step[shown].as_f64().unwrap(), done[measured].as_f64().unwrap());
        // Numbers that were written and read again differ in their last bit at most.
        assert!((shown - measured).abs() <= f64::EPSILON * measured, "{step}");
    }
}

#[test]
fn runs_are_distinguished_where_they_measured_the_same() {
    let folder = TempDir::new().unwrap();
    let noise = &mut Noise::new(1);
    let shared = |noise: &mut Noise| samples::bench("spardl", 4, 0.01, 0, noise);
    samples::write(&folder.path().join("monday"), &[shared(noise), samples::bench("ring", 4, 1.0, 0, noise)]);
    samples::write(
        &folder.path().join("tuesday"),
        &[shared(noise), samples::bench("gtopk", 4, 0.01, 0, noise)],
    );
    let report = json(folder.path(), &["monday", "tuesday"]);
    let series = figure(&report, "step-time")["panels"][0]["series"].as_array().unwrap();
    let mut labels: Vec<&str> = series.iter().map(|s| s["label"].as_str().unwrap()).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["gtopk", "ring", "spardl, monday", "spardl, tuesday"]);
}

#[test]
fn a_torn_line_is_noted_and_the_rest_is_shown() {
    let folder = TempDir::new().unwrap();
    let record = samples::bench("spardl", 4, 0.01, 0, &mut Noise::new(1));
    samples::write(&folder.path().join("run"), &[record]);
    let path = folder.path().join("run/measurements.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    // Torn within a character.
    file.write_all(b"{\"version\":1,\"experiment\":\"\xc3").unwrap();
    let report = json(folder.path(), &["run"]);
    assert_eq!(report["runs"][0]["done"], 1);
    let notes = report["runs"][0]["notes"].as_array().unwrap();
    assert!(notes.len() == 1 && notes[0].as_str().unwrap().contains("torn"), "{notes:?}");
}

/// Where a relay carries the packets, what it could not carry in time says nothing of the links; nor does an exchange that kept the
/// processors busy.
#[test]
fn what_the_processors_held_up_is_left_out_and_said() {
    let folder = TempDir::new().unwrap();
    let relayed = |turn: u32, late: u64, busy: f64| {
        let mut record = samples::bench("spardl", 4, 0.01, turn, &mut Noise::new(1));
        record["relay"] = json!({ "carried": 1000, "late": late, "lost": 3, "dropped": 0, "busy": busy });
        record
    };
    let records = [relayed(0, 10, 0.9), relayed(1, 11, 0.5), relayed(2, 0, 0.95)];
    samples::write(&folder.path().join("run"), &records);
    let report = json(folder.path(), &["run"]);
    assert_eq!(report["runs"][0]["done"], 1);
    let notes: Vec<&str> =
        report["runs"][0]["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    let expected = "measures the processors and not the links, and was left out:";
    assert_eq!(
        notes,
        [
            format!("line 2 {expected} the relay brought 1.1% of the frames late"),
            format!("line 3 {expected} the processors were busy for 95.0% of the time"),
        ]
    );
}

/// What was planned and did not happen is said at the top of the page, in its text and in its JSON, and the measurement is in no figure.
#[test]
fn what_was_planned_and_did_not_happen_is_in_no_figure_and_said() {
    let folder = TempDir::new().unwrap();
    let missed = |turn: u32, reasons: &[&str]| {
        let mut record = samples::bench("spardl", 4, 0.01, turn, &mut Noise::new(1));
        record["missed"] = json!(reasons);
        record
    };
    let reason = "cut host 1 at step 20: the job ended before, after 1.00 s, at step 5";
    samples::write(&folder.path().join("run"), &[missed(0, &[]), missed(1, &[reason])]);
    let note = format!("line 2 is in no figure, since what was planned did not happen: {reason}");
    let report = json(folder.path(), &["run"]);
    assert_eq!(report["runs"][0]["notes"], json!([note]));
    assert_eq!(report["chaos"][0]["missed"], json!([reason]));
    assert_eq!(point(figure(&report, "step-time"), "spardl")["measurements"], 1);
    let output = self::report(folder.path(), &["run"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("gleaner: run: {note}")), "{said}");
    let page = fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    assert!(page.contains("What failed or was left out") && page.contains(&note), "{page}");
}

#[test]
fn bad_input_is_refused_in_a_sentence() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let record = samples::bench("spardl", 4, 0.01, 0, &mut Noise::new(1));
    samples::write(&at.join("run"), std::slice::from_ref(&record));
    refused(at, &["nowhere"], &["'nowhere'", "no directory"]);
    refused(at, &["run/measurements.jsonl"], &["no directory"]);
    refused(at, &["run", "./run"], &["given twice"]);
    fs::create_dir(at.join("empty")).unwrap();
    refused(at, &["empty"], &["empty/measurements.jsonl", "cannot be read"]);
    fs::write(at.join("empty/measurements.jsonl"), "\n{}\nno JSON\n").unwrap();
    refused(at, &["run", "empty"], &["holds no measurement", "line 2 is", "missing field"]);
    let mut newer = record;
    newer["version"] = 2.into();
    samples::write(&at.join("newer"), &[newer]);
    refused(at, &["newer"], &["line 1", "format 2", "newer gleaner"]);
    refused(at, &["run", "--out", "missing/report.html"], &["missing/report.html", "cannot be written"]);
    refused(at, &["run", "--out", "run"], &["there is a directory of that name"]);
}

#[test]
fn a_page_that_is_there_is_kept_until_the_new_one_is_whole() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("run")).unwrap();
    fs::write(at.join("run/report.html"), "an older page").unwrap();
    refused(at, &["run"], &["measurements"]);
    assert_eq!(fs::read_to_string(at.join("run/report.html")).unwrap(), "an older page");
    assert!(page(at, &[samples::failed()]).contains("rank 3 was silent"));
}

/// Every record is in the table of all measurements, and its words cannot break the page.
#[test]
fn every_record_is_in_the_page() {
    let folder = TempDir::new().unwrap();
    let records = samples::everything();
    let page = page(folder.path(), &records);
    assert_eq!(page.matches("<tr class=\"record\">").count(), records.len());
    assert!(page.contains("see whether its machine runs &amp; its &lt;network&gt; is up"));
    assert!(page.contains("at step 3: host2 slowed to 100 Mbit/s"));
    for id in [
        "time-to-accuracy",
        "time-to-loss",
        "step-time",
        "split",
        "bytes",
        "speed-up",
        "density",
        "delivered",
        "training-step-time",
        "time-to-target",
        "training-bytes",
        "training-speed-up",
    ] {
        let section =
            page.split_once(&format!("<section id=\"{id}\">")).unwrap_or_else(|| panic!("no {id}")).1;
        let section = section.split_once("</section>").unwrap().0;
        assert!(
            section.contains("<svg") && section.contains("<table") && section.contains("gleaner "),
            "{id}"
        );
        assert!(page.contains(&format!("<a href=\"#{id}\">")), "{id}");
    }
}
