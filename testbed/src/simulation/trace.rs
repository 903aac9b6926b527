//! What every worker does in one step, in order, whatever the machine and the network: what a replay gives time to.

use gleaner_algorithms::bag::wire::{PIECE, passed_on};
use gleaner_algorithms::schedule::Tally;

/// Which part of a step a piece of work belongs to, as measurements report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Accumulating, choosing entries and preparing messages.
    Select,
    /// Taking received entries in and committing.
    Merge,
}

/// Kinds of work: entries accumulated, then the parts of a [`Tally`].
pub(super) const KINDS: usize = 10;

/// How many entries of each kind are handled, in the order of the fields of a [`Machine`](super::Machine).
pub type Handled = [f32; KINDS];

/// What a processor does.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// It handles entries.
    Handled(Handled),
    /// What took so many seconds when it was timed.
    Took(f32),
}

/// One thing that a worker does.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Its processor works.
    Work(Part, Work),
    /// It hands a message of so many payload bytes to its network.
    Send {
        /// The receiver's rank.
        to: u32,
        /// Payload.
        bytes: f32,
    },
    /// It needs the next message from this rank before it goes on.
    Receive {
        /// The sender's rank.
        from: u32,
    },
}

/// The step of all workers.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Trace {
    /// By rank.
    pub workers: Vec<Vec<Op>>,
    /// Latency rounds: the longest chain of messages that wait for each other.
    pub rounds: u64,
    /// Entries of the update.
    pub delivered: f64,
}

impl Trace {
    /// So many workers that do nothing yet.
    pub fn new(workers: usize) -> Self {
        Self { workers: vec![Vec::new(); workers], ..Self::default() }
    }

    /// A worker's processor handles entries, if there are any.
    pub fn work(&mut self, rank: usize, part: Part, handled: Handled) {
        if handled.iter().any(|&entries| entries > 0.0) {
            self.workers[rank].push(Op::Work(part, Work::Handled(handled)));
        }
    }

    /// The same step timed again: of each piece of work the shorter time counts, for it was disturbed less. Nothing happens, and
    /// the answer is no, if it is another step.
    #[must_use]
    pub fn shorten(&mut self, again: &Self) -> bool {
        let untimed = |op: &Op| match *op {
            Op::Work(part, Work::Took(_)) => Op::Work(part, Work::Took(0.0)),
            op => op,
        };
        let mut pairs = self.workers.iter().zip(&again.workers);
        let alike = pairs.all(|(a, b)| a.iter().map(untimed).eq(b.iter().map(untimed)));
        if self.workers.len() != again.workers.len() || !alike {
            return false;
        }
        for pair in self.workers.iter_mut().flatten().zip(again.workers.iter().flatten()) {
            if let (Op::Work(_, Work::Took(seconds)), Op::Work(_, Work::Took(other))) = pair {
                *seconds = seconds.min(*other);
            }
        }
        true
    }

    /// Payload bytes that each worker receives.
    pub fn bytes_received(&self) -> Vec<f64> {
        let mut bytes = vec![0.0; self.workers.len()];
        for op in self.workers.iter().flatten() {
            if let Op::Send { to, bytes: sent } = op {
                bytes[*to as usize] += f64::from(*sent);
            }
        }
        bytes
    }

    /// Of several steps the middle one, by the bytes that its busiest worker receives, and these.
    pub fn middle(steps: &[Self]) -> Option<(u64, &Self)> {
        let most = |step: &Self| step.bytes_received().into_iter().fold(0.0, f64::max) as u64;
        let mut steps: Vec<(u64, &Self)> = steps.iter().map(|step| (most(step), step)).collect();
        steps.sort_by_key(|(bytes, _)| *bytes);
        steps.get(steps.len().saturating_sub(1) / 2).copied()
    }

    /// Messages of all workers together.
    pub fn messages(&self) -> u64 {
        let sends = |ops: &Vec<Op>| ops.iter().filter(|op| matches!(op, Op::Send { .. })).count() as u64;
        self.workers.iter().map(sends).sum()
    }
}

/// Entries accumulated, which no schedule counts.
pub fn accumulated(entries: f64) -> Handled {
    std::array::from_fn(|i| if i == 0 { entries as f32 } else { 0.0 })
}

/// What a schedule's run handled, each entry standing for so many.
pub fn handled(tally: Tally, scale: f64) -> Handled {
    let parts = tally.parts();
    std::array::from_fn(|i| if i == 0 { 0.0 } else { (parts[i - 1] * scale) as f32 })
}

/// Into how many messages a payload of so many bytes is cut, `most` at most.
pub fn pieces(bytes: f64, most: usize) -> usize {
    ((bytes / PIECE as f64).ceil() as usize).clamp(1, most)
}

/// Into how many messages a dense block of so many bytes is cut.
pub fn dense_pieces(bytes: f64) -> usize {
    (bytes / passed_on(bytes as usize) as f64).ceil() as usize
}
