//! How a job ends: by a failure, by a signal, by the launcher's own death. No process is left behind.

use serde_json::json;

use crate::process::{Ended, eventually, launch, nap, seconds, shell, sleepers};

#[test]
fn a_worker_that_fails_ends_the_others_and_gives_its_exit_code() {
    let has_spoken = || {
        let (nap, folder) = (nap(), tempfile::tempdir().unwrap());
        // Rank 1 fails; rank 2 notices, says so within the grace, and fails too; the others would sleep on.
        let program = format!(
            "case $GLEANER_RANK in
                1) echo $$ >'{file}'; exit 7;;
                2) while [ ! -s '{file}' ] || [ -d /proc/$(cat '{file}') ]; do sleep 0.02; done
                   sleep 1; echo 'rank 1 is gone' >&2; exit 9;;
                *) sleep {nap} & sleep {nap};;
             esac",
            file = folder.path().join("id").display()
        );
        let ended = shell(4, &program).end();
        assert_eq!(ended.code, 7);
        assert!(ended.took < seconds(8), "{:?}", ended.took);
        assert_eq!(ended.err.lines().last(), Some("last: rank 1 failed: exited with code 7"));
        assert_eq!(sleepers(&nap), 0);
        Ended::lines_of(&ended.err, 2) == ["rank 1 is gone"]
    };
    // On a machine that stands still meanwhile, the grace is over when it wants to.
    assert!((0..3).any(|_| has_spoken()));
}

#[test]
fn what_a_program_prints_before_it_fails_is_in_the_last_line() {
    let ended = shell(2, "[ $GLEANER_RANK = 0 ] || { echo 'Error: no such layer' >&2; exit 3; }").end();
    let last = ended.err.lines().last();
    assert_eq!(last, Some("last: rank 1 failed: exited with code 3; its last line: Error: no such layer"));
}

#[test]
fn a_program_that_is_not_there_is_a_failure() {
    let ended = launch(json!({ "workers": 1, "program": ["/nowhere/train"] })).end();
    assert_eq!(ended.code, 127);
    assert!(ended.err.contains("/nowhere/train"), "{}", ended.err);
    let last = ended.err.lines().last().unwrap();
    assert!(last.contains("exited with code 127, as when a program is not found"), "{last}");
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let ended = launch(json!({ "workers": 1, "program": ["true"], "directory": "/nowhere" })).end();
    assert_eq!(ended.code, 200);
    assert!(ended.err.contains("error: host localhost cannot enter the directory /nowhere"), "{}", ended.err);
}

#[test]
fn signals_end_everyone_children_and_their_process_groups_included() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let nap = nap();
        let program = format!("sleep {nap} & bash -c 'set -m; sleep {nap} & sleep {nap}' & wait");
        let launched = shell(2, &program);
        eventually("six processes sleep", seconds(10), || sleepers(&nap) == 6);
        launched.signal(signal);
        let ended = launched.end();
        assert_eq!(ended.code, code, "{}", ended.err);
        assert!(!ended.err.contains("last:"), "{}", ended.err);
        assert_eq!(sleepers(&nap), 0);
        assert!(ended.took < seconds(8), "{:?}", ended.took);
    }
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed() {
    let nap = nap();
    // Ignored signals are inherited: the sleeping children ignore it, too.
    let launched = shell(2, &format!("trap '' TERM; sleep {nap} & while :; do sleep {nap}; done"));
    eventually("four processes sleep", seconds(10), || sleepers(&nap) == 4);
    launched.signal("INT");
    let ended = launched.end();
    assert_eq!(ended.code, 130);
    assert!(ended.took > seconds(3) && ended.took < seconds(12), "{:?}", ended.took);
    assert_eq!(sleepers(&nap), 0);
}

#[test]
fn a_job_is_ended_at_its_limit_and_not_before() {
    let nap = nap();
    // One ignores signals, and one is stopped for good.
    let program =
        format!("[ $GLEANER_RANK = 0 ] && kill -s STOP $$; trap '' TERM; while :; do sleep {nap}; done");
    let job = json!({ "workers": 2, "program": ["sh", "-c", program], "limit": 1.5 });
    let ended = launch(job).end();
    assert_eq!(ended.code, 124, "{}", ended.err);
    assert!(!ended.err.contains("last:"), "{}", ended.err);
    assert!(ended.took > seconds(4) && ended.took < seconds(14), "{:?}", ended.took);
    assert_eq!(sleepers(&nap), 0);

    let ended = launch(json!({ "workers": 2, "program": ["sh", "-c", "exit 0"], "limit": 60 })).end();
    assert_eq!(ended.code, 0, "{}", ended.err);
    // A worker that fails before is named all the same. The other is still there at the limit.
    let program = format!("[ $GLEANER_RANK = 1 ] && exit 7; trap '' TERM; sleep {nap}");
    let ended = launch(json!({ "workers": 2, "program": ["sh", "-c", program], "limit": 4 })).end();
    assert_eq!(ended.code, 7);
    assert!(ended.err.ends_with("last: rank 1 failed: exited with code 7\n"), "{}", ended.err);
}

#[test]
fn sigterm_lets_a_worker_clean_up() {
    let nap = nap();
    let launched = shell(1, &format!("trap 'echo saved; exit 0' TERM; sleep {nap} & wait"));
    eventually("the worker runs", seconds(10), || sleepers(&nap) == 1);
    launched.signal("INT");
    let ended = launched.end();
    assert_eq!((ended.code, ended.out.as_str()), (130, "[0] saved\n"));
}

#[test]
fn workers_start_with_the_usual_signals() {
    // In the background, a shell starts programs that ignore SIGINT and SIGQUIT: the workers must not.
    let ended = shell(1, "grep SigIgn /proc/self/status").end();
    let ignored = ended.out.trim().rsplit('\t').next().unwrap();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 0b1001_0000_0000_0110, 0, "{}", ended.out);
}

#[test]
fn no_process_outlives_a_launcher_that_is_killed() {
    let nap = nap();
    let launched = shell(3, &format!("trap '' HUP; sleep {nap} & sleep {nap}"));
    eventually("six processes sleep", seconds(10), || sleepers(&nap) == 6);
    launched.signal("KILL");
    assert_eq!(launched.end().code, -9);
    eventually("all have ended", seconds(8), || sleepers(&nap) == 0);
}

#[test]
fn a_worker_that_ends_takes_its_children_along() {
    let nap = nap();
    let ended = shell(2, &format!("sleep {nap} & exit 0")).end();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(ended.took < seconds(5), "{:?}", ended.took);
    assert_eq!(sleepers(&nap), 0);
}

#[test]
fn a_daemon_that_keeps_the_output_open_holds_up_no_rank() {
    let ended = shell(1, "setsid sleep 9 & sleep 0.2; echo done").end();
    assert_eq!((ended.code, ended.out.as_str()), (0, "[0] done\n"));
    assert!(ended.took < seconds(5), "{:?}", ended.took);
}

#[test]
fn a_shell_that_is_killed_is_a_failure_and_its_worker_ends() {
    let nap = nap();
    // The worker's parent is the shell that watches over it.
    let ended = shell(2, &format!("[ $GLEANER_RANK = 0 ] && kill -s KILL $PPID; sleep {nap}")).end();
    assert_eq!(ended.code, 137);
    assert!(
        ended.err.contains("last: rank 0 failed: lost on localhost: `sh` was killed by signal 9"),
        "{}",
        ended.err
    );
    eventually("all have ended", seconds(8), || sleepers(&nap) == 0);
}

#[test]
fn one_that_ended_well_is_named_if_it_left_too_early() {
    let program = r#"[ $GLEANER_RANK != 1 ] || exit 0
        printf '\036gleaner {"kind":"failed","body":{"rank":1,"step":9,"reason":"it left too early"}}\n' >&2
        exit 1"#;
    let ended = shell(3, program).end();
    assert_eq!(ended.code, 1);
    let last = ended.err.lines().last();
    assert_eq!(last, Some("last: rank 1 failed at step 9: it left too early (exit code 0)"));
}

#[test]
fn one_that_is_stopped_when_the_others_have_ended_is_ended_and_named() {
    let nap = nap();
    // Itself, or a child that it waits for.
    let stopped = ["kill -s STOP $$".to_owned(), format!("sleep {nap} & kill -s STOP $!; wait")];
    let stopped = stopped.map(|stops| shell(3, &format!("[ $GLEANER_RANK != 1 ] || {{ {stops}; }}; exit 0")));
    // A worker that goes on, or is not stopped and takes its time, is not ended.
    let goes_on = "(sleep 4; kill -s CONT $$) & kill -s STOP $$; echo goes on";
    let others = [goes_on, "sleep 13; echo took its time"];
    let others = others.map(|does| shell(2, &format!("[ $GLEANER_RANK != 1 ] || {{ {does}; }}; exit 0")));
    for launched in stopped {
        let ended = launched.end();
        assert_eq!(ended.code, 147, "{}", ended.err);
        let expected = "last: rank 1 failed: it was stopped, as by SIGSTOP, when the others had ended, and did not \
                        go on within 10 s";
        assert_eq!(ended.err.lines().last(), Some(expected));
        assert!(ended.took > seconds(10) && ended.took < seconds(20), "{:?}", ended.took);
    }
    assert_eq!(sleepers(&nap), 0);
    for (launched, said) in others.into_iter().zip(["goes on", "took its time"]) {
        let ended = launched.end();
        assert_eq!((ended.code, ended.out), (0, format!("[1] {said}\n")), "{}", ended.err);
    }
}
