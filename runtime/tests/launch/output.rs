//! What workers are given, and how their output is shown.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::process::{self, Ended, WORKER, eventually, launch, seconds, shell};

#[test]
fn every_line_stands_behind_its_rank_and_none_is_lost() {
    let program = r#"
        i=0
        while [ $i -lt 1500 ]; do
            echo "out $i of $GLEANER_RANK"
            echo "err $i of $GLEANER_RANK" >&2
            i=$((i + 1))
        done
        printf 'partial %s' "$GLEANER_RANK""#;
    let ended = shell(3, program).end();
    assert_eq!(ended.code, 0);
    assert_eq!((ended.out.lines().count(), ended.err.lines().count()), (3 * 1501, 3 * 1500));
    for rank in 0..3 {
        let lines = |what: &str| (0..1500).map(|i| format!("{what} {i} of {rank}")).collect::<Vec<_>>();
        let mut out = lines("out");
        out.push(format!("partial {rank}"));
        assert_eq!(Ended::lines_of(&ended.out, rank), out);
        assert_eq!(Ended::lines_of(&ended.err, rank), lines("err"));
    }
}

#[test]
fn bytes_that_are_no_text_and_lines_without_end_are_shown() {
    let program = r#"printf '\377\376 x\n'; head -c 200000 /dev/zero | tr '\0' y; echo; echo done"#;
    let ended = shell(1, program).end();
    assert!(ended.raw.starts_with(b"[0] \xff\xfe x\n"));
    assert!(ended.raw.ends_with(b"\n[0] done\n"));
    assert_eq!(ended.raw.iter().filter(|&&byte| byte == b'y').count(), 200_000);
    assert!(ended.raw.split(|&byte| byte == b'\n').all(|line| line.len() < 100_000));
}

#[test]
fn rank_zero_alone_is_shown_as_if_it_ran_alone() {
    let program = r#"printf "out $GLEANER_RANK"; echo "err $GLEANER_RANK" >&2"#;
    let ended = launch(json!({ "workers": 3, "program": ["sh", "-c", program], "rank_zero": true })).end();
    assert_eq!(ended.out, "out 0");
    let mut lines: Vec<_> = ended.err.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[1] err 1", "[2] err 2", "err 0"]);
}

#[test]
fn every_worker_finds_its_place_in_its_environment() {
    let variables = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE RENDEZVOUS SECRET_FD LAUNCHER";
    let program = format!(
        r#"for name in {variables}; do eval "echo $name=\$GLEANER_$name"; done
           echo threads=$RAYON_NUM_THREADS,$OMP_NUM_THREADS; pwd; cat"#
    );
    let ended =
        launch(json!({ "workers": 2, "program": ["sh", "-c", program], "directory": "/", "env": { "OMP_NUM_THREADS": "7" } }))
            .end();
    let cores: usize = std::thread::available_parallelism().unwrap().into();
    let workers: Vec<_> = (0..2).map(|rank| Ended::lines_of(&ended.out, rank)).collect();
    for (rank, lines) in workers.iter().enumerate() {
        let numbers = [
            format!("RANK={rank}"),
            "WORLD_SIZE=2".into(),
            format!("LOCAL_RANK={rank}"),
            "LOCAL_WORLD_SIZE=2".into(),
        ];
        assert_eq!(lines[..4], numbers);
        assert!(lines[4].starts_with("RENDEZVOUS=127.0.0.1:"), "{}", lines[4]);
        assert_eq!(lines[5], "SECRET_FD=3");
        assert_eq!(
            lines[6..],
            ["LAUNCHER=1".to_owned(), format!("threads={},7", (cores / 2).max(1)), "/".into()]
        );
    }
    assert_eq!(workers[0][4..6], workers[1][4..6]);
}

/// All that processes are started with: command lines and environments of all that this one may look at.
fn started_with() -> Vec<Vec<u8>> {
    let files =
        gleaner_processes::all().flat_map(|process| ["cmdline", "environ"].map(|name| process.file(name)));
    files.filter_map(|file| std::fs::read(file).ok()).collect()
}

#[test]
fn the_secret_is_on_no_command_line_and_in_no_environment() {
    for setsid in [true, false] {
        let nap = process::nap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        // A child that inherits what there is to inherit, and the worker's own secret from its pipe.
        let program =
            format!("sleep {nap} & cat <&3 >'{0}.new'; cat <&3; mv '{0}.new' '{0}'; wait", file.display());
        let mut job = json!({ "workers": 1, "program": ["sh", "-c", program] });
        if !setsid {
            // Job control takes its place: a shell and a folder of programs without it.
            let agent = without_setsid(folder.path());
            job["hosts"] = json!([["here", 1, null]]);
            job["agent"] = json!([agent]);
            job.as_object_mut().unwrap().remove("workers");
        }
        let launched = launch(job);
        eventually("the worker runs", seconds(10), || file.exists() && process::sleepers(&nap) == 1);
        let secret = std::fs::read_to_string(&file).unwrap();
        assert_eq!(secret.len(), 65, "once, and a line end");
        let all = started_with();
        let has =
            |bytes: &[u8], word: &str| bytes.windows(word.len()).any(|window| window == word.as_bytes());
        assert!(
            all.iter().any(|bytes| has(bytes, &nap))
                && all.iter().any(|bytes| has(bytes, "GLEANER_SECRET_FD=3"))
        );
        assert!(all.iter().all(|bytes| !has(bytes, secret.trim())));
        launched.signal("INT");
        assert_eq!(launched.end().code, 130);
        assert_eq!(process::sleepers(&nap), 0, "without setsid: {}", !setsid);
    }
}

/// An agent for this machine whose bash finds all that it may need but setsid.
fn without_setsid(folder: &Path) -> String {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["bash", "cat", "mv", "sleep", "date", "grep", "env", "nproc"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output().unwrap().stdout;
        std::os::unix::fs::symlink(String::from_utf8(found).unwrap().trim(), bin.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(bin.join("bash"), bin.join("sh")).unwrap();
    let agent = folder.join("agent");
    std::fs::write(&agent, format!("#!/bin/sh\nPATH={}\nshift\nexec \"$@\"\n", bin.display())).unwrap();
    std::fs::set_permissions(&agent, PermissionsExt::from_mode(0o755)).unwrap();
    agent.to_str().unwrap().to_owned()
}

#[test]
fn events_are_heard_and_not_shown_and_name_the_rank_at_fault() {
    let program = std::env::current_exe().unwrap();
    let program = [program.to_str().unwrap(), "--exact", "worker_process", "--ignored", "--nocapture", "-q"];
    let folder = tempfile::tempdir().unwrap();
    let ended = launch(
        json!({ "workers": 3, "program": program, "env": { WORKER: folder.path().to_str().unwrap() } }),
    )
    .end();
    assert_eq!(ended.code, 137, "{}", ended.err);
    let last = ended.err.lines().last().unwrap();
    assert_eq!(last, "last: rank 2 failed at step 17: killed by signal 9 (SIGKILL)");
    assert!(!ended.err.contains('\x1e') && !ended.err.contains("launcher."), "{}", ended.err);
    for rank in 0..3 {
        assert_eq!(Ended::lines_of(&ended.err, rank), ["before ", "after"]);
        let event = format!("event {rank} loss {{\"rank\":{rank},\"text\":\"a\\nb\"}}");
        assert!(ended.err.lines().any(|line| line == event), "{}", ended.err);
    }
}
