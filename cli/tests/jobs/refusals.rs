//! What one process refuses by itself, before anything else starts.

use crate::job::{Job, SECRET};
use crate::process::{free_port, gleaner, run};

#[test]
fn a_method_that_cannot_be_starts_no_worker() {
    for (arguments, words) in [
        (&["--method", "spardl", "--density", "0"][..], &["density is 0", "above 0 and at most 1"][..]),
        (&["--method", "spardl", "--density", "-0.5"], &["density is -0.5", "above 0 and at most 1"]),
        (&["--method", "spardl", "--density", "1.5"], &["density is 1.5", "above 0 and at most 1"]),
        (&["--method", "spardl", "--density", "NaN"], &["density is NaN", "above 0 and at most 1"]),
        (&["--method", "spardl", "--k", "101"], &["k is 101", "100 entries"]),
        (&["--method", "spardl", "--k", "0"], &["k is 0", "from 1 to 100"]),
        (&["--method", "spradl"], &["no method 'spradl'", "choose one of spardl"]),
    ] {
        let mut command = gleaner();
        command.args(["bench", "--json", "--workers", "2", "--params", "100"]).args(arguments);
        // A worker is started by a shell, and there is none.
        let ended = run({
            command.env("PATH", "/nowhere");
            command
        });
        ended.failed_with(words);
        assert_eq!((ended.code, ended.err.lines().count()), (2, 1), "{ended:?}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    for (arguments, word) in [
        (&["--params", "many", "--method", "ring"][..], "many"),
        (&["--params", "10", "--method", "ring", "--workers", "0"], "--workers"),
        (&["--params", "10", "--method", "ring", "--steps", "0"], "--steps"),
        (&["--params", "10", "--method", "spardl", "--k", "1", "--density", "0.1"], "--density"),
        (&["--params", "10", "--method", "ring", "--timeout", "soon"], "soon"),
        (&["--params", "10", "--method", "ring", "--timeout", "500us"], "expected a time from 100ms"),
    ] {
        let mut command = gleaner();
        command.args(["bench", "--json"]).args(arguments);
        let ended = run(command);
        assert_eq!(ended.code, 2, "{word}: {ended:?}");
        assert!(ended.out.is_empty() && ended.err.contains(word), "{word}: {ended:?}");
    }
}

/// Each worker of a launcher refuses arguments by itself; the launcher alone says so.
#[test]
fn workers_of_a_launcher_refuse_their_arguments_in_one_line() {
    for (arguments, words) in [
        (&["regress", "--data", "url", "--lr", "-1"][..], "--lr: expected a finite number above 0, found -1"),
        (&["bench", "--params", "many", "--method", "ring"], "'many' is no count; expected a whole number"),
    ] {
        let mut command = gleaner();
        command.args(["launch", "-n", "3", "--", env!("CARGO_BIN_EXE_gleaner")]).args(arguments);
        let ended = run(command);
        ended.failed_with(&["gleaner launch: rank ", words]);
        assert_eq!((ended.code, ended.err.lines().count()), (2, 1), "{ended:?}");
    }
}

#[test]
fn a_secret_must_be_there_and_be_secret() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = directory.path().join("missing").to_str().unwrap().to_owned();
    let cases = [
        (file("open", SECRET, 0o644), vec!["open", "0644", "chmod 600"]),
        (file("group", SECRET, 0o640), vec!["group", "0640", "chmod 600"]),
        (missing, vec!["missing", "No such file"]),
        (file("short", "0123", 0o600), vec!["short", "64 hexadecimal digits", "4 bytes"]),
        (file("letters", &"x".repeat(64), 0o600), vec!["letters", "not all hexadecimal"]),
        (file("empty", "", 0o600), vec!["empty", "0 bytes"]),
        (directory.path().to_str().unwrap().to_owned(), vec!["not a regular file"]),
        (String::new(), vec!["no secret", "GLEANER_SECRET_FILE"]),
    ];
    let job = Job::new(2, &["--params", "100", "--method", "ring"]);
    for (path, words) in cases {
        for rank in 0..2 {
            let ended = job.rank_with(rank, &[], &[("GLEANER_SECRET_FILE", &*path)]).end(job.timeout);
            ended.failed_with(&words);
            assert!(!ended.err.contains("0011"), "secrets are not shown: {ended:?}");
        }
    }
    let in_environment = [("GLEANER_SECRET_FILE", ""), ("GLEANER_SECRET", SECRET)];
    job.rank_with(0, &[], &in_environment).end(job.timeout).failed_with(&[
        "GLEANER_SECRET is not read",
        "every child",
        "GLEANER_SECRET_FILE",
    ]);
}

#[test]
fn a_place_that_cannot_be_is_named() {
    let job = Job::new(2, &["--params", "100", "--method", "ring"]);
    for (variables, words) in [
        (&[("GLEANER_RANK", "2")][..], &["GLEANER_RANK is 2", "2 workers"][..]),
        (&[("GLEANER_RANK", "one")], &["GLEANER_RANK", "'one'"]),
        (&[("GLEANER_WORLD_SIZE", "")], &["GLEANER_RANK", "not GLEANER_WORLD_SIZE"]),
        (&[("GLEANER_RENDEZVOUS", "")], &["GLEANER_RENDEZVOUS", "node1:29400"]),
        (&[("GLEANER_RENDEZVOUS", "here")], &["\"here\"", "host and a port"]),
        (&[("GLEANER_TIMEOUT", "soon")], &["GLEANER_TIMEOUT", "'soon'"]),
    ] {
        job.rank_with(0, &[], variables).end(job.timeout).failed_with(words);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let port = free_port();
    let _taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let job = Job { port, ..Job::new(2, &["--params", "100", "--method", "ring"]) };
    job.rank(0).end(job.timeout).failed_with(&[&format!("port {port} is in use"), "choose another port"]);

    // The same under the launcher, which is given that port.
    let mut command = gleaner();
    command.args(["launch", "--workers", "2", "--port", &port.to_string(), "--"]);
    command.args([env!("CARGO_BIN_EXE_gleaner"), "bench", "--json", "--params", "100", "--method", "ring"]);
    let ended = run(command);
    ended.failed_with(&["rank 0 failed", &format!("port {port} is in use")]);
}
