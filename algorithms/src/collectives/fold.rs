//! Folding surplus ranks in and out, for methods that need a power of two.

use crate::Rank;
use crate::schedule::{After, How, Receive, Send, Slots, Step};

/// What one worker does when only the first `core` = 2^⌊log2 P⌋ workers take part.
pub(super) enum Role {
    /// It takes part, also in place of a surplus rank, if it has one.
    Core { surplus: Option<Rank> },
    /// It hands its gradient to a core worker and gets the sum back.
    Surplus { host: Rank },
}

/// The largest power of two that is at most P.
pub(super) fn core(workers: u32) -> u32 {
    1 << workers.ilog2()
}

/// Surplus rank core + i is served by rank i.
pub(super) fn role(rank: Rank, workers: u32) -> Role {
    let core = core(workers);
    if rank.0 >= core {
        Role::Surplus { host: Rank(rank.0 - core) }
    } else {
        Role::Core { surplus: Some(Rank(rank.0 + core)).filter(|r| r.0 < workers) }
    }
}

/// Wraps the steps of the core workers: two more rounds when P is no power of two. The first carries what a surplus rank
/// holds, the last the whole result: n words each of a dense gradient, from 2k to 2Pk of selected entries.
pub(super) fn folded(rank: Rank, workers: u32, blocks: u32, steps: impl FnOnce() -> Vec<Step>) -> Vec<Step> {
    let all = Slots::range(0, blocks);
    let send = |to, after| Step::Exchange { sends: vec![Send { to, slots: all, after }], receives: vec![] };
    let receive =
        |from, how| Step::Exchange { sends: vec![], receives: vec![Receive { from, slots: all, how }] };
    match role(rank, workers) {
        Role::Surplus { host } => vec![send(host, After::Drop), receive(host, How::Place)],
        Role::Core { surplus: None } => steps(),
        Role::Core { surplus: Some(surplus) } => {
            let mut all = vec![receive(surplus, How::Add)];
            all.extend(steps());
            all.push(send(surplus, After::Retain));
            all
        }
    }
}
