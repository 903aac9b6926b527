//! What a run measures and stores, when it ends and when it does not.

use gleaner_testbed::experiment::Workload;
use gleaner_testbed::record::{Outcome, Record, SEED};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Bed, SHORT, can_emulate, eventually, named, namespaces, outcome, signal, steps, workers};

#[test]
fn a_matrix_is_measured_once_and_goes_on_where_it_ended() {
    let text = SHORT.replace("turns = 1", "turns = 2").replace("workers = 3\n", "");
    let bed = Bed::new(&format!(
        "{text}[matrix]\nworkers = [2, 3]\nmethod = ['spardl', 'ring']\n[[exclude]]\nworkers = 3\nmethod = 'ring'\n"
    ));
    let (code, said) = bed.run(&["--dry-run"]);
    assert_eq!((code, said.as_str(), bed.out().exists()), (0, "", false));
    let listed = bed.printed(&["--dry-run"]);
    let first = listed.lines().find(|line| line.starts_with("turn 0")).unwrap();
    assert!(listed.starts_with("# "), "the title: {listed}");
    assert!(
        first.contains(": gleaner launch --workers 2 -- gleaner bench --json --method 'spardl,ring' "),
        "{first}"
    );

    let (code, said) = bed.run(&[]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    let order: Vec<String> = records
        .iter()
        .map(|r| format!("{} {} {}", r.turn, r.case["workers"], r.case["method"].as_str().unwrap()))
        .collect();
    assert_eq!(order, ["0 2 spardl", "0 2 ring", "0 3 spardl", "1 3 spardl", "1 2 spardl", "1 2 ring"]);
    for record in &records {
        let Outcome::Done(report) = &record.outcome else { panic!("{record:?}") };
        assert_eq!(
            (&report["method"], &report["workers"]),
            (&record.case["method"], &record.case["workers"])
        );
        assert_eq!(steps(record).len(), 3);
        assert!(record.chaos.is_empty() && record.traffic.is_empty() && record.command[0] == "gleaner");
    }
    // Each line says its seed, which reading would fill in, and its command has it, too.
    for line in fs::read_to_string(bed.out().join("measurements.jsonl")).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["case"]["seed"], 1);
        let words: Vec<&str> = line["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(words.windows(2).any(|pair| pair == ["--seed", "1"]), "{words:?}");
        assert!(line.as_object().unwrap().contains_key("commit"));
    }
    assert_eq!(fs::read(bed.out().join("experiment.toml")).unwrap(), fs::read(bed.file()).unwrap());

    // Again: refused without --resume, and with it there is nothing to do.
    let (code, said) = bed.run(&[]);
    assert!(code == 1 && said.contains("is not empty") && said.contains("--resume"), "{said}");
    let (code, said) = bed.run(&["--resume"]);
    assert!(code == 0 && said.contains("0 measurements") && said.contains("6 were there before"), "{said}");

    // Half of what was measured, and half a line: only the rest is measured.
    let file = bed.out().join("measurements.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let three: usize = text.split_inclusive('\n').take(3).map(str::len).sum();
    fs::write(&file, &text[..three + 100]).unwrap();
    let (code, said) = bed.run(&["--resume"]);
    assert!(code == 0 && said.contains("torn") && said.contains("3 measurements"), "{said}");
    let again: Vec<_> = bed.records().iter().map(|r| (r.turn, r.case.clone())).collect();
    assert_eq!(again, records.iter().map(|r| (r.turn, r.case.clone())).collect::<Vec<_>>());

    // Of another experiment: refused, and nothing changes.
    let before = fs::read(&file).unwrap();
    bed.write(&SHORT.replace("2000", "2001"));
    let (code, said) = bed.run(&["--resume"]);
    assert!(code == 1 && said.contains("another experiment"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn another_program_is_measured_by_what_rank_0_prints() {
    let bed = Bed::new(
        r#"title = 'own'
turns = 1
[workload]
program = """sh -c 'test {code} = 0 || echo lost >&2; echo "{\\"rank\\": $GLEANER_RANK, \\"methods\\": \\"$*\\"}"; exit {code}' sh --method a"""
workers = 2
lr = 0.1
[matrix]
code = [0, 3]
"#,
    );
    let (code, said) = bed.run(&[]);
    assert!(code == 1 && said.contains("it said: lost"), "{said}");
    let records = bed.records();
    let Outcome::Done(report) = &records[0].outcome else { panic!("{said}") };
    assert_eq!((&report["rank"], &report["methods"]), (&0.into(), &"--method a --lr 0.1".into()));
    assert!(records[0].command.starts_with(&["gleaner".into(), "launch".into()]));
    assert!(matches!(records[1].outcome, Outcome::Failed { exit_code: 3, .. }), "{said}");
    assert_eq!(records[1].case["command"], "program");
}

#[test]
fn what_cannot_run_is_refused_before_anything_starts() {
    for (text, words) in [
        (
            SHORT.replace("steps", "step"),
            "test.toml, line 7: 'step' is not known in [workload]; expected one of method, density",
        ),
        (SHORT.replace("turns = 1", "turns = "), "line 2"),
        (
            SHORT.replace("turns = 1", "limit = 'soon'"),
            "line 2: 'limit': 'soon' is no time; expected a number above 0",
        ),
        (format!("{SHORT}density = 2.0\n"), "the density is 2"),
        (format!("{SHORT}method = 'rung'\n"), "no method 'rung'"),
        (format!("{SHORT}teams = 2\n"), "with 3 workers"),
        (format!("{SHORT}timeout = 'soon'\n"), "'soon' is no time"),
        (format!("{SHORT}[[chaos]]\nstep = 1\ndo = 'cut'\nhost = 0\n"), "need an emulated network"),
        (format!("{SHORT}[network]\ntopology = 'nowhere.toml'\n"), "nowhere.toml cannot be read"),
    ] {
        let bed = Bed::new(&text);
        let (code, said) = bed.run(&[]);
        assert!(code == 1 && said.contains(words), "{words}: {said}");
        assert!(!bed.out().exists());
    }
}

#[test]
fn an_interrupted_run_keeps_what_was_measured_and_leaves_no_network() {
    if !can_emulate() {
        return;
    }
    let text = SHORT.replace("steps = 3\n", "").replace("workers = 3", "workers = 2");
    let bed = Bed::new(&format!("{text}[network]\n[matrix]\nsteps = [3, 100_000_000]\n"));
    for (signal_name, expected) in [("INT", 130), ("TERM", 143)] {
        let run = bed.command(&["--name", &named("interrupt"), "--resume"]).spawn().unwrap();
        eventually("the first case is measured, and the second runs", || {
            bed.records().len() == 1 && !workers(&run, 1).is_empty()
        });
        assert_eq!(namespaces(&named("interrupt")).len(), 3);
        signal(run.id(), signal_name);
        let (code, said) = outcome(&run.wait_with_output().unwrap());
        assert!(code == expected && said.contains("--resume goes on"), "{code}: {said}");
        assert_eq!((bed.records().len(), namespaces(&named("interrupt"))), (1, Vec::new()));
    }

    // Killed outright, it cannot tidy up: its workers end, and the next run says what is left.
    let mut run = bed.command(&["--name", &named("interrupt"), "--resume"]).spawn().unwrap();
    eventually("the second case runs", || !workers(&run, 1).is_empty());
    let left = workers(&run, 1);
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("its workers end", || left.iter().all(|id| !Path::new(&format!("/proc/{id}")).exists()));
    assert_eq!(namespaces(&named("interrupt")).len(), 3);
    let short = Bed::new(&format!("{}[network]\n", SHORT.replace("workers = 3", "workers = 2")));
    let (code, said) = short.run(&["--name", &named("interrupt")]);
    assert!(
        code == 1
            && said.contains(&format!("{} is there already", named("interrupt")))
            && said.contains("--replace"),
        "{said}"
    );
    let (code, said) = short.run(&["--name", &named("interrupt"), "--replace", "--resume"]);
    assert_eq!((code, short.records().len(), namespaces(&named("interrupt"))), (0, 1, Vec::new()), "{said}");
}

#[test]
fn a_full_disk_is_a_sentence_and_takes_nothing_that_was_measured() {
    let bed = Bed::new(&SHORT.replace("turns = 1", "turns = 40"));
    fs::create_dir(bed.out()).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"])
        .arg(bed.out())
        .output()
        .unwrap();
    if !mount.status.success() {
        gleaner_skips::skip("mount", "a small disk needs the right to mount one");
        return;
    }
    let (code, said) = bed.run(&[]);
    let records = bed.records();
    assert!(Command::new("umount").arg(bed.out()).status().unwrap().success());
    assert!(code == 1 && said.contains("cannot be written") && said.contains("stays valid"), "{said}");
    assert!((1..40).contains(&records.len()), "{}", records.len());
}

/// What a file may say is what the commands take, or the launcher that starts their workers.
#[test]
fn the_options_of_a_file_are_documented_options_of_the_commands() {
    let pages = [
        (Workload::Bench, "commands/bench"),
        (Workload::Train, "commands/train"),
        (Workload::Regress, "guide/regression"),
    ];
    for (workload, page) in pages {
        let read = |page: &str| {
            let path = format!("{}/../docs/src/{page}.md", env!("CARGO_MANIFEST_DIR"));
            fs::read_to_string(path).unwrap()
        };
        let (text, launch) = (read(page), read("commands/launch"));
        // Layers are of a peer, whose command is none of ours; a floor is `--bandwidth` with the rate of the links.
        for option in workload.options().filter(|option| !["layers", "floor"].contains(option)) {
            let written = format!("`--{}", option.replace('_', "-"));
            let is_on = |text: &str| {
                let mut places = text.match_indices(&written);
                places.any(|(at, _)| !text[at + written.len()..].starts_with(['-', 'a']))
            };
            assert!(is_on(&text) || is_on(&launch), "{written} of {page}");
        }
        // What a file without a seed means.
        let seed = text.lines().find(|line| line.starts_with("| `--seed SEED`")).unwrap();
        assert!(seed.ends_with(&format!("| {SEED} |")), "{seed}");
    }
}

/// The number that is searched for stands in the command, and a run that goes on searches no more.
#[test]
fn a_threshold_is_searched_for_until_updates_have_as_many_entries() {
    let text = SHORT.replace("params = 2000", "params = 20_000\nmethod = 'topka'");
    let bed = Bed::new(&format!(
        "{text}[matrix]\nselector = ['top', 'threshold=?']\nseed = [1, 2]\n[search]\nfrom = 0.001\nto = 100.0\nnumber = 'entries_per_step'\nwithin = 0.1\n\
         aim = {{ selector = 'top' }}\ntrial = {{ seed = 9 }}\n"
    ));
    let (code, said) = bed.run(&[]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    let entries = |record: &Record| match &record.outcome {
        Outcome::Done(report) => report["entries_per_step"].as_f64().unwrap(),
        Outcome::Failed { .. } => panic!("{record:?}"),
    };
    let [top, _, found, other] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&found.case["selector"], found.case == other.case), (&"threshold=?".into(), false));
    assert!((entries(found) / entries(top) - 1.0).abs() < 0.5, "{} {}", entries(found), entries(top));
    let threshold =
        |record: &Record| record.command.iter().find(|word| word.starts_with("threshold=")).cloned().unwrap();
    assert!(threshold(found) == threshold(other) && !threshold(found).contains('?'));
    let trials = fs::read_to_string(bed.out().join("search/measurements.jsonl")).unwrap();
    assert!(trials.lines().count() > 2 && trials.lines().all(|line| line.contains("\"seed\":9")), "{trials}");
    let (code, said) = bed.run(&["--resume"]);
    assert!(code == 0 && said.contains("0 measurements written"), "{said}");

    let bed = Bed::new(&fs::read_to_string(bed.file()).unwrap().replace("'entries_per_step'", "'nothing'"));
    let (code, said) = bed.run(&[]);
    assert!(
        code != 0 && said.contains("expected a measurement that ends well and prints this number"),
        "{said}"
    );
}

/// The experiments of the repository are read, and their command lines are checked as the commands check them.
#[test]
fn every_experiment_of_the_repository_can_be_run() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
            let output = command.args(["testbed", "run", "--dry-run"]).arg(&file).output().unwrap();
            assert!(output.status.success(), "{}: {}", file.display(), outcome(&output).1);
            count += 1;
        }
    }
    assert!(count > 20, "only {count} experiments were found");
}
