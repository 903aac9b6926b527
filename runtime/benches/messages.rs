//! What a message costs between the socket and the execution: `cargo bench -p gleaner-runtime`.
//!
//! Two workers over TCP on this machine, each with its own I/O thread, in a process of their own. Printed for each message that is
//! received: wake-ups of an I/O thread (voluntary context switches), allocations and allocated bytes beyond the payload, and bytes that
//! `memcpy` copied, of all threads together and selection and update included; and if `strace` is installed, system calls of all
//! threads by name.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use gleaner_algorithms::Method;
use gleaner_runtime::{Config, Layout, Session};
use gleaner_transport::Secret;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is left to the system's allocator; counting touches nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        ALLOCATED.fetch_add(memory.size() as u64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, memory: Memory) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, memory) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

static COPIES: AtomicU64 = AtomicU64::new(0);
static COPIED: AtomicU64 = AtomicU64::new(0);

/// Copies that count: shorter ones are headers, numbers and the like.
const LONG: usize = 256;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod counted {
    use std::ffi::c_void;
    use std::sync::atomic::Ordering;

    unsafe extern "C" {
        fn memmove(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    }

    /// Takes the place of the C library's, for all of this program.
    ///
    /// # Safety
    /// As of the C library's.
    // SAFETY: the C library has it with this signature, and this does the same.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void {
        if count >= super::LONG {
            super::COPIES.fetch_add(1, Ordering::Relaxed);
            super::COPIED.fetch_add(count as u64, Ordering::Relaxed);
        }
        // SAFETY: what does not overlap may be moved.
        unsafe { memmove(to, from, count) }
    }
}

const CASE: &str = "GLEANER_MESSAGES";
const STEPS: u64 = 200;

/// Method, density and entries.
const CASES: [(&str, f64, usize); 4] =
    [("ring", 1.0, 1_000), ("ring", 1.0, 269_722), ("ring", 1.0, 4_000_000), ("spardl", 0.01, 269_722)];

fn main() {
    if let Ok(case) = env::var(CASE) {
        return run(CASES[case.parse::<usize>().expect("a number of a case")]);
    }
    for (number, (method, density, n)) in CASES.iter().enumerate() {
        println!("{method}, {n} entries, density {density}:");
        let program = env::current_exe().expect("this program");
        let child = |command: &mut Command| {
            let output = command.env(CASE, number.to_string()).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        print!("{}", child(&mut Command::new(&program)).expect("a child"));
        let table = env::temp_dir().join(format!("gleaner-messages-{}", std::process::id()));
        let traced = child(Command::new("strace").args(["-f", "-c", "-o"]).arg(&table).arg(&program));
        match traced.ok().and_then(|said| system_calls(&fs::read_to_string(&table).ok()?, &said)) {
            Some(calls) => println!("  system calls: {calls}"),
            None => println!("  system calls: strace is not installed, or may not trace"),
        }
        let _ = fs::remove_file(table);
    }
}

/// The most frequent calls of a table of strace, for each message that the program says it received.
fn system_calls(table: &str, said: &str) -> Option<String> {
    let messages: f64 = said.split("messages ").nth(1)?.split_whitespace().next()?.parse().ok()?;
    let mut calls: Vec<(f64, &str)> = Vec::new();
    for line in table.lines().skip(2) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(count)) = (words.last(), words.get(3)) else { continue };
        if let Ok(count) = count.parse::<f64>()
            && *name != "total"
        {
            calls.push((count / messages, name));
        }
    }
    calls.sort_by(|a, b| b.0.total_cmp(&a.0));
    let all: f64 = calls.iter().map(|(count, _)| count).sum();
    let most: Vec<String> = calls.iter().take(6).map(|(count, name)| format!("{name} {count:.2}")).collect();
    Some(format!("{all:.2} a message ({})", most.join(", ")))
}

/// Voluntary context switches of the threads of each name.
fn switches() -> BTreeMap<String, u64> {
    let mut switches = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("", str::trim).to_owned()
        };
        let count: u64 = field("voluntary_ctxt_switches:").parse().unwrap_or(0);
        *switches.entry(field("Name:")).or_default() += count;
    }
    switches
}

fn run((method, density, n): (&str, f64, usize)) {
    let secret = Secret::random().expect("random bytes");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let rendezvous = listener.local_addr().expect("its address").to_string();
    drop(listener);
    let ranks = (0..2).map(|rank| {
        let (rendezvous, secret) = (Some(rendezvous.clone()), Some(secret.clone()));
        let alone = Config::alone(Duration::from_secs(20));
        let config = Config { rank, world_size: 2, rendezvous, secret, is_plain: true, ..alone };
        let method = Method::named(method).expect("a method").density(density);
        thread::spawn(move || work(config, method, n))
    });
    let ranks: Vec<_> = ranks.collect();
    for rank in ranks {
        rank.join().expect("a worker");
    }
}

fn work(config: Config, method: Method, n: usize) {
    let rank = config.rank;
    let session = Session::join_as(config).expect("a session");
    let mut gradients = session.gradients(&Layout::new().parameter("w", n), method).expect("gradients");
    let gradient: Vec<f32> =
        (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 - 8e6).collect();
    let mut step = || {
        gradients.ready("w", &gradient).expect("a step");
        gradients.wait().expect("an update")
    };
    (0..5).for_each(|_| drop(step()));
    session.barrier().expect("a barrier");
    let counted = || [&ALLOCATIONS, &ALLOCATED, &COPIES, &COPIED].map(|count| count.load(Ordering::Relaxed));
    let before = (switches(), counted());
    let (traffic, clock) = (session.traffic(), Instant::now());
    (0..STEPS).for_each(|_| drop(step()));
    let took = clock.elapsed();
    session.barrier().expect("a barrier");
    if rank == 0 {
        let received = session.traffic();
        // Both workers receive as many.
        let messages = 2.0 * (received.messages_received - traffic.messages_received) as f64;
        let bytes = 2.0 * (received.bytes_received - traffic.bytes_received) as f64;
        let after = switches();
        let woken = |name: &str| {
            let count = |switches: &BTreeMap<String, u64>| -> u64 {
                switches.iter().filter(|(known, _)| known.starts_with(name)).map(|(_, count)| count).sum()
            };
            (count(&after) - count(&before.0)) as f64
        };
        let mut counts = counted().into_iter().zip(before.1).map(|(after, before)| (after - before) as f64);
        let mut next = || counts.next().unwrap_or_default();
        let (allocations, allocated, copies, copied) = (next(), next(), next(), next());
        println!(
            "  messages {messages} of {:.0} bytes, {:.2} a step; a step takes {:.1} µs",
            bytes / messages,
            messages / 2.0 / STEPS as f64,
            took.as_secs_f64() * 1e6 / STEPS as f64
        );
        println!(
            "  wake-ups of I/O threads: {:.2} a message; of compute threads {:.2} and of trainers {:.2} a step",
            woken("gleaner-io") / messages,
            woken("gleaner-work") / 2.0 / STEPS as f64,
            woken("messages") / 2.0 / STEPS as f64,
        );
        println!(
            "  allocations: {:.2} a message, {:.2} bytes for each byte received",
            allocations / messages,
            allocated / bytes
        );
        println!(
            "  copies of {LONG} bytes or more: {:.2} a message, {:.2} bytes for each byte received",
            copies / messages,
            copied / bytes
        );
    }
    session.barrier().expect("a barrier");
}
