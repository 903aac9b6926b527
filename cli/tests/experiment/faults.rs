//! Workers that are killed, stopped or slow, and jobs that fail or hang.

use gleaner_statistics::median;
use gleaner_testbed::record::Outcome;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use super::{Bed, SHORT, eventually, outcome, reason, signal, steps, workers};

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
        assert!(record.failed_on_purpose && record.missed.is_empty(), "{record:?}");
    }
}

#[test]
fn a_fault_that_never_happens_is_reported() {
    let bed = Bed::new(&format!("{SHORT}[[chaos]]\nstep = 1000\ndo = 'kill'\nrank = 1\n"));
    let (code, said) = bed.run(&[]);
    assert!(
        code == 0 && said.contains("in 1 of them something that the file plans on purpose did not happen"),
        "{said}"
    );
    let record = &bed.records()[0];
    assert!(record.chaos.is_empty() && !record.failed_on_purpose, "{record:?}");
    assert!(record.missed[0].starts_with("kill rank 1 at step 1000: the job ended before"), "{record:?}");
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

/// The medians of the steps before, while and after a worker is slow.
fn slowed() -> [f64; 3] {
    let text = SHORT.replace("params = 2000", "params = 300_000");
    let text = text.replace("steps = 3", "steps = 120\nmethod = 'ring'");
    let slow = "[[chaos]]\nstep = 30\ndo = 'slow'\nrank = 1\nshare = 0.03\nfor = '3s'\n";
    let bed = Bed::new(&format!("{text}{slow}"));
    let (code, said) = bed.run(&[]);
    assert_eq!(code, 0, "{said}");
    let record = &bed.records()[0];
    // As it is recorded, since reports of progress come when they may.
    let at = |line: &String| line.split_once(", step ")?.1.split_once(':')?.0.parse::<usize>().ok();
    let [from, to] = record.chaos.iter().filter_map(at).collect::<Vec<_>>()[..] else { panic!("{record:?}") };
    println!("slow from step {from} to step {to}");
    let steps = steps(record);
    [&steps[..from], &steps[from..to], &steps[to..]].map(|some| median(some.iter().copied()))
}

/// The steps before and after are the control: whatever else the machine has to do makes all of them longer. Where it leaves the others as
/// little as the slow one, it is measured again.
#[test]
fn a_slow_worker_makes_all_steps_longer() {
    let is_longer = || {
        let [before, slow, after] = slowed();
        println!("{before} s before, {slow} s slow, {after} s after");
        slow > 1.5 * before && slow > 1.5 * after
    };
    assert!((0..4).any(|_| is_longer()));
}

#[test]
fn a_job_that_fails_by_itself_is_recorded_and_the_run_goes_on() {
    let bed = Bed::new(&format!("{}[matrix]\nsteps = [100_000_000, 3]\n", SHORT.replace("steps = 3\n", "")));
    let run = bed.command(&[]).spawn().unwrap();
    eventually("a worker starts", || !workers(&run, 1).is_empty());
    sleep(Duration::from_millis(300));
    workers(&run, 1).into_iter().for_each(|id| signal(id, "KILL"));
    let (code, said) = outcome(&run.wait_with_output().unwrap());
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
    let (code, said) = outcome(&run.wait_with_output().unwrap());
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

/// In the case without a fault nothing is done, and reports tell the two apart.
#[test]
fn faults_are_an_axis_of_the_matrix() {
    let faults = "[matrix]\nfaults = ['none', 'kill']\n[[chaos]]\nstep = 5\ndo = 'kill'\nrank = 2\ncases = { faults = 'kill' }\n";
    let bed = Bed::new(&format!("{}{faults}", SHORT.replace("steps = 3", "steps = 2000")));
    let (code, said) = bed.run(&[]);
    assert!(code == 0 && said.contains("1 of them failed as the chaos"), "{said}");
    let [none, killed] = &bed.records()[..] else { panic!("{said}") };
    assert_eq!((&none.case["faults"], steps(none).len()), (&"none".into(), 2000));
    assert!(
        none.chaos.is_empty() && killed.failed_on_purpose && killed.case["faults"] == "kill",
        "{killed:?}"
    );
    assert!(!killed.command.iter().any(|word| word.contains("faults")), "{killed:?}");
}
