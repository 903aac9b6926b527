//! Unauthenticated peers that call a job's ports while it runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::job::{Job, end, steps_done};
use crate::process::{Process, eventually, gleaner, ports, run};

/// What they say.
fn speeches() -> Vec<Vec<u8>> {
    let mut hello = b"gleaner\0".to_vec();
    hello.extend((0..500u32).map(|i| (i * 7) as u8));
    let mut huge = 0xffff_ffff_u32.to_le_bytes().repeat(64);
    huge[..4].copy_from_slice(&0x6e61_656c_u32.to_le_bytes());
    vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        huge,
        b"gleaner\0".to_vec(),
        hello,
        vec![0; 1 << 16],
    ]
}

/// Calls, speaks, and gives what is answered until the other side ends it.
fn call(port: u16, speech: Vec<u8>) -> JoinHandle<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        // It may be refused in the middle.
        let _ = stream.write_all(&speech);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    })
}

pub fn callers(port: u16) -> Vec<JoinHandle<Vec<u8>>> {
    speeches().into_iter().map(|speech| call(port, speech)).collect()
}

fn silence(callers: Vec<JoinHandle<Vec<u8>>>) {
    for caller in callers {
        assert_eq!(caller.join().unwrap(), b"", "an unauthenticated peer is not answered");
    }
}

/// The digest of an undisturbed job.
pub fn undisturbed(job: &Job) -> serde_json::Value {
    let mut command = gleaner();
    command.args(&job.arguments).args(["--workers", &job.workers.to_string()]);
    run(command).report()["digest"].clone()
}

#[test]
fn at_the_rendezvous_they_delay_no_worker() {
    let job = Job::new(3, &["--params", "1000", "--method", "spardl", "--steps", "5"]);
    let first = job.rank(0);
    eventually("rank 0 listens", || ports(first.id()).contains(&job.port));
    let callers = callers(job.port);
    let mut ranks = vec![first, job.rank(1), job.rank(2)];
    let ended = end(&mut ranks);
    assert_eq!(ended[0].report()["digest"], undisturbed(&job));
    assert!(ended.iter().all(|ended| ended.code == 0), "{ended:?}");
    assert!(
        ended[0].err.contains("refused the connection from 127.0.0.1")
            && ended[0].err.contains("something else calls")
    );
    silence(callers);
}

#[test]
fn at_every_port_of_a_running_job_they_change_nothing() {
    // As many steps as they need on this machine.
    for steps in (0..).map(|i| (200 * 4_u32.pow(i)).to_string()) {
        let job = Job::new(3, &["--params", "20000", "--method", "spardl", "--steps", &steps]);
        let mut ranks = job.start();
        steps_done(&mut ranks[0], 1);
        let listeners: Vec<Vec<u16>> = ranks.iter().map(|rank| ports(rank.id())).collect();
        let all_here = listeners.iter().all(|ports| ports.len() == 1);
        let callers: Vec<_> =
            if all_here { listeners.concat().into_iter().flat_map(callers).collect() } else { vec![] };
        eventually("every rank has noticed", || {
            let noticed = |rank: &mut Process| !rank.runs() || rank.events().contains("something else calls");
            !all_here || ranks.iter_mut().all(noticed)
        });
        let all_ran = ranks.iter_mut().all(|rank| rank.runs());
        let ended = end(&mut ranks);
        assert!(ended.iter().all(|ended| ended.code == 0), "{ended:?}");
        silence(callers);
        if all_here && all_ran {
            assert!(listeners[0].contains(&job.port));
            assert_eq!(ended[0].report()["digest"], undisturbed(&job));
            for ended in &ended {
                assert!(ended.err.contains("something else calls"), "{ended:?}");
            }
            return;
        }
    }
}
