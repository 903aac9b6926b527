//! Spar-All-Gather: how SparDL's teams come together (SparDL, §3.3).
//!
//! After Spar-Reduce-Scatter the workers in the same position of all d teams hold the same block, each with the sum over
//! its own team. R-SAG and B-SAG both end with the same L = dk/P entries of the sum over all teams on all of them.

use super::spardl::Seat;
use super::{Sag, Shape, Structure, bruck};
use crate::schedule::{After, How, Memory, Note, Observed, Receive, Register, Rule, Send, Slots, Step};
use crate::{Block, Rank};

/// How the teams of a shape come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bridge {
    /// There is one team.
    None,
    /// R-SAG.
    Recursive,
    /// B-SAG.
    Bruck,
}

impl Bridge {
    pub(super) fn of(shape: &Shape) -> Self {
        match shape.sag {
            _ if shape.teams == 1 => Bridge::None,
            Sag::Bruck => Bridge::Bruck,
            Sag::Auto if !shape.teams.is_power_of_two() => Bridge::Bruck,
            Sag::Auto | Sag::Recursive => Bridge::Recursive,
        }
    }
}

pub(super) fn steps(seat: Seat, shape: &Shape, structure: &Structure) -> Vec<Step> {
    match Bridge::of(shape) {
        Bridge::None => Vec::new(),
        Bridge::Recursive => recursive(seat, shape, structure),
        Bridge::Bruck => by_bruck(seat, shape, structure),
    }
}

/// R-SAG: in exchange t the teams at distance 2^t swap all they hold, add and select L again. 2^(t+1) workers then hold
/// the same bag and drop the same entries; the checker derives that each keeps 1/2^(t+1) of them (the paper's half is
/// right in the first exchange).
fn recursive(seat: Seat, shape: &Shape, structure: &Structure) -> Vec<Step> {
    let block = Slots::one(Block(seat.position));
    let exchange = |peer: Rank| Step::Exchange {
        sends: vec![Send { to: peer, slots: block, after: After::Retain }],
        receives: vec![Receive { from: peer, slots: block, how: How::Add }],
    };
    let rounds = (0..shape.teams.trailing_zeros()).map(|t| seat.counterpart(seat.team ^ (1 << t)));
    rounds
        .flat_map(|peer| [exchange(peer), shape.keep(block, Rule::Top(structure.allotment.clone()))])
        .collect()
}

/// Holds h.
const H: Register = Register::Agreed(0);

/// B-SAG: each team selects its h largest, Bruck's all-gather brings them to all teams, which add them up in the same
/// order and select L. How many entries there were before that last selection, N, is told to all with the block, and sets
/// the next h.
fn by_bruck(seat: Seat, shape: &Shape, structure: &Structure) -> Vec<Step> {
    let block = Slots::one(Block(seat.position));
    let most = || structure.allotment.clone();
    let mut steps = vec![shape.keep(block.in_lane(seat.team), Rule::TopOf { register: H, most: most() })];
    let lanes = |first, count| block.in_lanes(first, count, shape.teams);
    steps.extend(bruck::all_gather(seat.team, shape.teams, |team| seat.counterpart(team), lanes));
    steps.push(Step::Sum { slots: block });
    steps.push(shape.keep(block, Rule::Top(most())));
    steps.push(Step::Annotate { slots: block, note: Note::Seen });
    steps
}

/// h, the step by which it changes, and whether the last adjustment went the same way as the one before it.
pub(super) fn memory(shape: &Shape) -> Memory {
    let (k, p, d) = (shape.k as f64, f64::from(shape.workers), f64::from(shape.teams));
    let agreed = vec![least(shape), 0.01 * k * (d - 1.0) / p, 0.0];
    Memory { agreed, ..Memory::default() }
}

/// k/P, and at least one entry: where all teams choose different ones, these are L together.
fn least(shape: &Shape) -> f64 {
    (shape.k as f64 / f64::from(shape.workers)).max(1.0)
}

/// Algorithm 2, with N and L summed over the blocks: as long as h goes the right way its steps are doubled every other
/// time; when it has gone too far it turns round at half the step. h stays between k/P and dk/P.
pub(super) fn learn(shape: &Shape, memory: &mut Memory, observed: &Observed) {
    let seen: u64 = observed.notes.iter().flatten().filter_map(|note| note.first()).sum();
    let [h, step, flag] = &mut memory.agreed[..] else { return };
    let too_many = seen > shape.k as u64;
    if too_many != (*step > 0.0) {
        if *flag != 0.0 {
            *step *= 2.0;
            *flag = 0.0;
        } else {
            *flag = 1.0;
        }
    } else {
        *step *= -0.5;
        *flag = 0.0;
    }
    let most = (least(shape) * f64::from(shape.teams)).max(least(shape));
    *h = (*h + *step).clamp(least(shape), most);
    // A step that h could never take would only have to be taken back, and one below an entry would change nothing: after
    // many turns h could not follow a change any more.
    *step = step.abs().clamp(1.0, most).copysign(*step);
}
