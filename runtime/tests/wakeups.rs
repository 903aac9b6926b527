//! An I/O thread is woken at most once for each message that it receives, for each step that the program begins, and for each task
//! that a compute thread hands back; and steps of few candidates have no such tasks.
//! This test is alone in its process, so that all threads belong to it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Config, Layout, Session};
use gleaner_transport::Secret;

const STEPS: u64 = 200;
const WORKERS: u32 = 4;

/// Voluntary context switches so far of all threads whose names begin so.
fn wakeups(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = tasks.map(|task| fs::read_to_string(task.path().join("status")).unwrap_or_default());
    let name = format!("Name:\t{name}");
    let of_name = status.filter(|status| status.starts_with(&name));
    let count = |status: String| {
        let line =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:").map(str::to_owned));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    of_name.map(count).sum()
}

/// What the four ranks of a job receive in its steps, and how often their I/O threads and their compute threads are woken.
fn received(method: &str, density: f64, n: usize) -> [u64; 3] {
    let (secret, listener) = (Secret::random().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let rendezvous = listener.local_addr().unwrap().to_string();
    let mut listener = Some(std::sync::Arc::new(listener));
    let ranks: Vec<_> = (0..WORKERS)
        .map(|rank| {
            let (secret, rendezvous) = (Some(secret.clone()), Some(rendezvous.clone()));
            let alone = Config::alone(Duration::from_secs(20));
            let config =
                Config { rank, world_size: WORKERS, rendezvous, secret, listener: listener.take(), ..alone };
            let method = Method::named(method).unwrap().density(density);
            std::thread::spawn(move || {
                let session = Session::join_as(config).unwrap();
                let layout = Layout::new().parameter("w", n);
                let mut gradients = session.gradients(&layout, method).unwrap();
                let gradient: Vec<f32> =
                    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
                let mut step = || {
                    gradients.ready("w", &gradient).unwrap();
                    gradients.wait().unwrap();
                };
                (0..5).for_each(|_| step());
                session.barrier().unwrap();
                let counted =
                    || [session.traffic().messages_received, wakeups("gleaner-io"), wakeups("gleaner-work")];
                let before = counted();
                session.barrier().unwrap();
                (0..STEPS).for_each(|_| step());
                session.barrier().unwrap();
                let after = counted();
                session.barrier().unwrap();
                [0, 1, 2].map(|i| after[i] - before[i])
            })
        })
        .collect();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    // Each counts its own messages, and the wake-ups of all.
    let most = |i: usize| ranks.iter().map(|rank| rank[i]).max().unwrap();
    [ranks.iter().map(|rank| rank[0]).sum(), most(1), ranks.iter().map(|rank| rank[2]).min().unwrap()]
}

#[test]
fn an_io_thread_is_woken_at_most_once_for_each_message() {
    for (method, density, n) in [("ring", 1.0, 1_000), ("ring", 1.0, 269_722), ("spardl", 0.01, 269_722)] {
        let [messages, woken, tasks] = received(method, density, n);
        println!("{method}, {n} entries: {woken} wake-ups for {messages} messages and {tasks} tasks");
        assert!(messages >= 4 * STEPS, "{messages}");
        let said =
            format!("{method}, {n} entries: {woken} wake-ups for {messages} messages and {tasks} tasks");
        // Dense steps are received where they arrive.
        let begun = u64::from(WORKERS) * STEPS;
        let most = if method == "ring" { messages } else { messages + begun + tasks };
        assert!(woken <= most, "{said}");
        if method == "spardl" {
            // Now and then there are fewer candidates than are chosen, and the block is read again.
            assert!(tasks <= begun, "{said}");
        }
    }
}
