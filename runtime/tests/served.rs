//! Parameter servers as processes of their own, under the launcher: killed, stopped, and started again.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_algorithms::synchrony::{self, Sgd, Synchrony};
use gleaner_runtime::launcher::{self, Job, Outcome, Output};
use gleaner_runtime::{Layout, OnFailure, Options, Pass, Replica, Roles, Session};
use gleaner_statistics::random::Generator;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

const PART: &str = "SERVED_TEST_PART";

const LENS: [usize; 4] = [300, 1, 20_000, 41];

const SGD: Sgd = Sgd { momentum: 0.9, weight_decay: 0.001, nesterov: false };

/// What all processes of a job do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    directory: PathBuf,
    /// Where each process writes its result.
    notes: PathBuf,
    synchrony: String,
    steps: u64,
    resumes: bool,
    /// What silence is reported after. A process that has ended is not silent.
    timeout: Duration,
    /// Before this step rank 2 waits until it is told to go on.
    held_at: u64,
}

/// What tells rank 2 to go on, beside the notes.
const GO_ON: &str = "go on";

fn entries() -> usize {
    LENS.iter().sum()
}

fn gradient(rank: u32, step: u64) -> Vec<f32> {
    let mut random = Generator::new(step, "gradient", rank.into());
    (0..entries()).map(|_| random.symmetric() / 10.0).collect()
}

fn initial() -> Vec<f32> {
    gradient(99, 1 << 20)
}

/// The parameters after each number of steps under a barrier.
fn oracle(workers: u32, steps: u64) -> Vec<Vec<f32>> {
    let (mut parameters, mut velocities) = (initial(), vec![0.0; entries()]);
    let mut all = vec![parameters.clone()];
    for step in 0..steps {
        let gradients = (0..workers).map(|rank| gradient(rank, step));
        let sum = gradients.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect()).unwrap();
        let mean: Vec<f32> = sum.iter().map(|sum| sum / workers as f32).collect();
        SGD.step(&mut parameters, &mut velocities, &mean, 0.1);
        all.push(parameters.clone());
    }
    all
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Not a test of its own: as a process of its own, it is a worker or a server.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn served_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let part: Part = serde_json::from_str(&part).unwrap();
    let code = match work(&part) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            3
        }
    };
    std::process::exit(code);
}

fn work(part: &Part) -> Result<(), gleaner_runtime::Error> {
    let session = Session::join()?;
    let rank = session.rank() as u32;
    let note = |name: &str, text: &[u8]| {
        let path = part.notes.join(format!("{name}-{rank}"));
        // Whole or not at all.
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    };
    note("pid", std::process::id().to_string().as_bytes());
    if session.is_server() {
        return session.serve();
    }
    let mut layout = Layout::new();
    for (unit, len) in LENS.into_iter().enumerate() {
        layout = layout.group().parameter(format!("unit {unit}"), len);
    }
    let synchrony: Arc<dyn Synchrony> = Arc::from(synchrony::named(&part.synchrony).unwrap());
    let options = Options { method: Method::ring(), synchrony, sgd: SGD, samples: 8, epoch: 10 };
    let mut replica = session.durable_replica(&layout, &initial(), options, &part.directory, part.resumes)?;
    let values = |replica: &Replica| -> Vec<u8> {
        replica.parameters().iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    note("begin", &[&replica.step_number().to_le_bytes()[..], &values(&replica)].concat());
    while replica.step_number() < part.steps {
        while rank == 2 && replica.step_number() == part.held_at && !part.notes.join(GO_ON).exists() {
            thread::sleep(Duration::from_millis(1));
        }
        let gradient = gradient(rank, replica.step_number());
        let mut start = 0;
        for (unit, len) in LENS.into_iter().enumerate() {
            replica.ready(&format!("unit {unit}"), &gradient[start..start + len])?;
            start += len;
        }
        replica.step(Pass { rate: 0.1, samples: 8, loss: 1.0 })?;
        note("done", replica.step_number().to_string().as_bytes());
    }
    replica.flush()?;
    note("end", &values(&replica));
    Ok(())
}

/// A job under way.
struct Running {
    part: Part,
    job: thread::JoinHandle<Outcome>,
}

impl Running {
    fn start(part: &Part, workers: u32, roles: Roles) -> Self {
        let part = part.clone();
        let _ = fs::remove_dir_all(&part.notes);
        fs::create_dir_all(&part.notes).unwrap();
        let exe = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        let apart = if roles.colocated { 0 } else { roles.servers };
        let mut job =
            Job::local(workers + apart, [&*exe, "--exact", "served_process", "--ignored", "--nocapture"]);
        job.env = vec![
            (PART.into(), serde_json::to_string(&part).unwrap()),
            ("GLEANER_TIMEOUT".into(), format!("{}s", part.timeout.as_secs())),
        ];
        job.output = Output::Events;
        job.roles = roles;
        job.limit = Some(Duration::from_secs(60));
        let run = move || {
            let outcome = launcher::run(job, |_| ()).unwrap();
            // For a test that expected something else.
            outcome.failure.iter().for_each(|failure| eprintln!("{failure}"));
            outcome
        };
        Self { part, job: thread::spawn(run) }
    }

    /// What a process has written last.
    fn note(&self, name: &str, rank: u32) -> Option<Vec<u8>> {
        fs::read(self.part.notes.join(format!("{name}-{rank}"))).ok()
    }

    fn number(&self, name: &str, rank: u32) -> Option<u64> {
        String::from_utf8(self.note(name, rank)?).ok()?.parse().ok()
    }

    /// Waits until a worker has made this many steps, then a moment longer.
    fn wait(&self, rank: u32, steps: u64, then: Duration) {
        let since = Instant::now();
        while self.number("done", rank).is_none_or(|done| done < steps) {
            assert!(
                since.elapsed() < Duration::from_secs(30) && !self.job.is_finished(),
                "it makes no steps"
            );
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(then);
    }

    fn signal(&self, rank: u32, signal: Signal) {
        let pid = self.number("pid", rank).unwrap();
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }
}

fn begun(note: &[u8]) -> (u64, Vec<f32>) {
    let (step, values) = note.split_first_chunk::<8>().unwrap();
    (u64::from_le_bytes(*step), floats(values))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

fn part(directory: &Path) -> Part {
    let (directory, notes) = (directory.join("state"), directory.join("notes"));
    let (steps, timeout) = (1_000_000, Duration::from_secs(20));
    Part { directory, notes, synchrony: "bsp".into(), steps, resumes: false, timeout, held_at: steps }
}

#[test]
fn a_killed_server_loses_nothing_that_a_worker_has_heard_of() {
    let workers = 2;
    let expected = oracle(workers, 3000);
    for (round, (before, after, colocated)) in
        [(1, 1, false), (1, 2, false), (2, 2, false), (2, 3, false), (3, 1, false), (2, 1, true)]
            .into_iter()
            .enumerate()
    {
        let directory = tempfile::tempdir().unwrap();
        let mut part = part(directory.path());
        let roles = |servers| Roles { servers, colocated, ..Roles::default() };
        let victim = if colocated { 1 } else { workers + before - 1 };
        // Killed several times, at moments that nothing chooses.
        let mut last = 0;
        for kill in 0..3u64 {
            let running = Running::start(&part, workers, roles(before));
            running.wait(0, last + 3 + kill * 5, Duration::from_micros(700 * (kill + 3 * round as u64)));
            running.signal(victim, Signal::KILL);
            let outcome = match running.job.join() {
                Ok(outcome) => outcome,
                Err(_) => panic!("the launcher panicked"),
            };
            let failure = outcome.failure.unwrap();
            assert_eq!(failure.rank, victim, "{failure}");
            if !colocated {
                assert!(failure.to_string().contains(&format!("(server {})", before - 1)), "{failure}");
            }
            let heard = fs::read_to_string(part.notes.join("done-0")).unwrap().parse::<u64>().unwrap();
            assert!(heard > last);
            last = heard;
            part.resumes = true;
        }
        part.steps = last + 20;
        let running = Running::start(&part, workers, roles(after));
        let outcome = running.job.join().unwrap();
        assert_eq!((outcome.exit_code, outcome.failure), (0, None), "{before} servers, then {after}");
        let notes = |name: &str, rank| fs::read(part.notes.join(format!("{name}-{rank}"))).unwrap();
        let (step, values) = begun(&notes("begin", 0));
        // A step of which a worker was notified is there, and all entries are those of one step.
        assert!(step >= last && step <= last + 1, "step {step}, and {last} were reported");
        assert_eq!(
            bits(&values),
            bits(&expected[step as usize]),
            "{before} servers, then {after}, step {step}"
        );
        for rank in 0..workers {
            let end = floats(&notes("end", rank));
            assert_eq!(
                bits(&end),
                bits(&expected[last as usize + 20]),
                "rank {rank}, {before} servers, then {after}"
            );
        }
    }
}

#[test]
fn the_others_go_on_without_a_worker_that_was_killed_or_stopped() {
    let (killed, stopped) = (Duration::from_secs(20), Duration::from_secs(5));
    for (synchrony, signal, timeout) in
        [("bsp", Signal::KILL, killed), ("ssp/2", Signal::KILL, killed), ("bsp", Signal::STOP, stopped)]
    {
        let directory = tempfile::tempdir().unwrap();
        // It is signalled in one of its first steps, and if that comes late on a busy machine, where it waits.
        let (steps, held_at) = (400, 200);
        let part = Part { steps, synchrony: synchrony.into(), timeout, held_at, ..part(directory.path()) };
        let roles = Roles { servers: 2, on_failure: OnFailure::Continue, ..Roles::default() };
        let running = Running::start(&part, 3, roles);
        running.wait(2, 5, Duration::ZERO);
        running.signal(2, signal);
        running.wait(0, 400, Duration::ZERO);
        running.wait(1, 400, Duration::ZERO);
        let done = running.number("done", 2).unwrap();
        if signal == Signal::STOP {
            fs::write(running.part.notes.join(GO_ON), "").unwrap();
            running.signal(2, Signal::CONT);
        }
        let outcome = running.job.join().unwrap();
        assert_eq!((outcome.exit_code, outcome.failure), (0, None), "{synchrony}");
        assert!(done < 400, "rank 2 was ended in the middle");
    }
}

#[test]
fn a_worker_that_was_killed_ends_the_job_unless_it_is_to_go_on() {
    for (on_failure, victim) in [(OnFailure::Stop, 1), (OnFailure::Continue, 0)] {
        let directory = tempfile::tempdir().unwrap();
        let part = part(directory.path());
        let running = Running::start(&part, 3, Roles { servers: 1, on_failure, ..Roles::default() });
        running.wait(victim, 5, Duration::ZERO);
        running.signal(victim, Signal::KILL);
        let failure = running.job.join().unwrap().failure.unwrap();
        assert_eq!(failure.rank, victim, "{failure}");
    }
}
