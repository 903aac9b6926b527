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
    let Some(folder) = std::env::var_os(process::WORKER) else { return };
    let rank: u32 = std::env::var("GLEANER_RANK").unwrap().parse().unwrap();
    eprint!("before ");
    assert!(report::event("loss", &serde_json::json!({ "rank": rank, "text": "a\nb" })));
    eprintln!("after");
    let file = |rank: u32| std::path::Path::new(&folder).join(rank.to_string());
    let id = |rank: u32| std::fs::read_to_string(file(rank)).ok()?.parse().ok();
    std::fs::write(file(rank), std::process::id().to_string()).unwrap();
    if rank == 2 {
        // When the others have said what they saw and have ended, it goes the hard way.
        let has_ended =
            |id: Option<u32>| id.is_some_and(|id| !std::fs::exists(format!("/proc/{id}")).unwrap());
        process::eventually("the others end", process::seconds(30), || {
            [0, 1].into_iter().all(|rank| has_ended(id(rank)))
        });
        process::kill("KILL", std::process::id());
    }
    process::eventually("rank 2 is there", process::seconds(30), || id(2).is_some());
    report::failed(&Failure { rank: 2, step: Some(17), reason: "rank 2 is gone".into() });
    std::process::exit(1);
}
