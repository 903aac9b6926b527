//! Small control data through rank 0: agreeing, gathering, waiting for each other.

use bytes::Bytes;
use gleaner_transport::{MAX_PAYLOAD, Message, Peer};

use crate::failure::Failure;
use crate::post::Post;
use crate::tag::Topic;

/// What a note is for, so that ranks whose calls differ are told instead of confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Gather = 1,
    Barrier = 2,
    Gradients = 3,
    Reducer = 4,
    Probe = 5,
    Revise = 6,
    Regroup = 7,
    Load = 8,
}

impl Purpose {
    fn named(byte: Option<&u8>) -> &'static str {
        match byte {
            Some(1) => "all_gather()",
            Some(2) => "barrier()",
            Some(3) => "gradients()",
            Some(4) => "reducer()",
            Some(5) => "gradients() or reducer() with the method auto",
            Some(6) => "wait() with the method auto",
            Some(7) => "regroup()",
            Some(8) => "load_from()",
            _ => "an unknown call",
        }
    }
}

/// Gives every rank the notes of all ranks, in the order of the ranks. Two latencies; rank 0 is the hub.
pub(crate) async fn all_gather(
    post: &Post,
    call: u32,
    purpose: Purpose,
    note: &[u8],
) -> Result<Vec<Bytes>, Failure> {
    if note.len() >= MAX_PAYLOAD {
        let reason = format!("a note of {} bytes; at most {} are possible", note.len(), MAX_PAYLOAD - 1);
        return Err(Failure { rank: post.rank.0, step: None, reason });
    }
    let tag = Topic::Note { epoch: post.epoch, call }.tag();
    let mut own = vec![purpose as u8];
    own.extend(note);
    let own = Bytes::from(own);
    if post.rank.0 > 0 {
        let mut reading = post.inbox.open(Peer(0), tag);
        post.send(Peer(0), Message { tag, payload: own });
        let mut notes = Vec::with_capacity(post.workers as usize);
        for _ in 0..post.workers {
            notes.push(open(0, purpose, reading.next().await?)?);
        }
        return Ok(notes);
    }
    let mut notes = vec![own];
    for rank in 1..post.workers {
        notes.push(post.inbox.open(Peer(rank), tag).next().await?);
    }
    // Rank 0 alone judges, before anything is passed on, so that all hear of the same rank.
    let opened: Result<Vec<Bytes>, Failure> =
        notes.iter().enumerate().map(|(rank, note)| open(rank as u32, purpose, note.clone())).collect();
    let opened = opened?;
    for rank in 1..post.workers {
        for note in &notes {
            post.send(Peer(rank), Message { tag, payload: note.clone() });
        }
    }
    Ok(opened)
}

fn open(rank: u32, purpose: Purpose, note: Bytes) -> Result<Bytes, Failure> {
    if note.first() == Some(&(purpose as u8)) {
        return Ok(note.slice(1..));
    }
    let (here, there) = (Purpose::named(Some(&(purpose as u8))), Purpose::named(note.first()));
    let reason = format!(
        "it called {there} where this rank called {here}; all ranks must make the same calls in the same order"
    );
    Err(Failure { rank, step: None, reason })
}

/// Fails unless all ranks wrote the same lines; names the first line that differs.
pub(crate) fn agree(notes: &[Bytes]) -> Result<(), Failure> {
    for (rank, note) in notes.iter().enumerate() {
        if note != &notes[0] {
            let (ours, theirs) = (String::from_utf8_lossy(&notes[0]), String::from_utf8_lossy(note));
            let (mut ours, mut theirs) = (ours.lines(), theirs.lines());
            let difference = loop {
                match (ours.next(), theirs.next()) {
                    (Some(a), Some(b)) if a == b => {}
                    (a, b) => break (a.unwrap_or("nothing"), b.unwrap_or("nothing")),
                }
            };
            let reason = format!(
                "its gradients differ from rank 0's: it has {}, rank 0 has {}; start all ranks with the same model and options",
                difference.1, difference.0
            );
            return Err(Failure { rank: rank as u32, step: None, reason });
        }
    }
    Ok(())
}
