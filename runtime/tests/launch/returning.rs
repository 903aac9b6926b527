//! Programs whose `main` returns an error.

use std::error::Error;
use std::process::Termination;

use gleaner_algorithms::Method;
use gleaner_runtime::Session;
use serde_json::json;

use crate::process::{Ended, launch};

const PROGRAM: &str = "LAUNCH_TEST_PROGRAM";

/// Rank 1 finds no data in its fourth step.
fn program() -> Result<(), Box<dyn Error>> {
    let session = Session::join()?;
    let mut reducer = session.reducer("r", 40, Method::ring())?;
    for step in 0..1000 {
        if session.rank() == 1 && step == 3 {
            Err(format!("no batch {step} in /data"))?;
        }
        reducer.start(&[1.0; 40])?.wait()?;
    }
    Ok(())
}

/// Not a test of its own: as a process of its own, it does with the program what the standard library does with `main`.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn program_process() {
    if std::env::var_os(PROGRAM).is_none() {
        return;
    }
    let ended = program();
    let code = i32::from(ended.is_err());
    let _ = ended.report();
    std::process::exit(code);
}

/// The session is dropped in good order and cannot know why. So the others say what may be, and the launcher what it was.
#[test]
fn an_error_that_main_returns_is_in_the_last_line() {
    let this = std::env::current_exe().unwrap();
    let program =
        [this.to_str().unwrap(), "--exact", "returning::program_process", "--ignored", "--nocapture", "-q"];
    let ended = launch(json!({ "workers": 3, "program": program, "env": { PROGRAM: "1" } })).end();
    assert_eq!(ended.code, 1, "{}", ended.err);
    let last = ended.err.lines().last().unwrap_or_default();
    assert!(last.starts_with("last: rank 1 failed"), "{}", ended.err);
    assert!(last.ends_with("exited with code 1; its last line: Error: \"no batch 3 in /data\""), "{last}");
    for rank in [0, 2] {
        let said = Ended::lines_of(&ended.err, rank).join("\n");
        assert!(said.contains("rank 1 failed") && said.contains("its program ended early"), "{said}");
        assert!(!said.contains("same number of steps"), "{said}");
    }
}
