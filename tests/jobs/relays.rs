//! A relay between two ranks whose link is plain, and what it makes of whole messages.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use crate::job::{Job, end};
use crate::process::eventually;

/// Bytes of what rank 1 says before its first message: the hello and, when that was answered, the proof.
const HANDSHAKE: [usize; 2] = [88, 33];
/// Bytes of a message's header.
const HEADER: usize = 16;
/// Pairs that the relay lets pass first.
const SPARED: usize = 5;

/// What becomes of two messages of the same tag and length, one behind the other: pieces of a block.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The first comes twice.
    Repeats,
    /// The first comes twice, and the second does not: the receiver has as many bytes as it expects.
    Replaces,
    /// The first does not come.
    Drops,
    /// The second comes first.
    Swaps,
    /// Nothing comes any more.
    Cuts,
}

fn message(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; HEADER];
    from.read_exact(&mut message)?;
    let word = u32::from_le_bytes([message[4], message[5], message[6], message[7]]);
    message.resize(HEADER + (word & 0x001f_ffff) as usize, 0);
    from.read_exact(&mut message[HEADER..])?;
    Ok(message)
}

/// Passes on what rank 1 says to rank 0, but for one pair of messages.
fn pass(mut from: TcpStream, mut to: TcpStream, fault: Fault) -> io::Result<()> {
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
        let first = message(&mut from)?;
        // All pieces of a block but its last are as long as each other, so behind two that are another one follows.
        if !are_alike(&first, &last) {
            to.write_all(&first)?;
            last = first;
            continue;
        }
        let second = message(&mut from)?;
        let is_pair = are_alike(&first, &second);
        spared += usize::from(is_pair);
        let passed: &[&Vec<u8>] = match fault {
            _ if !is_pair || spared != SPARED => &[&first, &second],
            Fault::Repeats => &[&first, &first, &second],
            Fault::Replaces => &[&first, &first],
            Fault::Drops => &[&second],
            Fault::Swaps => &[&second, &first],
            Fault::Cuts => return [from, to].iter().try_for_each(|end| end.shutdown(Shutdown::Both)),
        };
        passed.iter().try_for_each(|message| to.write_all(message))?;
        last = second;
    }
}

/// The port at which rank 1 reaches rank 0, and the relay that answers there.
fn relay(job: &Job, fault: Fault) -> (u16, JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, zero) = (listener.local_addr().unwrap().port(), job.port);
    let relay = spawn(move || {
        let (near, far) = (listener.accept()?.0, TcpStream::connect(("127.0.0.1", zero))?);
        let (mut back, mut answers) = (near.try_clone()?, far.try_clone()?);
        spawn(move || io::copy(&mut answers, &mut back));
        pass(near, far, fault)
    });
    (port, relay)
}

#[test]
fn what_a_relay_does_to_messages_of_a_plain_link_ends_the_job() {
    let damage = "rank 1 failed at step N: what came from rank 1 is damaged: expected message ";
    let cut = "its connection closed without a goodbye: it died, was killed, or the connection was cut";
    for (fault, expected) in [
        (Fault::Repeats, damage),
        (Fault::Replaces, damage),
        (Fault::Drops, damage),
        (Fault::Swaps, damage),
        (Fault::Cuts, cut),
    ] {
        // Each rank sends half of the gradient, in pieces.
        let arguments = ["--params", "300000", "--steps", "40", "--method", "ring"];
        let job = Job { timeout: Duration::from_secs(10), ..Job::new(2, &arguments) };
        let zero = job.rank_with(0, &[], &[("GLEANER_PLAIN", "1")]);
        eventually("rank 0 listens", || crate::process::ports(zero.id()).contains(&job.port));
        let (port, relay) = relay(&job, fault);
        let rendezvous = format!("127.0.0.1:{port}");
        let one = job.rank_with(1, &[], &[("GLEANER_PLAIN", "1"), ("GLEANER_RENDEZVOUS", &rendezvous)]);
        let ended = end(&mut [zero, one]);
        let last = ended[0].err.lines().last().unwrap_or_default();
        let step = last.split_once("at step ").and_then(|(_, rest)| rest.split(':').next());
        println!("{fault:?}: {last}");
        ended[0].failed_with(&[&expected.replace('N', step.unwrap_or_default())]);
        // Rank 0 closes a link on which bytes wait that nobody will read, and what it says last may be lost with them.
        ended[1].failed_with(&["failed at step "]);
        drop(relay.join().unwrap());
    }
}
