//! The script that takes tests and benchmarks to a machine with a GPU says what failed there, and what is missing.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A folder as the script's `build` leaves it, with these programs in place of those that need a device.
fn folder(programs: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("tests")).unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/on-a-gpu"), folder.path().join("on-a-gpu")).unwrap();
    for (name, lines) in programs {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The exit code, what was printed, and what is said of errors.
fn run(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let done = Command::new("bash").arg("on-a-gpu").args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

#[test]
fn each_part_leaves_what_it_prints_and_a_failure_is_the_exit_code() {
    let requires = "echo \"requires $GLEANER_REQUIRE\"";
    let programs = [("tests/good", requires), ("tests/other", "exit 0"), ("device", "echo table: \"$@\"")];
    let all = folder(&programs);
    let (code, printed, errors) = run(all.path(), &["run", "results", "tests", "benchmark", "trainings"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{printed}");
    assert!(printed.contains("tests: tests/good: exit code 0\n"), "{printed}");
    assert!(printed.contains("trainings: SKIPPED: the command was not built with CUDA\n"), "{printed}");
    let left = |name: &str| fs::read_to_string(all.path().join("results").join(name)).unwrap();
    assert_eq!(left("tests.txt"), "=== tests/good\nrequires cuda\n=== tests/other\n");
    assert!(left("benchmark.txt").contains("table: --kernels --n 3300000,14728266\n"));

    let bad = folder(&[("tests/bad", "echo the reason; exit 101"), ("tests/good", requires)]);
    let (code, printed, _) = run(bad.path(), &["run", "results", "tests"]);
    assert_eq!(code, 1);
    assert!(printed.contains("the reason\ntests: tests/bad: exit code 101\n"), "{printed}");
    assert!(printed.contains("tests/good: exit code 0"), "the others run: {printed}");

    let none = folder(&[("device", "echo SKIPPED: there is no CUDA device here")]);
    let (code, printed, _) = run(none.path(), &["run", "results", "benchmark"]);
    assert!(code == 1 && printed.ends_with("SKIPPED: there is no CUDA device here\n"), "{code}: {printed}");
}

#[test]
fn what_is_asked_otherwise_is_a_sentence() {
    let folder = folder(&[]);
    for (arguments, sentence) in [
        (&["run"][..], "on-a-gpu: expected 'run RESULTS', found no folder for results\n"),
        (
            &["run", "results", "test"],
            "on-a-gpu: expected tests, sanitizer, peers, benchmark or trainings, found 'test'\n",
        ),
        (&["build"], "on-a-gpu: expected 'build DIRECTORY', found 0 arguments\n"),
    ] {
        let (code, _, errors) = run(folder.path(), arguments);
        assert_eq!((code, errors.as_str()), (2, sentence));
    }
    let (code, help, _) = run(folder.path(), &["--help"]);
    assert!(code == 0 && help.contains("on-a-gpu run RESULTS"), "{help}");
}
