//! The example of a method of one's own: short, lawful, and a method of its own program.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// The example, which `cargo test` builds with the tests; `cargo test --test own_method` alone does not, so here it is.
fn example(arguments: &str) -> (bool, String, String) {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(Path::parent).unwrap().join("examples/own_method");
    if !program.exists() {
        let mut build = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        build.args(["build", "--offline", "--quiet", "--example", "own_method"]);
        build.args((!cfg!(debug_assertions)).then_some("--release"));
        build.args((!cfg!(feature = "train")).then_some("--no-default-features"));
        assert!(build.status().unwrap().success());
    }
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn it_is_short() {
    assert!(include_str!("../examples/own_method.rs").lines().count() < 80);
}

#[test]
fn it_keeps_the_laws() {
    assert_eq!(example(""), (true, "star keeps the laws\n".into(), String::new()));
}

#[test]
fn it_is_planned_and_measured_like_any_other() {
    let (planned, plan, _) = example("plan --method star/2 --workers 5 --params 1000 --json");
    assert!(
        planned && plan.contains(r#""method":"star""#) && plan.contains(r#""words_received":4000"#),
        "{plan}"
    );
    let (measured, report, errors) =
        example("bench --method star/1,ring --workers 3 --params 1000 --steps 2 --json");
    assert!(measured && report.contains(r#""method":"star/1""#), "{report}{errors}");
    let (refused, _, sentence) = example("plan --method star/5 --workers 5 --params 1000");
    assert!(!refused && sentence.contains("there is no root 5 among 5 workers"), "{sentence}");
    let (refused, _, sentence) = example("plan --method star/x --workers 5 --params 1000");
    assert!(!refused && sentence.contains("star has no root of 'x'; expected a rank"), "{sentence}");
    let (_, help, _) = example("plan --help");
    assert!(help.contains("star"), "{help}");
}
