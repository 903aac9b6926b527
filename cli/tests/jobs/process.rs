//! Processes under test: started in a clean environment, read to the end, and never left behind.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use gleaner_processes::{Process as Running, with_environment};

/// A variable that tells the processes of one test from all others.
const MARK: &str = "GLEANER_TEST_MARK";

/// What a busy machine may need on top of any time that a test expects.
pub const SLACK: Duration = Duration::from_secs(20);

/// The command, in an environment that says nothing about jobs.
pub fn gleaner() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_gleaner")))
}

/// Any command without what the test itself may have been started with.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let of_a_starter = ["GLEANER_", "SLURM_", "OMPI_", "PMIX_", "MASTER_"];
        if of_a_starter.iter().any(|prefix| name.starts_with(prefix))
            || name == "RANK"
            || name == "WORLD_SIZE"
        {
            command.env_remove(name);
        }
    }
    command
}

/// A process whose output is read as it comes; dropping it kills it.
pub struct Process {
    child: Child,
    mark: String,
    out: Stream,
    err: Stream,
}

#[derive(Default)]
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

/// What a process left.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; the negative number of the signal that killed it.
    pub code: i32,
    pub out: String,
    /// Standard error without the lines that are meant for a launcher.
    pub err: String,
}

pub fn start(command: Command) -> Process {
    start_with(command, Stdio::piped())
}

/// Starts it with a standard error that the test does not read, unless it is piped.
pub fn start_with(mut command: Command, err: Stdio) -> Process {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    command.env(MARK, &mark).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(err);
    let mut child = command.spawn().unwrap();
    let out = stream(child.stdout.take().unwrap());
    let err = child.stderr.take().map_or_else(Stream::default, stream);
    Process { child, mark, out, err }
}

/// Starts it and waits for its end.
pub fn run(command: Command) -> Ended {
    start(command).end(Duration::from_secs(60))
}

fn stream(mut pipe: impl Read + Send + 'static) -> Stream {
    let text: Arc<Mutex<Vec<u8>>> = Arc::default();
    let to = text.clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = pipe.read(&mut buffer) {
            to.lock().unwrap().extend(&buffer[..length]);
        }
    });
    Stream { text, reader: Some(reader) }
}

impl Stream {
    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

impl Process {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        signal_to(signal, self.id());
    }

    /// Standard error so far, with what is meant for a launcher.
    pub fn events(&self) -> String {
        self.err.so_far()
    }

    /// Standard output so far.
    pub fn printed(&self) -> String {
        self.out.so_far()
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The processes that this one started, directly or not, and itself.
    pub fn family(&self) -> Vec<u32> {
        having(&format!("{MARK}={}", self.mark))
    }

    /// Of the family, the worker of that rank.
    pub fn worker(&self, rank: u32) -> u32 {
        let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_gleaner")).unwrap();
        let is_program =
            |id: u32| std::fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|exe| exe == program);
        let mut found = None;
        eventually("the worker starts", || {
            let of_rank = having(&format!("GLEANER_RANK={rank}"));
            found = self.family().into_iter().find(|id| of_rank.contains(id) && is_program(*id));
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits for its end; kills it and fails the test when that takes longer than `limit` and what a busy machine
    /// needs.
    pub fn end(&mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit + SLACK;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let (out, err) = (self.out.so_far(), self.err.so_far());
                panic!("still runs {limit:?} and {SLACK:?} later; it printed:\n{out}{err}");
            }
            sleep(Duration::from_millis(5));
        };
        for stream in [&mut self.out, &mut self.err] {
            stream.reader.take().into_iter().for_each(|reader| reader.join().unwrap());
        }
        let err = self.err.so_far();
        let err = err.split_inclusive('\n').filter(|line| !line.starts_with('\x1e')).collect();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap());
        Ended { code, out: self.out.so_far(), err }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for id in self.family() {
            signal_to("KILL", id);
        }
    }
}

impl Ended {
    /// That it ended well, with one JSON object on standard output, which is returned.
    #[track_caller]
    pub fn report(&self) -> serde_json::Value {
        assert_eq!(self.code, 0, "{self:?}");
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        let line = self.out.strip_prefix("[0] ").unwrap_or(&self.out);
        serde_json::from_str(line).unwrap()
    }

    /// That it failed with a sentence that has all these words in it, and printed no half report.
    #[track_caller]
    pub fn failed_with(&self, words: &[&str]) {
        assert!(self.code > 0, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        let last = self.err.lines().last().unwrap_or_default();
        for word in words {
            assert!(last.contains(word), "no '{word}' in '{last}'\n{self:?}");
        }
    }
}

pub fn signal_to(signal: &str, id: u32) {
    let _ =
        Command::new("kill").args(["-s", signal, &id.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// The living processes that have this variable in their environment.
fn having(variable: &str) -> Vec<u32> {
    with_environment(&[variable]).map(Running::number).collect()
}

/// The ports at which a process listens.
pub fn ports(id: u32) -> Vec<u16> {
    listening(id).into_iter().map(|(_, port)| port).collect()
}

/// Where a process listens: addresses as the kernel's table has them, and ports.
pub fn listening(id: u32) -> Vec<(String, u16)> {
    let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let sockets: Vec<String> = descriptors
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{id}/net/{table}")));
    let mut places = Vec::new();
    for line in tables.iter().flatten().flat_map(|table| table.lines()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Local address, remote address, state (0A listens), …, inode.
        if fields.len() > 9 && fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]) {
            let (address, port) = fields[1].rsplit_once(':').unwrap();
            places.push((address.to_owned(), u16::from_str_radix(port, 16).unwrap()));
        }
    }
    places
}

/// The processor time that a process has used.
pub fn processor_time(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .into_iter()
        .flat_map(|rest| rest.split_whitespace().skip(11).take(2))
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    Duration::from_millis(10 * ticks)
}

/// A port below the ephemeral ones, which outgoing connections never take, tried out before it is used.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id() as u16).wrapping_mul(89).wrapping_add(offset) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Waits until something holds; fails with its name when it takes too long.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < 2 * SLACK, "not within {:?}: {what}", 2 * SLACK);
        sleep(Duration::from_millis(10));
    }
}

/// Where a program is found, or that the test is skipped without it, for lack of `need`.
pub fn program(need: &str, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = places.map(|place| place.join(name)).find(|file| file.is_file());
    if found.is_none() {
        gleaner_skips::skip(need, format!("there is no {name} on this machine"));
    }
    found
}
