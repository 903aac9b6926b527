//! A relay between two ranks, and what it makes of whole messages of a plain link, and whole records of a sealed one.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use crate::job::{Job, end};
use crate::process::eventually;

/// Bytes of what rank 1 says before its first message: the hello and, when that was answered, the proof, and a card without
/// anything on it.
const HANDSHAKE: [usize; 3] = [88, 33, 36];
/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes before those of a record, and behind them.
const RECORD: [usize; 2] = [4, 16];
/// Pairs, or long records, that the relay lets pass first.
const SPARED: usize = 5;

/// What is done to two messages of the same tag and length, one behind the other: pieces of a block; or of two records.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The first comes twice.
    Repeats,
    /// The first comes twice, and the second does not: the receiver has as many bytes as it expects.
    Replaces,
    /// The first does not come.
    Drops,
    /// The second comes first.
    Swaps,
    /// The first comes with another last byte.
    Changes,
    /// Nothing comes any more.
    Cuts,
}

/// The next message of a plain link, or record of a sealed one.
fn message(from: &mut TcpStream, is_plain: bool) -> io::Result<Vec<u8>> {
    let mut message = vec![0; if is_plain { HEADER } else { RECORD[0] }];
    from.read_exact(&mut message)?;
    let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap()) as usize;
    let rest = if is_plain { word(4) & 0x001f_ffff } else { word(0) + RECORD[1] };
    let head = message.len();
    message.resize(head + rest, 0);
    from.read_exact(&mut message[head..])?;
    Ok(message)
}

/// Passes on what rank 1 says to rank 0, but for one pair of messages.
fn pass(mut from: TcpStream, mut to: TcpStream, fault: Fault, is_plain: bool) -> io::Result<()> {
    for length in HANDSHAKE {
        let mut said = vec![0; length];
        from.read_exact(&mut said)?;
        to.write_all(&said)?;
    }
    let are_alike = |one: &[u8], other: &[u8]| {
        one.len() == other.len() && one.len() > 1024 && one[8..HEADER] == other[8..HEADER]
    };
    let (mut last, mut spared) = (vec![0; HEADER], 0);
    loop {
        let mut first = message(&mut from, is_plain)?;
        // All pieces of a block but its last are as long as each other, so behind two that are another one follows. What is in a
        // record is not seen, and any may follow it.
        let may_be_changed = if is_plain {
            are_alike(&first, &last)
        } else {
            let is_long = first.len() > 1024;
            spared += usize::from(is_long);
            is_long && spared == SPARED
        };
        if !may_be_changed {
            to.write_all(&first)?;
            last = first;
            continue;
        }
        let second = message(&mut from, is_plain)?;
        let is_pair = !is_plain || are_alike(&first, &second);
        spared += usize::from(is_plain && is_pair);
        let passed: &[&Vec<u8>] = match fault {
            _ if !is_pair || spared != SPARED => &[&first, &second],
            Fault::Repeats => &[&first, &first, &second],
            Fault::Replaces => &[&first, &first],
            Fault::Drops => &[&second],
            Fault::Swaps => &[&second, &first],
            Fault::Changes => {
                first.last_mut().into_iter().for_each(|byte| *byte ^= 1);
                &[&first, &second]
            }
            Fault::Cuts => return [from, to].iter().try_for_each(|end| end.shutdown(Shutdown::Both)),
        };
        passed.iter().try_for_each(|message| to.write_all(message))?;
        last = second;
    }
}

/// The port at which rank 1 reaches rank 0, and the relay that answers there.
fn relay(job: &Job, fault: Fault, is_plain: bool) -> (u16, JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, zero) = (listener.local_addr().unwrap().port(), job.port);
    let relay = spawn(move || {
        let (near, far) = (listener.accept()?.0, TcpStream::connect(("127.0.0.1", zero))?);
        let (mut back, mut answers) = (near.try_clone()?, far.try_clone()?);
        spawn(move || io::copy(&mut answers, &mut back));
        pass(near, far, fault, is_plain)
    });
    (port, relay)
}

/// Each of them ends the job, and both ranks say the same of it.
fn ends_the_job(is_plain: bool, damage: &str) {
    let cut = "its connection closed without a leave message: it died, was killed, or the connection was cut";
    let damage = format!(": what came from rank 1 is damaged: {damage}");
    for fault in [Fault::Repeats, Fault::Replaces, Fault::Drops, Fault::Swaps, Fault::Changes, Fault::Cuts] {
        // Each rank sends half of the gradient, in pieces.
        let arguments = ["--params", "300000", "--steps", "40", "--method", "ring"];
        let job = Job { timeout: Duration::from_secs(10), ..Job::new(2, &arguments) };
        let plain = ("GLEANER_PLAIN", if is_plain { "1" } else { "0" });
        let zero = job.rank_with(0, &[], &[plain]);
        eventually("rank 0 listens", || crate::process::ports(zero.id()).contains(&job.port));
        let (port, relay) = relay(&job, fault, is_plain);
        let rendezvous = format!("127.0.0.1:{port}");
        let one = job.rank_with(1, &[], &[plain, ("GLEANER_RENDEZVOUS", &rendezvous)]);
        let ended = end(&mut [zero, one]);
        let last = ended[0].err.lines().last().unwrap_or_default();
        println!("{fault:?}: {last}");
        // Of a cut, each rank sees the other's end.
        if fault == Fault::Cuts {
            ended.iter().for_each(|rank| rank.failed_with(&[cut]));
        } else {
            // Each reports the step that it knows.
            let what = last.split_once(": what came").map_or("", |(_, what)| what);
            ended.iter().for_each(|rank| rank.failed_with(&["rank 1 failed", &damage, what]));
        }
        drop(relay.join().unwrap());
    }
}

#[test]
fn what_a_relay_does_to_messages_of_a_plain_link_ends_the_job() {
    ends_the_job(true, "expected message ");
}

#[test]
fn what_a_relay_does_to_records_of_a_sealed_link_ends_the_job() {
    ends_the_job(false, "a record was not sealed by the peer, or not as the next one");
}
