//! Schedules that are turned copies of one another, as a ring's are: one worker stands for all.
//!
//! Rank r does with the ranks and blocks r places further on what rank 0 does with its own. Where the hosts are equal as well,
//! all workers do the same at the same time, and each receives what it sends. So one worker is enough, which is its own peer.

use gleaner_algorithms::schedule::{Schedule, Slots, Step};
use gleaner_algorithms::{Block, Rank};

/// The schedule of a worker that is its own peer and stands for all of these, if they are turned copies of the first and cut
/// the gradient evenly.
pub(super) fn one_for_all(mut schedules: impl Iterator<Item = Schedule>) -> Option<Schedule> {
    let mut one = schedules.next()?;
    if !is_even(&one) || !receives_as_it_sends(&one) || !schedules.all(|other| is_turned(&one, &other)) {
        return None;
    }
    for step in &mut one.steps {
        if let Step::Exchange { sends, receives } = step {
            sends.iter_mut().for_each(|send| send.to = one.rank);
            receives.iter_mut().for_each(|receive| receive.from = one.rank);
        }
    }
    Some(one)
}

/// Whether each block is as long as any other, but for one entry.
fn is_even(schedule: &Schedule) -> bool {
    let lens = || (0..schedule.partition.blocks() as u32).map(|b| schedule.partition.block_len(Block(b)));
    let (shortest, longest) = (lens().min().unwrap_or(0), lens().max().unwrap_or(0));
    longest - shortest <= 1
}

/// Whether the distances from sender to receiver are the same, in the same order, for what is sent and what is received: only
/// then is the next message from oneself the one that is needed next.
fn receives_as_it_sends(schedule: &Schedule) -> bool {
    let (p, w) = (schedule.workers, schedule.rank.0);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for step in &schedule.steps {
        if let Step::Exchange { sends, receives } = step {
            sent.extend(sends.iter().map(|send| (send.to.0 + p - w) % p));
            received.extend(receives.iter().map(|receive| (w + p - receive.from.0) % p));
        }
    }
    sent == received
}

fn is_turned(one: &Schedule, other: &Schedule) -> bool {
    let blocks = one.partition.blocks() as u32;
    let turn = Turn { by: other.rank.0 - one.rank.0, workers: one.workers, blocks };
    (blocks == 1 || blocks == one.workers)
        && other.partition == one.partition
        && (other.lanes, other.lane) == (one.lanes, one.lane)
        && other.steps.len() == one.steps.len()
        && one.steps.iter().zip(&other.steps).all(|(a, b)| turn.step(a, b))
}

/// By how many ranks and blocks one schedule is turned against another.
struct Turn {
    by: u32,
    workers: u32,
    blocks: u32,
}

impl Turn {
    fn rank(&self, a: Rank, b: Rank) -> bool {
        (a.0 + self.by) % self.workers == b.0
    }

    fn slots(&self, a: Slots, b: Slots) -> bool {
        (a.first.0 + self.by) % self.blocks == b.first.0 && a.count == b.count && a.lanes == b.lanes
    }

    /// Where the order of the blocks does not matter, all of them are all of them wherever they begin.
    fn set(&self, a: Slots, b: Slots) -> bool {
        let all = a.count == self.blocks && b.count == self.blocks && a.lanes == b.lanes;
        all || self.slots(a, b)
    }

    fn step(&self, a: &Step, b: &Step) -> bool {
        match (a, b) {
            (Step::Exchange { sends, receives }, Step::Exchange { sends: others, receives: theirs }) => {
                (sends.len(), receives.len()) == (others.len(), theirs.len())
                    && sends.iter().zip(others).all(|(a, b)| {
                        self.rank(a.to, b.to) && self.slots(a.slots, b.slots) && a.after == b.after
                    })
                    && receives.iter().zip(theirs).all(|(a, b)| {
                        self.rank(a.from, b.from) && self.slots(a.slots, b.slots) && a.how == b.how
                    })
            }
            (Step::Keep { slots: a, rule, coding }, Step::Keep { slots: b, rule: r, coding: c }) => {
                self.set(*a, *b) && (rule, coding) == (r, c)
            }
            (Step::Propose { slots: a, rule }, Step::Propose { slots: b, rule: r }) => {
                self.set(*a, *b) && rule == r
            }
            (Step::Align { slots: a, coding }, Step::Align { slots: b, coding: c }) => {
                self.set(*a, *b) && coding == c
            }
            (Step::Annotate { slots: a, note }, Step::Annotate { slots: b, note: n }) => {
                self.set(*a, *b) && note == n
            }
            (Step::Sum { slots: a }, Step::Sum { slots: b })
            | (Step::Split { slots: a }, Step::Split { slots: b }) => self.set(*a, *b),
            _ => false,
        }
    }
}
