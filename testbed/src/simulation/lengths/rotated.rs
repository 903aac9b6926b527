//! Symmetry reduction: of schedules that are rotations of one another, as a ring's are, one worker is enough.
//!
//! Where the hosts are equal as well, all workers do the same at the same time, and each receives what it sends. So one worker
//! that is its own peer says what all take.

use gleaner_algorithms::Block;
use gleaner_algorithms::schedule::Schedule;

/// The schedule of rank 0, if these are its rotations, cut the gradient evenly, and let it be its own peer.
pub(super) fn first_if_rotations(mut schedules: impl Iterator<Item = Schedule>) -> Option<Schedule> {
    let one = schedules.next()?;
    let fits = one.can_rotate() && is_even(&one) && receives_as_it_sends(&one);
    (fits && schedules.all(|other| one.is_rotated(&other))).then_some(one)
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
    let sent = schedule.exchanges().flat_map(|(sends, _)| sends).map(|send| (send.to.0 + p - w) % p);
    let received = schedule.exchanges().flat_map(|(_, receives)| receives);
    sent.eq(received.map(|receive| (w + p - receive.from.0) % p))
}
