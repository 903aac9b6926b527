//! One job: its workers started, watched, and disturbed where the file says so.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gleaner_runtime::Roles;
use gleaner_runtime::launcher::{self, Event as Reported, Host, Outcome};
use serde::Deserialize;
use serde_json::Value;

use super::case::Case;
use super::chaos::Event;
use super::injector::{Applied, Injector};
use super::options::{self, plain};
use super::place::{AGENT, Place};
use super::worker::{self, MARK};

/// What is run at once, and which cases that measures.
#[derive(Clone, Debug)]
pub struct Job {
    /// In the order in which the program reports on them; at least one.
    pub cases: Vec<Case>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Variables for it.
    pub env: Vec<(String, String)>,
    /// Where it is started.
    pub seats: Seats,
    /// What to type to measure it again, where that is not the program.
    pub again: Option<Vec<String>>,
}

/// Where a job's program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seats {
    /// Once for every worker of the case.
    Workers,
    /// Once, on the first host: it starts the others by itself.
    First,
}

/// How a job went.
#[derive(Debug)]
pub struct Ended {
    /// Seconds since 1970.
    pub started: f64,
    /// From starting its processes to their end.
    pub seconds: f64,
    /// The object that rank 0 printed, or the exit code and the reason why there is none.
    pub printed: Result<Value, (i32, String)>,
    /// What was done to it on purpose.
    pub applied: Applied,
}

/// The variable that names the emulated hosts to a program: each as NAMESPACE=ADDRESS, with spaces between.
const HOSTS: &str = "GLEANER_TESTBED_HOSTS";

/// What `bench` and `train` report to their launcher.
#[derive(Clone, Copy, Deserialize)]
struct Progress {
    done: u64,
    of: u64,
}

/// What was received from a job.
#[derive(Default)]
struct Heard {
    /// Rank 0's standard output.
    output: String,
    /// Each rank's last line on standard error.
    last: BTreeMap<u32, String>,
    /// How far it was when it last reported.
    progress: Option<Progress>,
}

impl Job {
    /// How many workers.
    pub fn workers(&self) -> u32 {
        self.cases[0].workers()
    }

    /// The number of processes, each on a host of its own: workers, and servers that do not live with them.
    pub fn hosts(&self) -> u32 {
        self.cases[0].hosts()
    }

    fn roles(&self) -> Roles {
        let (servers, colocated) = self.cases[0].servers();
        Roles { servers, colocated, ..Roles::default() }
    }

    /// What is run, as one would type it: on the loopback, or on emulated hosts, which are named by the hostfile `hosts`, with a line for
    /// each worker.
    pub fn typed(&self, is_emulated: bool) -> Vec<String> {
        if let Some(words) = &self.again {
            return words.clone();
        }
        let mut program: Vec<String> =
            self.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let is_this =
            |word: &String| std::env::current_exe().is_ok_and(|this| this.as_os_str() == word.as_str());
        if let Some(first) = program.first_mut().filter(|first| first.ends_with("/gleaner") || is_this(first))
        {
            *first = "gleaner".into();
        }
        let (agent, workers) = (AGENT.join(" "), self.workers().to_string());
        let on_hosts = ["--hostfile", "hosts", "--agent", &agent];
        let on_loopback = ["--workers", &workers];
        let place = if is_emulated { &on_hosts[..] } else { &on_loopback };
        let case = &self.cases[0];
        let roles = ["servers", "colocate"].into_iter().filter_map(|name| Some((name, case.0.get(name)?)));
        let roles = roles.filter(|_| case.servers().0 > 0);
        let options = case.launched().chain(roles).flat_map(|(name, value)| options::words(name, value));
        let words = ["gleaner", "launch"].iter().chain(place).map(|word| (*word).to_owned());
        words.chain(options).chain(["--".to_owned()]).chain(program).collect()
    }

    /// Runs it, for as long as the limit allows. `on_progress` gets steps done and to do.
    pub fn run(
        &self,
        place: &mut Place,
        events: &[&Event],
        limit: Option<Duration>,
        mut on_progress: impl FnMut(u64, u64) + Send,
    ) -> Ended {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let clock = Instant::now();
        let mark = format!("{}-{started}", std::process::id());
        let job = launcher::Job { limit, ..self.launched(place, &mark) };
        let methods = self.cases.len() as u64;
        let (steps, reported) = mpsc::channel();
        let mut heard = Heard::default();
        let (outcome, applied) = thread::scope(|scope| {
            let injector = Injector::new(events, place, &mark);
            let injector = scope.spawn(move || injector.run(&reported));
            let outcome = launcher::run(job, |event| {
                if let Some(Progress { done, of }) = heard.hear(event) {
                    // A step of the job is one of each method.
                    let _ = steps.send(done / methods);
                    on_progress(done, of);
                }
            });
            drop(steps);
            (outcome, injector.join().unwrap_or_default())
        });
        // A starter that was killed may leave processes on other hosts, which would disturb the next job.
        worker::end_all(&mark);
        let printed = match (outcome, limit) {
            (Err(error), _) => Err((1, error.to_string())),
            (Ok(Outcome { exit_code: launcher::OVER_LIMIT, failure: None }), Some(limit)) => {
                Err((launcher::OVER_LIMIT.into(), heard.over(limit)))
            }
            (Ok(outcome), _) => heard.check(&outcome),
        };
        Ended { started, seconds: clock.elapsed().as_secs_f64(), printed, applied }
    }

    fn launched(&self, place: &Place, mark: &str) -> launcher::Job {
        let count = if self.seats == Seats::First { 1 } else { self.hosts() };
        let (mut hosts, mut agent) = (place.hosts(count), AGENT.map(String::from).to_vec());
        if hosts.is_empty() {
            hosts.push(Host { slots: count, ..Host::new("localhost") });
            agent.clear();
        }
        let mut job = launcher::Job::on(hosts, agent, self.program.clone());
        job.env.clone_from(&self.env);
        let variable = |(name, value): (&str, &Value)| {
            let value = value.as_bool().map_or_else(|| plain(value), |is| u8::from(is).to_string());
            (format!("GLEANER_{}", name.to_uppercase()), value)
        };
        job.env.extend(self.cases[0].launched().map(variable));
        let named = |host: Host| format!("{}={}", host.name, host.address.unwrap_or_default());
        let hosts: Vec<String> = place.hosts(self.hosts()).into_iter().map(named).collect();
        job.env.extend([(MARK.to_owned(), mark.to_owned()), (HOSTS.to_owned(), hosts.join(" "))]);
        job.output = launcher::Output::Events;
        if self.seats == Seats::Workers {
            job.roles = self.roles();
        }
        job
    }
}

impl Heard {
    fn hear(&mut self, Reported { rank, kind, body }: Reported) -> Option<Progress> {
        match (kind.as_str(), body) {
            (launcher::STANDARD_OUTPUT, Value::String(line)) if rank == 0 => {
                // Pieces of one long line follow each other, and between lines of JSON no end is needed.
                if !self.output.is_empty() || line.starts_with('{') {
                    self.output += &line;
                }
                None
            }
            (launcher::STANDARD_ERROR, Value::String(line)) if !line.trim().is_empty() => {
                self.last.insert(rank, line);
                None
            }
            ("progress", body) => {
                let progress = serde_json::from_value(body).ok();
                self.progress = progress.or(self.progress);
                progress
            }
            _ => None,
        }
    }

    /// What is said of a job that took longer than its limit.
    fn over(&self, limit: Duration) -> String {
        let steps = match self.progress {
            Some(Progress { done, of }) => format!("after {done} of {of} steps"),
            None => "before it reported any step".to_owned(),
        };
        let said = self.last.iter().next();
        let said = said.map_or_else(String::new, |(rank, said)| format!("; rank {rank} said: {said}"));
        format!("it took longer than its limit of {} s and was ended {steps}{said}", limit.as_secs_f64())
    }

    fn check(&self, outcome: &Outcome) -> Result<Value, (i32, String)> {
        let code = i32::from(outcome.exit_code);
        if let Some(failure) = &outcome.failure {
            // Without an account of its own, a worker's last line is the best there is.
            let said = self.last.get(&failure.rank).filter(|_| failure.reason.starts_with("exited"));
            let said = said.map_or_else(String::new, |said| format!("; it said: {said}"));
            return Err((code, format!("{failure}{said}")));
        }
        if code != 0 {
            return Err((code, "interrupted".into()));
        }
        serde_json::from_str(&self.output).map_err(|error| {
            (0, format!("it ended well, but printed no JSON object that can be read: {error}; run it by hand to see"))
        })
    }
}
