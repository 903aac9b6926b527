//! The runtime's test of faults, in a machine that has a device: its jobs are processes of this program, over verbs.

use gleaner_transport::Transport;

#[path = "../../../runtime/tests/faults/cases.rs"]
mod cases;
#[path = "../../../runtime/tests/faults/jobs.rs"]
mod jobs;
#[path = "../../../runtime/tests/faults/network.rs"]
mod network;
#[path = "../../../runtime/tests/faults/worker.rs"]
mod worker;

/// Not a test of its own: as a process of its own, it is a worker.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn worker_process() {
    if let Ok(job) = std::env::var(worker::JOB) {
        worker::main(&serde_json::from_str(&job).unwrap());
    }
}

/// Run by another, in the machine. By four: of three, the third has a link to rank 0 alone in some methods, and when that is cut it would
/// have to make another within the 0.6 s after which it decides for itself, which takes emulated processors longer.
#[test]
#[ignore = "runs inside a machine that has a device"]
fn inside_one_message_of_each_rank() {
    jobs::run_all(cases::one_message_of_each_rank(Transport::Verbs, 4));
}

/// One message of each rank of every method: the rank that is killed, stopped or cut off is named by all others.
#[test]
#[ignore = "takes minutes of emulated machines"]
fn a_rank_that_fails_is_named_by_all_others() {
    crate::inside("faults::inside_one_message_of_each_rank");
}
