//! A thousand connections a second that say nothing or a wrong hello, at the port of rank 0 while workers join, and at those of
//! other ranks while no steps are taken and when links are opened.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gleaner::{Method, Session};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::job::{Job, end};
use crate::process::{Process, clean, eventually, ports, start};

/// What a process of this test binary is to flood.
const PORT: &str = "GLEANER_TEST_FLOOD";

/// The file at whose appearance a member of the job goes on.
const GO: &str = "GLEANER_TEST_GO";

/// How long each port is flooded before it is needed, if more or less than five seconds.
const SECONDS: &str = "GLEANER_TEST_SECONDS";

const A_SECOND: f64 = 1000.0;

/// By how much they may delay joining, and links, and in one of how many attempts: a machine that stands still delays them, too.
const DELAY: f64 = 2.0;
const ATTEMPTS: usize = 3;

/// By how much a process may grow meanwhile, in KiB, once its places are taken: half of what wrong hellos would leave in four seconds
/// if each left 252 bytes.
const GROWTH: i64 = 256;

/// Lines that a rank says, however many are refused: the first few, and then one for each doubling.
const LINES: usize = 24;

/// Not a test of its own: as a process of its own it floods a port, and says how often.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn flood_process() {
    let Ok(port) = std::env::var(PORT) else { return };
    let port = port.parse::<u16>().unwrap();
    let mut wrong = b"gleaner\0".to_vec();
    wrong.extend((0..500u32).map(|i| (i * 7) as u8));
    let pour = async {
        let begun = Instant::now();
        for number in 0u64.. {
            while number as f64 > begun.elapsed().as_secs_f64() * A_SECOND {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let speech = if number % 2 == 0 { Vec::new() } else { wrong.clone() };
            tokio::spawn(async move {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                let _ = stream.write_all(&speech).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            });
            if number % 100 == 0 {
                println!("\nopened {number}");
            }
        }
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(pour);
}

/// Not a test of its own: as a process of its own it is a rank, which takes its steps when the file appears.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn member_process() {
    let Some(go) = std::env::var_os(GO) else { return };
    let begun = Instant::now();
    let session = Session::join().unwrap();
    println!("\njoined {}", begun.elapsed().as_secs_f64());
    while !Path::new(&go).exists() {
        sleep(Duration::from_millis(10));
    }
    let begun = Instant::now();
    // Every two exchange something.
    let mut reducer = session.reducer("r", 1000, Method::spardl().density(1.0)).unwrap();
    for _ in 0..3 {
        let update = reducer.start(&[session.rank() as f32; 1000]).unwrap().wait().unwrap();
        assert_eq!(update.values("r").unwrap(), [1.0; 1000]);
    }
    println!("\nstepped {}", begun.elapsed().as_secs_f64());
}

/// This test binary as another process.
fn this(test: &str) -> Command {
    let mut command = clean(Command::new(std::env::current_exe().unwrap()));
    command.args(["--exact", &format!("floods::{test}"), "--ignored", "--nocapture", "-q"]);
    command
}

struct Flood(Process, Instant);

impl Flood {
    fn of(port: u16) -> Self {
        let mut command = this("flood_process");
        command.env(PORT, port.to_string());
        Self(start(command), Instant::now())
    }

    /// That it went on until now, as fast as it should; where it had no processor for a while, it catches up.
    fn end(mut self) {
        eventually("the flood opens as many connections as it should", || {
            assert!(self.0.runs(), "the flood has ended: {}", self.0.events());
            let expected = self.1.elapsed().as_secs_f64() * A_SECOND;
            let opened = numbers(&self.0.printed(), "opened").pop().unwrap_or_default();
            opened > 0.9 * expected - 200.0
        });
        self.0.signal("KILL");
        self.0.end(Duration::ZERO);
    }
}

/// The numbers that a process printed behind a word.
fn numbers(printed: &str, word: &str) -> Vec<f64> {
    printed.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

fn member(job: &Job, rank: u32, go: &Path) -> Process {
    let mut command = this("member_process");
    for (name, value) in job.command(rank, &[], &[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env(GO, go);
    start(command)
}

/// What a process has in memory, in KiB.
fn memory(process: &Process) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Waits until the places of these processes are taken, which shows in that they hardly grow, and then for so long: they must not grow.
fn endure(seconds: f64, processes: &[&Process]) {
    let measure = || -> Vec<i64> { processes.iter().map(|process| memory(process)).collect() };
    let part = Duration::from_secs_f64(seconds / 5.0);
    let mut before = measure();
    // What grows by as much as is too much below does not end this.
    eventually("the memory of a flooded process stops growing", || {
        sleep(part);
        let last = std::mem::replace(&mut before, measure());
        last.iter().zip(&before).all(|(last, now)| now - last < GROWTH / 4)
    });
    sleep(4 * part);
    for (before, now) in before.into_iter().zip(measure()) {
        let growth = now - before;
        println!("{before} KiB, and then {growth} more");
        assert!(growth < GROWTH, "{before} KiB grew by {growth}");
    }
}

#[test]
fn a_flood_at_the_ports_of_all_ranks_delays_none_for_long_and_leaves_nothing() {
    assert!((0..ATTEMPTS).any(|_| flooded() < DELAY), "each time it delayed one for {DELAY} s");
}

/// Floods the ports of a job. Returns how long the slowest rank needed to join, or for links and steps.
fn flooded() -> f64 {
    let seconds = std::env::var(SECONDS).map_or(5.0, |seconds| seconds.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let job = Job { timeout: Duration::from_secs(60), ..Job::new(3, &[]) };
    let zero = member(&job, 0, &go);
    eventually("rank 0 listens", || ports(zero.id()).contains(&job.port));
    let flood = Flood::of(job.port);
    endure(seconds, &[&zero]);
    let mut ranks = vec![zero, member(&job, 1, &go), member(&job, 2, &go)];
    eventually("all have joined", || ranks.iter().all(|rank| rank.printed().contains("joined")));
    flood.end();

    let floods = [1, 2].map(|rank| Flood::of(ports(ranks[rank as usize].id())[0]));
    endure(seconds, &[&ranks[1], &ranks[2]]);
    std::fs::write(&go, "").unwrap();
    let ended = end(&mut ranks);
    floods.into_iter().for_each(Flood::end);
    let mut longest: f64 = 0.0;
    for (rank, ended) in ended.iter().enumerate() {
        assert_eq!(ended.code, 0, "{ended:?}");
        let [joined, stepped] = ["joined", "stepped"].map(|word| numbers(&ended.out, word)[0]);
        println!("rank {rank}: joined in {joined:.3} s, three steps in {stepped:.3} s");
        // Rank 0 joins when all others do, which come later.
        longest = longest.max(stepped).max(if rank == 0 { 0.0 } else { joined });
        let lines = ended.err.lines().count();
        let refused =
            ended.err.lines().filter(|line| line.contains("refused the connection from 127.0.0.1")).count();
        assert!((5..LINES).contains(&refused) && lines < refused + 5, "{lines} lines: {ended:?}");
    }
    longest
}
