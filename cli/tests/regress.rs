//! `gleaner regress` as its users see it: real processes on real files, and beside scikit-learn where that is installed.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn gleaner(words: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(words.split_whitespace()).args(more).stdin(Stdio::null()).output().unwrap()
}

fn summary(words: &str, more: &[&str]) -> Value {
    let output = gleaner(&format!("{words} --json"), more);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The launcher says whose line it is.
    let line = output.stdout.strip_prefix(b"[0] ").unwrap_or(&output.stdout);
    serde_json::from_slice(line).expect("one JSON object on standard output, and nothing else")
}

fn number(summary: &Value, field: &str) -> f64 {
    summary[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {summary}"))
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Synthetic data of 4,000 samples with features that are 1, as a file.
    fn generated(&self, name: &str, samples: usize, seed: u64) -> String {
        let path = self.text(name);
        let words =
            format!("regress --data url --samples {samples} --features 2000 --seed {seed} --generate");
        let output = gleaner(&words, &[&path]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }
}

fn packed(command: &str, path: &str) -> Option<String> {
    let output = Command::new(command).args(["-k", "-q", path]).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| format!("{path}.{}", if command == "gzip" { "gz" } else { "zst" }))
}

/// Slopes of the hinge are whole numbers, and so are these features: with a learning rate that is a power of two all sums are
/// exact. A compressed file is distributed in turn, so that batches of one worker are those of several.
#[test]
fn several_processes_come_to_the_bits_of_one() {
    let folder = Folder::new();
    let plain = folder.generated("data.svm", 480, 3);
    let Some(gzip) = packed("gzip", &plain) else {
        gleaner_skips::skip("gzip", "gzip is not installed");
        return;
    };
    let words =
        "regress --loss-function hinge --l1 0.0009765625 --lr 0.0625 --order file --features 2000 --epochs 3";
    let alone = summary(&format!("{words} --batch 48"), &["--data", &gzip]);
    assert!(number(&alone, "nonzero_weights") > 100.0);
    assert_eq!((number(&alone, "samples"), number(&alone, "bytes_received")), (480.0, 0.0));
    let mut found = vec![
        summary(&format!("{words} --batch 24 --workers 2"), &["--data", &gzip]),
        summary(&format!("{words} --batch 16 --workers 3 --threads 2"), &["--data", &gzip]),
        // As it is made, it is distributed in turn, too.
        summary(&format!("{words} --batch 24 --workers 2 --seed 3 --data url --samples 480"), &[]),
    ];
    match packed("zstd", &plain) {
        Some(zstd) => found.push(summary(&format!("{words} --batch 24 --workers 2"), &["--data", &zstd])),
        None => gleaner_skips::skip("zstd", "zstd is not installed"),
    }
    for found in &found {
        assert_eq!(found["weights_digest"], alone["weights_digest"], "{found}");
        assert!(number(found, "bytes_received") > 0.0 && number(found, "seconds_communication") > 0.0);
        assert!(number(found, "seconds_communication") <= number(found, "seconds_run"));
        assert_eq!(found["epochs"].as_array().map(Vec::len), Some(3));
    }
    // Of a plain file each worker reads a piece, so that batches differ; none of its samples is lost.
    let pieces = summary(&format!("{words} --batch 24 --workers 2"), &["--data", &plain]);
    assert_eq!(pieces["nonzeros"], alone["nonzeros"]);
    assert_ne!(pieces["weights_digest"], alone["weights_digest"]);
}

/// Trained under the launcher, evaluated on other samples, written, read again, applied by another number of workers.
#[test]
fn a_model_is_trained_kept_and_applied() {
    let folder = Folder::new();
    let train = folder.generated("train.svm", 2000, 1);
    let held_out = folder.generated("held-out.svm", 500, 2);
    let (model, text, out) = (folder.text("model"), folder.text("text"), folder.text("predictions"));
    let files = ["--data", &train, "--held-out", &held_out, "--model", &model, "--liblinear", &text];
    let words = "launch -n 2 -- gleaner regress --batch 100 --epochs 4 --bias 1 --l2 0.0001";
    let words = words.replace("-- gleaner", &format!("-- {}", env!("CARGO_BIN_EXE_gleaner")));
    let trained = summary(&words, &files);
    assert!(
        number(&trained, "held_out_auc") > 0.95 && number(&trained, "held_out_accuracy") > 0.9,
        "{trained}"
    );
    let first = &trained["epochs"][0];
    assert!(number(&trained, "held_out_loss") < number(first, "held_out_loss"), "{trained}");
    // 1,000 samples of each worker, but for where the middle of the file falls.
    assert!((10.0..=11.0).contains(&number(&trained, "steps_per_epoch")), "{trained}");

    let apply = |workers: &str| {
        let files = ["--data", &held_out, "--predict", &model, "--out", &out, "--workers", workers];
        let applied = summary("regress", &files);
        for field in ["held_out_accuracy", "held_out_auc"] {
            assert_eq!(applied[field], trained[field]);
        }
        assert!((number(&applied, "held_out_loss") - number(&trained, "held_out_loss")).abs() < 1e-9);
        fs::read_to_string(&out).unwrap()
    };
    let predictions = apply("1");
    assert_eq!(predictions, apply("3"));
    // By the text alone, as LIBLINEAR's predict goes about it.
    let text = fs::read_to_string(&text).unwrap();
    let (header, weights) = text.split_once("\nw\n").unwrap();
    assert_eq!(header, "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 2000\nbias 1");
    let weights: Vec<f64> = weights.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(weights.len(), 2001);
    let samples = fs::read_to_string(&held_out).unwrap();
    for (sample, predicted) in samples.lines().zip(predictions.lines()) {
        let entries = sample.split(' ').skip(1).map(|entry| {
            let (index, value) = entry.split_once(':').unwrap();
            weights[index.parse::<usize>().unwrap() - 1] * value.parse::<f64>().unwrap()
        });
        let margin = weights[2000] + entries.sum::<f64>();
        let (class, found) = predicted.split_once(' ').unwrap();
        assert!((found.parse::<f64>().unwrap() - margin).abs() < 1e-6 * (1.0 + margin.abs()));
        assert_eq!(class, if margin > 0.0 { "1" } else { "-1" });
    }
}

#[test]
fn coordinate_descent_falls_to_the_same_minimum_for_any_number_of_workers() {
    let words =
        "regress --data webspam --samples 200 --features 2000 --l2 0.01 --algorithm scd --coordinates 20";
    let of = |workers: &str| {
        let found = summary(&format!("{words} --epochs 60 --workers {workers}"), &[]);
        let objectives: Vec<f64> =
            found["epochs"].as_array().unwrap().iter().map(|epoch| number(epoch, "objective")).collect();
        assert!(objectives[59] < objectives[0] && objectives[59] == number(&found, "objective"));
        objectives[59]
    };
    let (alone, together) = (of("1"), of("3"));
    assert!((alone - together).abs() < 1e-6, "{alone} {together}");
}

/// A learning rate that is far too high: the summary is printed, and the run fails with a sentence.
#[test]
fn a_training_that_diverges_says_so_and_fails() {
    let words = "regress --data url --samples 400 --features 2000 --loss-function squares --batch 100 --epochs 1 --lr 0.2 --json";
    let output = gleaner(words, &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let sentence = "the training diverged: the objective was 0.5000 before the first step and is ";
    assert!(said.contains(sentence) && said.contains(" now; lower --lr"), "{said}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&summary, "objective") > 1.0);
}

/// The book's page has them in this order.
#[test]
fn fields_of_epochs_are_in_their_order() {
    let output = gleaner("regress --data webspam --samples 500 --features 1000 --epochs 1 --json", &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"epochs\":[{\"epoch\":1,\"seconds\":"), "{text}");
}

/// What is wrong is said by every rank.
#[test]
fn bad_input_is_refused_in_a_sentence_on_every_rank() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| {
        fs::write(folder.path(name), text).unwrap();
        folder.text(name)
    };
    let gleaner_itself = env!("CARGO_BIN_EXE_gleaner");
    for (number, (text, expected)) in [
        ("1 1:1\n-1 2:1 x\n1 3:1\n", "line 2, column 8: expected index:value, found \"x\"; correct the line"),
        (
            "1 1:1\n-1 3:1 2:1\n1 3:1\n",
            "line 2, column 8: expected an index above 3, the one before it, found \"2\"",
        ),
        (
            "1 1:1\n0 2:1\n-1 3:inf\n",
            "line 3, column 6: expected a value that is a finite number, found \"inf\"",
        ),
        (
            "1 1:1\n0 2:1\n-1 3:1\n",
            "expected labels of two classes for --loss-function logistic, found -1, 0, 1",
        ),
        ("", "expected at least one sample for each of 2 workers, found no sample; bring more"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = write(&format!("{number}.svm"), text);
        let words = format!("launch -n 2 -- {gleaner_itself} regress --data {path}");
        let output = gleaner(&words, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let reports = said.lines().filter(|line| line.contains(expected)).count();
        assert!(reports >= 2 && output.stdout.is_empty(), "{expected}: {said}");
    }
    for (words, expected) in [
        (
            "--data url --loss-function hinge --algorithm scd",
            "--loss-function: expected logistic, squared-hinge or squares",
        ),
        (
            "--data webspam --samples 5 --features 1",
            "--features: expected 2 or more of synthetic data, found 1",
        ),
        ("--data url --threads 0", "--threads: expected 1 to 256, found 0"),
        ("--data url --staleness 65", "--staleness: expected at most 64 steps, found 65"),
        ("--data url --lr 0", "--lr: expected a finite number above 0, found 0"),
        ("--data url --lr -1", "--lr: expected a finite number above 0, found -1"),
        ("--data none.svm --samples 5", "--samples: expected it beside --data url"),
        ("--data none.svm", "none.svm: could not be read"),
        ("--data none.svm --generate x.svm", "--data: expected url or webspam beside --generate"),
        ("--data url --predict none", "--data: expected a LIBSVM file beside --predict"),
        ("--data url --method nothing", "nothing"),
        ("--data not-there.svm --method exdyna", "a method that sums sparse vectors"),
    ] {
        let output = gleaner(&format!("regress {words}"), &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        let code = if expected.contains("could not be read") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{words}: {said}");
        assert!(said.contains(expected), "{words}: {said}");
    }
}

/// A Python with scikit-learn: that of `GLEANER_PYTHON`, or of the system.
fn python() -> Option<PathBuf> {
    let asked = std::env::var_os("GLEANER_PYTHON").map(PathBuf::from);
    let has = |python: &PathBuf| {
        let tried = Command::new(python).args(["-c", "import sklearn"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    asked.into_iter().chain(["python3".into()]).find(has)
}

/// The least objective that scikit-learn finds, as this crate counts it; one line for each of four problems.
const SCIKIT_LEARN: &str = r#"
import sys, warnings, numpy
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression, Ridge, Lasso
from sklearn.svm import LinearSVC
warnings.filterwarnings("ignore")
x, y = load_svmlight_file(sys.argv[1])
x, n = x.toarray(), len(y)
m = lambda w: x @ w
logistic = lambda w: numpy.logaddexp(0, -y * m(w)).mean()
hinge = lambda w: numpy.maximum(0, 1 - y * m(w)).mean()
squared = lambda w: (numpy.maximum(0, 1 - y * m(w)) ** 2).mean()
squares = lambda w: ((m(w) - y) ** 2).mean() / 2
l1, l2 = (lambda w, f: f * abs(w).sum()), (lambda w, f: f / 2 * (w * w).sum())
exact = dict(fit_intercept=False, tol=1e-12, max_iter=100000)
w = LogisticRegression(C=1 / (0.1 * n), **exact).fit(x, y).coef_.ravel()
print("logistic", logistic(w) + l2(w, 0.1))
w = LinearSVC(C=1 / (0.1 * n), loss="squared_hinge", dual=False, **exact).fit(x, y).coef_.ravel()
print("squared-hinge", squared(w) + l2(w, 0.1))
w = Lasso(alpha=0.02, **exact).fit(x, y).coef_.ravel()
print("squares", squares(w) + l1(w, 0.02))
w = LinearSVC(C=1 / (0.1 * n), loss="hinge", dual=True, **exact).fit(x, y).coef_.ravel()
print("hinge", hinge(w) + l2(w, 0.1))
"#;

#[test]
fn the_minimum_is_that_of_scikit_learn() {
    let Some(python) = python() else {
        gleaner_skips::skip("sklearn", "there is no Python with scikit-learn; name one by GLEANER_PYTHON");
        return;
    };
    let folder = Folder::new();
    let path = folder.text("small.svm");
    let words = "regress --data webspam --samples 120 --features 80 --generate";
    assert!(gleaner(words, &[&path]).status.success());
    let output = Command::new(python).args(["-c", SCIKIT_LEARN, &path]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (loss, expected) = line.split_once(' ').unwrap();
        let expected: f64 = expected.parse().unwrap();
        let penalty = if loss == "squares" { "--l1 0.02" } else { "--l2 0.1" };
        let words = format!("regress --loss-function {loss} {penalty}");
        let with = |algorithm: &str| {
            number(&summary(&format!("{words} {algorithm}"), &["--data", &path]), "objective")
        };
        let descent = match loss {
            // A loss with corners, which steps that fall with 1/t come to.
            "hinge" => "--batch 120 --epochs 20000 --lr 5 --schedule inverse --decay 0.5",
            _ => "--batch 120 --epochs 5000",
        };
        let found = with(descent);
        assert!((found - expected).abs() < 1e-6, "{loss} by sgd: {found}, by scikit-learn {expected}");
        if loss != "hinge" {
            for workers in [1, 2] {
                let found = with(&format!("--algorithm scd --epochs 200 --workers {workers}"));
                assert!(
                    (found - expected).abs() < 1e-6,
                    "{loss} by scd: {found}, by scikit-learn {expected}"
                );
            }
        }
    }
}

/// One of LIBLINEAR's commands with arguments, if it is installed under Debian's name of it or its own.
fn liblinear(command: &str, arguments: &[&str]) -> Option<Output> {
    let names = [format!("liblinear-{command}"), command.to_owned()];
    names.iter().find_map(|name| Command::new(name).args(arguments).stdin(Stdio::null()).output().ok())
}

/// LIBLINEAR finds the same minimum, and reads our models.
#[test]
fn liblinear_agrees() {
    let folder = Folder::new();
    let path = folder.text("small.svm");
    let words = "regress --data webspam --samples 120 --features 80 --generate";
    assert!(gleaner(words, &[&path]).status.success());
    let (theirs, ours, model, out) =
        (folder.text("theirs"), folder.text("ours"), folder.text("model"), folder.text("out"));
    // C = 1/(λ₂N).
    let train = |solver| {
        liblinear("train", &["-q", "-s", solver, "-c", "0.0833333333333333", "-e", "1e-10", &path, &theirs])
    };
    for (solver, loss) in [("0", "logistic"), ("2", "squared-hinge")] {
        let Some(trained) = train(solver) else {
            gleaner_skips::skip("liblinear", "LIBLINEAR is not installed: apt-get install liblinear-tools");
            return;
        };
        assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
        let files = ["--data", &path, "--liblinear", &ours, "--model", &model];
        let found =
            summary(&format!("regress --loss-function {loss} --l2 0.1 --algorithm scd --epochs 200"), &files);
        let expected =
            objective(loss, &fs::read_to_string(&path).unwrap(), &fs::read_to_string(&theirs).unwrap());
        assert!((number(&found, "objective") - expected).abs() < 1e-6, "{found}, by LIBLINEAR {expected}");

        let Some(predicted) = liblinear("predict", &[&path, &ours, &theirs]) else { continue };
        assert!(predicted.status.success(), "{}", String::from_utf8_lossy(&predicted.stderr));
        summary("regress", &["--data", &path, "--predict", &model, "--out", &out]);
        let classes = |name: &str| -> Vec<f64> {
            let text = fs::read_to_string(name).unwrap();
            text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
        };
        assert_eq!(classes(&theirs), classes(&out));
    }
}

/// F with λ₂ = 0.1, of LIBLINEAR's text of a model.
fn objective(loss: &str, samples: &str, model: &str) -> f64 {
    let (header, weights) = model.split_once("\nw\n").unwrap();
    let weights: Vec<f64> = weights.lines().map(|line| line.trim().parse().unwrap()).collect();
    // LIBLINEAR's margin is that of the label that it names first.
    let first: f64 =
        header.split("label ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let losses: Vec<f64> = samples
        .lines()
        .map(|line| {
            let (label, entries) = line.split_once(' ').unwrap();
            let entry = |entry: &str| {
                let (index, value) = entry.split_once(':').unwrap();
                weights[index.parse::<usize>().unwrap() - 1] * value.parse::<f64>().unwrap()
            };
            let ym = label.parse::<f64>().unwrap() * first * entries.split(' ').map(entry).sum::<f64>();
            if loss == "logistic" { (-ym).exp().ln_1p() } else { (1.0 - ym).max(0.0).powi(2) }
        })
        .collect();
    losses.iter().sum::<f64>() / losses.len() as f64 + 0.05 * weights.iter().map(|w| w * w).sum::<f64>()
}

#[test]
fn several_workers_train_on_the_samples_of_one() {
    let folder = Folder::new();
    let path = folder.generated("data.svm", 3000, 2);
    let whole = fs::metadata(Path::new(&path)).unwrap().len();
    assert!(whole > 1_000_000);
    let of = |workers: u32| summary(&format!("regress --epochs 1 --workers {workers}"), &["--data", &path]);
    let (one, four) = (of(1), of(4));
    for field in ["samples", "nonzeros", "features"] {
        assert_eq!(one[field], four[field], "{field}");
    }
}
