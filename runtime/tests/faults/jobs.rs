//! Many jobs at once, most of which only wait for a timeout.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use gleaner_transport::{Secret, Transport};

use super::network::{Fault, Injection, Kind, Moment};
use super::worker::{JOB, Part, Said};

/// What a machine can run.
struct Pace {
    /// What the jobs take for their timeout: the shortest that a busy machine does not break by itself.
    timeout: Duration,
    /// The same where a rank is killed, and how long after the beginning of the step a rank may then end: a closed connection is noticed at once
    /// and no rank waits for the timeout, so that may be long.
    killed: (Duration, Duration),
    /// Jobs of a test that run at once, and of those of all tests, how many have had no fault yet and so need processors.
    at_once: usize,
    at_work: usize,
}

impl Pace {
    fn of(transport: Transport) -> Self {
        match transport {
            // In an emulated machine, with slow processors. Every link locks some MiB of its memory.
            Transport::Verbs => Self {
                timeout: Duration::from_secs(12),
                killed: (Duration::from_secs(12), Duration::from_secs(6)),
                at_once: 6,
                at_work: 2,
            },
            _ => Self {
                timeout: Duration::from_secs(3),
                killed: (Duration::from_secs(30), Duration::from_secs(5)),
                at_once: 128,
                at_work: 3,
            },
        }
    }

    /// The timeout of a job with this fault, and how long after the beginning of the step a rank may end.
    fn limits(&self, fault: Fault) -> (Duration, Duration) {
        match fault {
            Fault::Kill => self.killed,
            // Silence is noticed by the timeout; then there is a rank to ask.
            Fault::Stop | Fault::CutOff | Fault::CutLink => (self.timeout, 2 * self.timeout),
        }
    }
}

/// How long this machine has stood still since the first call: what a thread slept for too long, where that was more
/// than 100 ms.
fn stood_still() -> Duration {
    const NAP: Duration = Duration::from_millis(20);
    static MILLIS: AtomicU64 = AtomicU64::new(0);
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let start = Instant::now();
                std::thread::sleep(NAP);
                let more = start.elapsed() - NAP;
                if more > Duration::from_millis(100) {
                    MILLIS.fetch_add(more.as_millis() as u64, Ordering::SeqCst);
                }
            }
        });
    });
    Duration::from_millis(MILLIS.load(Ordering::SeqCst))
}

/// The test by which this program is a worker.
fn worker() -> String {
    let place = module_path!().split_once("::").map_or("", |(_, place)| place);
    format!("{}worker_process", place.trim_end_matches("jobs"))
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub transport: Transport,
    pub method: &'static str,
    pub workers: u32,
    pub kind: Kind,
    pub victim: u32,
    pub injection: Injection,
}

/// The processes of one job. None outlives it.
struct Job(Vec<Child>);

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Job {
    fn start(
        (transport, method, workers, kind): (Transport, &str, u32, Kind),
        timeout: Duration,
        injection: Option<(u32, Injection)>,
    ) -> Self {
        // Bound here and handed to rank 0 as its standard input, so that no process takes the port in between.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let rendezvous = listener.local_addr().unwrap().to_string();
        let mut listener = Some(Stdio::from(OwnedFd::from(listener)));
        let secret = Secret::random().unwrap().to_hex();
        let children = (0..workers).map(|rank| {
            let of_this = injection.filter(|(victim, _)| *victim == rank).map(|(_, injection)| injection);
            let sends = injection.is_some_and(|(_, injection)| matches!(injection.moment, Moment::Send(_)));
            let part = Part {
                rank,
                workers,
                rendezvous: rendezvous.clone(),
                secret: secret.clone(),
                transport: transport.to_string(),
                method: method.to_owned(),
                kind,
                timeout,
                injection: of_this,
                // What a rank that leaves sends reaches others while they are there, and what it receives is sent by them.
                leaves_late: sends != of_this.is_some(),
                endless: injection.is_some(),
            };
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", &worker(), "--ignored", "--nocapture", "-q"])
                .env(JOB, serde_json::to_string(&part).unwrap())
                .stdin(listener.take().unwrap_or_else(Stdio::null))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        Self(children.collect())
    }

    /// What a worker said, once it has ended by itself; otherwise why not.
    fn said(&mut self, rank: u32, limit: Instant) -> Result<Said, String> {
        let child = &mut self.0[rank as usize];
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() > limit => return Err(format!("rank {rank} hangs")),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let (mut out, mut err) = (String::new(), String::new());
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        let said = out.lines().find_map(|line| serde_json::from_str(line).ok());
        said.ok_or_else(|| format!("rank {rank} ended with {status} and says {out}{err}"))
    }
}

/// How many messages of step 2 each rank sends and receives; not those of a rank that leaves.
pub fn probe(transport: Transport, method: &str, workers: u32, kind: Kind) -> Vec<(u32, u32)> {
    let limit = Instant::now() + Duration::from_secs(60);
    let mut job = Job::start((transport, method, workers, kind), Duration::from_secs(30), None);
    let counted = (0..workers).map(|rank| match job.said(rank, limit) {
        Ok(Said::Counted(sent, received)) => (sent, received),
        other => panic!("{method} among {workers}: {other:?}"),
    });
    counted.collect()
}

/// Runs all cases, and fails with all that went wrong.
pub fn run_all(cases: Vec<Case>) {
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let injected = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..cases.first().map_or(0, |case| Pace::of(case.transport).at_once) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    match run(case, &BUSY) {
                        Ok(came) => drop(injected.fetch_add(usize::from(came), Ordering::SeqCst)),
                        Err(what) => wrong.lock().unwrap().push(format!("{case:?}: {what}")),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let (all, some) = (cases.len(), wrong.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n"));
    assert!(wrong.is_empty(), "{} of {all} cases:\n{some}", wrong.len());
    let injected = injected.into_inner();
    assert!(2 * injected > all, "only {injected} of {all} had a fault");
    println!("{injected} of {all} cases had a fault");
}

/// Runs a case. Says whether its moment came: a rank that leaves does not wait for the leave messages of others.
fn run(case: &Case, busy: &Busy) -> Result<bool, String> {
    let Case { transport, method, workers, kind, victim, injection } = *case;
    let pace = Pace::of(transport);
    let (timeout, within) = pace.limits(injection.fault);
    let waiting = busy.enter(pace.at_work);
    let mut job = Job::start((transport, method, workers, kind), timeout, Some((victim, injection)));
    // Byte by byte: what comes behind that line, maybe at once, is read by `said`.
    let out = BufReader::with_capacity(1, job.0[victim as usize].stdout.as_mut().unwrap());
    let injected =
        out.lines().map_while(Result::ok).find_map(|line| line.strip_prefix("injected ")?.parse().ok());
    drop(waiting);
    let still = stood_still();
    let Some(other) = injected else {
        if kind == Kind::Bye && job.0[victim as usize].wait().unwrap().success() {
            return Ok(false);
        }
        return Err(format!("it had no fault: {:?}", job.said(victim, Instant::now())));
    };
    let other: u32 = other;
    let process = &mut job.0[victim as usize];
    match injection.fault {
        Fault::Kill => process.kill().unwrap(),
        Fault::Stop => {
            let stop = format!("kill -s STOP {}", process.id());
            assert!(Command::new("sh").args(["-c", &stop]).status().unwrap().success());
        }
        Fault::CutOff | Fault::CutLink => {}
    }
    let at_fault = if injection.fault == Fault::CutLink { victim.max(other) } else { victim };
    let limit = Instant::now() + 4 * timeout;
    for rank in (0..workers).rev() {
        if rank == victim && matches!(injection.fault, Fault::Kill | Fault::Stop) {
            continue;
        }
        let is_alone = rank == victim && injection.fault == Fault::CutOff;
        match job.said(rank, limit)? {
            Said::Failed(failure, took) if failure.rank == at_fault => {
                if took > within + (stood_still() - still) {
                    return Err(format!("rank {rank} took {took:?} to end"));
                }
            }
            // It had done its part, and the others have left.
            Said::Counted(..) if kind == Kind::Bye => {}
            // A leave message overtook bags on other streams. All others have left, and no rank can be asked who is cut off.
            Said::Failed(..) if kind == Kind::Bye && transport == Transport::Quic && is_alone => {}
            said => return Err(format!("rank {rank} says {said:?}, expected {at_fault} to be named")),
        }
    }
    let victim = &mut job.0[victim as usize];
    match injection.fault {
        Fault::Kill => {
            let signal = victim.wait().unwrap().signal();
            if kind == Kind::Bye && signal.is_none() {
                return Ok(false);
            }
            if signal != Some(9) {
                return Err(format!("the victim ended with {signal:?}"));
            }
        }
        Fault::Stop => {
            if let Some(status) = victim.try_wait().unwrap() {
                let has_left = kind == Kind::Bye && status.success();
                return if has_left { Ok(false) } else { Err("the victim was not stopped".into()) };
            }
        }
        _ => {}
    }
    Ok(true)
}

/// Shared by all tests of this process.
static BUSY: Busy = Busy { inside: Mutex::new(0), out: Condvar::new() };

/// Lets a few in at a time.
struct Busy {
    inside: Mutex<usize>,
    out: Condvar,
}

struct Inside<'a>(&'a Busy);

impl Busy {
    fn enter(&self, at_work: usize) -> Inside<'_> {
        let mut inside =
            self.out.wait_while(self.inside.lock().unwrap(), |inside| *inside >= at_work).unwrap();
        *inside += 1;
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.inside.lock().unwrap() -= 1;
        self.0.out.notify_one();
    }
}
