//! Experiments from files, as a user runs them: real jobs, on the loopback and on emulated networks, disturbed and
//! interrupted.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gleaner_testbed::experiment::Workload;
use gleaner_testbed::record::{Outcome, Record, SEED};
use serde_json::Value;
use tempfile::TempDir;

/// An experiment of one short job on the loopback, without its last line.
const SHORT: &str = "title = 'short'\nturns = 1\n[workload]\ncommand = 'bench'\nworkers = 3\nparams = 2000\nsteps = 3\nwarmup = 0\n";

/// A directory with one experiment's file, and where its measurements go.
struct Bed {
    directory: TempDir,
}

impl Bed {
    fn new(text: &str) -> Self {
        let bed = Self { directory: tempfile::tempdir().unwrap() };
        bed.write(text);
        bed
    }

    fn write(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("test.toml")
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
        command.args(["testbed", "run"]).arg(self.file()).arg("--out").arg(self.out()).args(more);
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn run(&self, more: &[&str]) -> (i32, String) {
        told(&self.command(more).output().unwrap())
    }

    fn records(&self) -> Vec<Record> {
        let text = fs::read_to_string(self.out().join("measurements.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The exit code and what stood on standard error.
fn told(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Times of the steps of a job that ended well.
#[track_caller]
fn steps(record: &Record) -> Vec<f64> {
    let Outcome::Done(report) = &record.outcome else { panic!("{record:?}") };
    report["seconds_steps"].as_array().unwrap().iter().map(|step| step.as_f64().unwrap()).collect()
}

#[track_caller]
fn reason(record: &Record) -> &str {
    let Outcome::Failed { reason, .. } = &record.outcome else { panic!("{record:?}") };
    reason
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Whether emulated networks can be made here; if not, the test says so and passes.
fn can_emulate() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    let root = String::from_utf8_lossy(&id.stdout).trim() == "0";
    let possible =
        root && Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success());
    if !possible {
        eprintln!("SKIPPED: network namespaces need root, and a kernel that has them");
    }
    possible
}

/// The name of a network that no other test and no other run of the tests has.
fn named(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn namespaces(of: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "list"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| *name == of || name.starts_with(&format!("{of}."))).map(str::to_owned).collect()
}

fn signal(id: u32, signal: &str) {
    assert!(Command::new("kill").args(["-s", signal, &id.to_string()]).status().unwrap().success());
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        sleep(Duration::from_millis(20));
    }
}

/// Workers of that rank of jobs started by this process: the launcher's own descendants with that rank.
fn workers(of: &Child, rank: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ids = ids.filter(|id| {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let mark = format!("GLEANER_TESTBED_JOB={}-", of.id());
        let rank = format!("GLEANER_RANK={rank}");
        let mut has = environment.split(|byte| *byte == 0);
        has.clone().any(|one| one.starts_with(mark.as_bytes())) && has.any(|one| one == rank.as_bytes())
    });
    ids.collect()
}

#[test]
fn a_matrix_is_measured_once_and_goes_on_where_it_ended() {
    let text = SHORT.replace("turns = 1", "turns = 2").replace("workers = 3\n", "");
    let bed = Bed::new(&format!(
        "{text}[matrix]\nworkers = [2, 3]\nmethod = ['spardl', 'ring']\n[[exclude]]\nworkers = 3\nmethod = 'ring'\n"
    ));
    let (code, said) = bed.run(&["--dry-run"]);
    assert_eq!((code, said.as_str(), bed.out().exists()), (0, "", false));

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

    // Recorded before every case had its seed: nothing is measured again.
    let text = fs::read_to_string(&file).unwrap();
    let early = text.replace(",\"seed\":1", "").replace("\"seed\":1,", "");
    assert!(
        early.lines().all(|line| !line.split("\"command\":[").next().unwrap().contains("seed")),
        "{early}"
    );
    fs::write(&file, &early).unwrap();
    let (code, said) = bed.run(&["--resume"]);
    assert!(code == 0 && said.contains("0 measurements") && said.contains("6 were there before"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), early);

    // Of another experiment: refused, and nothing changes.
    let before = fs::read(&file).unwrap();
    bed.write(&SHORT.replace("2000", "2001"));
    let (code, said) = bed.run(&["--resume"]);
    assert!(code == 1 && said.contains("another experiment"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), before);
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
            "line 2: 'limit': 'soon' is no limit; expected a number above 0",
        ),
        (format!("{SHORT}density = 2.0\n"), "the density is 2"),
        (format!("{SHORT}method = 'rung'\n"), "no method 'rung'"),
        (format!("{SHORT}teams = 2\n"), "with 3 workers"),
        (format!("{SHORT}timeout = 'soon'\n"), "'soon' is no duration"),
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
fn a_worker_that_is_killed_on_purpose_fails_its_job_and_not_the_run() {
    let text = SHORT.replace("steps = 3", "steps = 100_000").replace("turns = 1", "turns = 2");
    let bed = Bed::new(&format!("{text}[[chaos]]\nstep = 5\ndo = 'kill'\nrank = 2\n"));
    let (code, said) = bed.run(&["--json"]);
    assert!(code == 0 && said.contains("2 of them failed as the chaos"), "{said}");
    for record in bed.records() {
        assert!(reason(&record).starts_with("rank 2 failed"), "{record:?}");
        assert!(reason(&record).contains("SIGKILL"), "{record:?}");
        assert!(record.chaos.len() == 1 && record.chaos[0].ends_with("kill rank 2"), "{record:?}");
    }
}

#[test]
fn a_worker_that_is_stopped_for_a_while_holds_its_job_back() {
    // So many that they are not over before a busy machine gets round to the stop.
    let text = SHORT.replace("steps = 3", "steps = 2000");
    let bed = Bed::new(&format!("{text}[[chaos]]\nstep = 20\ndo = 'stop'\nrank = 1\nfor = '3s'\n"));
    let (code, said) = bed.run(&[]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    // Whether a step's clock ran at that moment or a barrier between two steps is left to chance.
    assert!((3.0..60.0).contains(&records[0].seconds), "{records:?}");
    assert_eq!(steps(&records[0]).len(), 2000);
    let acts: Vec<&str> = records[0].chaos.iter().map(|line| line.rsplit(": ").next().unwrap()).collect();
    assert_eq!(acts, ["stop rank 1", "continue rank 1"]);
}

#[test]
fn a_slow_worker_makes_all_steps_longer() {
    let text = SHORT.replace("params = 2000", "params = 500_000");
    let text = text.replace("steps = 3", "steps = 90\nmethod = 'ring'");
    let slow = "[[chaos]]\nstep = 30\ndo = 'slow'\nrank = 1\nshare = 0.05\n";
    let bed = Bed::new(&format!("{text}{slow}[[chaos]]\nstep = 60\ndo = 'continue'\nrank = 1\n"));
    let (code, said) = bed.run(&[]);
    assert_eq!(code, 0, "{said}");
    // The steps before and after are the control: whatever else the machine has to do makes all of them longer.
    let steps = steps(&bed.records()[0]);
    let [before, slow, after] = [&steps[..30], &steps[30..60], &steps[60..]].map(median);
    assert!(slow > 1.5 * before && slow > 1.5 * after, "{before} s before, {slow} s slow, {after} s after");
}

#[test]
fn a_job_that_fails_by_itself_is_recorded_and_the_run_goes_on() {
    let bed = Bed::new(&format!("{}[matrix]\nsteps = [100_000_000, 3]\n", SHORT.replace("steps = 3\n", "")));
    let run = bed.command(&[]).spawn().unwrap();
    eventually("a worker starts", || !workers(&run, 1).is_empty());
    sleep(Duration::from_millis(300));
    workers(&run, 1).into_iter().for_each(|id| signal(id, "KILL"));
    let (code, said) = told(&run.wait_with_output().unwrap());
    assert!(code == 1 && said.contains("failed: spardl, 3 workers: rank 1 failed"), "{said}");
    let records = bed.records();
    assert!(reason(&records[0]).starts_with("rank 1 failed"));
    assert_eq!(steps(&records[1]).len(), 3);
}

/// A worker is stopped for good, and the others wait for it longer than their job may take.
#[test]
fn a_job_that_hangs_is_ended_at_its_limit_and_the_run_goes_on() {
    let text =
        SHORT.replace("turns = 1", "turns = 1\nlimit = '6s'").replace("steps = 3\n", "timeout = '600s'\n");
    let bed = Bed::new(&format!(
        "{text}[matrix]\nsteps = [100_000_000, 3]\n[[chaos]]\nstep = 5\ndo = 'stop'\nrank = 1\ncases = {{ steps = 100_000_000 }}\n"
    ));
    let run = bed.command(&[]).spawn().unwrap();
    eventually("a worker starts", || !workers(&run, 1).is_empty());
    let of_the_first = workers(&run, 1);
    eventually("it is recorded", || !bed.records().is_empty());
    assert!(of_the_first.iter().all(|id| !Path::new(&format!("/proc/{id}")).exists()));
    let (code, said) = told(&run.wait_with_output().unwrap());
    assert!(code == 0 && said.contains("1 of them failed as the chaos"), "{said}");
    let [hung, measured] = &bed.records()[..] else { panic!("{said}") };
    assert!(
        reason(hung).starts_with("it took longer than its limit of 6 s and was ended after "),
        "{hung:?}"
    );
    assert!(matches!(hung.outcome, Outcome::Failed { exit_code: 124, .. }));
    assert!((6.0..60.0).contains(&hung.seconds), "{hung:?}");
    assert_eq!(steps(measured).len(), 3);
}

/// A program that neither ends nor hears, in place of Gloo's.
#[test]
fn a_peer_that_hangs_is_ended_at_its_limit() {
    if !can_emulate() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    };
    script("mpicc.openmpi", "exit 1");
    script("mpicc.mpich", "exit 1");
    let python = script("python", "[ \"$1\" = -c ] && exit\ntrap '' TERM\nwhile :; do sleep 1; done");
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command.args(["testbed", "peers", "--hosts", "2", "--params", "1_000", "--turns", "1", "--limit", "6s"]);
    command.args(["--json", "--name", &named("peerhang"), "--python"]).arg(python).env("PATH", path);
    let output = command.arg("--out").arg(directory.path().join("out")).output().unwrap();
    let (code, said) = told(&output);
    let sentence = "failed: gloo, 2 workers: it took longer than its limit of 6 s and was ended before it told of any step";
    assert!(code == 1 && said.contains(sentence), "{code}: {said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let measured: Vec<&Value> =
        report["methods"].as_array().unwrap().iter().map(|row| &row["method"]).collect();
    assert_eq!(measured, ["spardl", "ring"]);
    assert_eq!(namespaces(&named("peerhang")), [""; 0]);

    let output = Command::new(env!("CARGO_BIN_EXE_gleaner"))
        .args(["testbed", "peers", "--params", "1_000", "--limit", "never"])
        .output()
        .unwrap();
    let (code, said) = told(&output);
    assert!(
        code == 2 && said.contains("'never' is no limit; expected a number above 0 and a unit"),
        "{said}"
    );
}

#[test]
fn more_entries_than_mpi_counts_are_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    for params in ["2_147_483_648", "0"] {
        let output = Command::new(env!("CARGO_BIN_EXE_gleaner"))
            .args(["testbed", "peers", "--name", &named("toomany"), "--params", params, "--out"])
            .arg(directory.path().join("out"))
            .output()
            .unwrap();
        let (code, said) = told(&output);
        assert!(
            code == 1 && said.contains("entries cannot be compared; expected from 1 to 2147483647"),
            "{said}"
        );
        // Not even what is missing was looked for.
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!directory.path().join("out").exists());
    }
}

#[test]
fn a_cut_that_is_mended_is_survived_and_one_that_stays_is_named() {
    if !can_emulate() {
        return;
    }
    // A ring that spends its time on the wire: 133 kB of each step at 10 Mbit/s.
    let network = "[network]\nrate = '10mbit'\n";
    let text = SHORT.replace("steps = 3", "steps = 12\ntimeout = '15s'\nmethod = 'ring'");
    let text = text.replace("params = 2000", "params = 25_000");
    let cut = "[[chaos]]\nstep = 3\ndo = 'cut'\nhost = 2\nfor = '3s'\n";
    let bed = Bed::new(&format!("{text}{network}{cut}"));
    let (code, said) = bed.run(&["--name", &named("cutmend")]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    // Twelve steps take 1.3 s on the wire; nine of them come after the cut, which may last longer for TCP than for the link.
    assert_eq!(steps(&records[0]).len(), 12);
    assert!((3.9..20.0).contains(&records[0].seconds), "{records:?}");
    assert!(records[0].traffic.len() == 3 && records[0].traffic.iter().all(|host| host.received > 1_000_000));

    let text = SHORT.replace("steps = 3", "steps = 100_000\ntimeout = '2s'");
    let bed = Bed::new(&format!("{text}{network}[[chaos]]\nstep = 10\ndo = 'cut'\nhost = 2\n"));
    let (code, said) = bed.run(&["--name", &named("cutgood")]);
    assert_eq!(code, 0, "{said}");
    let records = bed.records();
    assert!(reason(&records[0]).starts_with("rank 2 failed"), "{}", reason(&records[0]));
    assert!(records[0].seconds < 20.0, "{records:?}");
    assert_eq!(namespaces("cut"), [""; 0]);
}

#[test]
fn rates_of_the_matrix_are_those_of_the_links() {
    if !can_emulate() {
        return;
    }
    let text = SHORT
        .replace("params = 2000", "params = 250_000\nmethod = 'ring'")
        .replace("workers = 3", "workers = 2");
    let chaos =
        "[[chaos]]\nstep = 0\ndo = 'reshape'\nhost = 1\nrate = '20mbit'\ncases = { rate = '1gbit' }\n";
    let text = text.replace("turns = 1", "turns = 3");
    let bed = Bed::new(&format!("{text}[network]\n[matrix]\nrate = ['100mbit', '10mbit', '1gbit']\n{chaos}"));
    let (code, said) = bed.run(&["--name", &named("rates")]);
    assert_eq!(code, 0, "{said}");
    // Each of two workers receives 1 MB in a ring; links carry at least two thirds of what they are set to in such bursts. A
    // busy machine may be slower than its links, but not in every turn.
    let records = bed.records();
    for (asked, rate) in [("100mbit", 100e6), ("10mbit", 10e6), ("1gbit", 20e6)] {
        let least = 8e6 / rate;
        let of_this = records.iter().filter(|record| record.case["rate"] == asked);
        let took: Vec<f64> = of_this.map(|record| median(&steps(record))).collect();
        assert!(took.len() == 3 && took.iter().all(|took| *took > 0.6 * least), "{asked}: {took:?} s");
        assert!(
            took.iter().any(|took| *took < 2.0 * least + 0.05),
            "{asked}: {took:?} s, {least} s at least"
        );
    }
    assert_eq!(namespaces(&named("rates")), [""; 0]);
}

/// What holds the ring back is the one link between two groups of hosts, whose own links have no limit.
#[test]
fn the_links_of_a_topology_file_are_those_of_the_run() {
    if !can_emulate() {
        return;
    }
    let text = SHORT.replace("params = 2000", "params = 100_000\nmethod = 'ring'");
    let bed = Bed::new(&format!("{text}[network]\ntopology = 'racks.toml'\n"));
    let topology = |uplink: &str| {
        let groups = "[[group]]\nname = 'east'\nhosts = 2\n[[group]]\nname = 'west'\nhosts = 1\n";
        let text = format!("{groups}[uplink.west]\nrate = '{uplink}'\n");
        fs::write(bed.directory.path().join("racks.toml"), &text).unwrap();
        text
    };
    let run = |more: &[&str]| bed.run(&[&["--name", &named("racks")], more].concat());
    let asked = topology("20mbit");
    let (code, said) = run(&[]);
    assert_eq!((code, namespaces(&named("racks"))), (0, Vec::new()), "{said}");
    let [record] = &bed.records()[..] else { panic!("{said}") };
    // Each of three workers receives 4/3 of the gradient's bytes; in bursts, a link is a little faster.
    let least = 8.0 * 4.0 * 100_000.0 * 4.0 / 3.0 / 20e6;
    let took = median(&steps(record));
    assert!(took > 0.6 * least, "{took} s, {least} s at least");
    assert_eq!(record.case["topology"], "racks.toml");
    let hosts: Vec<&str> = record.traffic.iter().map(|traffic| traffic.host.as_str()).collect();
    assert_eq!(hosts, ["east0", "east1", "west0"]);
    assert!(record.traffic.iter().all(|host| host.received > 3 * 533_333), "{record:?}");
    assert_eq!(fs::read_to_string(bed.out().join("topology.toml")).unwrap(), asked);

    // With another uplink it is another experiment, and faster.
    topology("2gbit");
    let (code, said) = run(&["--resume"]);
    assert!(code == 1 && said.contains("its topology.toml differs"), "{said}");
    fs::remove_dir_all(bed.out()).unwrap();
    let (code, said) = run(&[]);
    assert_eq!(code, 0, "{said}");
    let fast = median(&steps(&bed.records()[0]));
    assert!(fast < 0.5 * took, "{fast} s, and {took} s over a hundredth of the uplink's rate");

    // As many hosts as the file has, and no more.
    bed.write(&format!("{text}[network]\ntopology = 'racks.toml'\n").replace("workers = 3", "workers = 4"));
    fs::remove_dir_all(bed.out()).unwrap();
    let (code, said) = run(&[]);
    assert!(code == 1 && said.contains("a case has 4 workers, and the topology has 3 hosts"), "{said}");
    assert_eq!(namespaces(&named("racks")), [""; 0]);
}

/// A delay is kept where the kernel has netem. Where it has none, that is said before the first case is measured, though
/// only the second one needs it.
#[test]
fn delays_are_kept_or_refused_beforehand() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::new(&format!("{SHORT}[network]\n[matrix]\ndelay = ['0us', '20ms']\n"));
    let (code, said) = bed.run(&["--name", &named("delays")]);
    let records = bed.records();
    if code == 0 {
        assert!(median(&steps(&records[1])) > 0.02, "{records:?}");
    } else {
        assert!(said.contains("netem") && said.contains("gleaner testbed vm"), "{said}");
        assert!(records.is_empty(), "{records:?}");
    }
    assert_eq!(namespaces(&named("delays")), [""; 0]);
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
        let (code, said) = told(&run.wait_with_output().unwrap());
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
        eprintln!("SKIPPED: a small disk needs the right to mount one");
        return;
    }
    let (code, said) = bed.run(&[]);
    let records = bed.records();
    assert!(Command::new("umount").arg(bed.out()).status().unwrap().success());
    assert!(code == 1 && said.contains("cannot be written") && said.contains("stays valid"), "{said}");
    assert!((1..40).contains(&records.len()), "{}", records.len());
}

#[test]
fn peers_are_measured_or_said_to_be_missing() {
    if !can_emulate() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
    command
        .args(["testbed", "peers", "--hosts", "2", "--rate", "1gbit", "--params", "50_000", "--steps", "3"]);
    command
        .args(["--turns", "1", "--name", &named("peertest"), "--json", "--out"])
        .arg(directory.path().join("out"));
    let output = command.output().unwrap();
    let (code, said) = told(&output);
    assert_eq!(code, 0, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = |list: &str| -> Vec<String> {
        report[list]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["method"].as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = [names("methods"), names("missing")].concat();
    all.sort_unstable();
    assert_eq!(all, ["gloo", "mpich", "open-mpi", "ring", "spardl"]);
    for row in report["methods"].as_array().unwrap() {
        // Whoever is dense has to receive a sum over the wire.
        let least = if row["method"] == "spardl" { 1000.0 } else { 200_000.0 };
        assert!(row["bytes_received"].as_f64().unwrap() > least, "{row}");
        assert!(
            row["seconds"].as_f64().unwrap() > 0.0 && row["seconds_to_ring"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    for name in names("missing") {
        assert!(said.contains(&format!("{name} is not measured")) && said.contains("install"), "{said}");
    }
    assert_eq!(namespaces(&named("peertest")), [""; 0]);
}

/// What a file may say is what the commands take.
#[test]
fn the_options_of_a_file_are_documented_options_of_the_commands() {
    for (workload, page) in [(Workload::Bench, "bench"), (Workload::Train, "train")] {
        let path = format!("{}/docs/src/commands/{page}.md", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(path).unwrap();
        for option in workload.options() {
            let written = format!("`--{}", option.replace('_', "-"));
            let found = text
                .match_indices(&written)
                .any(|(at, _)| !text[at + written.len()..].starts_with(['-', 'a']));
            assert!(found, "{written} of {page}");
        }
        // Records without a seed mean this one.
        let seed = text.lines().find(|line| line.starts_with("| `--seed SEED`")).unwrap();
        assert!(seed.ends_with(&format!("| {SEED} |")), "{seed}");
    }
}
