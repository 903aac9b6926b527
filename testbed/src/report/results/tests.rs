use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};

use super::*;
use crate::record::{FILE, Outcome, Record};
use crate::report::{Run, read};

fn record(method: &str, seed: u64, turn: u32, outcome: Outcome) -> Record {
    let case = json!({ "command": "train", "method": method, "seed": seed, "density": 0.01 });
    let of_case = crate::record::tests::record(&case, json!({ "done": {} }));
    let commit = Some("0123456789abcdef".into());
    Record { turn, started: 1_700_000_000.0, commit, outcome, ..of_case }
}

fn done(loss: f64, bytes: u64) -> Outcome {
    let evaluations = json!([{"step": 0, "seconds": 0.0, "held_out_loss": 4.0}, {"step": 10, "seconds": 1.5, "held_out_loss": loss}]);
    Outcome::Done(
        json!({"held_out_loss": loss, "bytes_per_step": bytes, "steps": 10, "seconds_run": 2.0, "best_step": 10, "evaluations": evaluations}),
    )
}

/// A run as it lies in a directory.
fn run(records: &[Record]) -> (tempfile::TempDir, Vec<Run>) {
    let directory = tempfile::tempdir().unwrap();
    let lines: Vec<String> =
        records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect();
    fs::write(directory.path().join(FILE), lines.concat()).unwrap();
    let runs = read(&[directory.path().to_owned()]).unwrap();
    (directory, runs)
}

const PAGE: &str = r#"# Title

<!-- measured
experiment = "e"
rows = ["method"]
names = { method = "exchange", ring = "dense" }
sort = "loss"
columns = [
  { head = "loss", value = "held_out_loss", show = "spread", digits = 2 },
  { head = "after {}", value = "held_out_loss@{}", each = [0, 10], show = "mean", digits = 1 },
  { head = "of dense", value = "held_out_loss", over = { method = "ring" }, digits = 3 },
  { head = "kB", value = "bytes_per_step / 1e3", show = "range" },
  { head = "best after, s", value = "best_seconds", cases = { seed = [1, 7], method = ["ring", "spardl"] }, digits = 1, unit = " s" },
]
-->
What stands here is replaced.
<!-- end -->

Words.
"#;

const TABLE: &str = "
| exchange | loss | after 0 | after 10 | of dense | kB | best after, s |
|---|---|---|---|---|---|---|
| dense | 1.25 ± 0.25 | 4.0 | 1.2 | 1.000 | 5,000 (5,000 to 5,000) | 1.5 s |
| spardl | 2.00 ± 0.00 | 4.0 | 2.0 | 1.667 | 40 (40 to 40) | 1.5 s |

*`experiments/e.toml`, one turn, 2023-11-14 at commit 0123456789; 2 cores of P, kernel 6.1.*
";

fn stored(records: &[Record], page: &str) -> (tempfile::TempDir, Stored) {
    let mut numbers = BTreeMap::new();
    asked("page.md", page, &mut numbers).unwrap();
    let (directory, runs) = run(records);
    let stored = Stored::of(&runs[0], &numbers["e"].numbers).unwrap();
    fs::write(directory.path().join("e.jsonl"), stored.text().unwrap()).unwrap();
    (directory, stored)
}

#[test]
fn a_block_is_filled_from_what_is_stored_and_stays_as_it_is_then() {
    let records = [
        record("spardl", 1, 0, done(2.0, 40_000)),
        record("ring", 1, 0, done(1.0, 5_000_000)),
        record("spardl", 2, 0, done(2.0, 40_000)),
        record("ring", 2, 0, done(1.5, 5_000_000)),
    ];
    let (directory, kept) = stored(&records, PAGE);
    // No more than what is shown, and what all cases have in common is there once.
    let text = fs::read_to_string(directory.path().join("e.jsonl")).unwrap();
    assert_eq!((text.matches("density").count(), text.matches("steps").count()), (1, 0));
    assert_eq!(Stored::read(&directory.path().join("e.jsonl")).unwrap().rows[0].values, kept.rows[0].values);
    let page = filled("page.md", PAGE, directory.path()).unwrap();
    assert!(page.contains(TABLE) && page.ends_with("<!-- end -->\n\nWords.\n"), "{page}");
    assert_eq!(filled("page.md", &page, directory.path()).unwrap(), page);
}

/// One measurement has no spread, and several that agree have one of 0.
#[test]
fn one_measurement_has_no_spread() {
    let records = [
        record("ring", 1, 0, done(1.0, 1)),
        record("spardl", 1, 0, done(2.0, 1)),
        record("spardl", 2, 0, done(2.0, 1)),
    ];
    let (directory, _) = stored(&records, PAGE);
    let page = filled("page.md", PAGE, directory.path()).unwrap();
    assert!(
        page.contains("| dense | 1.00 | 4.0 |") && page.contains("| spardl | 2.00 ± 0.00 | 4.0 |"),
        "{page}"
    );
}

/// A job whose planned fault did not happen is no measurement of its case; one that failed is counted as failed.
#[test]
fn what_a_planned_fault_missed_is_not_stored() {
    let mut missed = record("ring", 1, 0, done(9.0, 1));
    missed.missed = vec!["cut host 1 at step 20: the job ended before, after 1.00 s, at step 5".into()];
    let (_directory, kept) = stored(&[missed, record("ring", 2, 0, done(1.0, 1))], PAGE);
    assert_eq!((kept.rows.len(), kept.rows[0].values["held_out_loss"]), (1, 1.0));
}

/// What differs besides is in one cell, and a dense method, which has less to choose, is what others are divided by.
#[test]
fn all_other_options_stand_in_one_cell() {
    let with = |method: &str, seed: u64, loss: f64, options: &[(&str, Value)]| {
        let mut record = record(method, seed, 0, done(loss, 8));
        record.case.extend(options.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        record
    };
    let records = [
        with("ring", 1, 1.0, &[]),
        with("ring", 2, 2.0, &[]),
        with("spardl", 1, 2.0, &[("values", json!("bf16")), ("complete_sums", json!(true))]),
        with("spardl", 2, 2.0, &[("values", json!("bf16")), ("complete_sums", json!(true))]),
        with("spardl", 1, 3.0, &[("values", json!("f16"))]),
    ];
    let page = "<!-- measured\nexperiment = \"e\"\nrows = [\"method\", \"*\"]\nnames = { complete_sums = \"sums completed\" }\n\
                columns = [{ head = \"of dense\", value = \"held_out_loss\", over = { method = \"ring\" }, show = \"mean\", digits = 2 }]\n-->\n<!-- end -->\n";
    let (directory, _) = stored(&records, page);
    let filled = filled("page.md", page, directory.path()).unwrap();
    let table = "| method | options | of dense |\n|---|---|---|\n| ring |  | 1.00 |\n| spardl | sums completed, values bf16 | 1.50 |\n| spardl | values f16 | 3.00 |\n";
    assert!(filled.contains(table), "{filled}");
}

#[test]
fn a_job_that_failed_is_counted_in_its_cell() {
    let failed = Outcome::Failed { exit_code: 1, reason: "r".into() };
    let records = [record("ring", 1, 0, done(1.0, 1)), record("ring", 2, 0, failed)];
    let (directory, _) = stored(&records, PAGE);
    let page = filled("page.md", PAGE, directory.path()).unwrap();
    assert!(page.contains("| dense | 1 of 2 failed | 1 of 2 failed |"), "{page}");
}

#[test]
fn a_page_or_a_run_that_mixes_builds_is_refused() {
    let (directory, _) = stored(&[record("ring", 1, 0, done(1.0, 1))], PAGE);
    let text = fs::read_to_string(directory.path().join("e.jsonl")).unwrap();
    fs::write(directory.path().join("f.jsonl"), text.replace("0123456789abcdef", "fedcba")).unwrap();
    let two = PAGE.to_owned() + &PAGE.replace("experiment = \"e\"", "experiment = \"f\"");
    let error = filled("page.md", &two, directory.path()).unwrap_err().to_string();
    assert!(
        error.starts_with("page.md mixes builds: e at 0123456789abcdef, f at fedcba; expected one commit"),
        "{error}"
    );

    let mut other = record("ring", 2, 0, done(1.0, 1));
    other.commit = None;
    let (_directory, runs) = run(&[record("ring", 1, 0, done(1.0, 1)), other]);
    let error = Stored::of(&runs[0], &BTreeSet::new()).unwrap_err().to_string();
    assert!(
        error.contains("mixes commits: 0123456789abcdef and no commit; expected measurements of one build"),
        "{error}"
    );
}

/// What is stored already is shown, and says that there were changes.
#[test]
fn a_run_of_files_that_no_commit_has_is_not_stored() {
    let mut dirty = record("ring", 1, 0, done(1.0, 1));
    dirty.commit = Some("0123456789abcdef-dirty".into());
    let (_directory, runs) = run(&[dirty]);
    let error = Stored::of(&runs[0], &BTreeSet::new()).unwrap_err().to_string();
    assert!(
        error.contains("files differed from commit 0123456789abcdef; expected measurements of a commit"),
        "{error}"
    );

    let (directory, _) = stored(&[record("ring", 1, 0, done(1.0, 1))], PAGE);
    let file = directory.path().join("e.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("0123456789abcdef", "0123456789abcdef-dirty")).unwrap();
    let page = filled("page.md", PAGE, directory.path()).unwrap();
    assert!(page.contains("at commit 0123456789 with changes;"), "{page}");
}

/// Earlier files name no commit of predictions, and nothing is said of one then.
#[test]
fn predictions_name_the_commit_that_they_were_added_at() {
    let mut predicted = record("ring", 1, 0, done(1.0, 1));
    predicted.predicted_commit = Some("abcdef0123456789".into());
    let (directory, _) = stored(std::slice::from_ref(&predicted), PAGE);
    let page = filled("page.md", PAGE, directory.path()).unwrap();
    assert!(
        page.contains("at commit 0123456789; 2 cores of P, kernel 6.1; predicted at commit abcdef0123.*"),
        "{page}"
    );

    let file = directory.path().join("e.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"predicted_commit\":\"abcdef0123456789\",", "")).unwrap();
    let page = filled("page.md", PAGE, directory.path()).unwrap();
    assert!(page.contains("at commit 0123456789; 2 cores of P, kernel 6.1.*"), "{page}");

    let (_directory, runs) = run(&[predicted, record("ring", 2, 0, done(1.0, 1))]);
    let error = Stored::of(&runs[0], &BTreeSet::new()).unwrap_err().to_string();
    assert!(error.contains("mixes commits of predictions: abcdef0123456789 and no commit"), "{error}");
}

#[test]
fn a_block_that_says_what_cannot_be_is_refused_with_its_line() {
    let (directory, _) = stored(&[record("ring", 1, 0, done(1.0, 1))], PAGE);
    for (from, to, words) in [
        ("<!-- end -->", "", "line 3: this block has no end"),
        ("rows = [\"method\"]", "row = 1", "line 3: unknown field `row`, expected one of"),
        ("sort = \"loss\"", "sort = \"time\"", "'sort' is time; expected one of loss, after 0"),
        (
            "bytes_per_step / 1e3",
            "bytes_per_step /",
            "column 'kB': 'bytes_per_step /' cannot be read; expected names and numbers",
        ),
        ("bytes_per_step / 1e3", "throughput", "column 'kB' has no number"),
        ("seed = [1, 7]", "seed = 9", "column 'best after, s' has no number"),
        (
            "experiment = \"e\"",
            "experiment = \"none\"",
            "gleaner testbed run experiments/none.toml, and store it with --from",
        ),
    ] {
        assert!(PAGE.contains(from), "{from}");
        let error = filled("page.md", &PAGE.replace(from, to), directory.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{to}: {error}");
    }
}

#[test]
fn a_picture_is_named_and_stamped() {
    let page = "<!-- measured\nexperiment = \"e\"\npicture = \"loss\"\nfile = \"x-loss\"\nwords = \"Losses\"\n-->\n<!-- end -->\n";
    let mut pictures = BTreeMap::new();
    asked("page.md", page, &mut pictures).unwrap();
    assert_eq!(pictures["e"].pictures[0].file, "x-loss");
    let (directory, _) = stored(&[record("ring", 1, 0, done(1.0, 1))], PAGE);
    let filled = filled("page.md", page, directory.path()).unwrap();
    assert!(
        filled.contains("\n![Losses](../images/x-loss.svg)\n\n*`experiments/e.toml`, one turn"),
        "{filled}"
    );
}

#[test]
fn numbers_have_six_digits() {
    let (_directory, kept) = stored(&[record("ring", 1, 0, done(1.234_567_89, 1))], PAGE);
    assert_eq!(kept.rows[0].values["held_out_loss"], 1.23457);
    assert_eq!(json!(kept.rows[0].values["bytes_per_step"]), Value::from(1.0));
}
