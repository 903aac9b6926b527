//! Ranks that join as all do and then send what no worker sends, or what workers send, but without end: the job ends with a
//! sentence that names them, on all other ranks, and what it takes of memory meanwhile is bounded. Each flood has a process of
//! its own, whose peak is that of three ranks together.

#![expect(clippy::unwrap_used, reason = "a test, though it has a main of its own")]

mod network;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use gleaner_algorithms::Method;
use gleaner_runtime::Session;
use gleaner_transport::{Network, Peer, memory};

use network::{BAGS, Flood, Hostile, MESSAGES};

/// The kinds of messages, as they stand in the highest bits of tags.
const PROBE: u64 = 1;
const ALIVE: u64 = 8;
const ABORT: u64 = 9;
const BYE: u64 = 10;
const NOTE: u64 = 11;
const CANCEL: u64 = 12;
const SILENCE: u64 = 13;
const CREDIT: u64 = 14;
const ALL_CAME: u64 = 15;

/// What the peak of a process may be above that of one without a flood. The messages of most floods have 16 MB and more
/// without what keeping them takes.
const MOST: u64 = 16 << 20;

fn tag(kind: u64, rest: u64) -> u64 {
    kind << 60 | rest
}

fn silence(at: u32, from: u32) -> (u64, Vec<u8>) {
    (tag(SILENCE, 0), [at.to_le_bytes(), from.to_le_bytes()].concat())
}

/// A flood: what it is, which rank sends it, whether that one reads no more, and what the others say of it.
struct Case {
    what: &'static str,
    hostile: u32,
    is_deaf: bool,
    flood: Flood,
    said: &'static str,
}

/// What the rank that floods ends with, if no other rank ends the job.
const SENT: &str = "the flood is over";

const fn case(what: &'static str, hostile: u32, flood: Flood, said: &'static str) -> Case {
    Case { what, hostile, is_deaf: false, flood, said }
}

/// A ring: rank 0 floods rank 1, rank 1 floods rank 2, and rank 2 floods rank 0, who gathers and decides.
const CASES: [Case; 23] = [
    case(
        "bags of gradients that do not exist",
        1,
        |n| (tag(BAGS, (n + 1) << 24), vec![0; 34]),
        "more than its schedules",
    ),
    case("bags beyond their credit", 2, |_| (tag(BAGS, 1 << 20), vec![0; 256]), "more than its schedules"),
    case(
        "measurements that were not asked for",
        2,
        |n| (tag(PROBE, n), vec![0; 64]),
        "more than its schedules",
    ),
    case("heartbeats", 2, |_| (tag(ALIVE, 0), vec![0; 16]), SENT),
    case("heartbeats about ever other gradients", 1, alive, SENT),
    case("heartbeats without a sense", 1, |_| (tag(ALIVE, 0), vec![0; 9]), "heartbeat makes no sense"),
    case("why the job fails", 1, |_| (tag(ABORT, 0), LAST_WORDS.to_vec()), "it said so"),
    case(
        "failures without a sense",
        2,
        |_| (tag(ABORT, 0), vec![b'{'; 300]),
        "failure message makes no sense",
    ),
    case(
        "leave messages",
        2,
        |_| (tag(BYE, 0), vec![0; 8]),
        "it left the job or it sent its leave message twice",
    ),
    case(
        "leave messages before their bags",
        2,
        |_| (tag(BYE, 0), vec![255; 8]),
        "it sent its leave message twice",
    ),
    case("leave messages without a sense", 1, |_| (tag(BYE, 0), vec![]), "its leave message makes no sense"),
    case("notes of calls to come", 1, |_| (tag(NOTE, 3), vec![0; 1 << 10]), "not the present one"),
    case("freezing steps to come", 0, |n| (tag(CANCEL, n + 2), vec![1]), "thousands of steps"),
    case("deciding for others", 1, |n| (tag(CANCEL, n + 2), vec![1]), "unexpected message about cancelling"),
    case("cancelling what is gone", 2, |n| (tag(CANCEL, (n + 9) << 24), vec![0, 0]), SENT),
    Case {
        is_deaf: true,
        ..case(
            "answers that are not read",
            0,
            |_| (tag(CANCEL, 1 << 20), vec![1]),
            "does not read the answers",
        )
    },
    case("silence, to the coordinator", 2, |_| silence(2, 1), "no heartbeat passed between it and rank 1"),
    case("silence, to another rank", 1, |_| silence(1, 0), "no heartbeat passed between it and rank 0"),
    case("silence of ranks that there are not", 1, |_| silence(1, 7), "about silence makes no sense"),
    case(
        "credit for everything",
        1,
        |n| (tag(CREDIT, 1000 * n), vec![0; 8]),
        "credit for gradients that do not exist",
    ),
    case("credit for all gradients that may come", 2, |n| (tag(CREDIT, n % 65_000), vec![0; 8]), SENT),
    case(
        "answers to a leave message that was not sent",
        2,
        |_| (tag(ALL_CAME, 0), vec![]),
        "a leave message that was not sent",
    ),
    case("unknown kinds", 1, |n| (tag(2 + n % 6, n), vec![0; 100]), "an unknown kind"),
];

const LAST_WORDS: &[u8] = br#"{"rank":1,"step":null,"reason":"it said so"}"#;

/// In 16 steps that no other message names.
fn alive(n: u64) -> (u64, Vec<u8>) {
    let steps = (0..16).map(|i| tag(BAGS, ((16 * n + i) % (1 << 28)) << 24));
    (tag(ALIVE, 0), [0, 0].into_iter().chain(steps).flat_map(u64::to_le_bytes).collect())
}

fn main() {
    if !cfg!(target_os = "linux") {
        gleaner_skips::skip("linux", "the peak of a process is read from /proc");
        return;
    }
    match env::var("GLEANER_FLOOD") {
        Ok(number) => job(number.parse::<usize>().ok().map(|number| &CASES[number])),
        Err(_) => check_jobs(),
    }
}

/// Floods one after another, each in a process of its own.
fn check_jobs() {
    let quiet = peak(&process("none"));
    println!("a job without a flood: {} KiB at most", quiet >> 10);
    for (number, case) in CASES.iter().enumerate() {
        let said = process(&number.to_string());
        let sentences: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("said: ")).collect();
        println!("{}: {} KiB more", case.what, peak(&said).saturating_sub(quiet) >> 10);
        assert_eq!(sentences.len(), 2, "{}: {said}", case.what);
        for sentence in sentences {
            let names = sentence.starts_with(&format!("rank {} failed", case.hostile));
            // Of two faults of one flood, the one that is found first is said.
            let says = case.said.split(" or ").any(|said| sentence.contains(said));
            assert!(names && says, "{}: {sentence}", case.what);
        }
        let above = peak(&said).saturating_sub(quiet);
        assert!(above <= MOST, "{}: the peak is {above} bytes above {quiet}", case.what);
    }
}

/// What a process with this flood, or none, writes.
fn process(flood: &str) -> String {
    let output = Command::new(env::current_exe().unwrap()).env("GLEANER_FLOOD", flood).output().unwrap();
    assert!(output.status.success(), "{flood}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The peak that a process wrote, in bytes.
fn peak(said: &str) -> u64 {
    said.lines().find_map(|line| line.strip_prefix("peak: ")).unwrap().parse().unwrap()
}

/// Three ranks take steps until the one that floods has sent all, or the job has ended. Writes what the others say, and what the
/// process had of memory at most.
fn job(case: Option<&'static Case>) {
    let ranks: Vec<_> = memory::networks(3)
        .into_iter()
        .map(|network| {
            let hostile = case.filter(|case| network.peer() == Peer(case.hostile));
            let taken = Arc::new(AtomicU64::new(0));
            thread::spawn(move || (hostile.is_some(), take_steps(network, hostile, &taken)))
        })
        .collect();
    for rank in ranks {
        let (is_hostile, error) = rank.join().unwrap();
        if !is_hostile {
            println!("said: {error}");
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    println!("peak: {}", kib << 10);
}

fn take_steps(
    network: memory::MemoryNetwork,
    hostile: Option<&Case>,
    taken: &Arc<AtomicU64>,
) -> gleaner_runtime::Error {
    let (timeout, rank) = (Duration::from_secs(10), network.peer().0);
    let is_quiet = env::var("GLEANER_FLOOD").as_deref() == Ok("none");
    let session = match hostile {
        Some(&Case { flood, is_deaf, .. }) => {
            let taken = Arc::clone(taken);
            Session::over(async move { Ok(Hostile { inner: network, flood, is_deaf, taken }) }, timeout)
        }
        None => Session::over(async { Ok(network) }, timeout),
    };
    let session = session.unwrap();
    let mut reducer = session.reducer("r", 100, Method::ring()).unwrap();
    for step in 0.. {
        if let Err(error) = reducer.start(&[1.0; 100]).and_then(|handle| handle.wait().map(drop)) {
            return error;
        }
        // What breaks no rules ends with its last message, and a job without a flood by itself.
        let is_over = match hostile {
            Some(case) => case.said == SENT && taken.load(Ordering::Relaxed) == MESSAGES,
            None => is_quiet && rank == 0 && step == 2000,
        };
        if is_over {
            drop(reducer);
            return session.abort(&SENT);
        }
    }
    unreachable!("a job takes steps until it ends")
}
