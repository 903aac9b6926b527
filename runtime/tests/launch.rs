//! The launcher, seen from outside: real processes, real signals.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use gleaner_runtime::{Failure, launcher, report};

#[path = "launch/ending.rs"]
mod ending;
#[path = "launch/hosts.rs"]
mod hosts;
#[path = "launch/output.rs"]
mod output;
#[path = "launch/process.rs"]
mod process;
#[path = "launch/rates.rs"]
mod rates;
#[path = "launch/returning.rs"]
mod returning;

/// Not a test of its own: as a process of its own, it is the launcher that the tests start and send signals to.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn launcher_process() {
    let Ok(job) = std::env::var(process::JOB) else { return };
    let job = process::job(&serde_json::from_str(&job).unwrap());
    let outcome = launcher::run(job, |event| eprintln!("event {} {} {}", event.rank, event.kind, event.body));
    let code = match outcome {
        Ok(outcome) => {
            if let Some(failure) = outcome.failure {
                eprintln!("last: {failure}");
            }
            outcome.exit_code
        }
        Err(error) => {
            eprintln!("error: {error}");
            200
        }
    };
    std::process::exit(code.into());
}

#[test]
fn without_a_launcher_no_event_is_written() {
    assert!(!report::event("no launcher listens", &()));
}

/// Not a test of its own either: a worker that reports the way the runtime does.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn worker_process() {
    if std::env::var_os(process::WORKER).is_none() {
        return;
    }
    let rank: u32 = std::env::var("GLEANER_RANK").unwrap().parse().unwrap();
    eprint!("before ");
    assert!(report::event("loss", &serde_json::json!({ "rank": rank, "text": "a\nb" })));
    eprintln!("after");
    if rank == 2 {
        // Gives the others time to say what they saw, and goes the hard way.
        std::thread::sleep(std::time::Duration::from_millis(500));
        process::kill("KILL", std::process::id());
    }
    report::failed(&Failure { rank: 2, step: Some(17), reason: "rank 2 is gone".into() });
    std::process::exit(1);
}
