//! A launcher as a process of its own, and a list of all processes.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gleaner_runtime::launcher::{Host, Job, Output};
use serde_json::{Value, json};

pub const JOB: &str = "LAUNCH_TEST_JOB";
pub const PROBE: &str = "LAUNCH_TEST_PROBE";
pub const WORKER: &str = "LAUNCH_TEST_WORKER";

/// A job as the tests describe it: `{workers | hosts, agent, program, env, rank_zero, directory, limit}`, the limit in seconds.
pub fn job(text: &Value) -> Job {
    let words = |key: &str| -> Vec<String> {
        let words = text[key].as_array().into_iter().flatten();
        words.map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut job = match text["workers"].as_u64() {
        Some(workers) => Job::local(workers as u32, words("program")),
        None => {
            let hosts = text["hosts"].as_array().unwrap().iter().map(|host| Host {
                name: host[0].as_str().unwrap().to_owned(),
                slots: host[1].as_u64().unwrap() as u32,
                address: host[2].as_str().map(str::to_owned),
            });
            Job::on(hosts.collect(), words("agent"), words("program"))
        }
    };
    let env = text["env"].as_object().into_iter().flatten();
    job.env = env.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect();
    job.limit = text["limit"].as_f64().map(Duration::from_secs_f64);
    job.directory = text["directory"].as_str().map(Into::into);
    if text["rank_zero"] == true {
        job.output = Output::RankZero;
    }
    if let Some(word) = text["raw_word"].as_array() {
        job.program.push(OsString::from_vec(word.iter().map(|byte| byte.as_u64().unwrap() as u8).collect()));
    }
    job
}

/// A running launcher.
pub struct Launched {
    child: Child,
    since: Cell<Instant>,
    out: JoinHandle<Vec<u8>>,
    err: JoinHandle<Vec<u8>>,
}

/// How a launcher ended.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub out: String,
    pub err: String,
    /// From the start, or the last signal.
    pub took: Duration,
    /// Standard output as bytes.
    pub raw: Vec<u8>,
}

pub fn launch(job: Value) -> Launched {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "launcher_process", "--ignored", "--nocapture", "-q"]).env(JOB, job.to_string());
    for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", WORKER] {
        command.env_remove(name);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap()));
    Launched { child, since: Cell::new(Instant::now()), out, err }
}

/// A job of shell programs on this machine.
pub fn shell(workers: u32, program: &str) -> Launched {
    launch(json!({ "workers": workers, "program": ["sh", "-c", program] }))
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

impl Launched {
    pub fn signal(&self, signal: &str) {
        self.since.set(Instant::now());
        kill(signal, self.child.id());
    }

    pub fn end(mut self) -> Ended {
        let status = self.child.wait().unwrap();
        let took = self.since.get().elapsed();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        let (out, err) = (self.out.join().unwrap(), self.err.join().unwrap());
        // The test harness announces the test that the launcher is.
        let raw = out.strip_prefix(b"\nrunning 1 test\n").unwrap_or(&out).to_vec();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code, out: text(&raw), err: text(&err), took, raw }
    }
}

impl Ended {
    /// The lines of a text that one worker wrote, without their prefix.
    pub fn lines_of(text: &str, rank: u32) -> Vec<&str> {
        let prefix = format!("[{rank}] ");
        text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect()
    }
}

pub fn kill(signal: &str, process: u32) {
    let script = format!("kill -s {signal} {process}");
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
}

/// A time for `sleep` that no other process sleeps, long enough for any test.
pub fn nap() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("600.{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// How many processes sleep for that time.
pub fn sleepers(nap: &str) -> usize {
    command_lines().iter().filter(|line| line.starts_with("sleep ") && line.contains(nap)).count()
}

/// The command lines of all processes.
pub fn command_lines() -> Vec<String> {
    gleaner_processes::all().map(|process| process.command().join(" ")).collect()
}

/// Waits until something holds; fails with its name when it takes too long.
pub fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
