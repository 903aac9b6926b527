//! Spar-All-Gather: how SparDL's teams come together (SparDL, §3.3).
//!
//! After Spar-Reduce-Scatter the workers in the same position of all d teams hold the same block, each with the sum over
//! its own team. R-SAG and B-SAG both end with the same L = dk/P entries of the sum over all teams on all of them.

use super::spardl::{Sag, Seat, SparDl};
use super::{Number, Shape, State, Structure, bruck};
use crate::schedule::{After, How, Note, Observed, Receive, Register, Rule, Send, Slots, Step};
use crate::{Block, Rank};

/// How the teams come together.
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
    pub(super) fn of(&SparDl { teams, sag }: &SparDl) -> Self {
        match sag {
            _ if teams == 1 => Bridge::None,
            Sag::Bruck => Bridge::Bruck,
            Sag::Auto if !teams.is_power_of_two() => Bridge::Bruck,
            Sag::Auto | Sag::Recursive => Bridge::Recursive,
        }
    }
}

pub(super) fn steps(of: &SparDl, seat: Seat, shape: &Shape, structure: &Structure) -> Vec<Step> {
    match Bridge::of(of) {
        Bridge::None => Vec::new(),
        Bridge::Recursive => recursive(of.teams, seat, shape, structure),
        Bridge::Bruck => by_bruck(of.teams, seat, shape, structure),
    }
}

/// R-SAG: in exchange t the teams at distance 2^t swap all they hold, add and select L again. 2^(t+1) workers then hold
/// the same bag and drop the same entries; the checker derives that each keeps 1/2^(t+1) of them (the paper's half is
/// right in the first exchange).
fn recursive(teams: u32, seat: Seat, shape: &Shape, structure: &Structure) -> Vec<Step> {
    let block = Slots::one(Block(seat.position));
    let exchange = |peer: Rank| Step::Exchange {
        sends: vec![Send { to: peer, slots: block, after: After::Retain }],
        receives: vec![Receive { from: peer, slots: block, how: How::Add }],
    };
    let rounds = (0..teams.trailing_zeros()).map(|t| seat.counterpart(seat.team ^ (1 << t)));
    rounds
        .flat_map(|peer| [exchange(peer), shape.keep(block, Rule::Top(structure.allotment.clone()))])
        .collect()
}

/// Holds h.
const H: Register = Register::Agreed(0);

/// B-SAG: each team selects its h largest, Bruck's all-gather brings them to all teams, which add them up in the same
/// order and select L. How many entries there were before that last selection, N, is sent to all with the block, and sets
/// the next h.
fn by_bruck(teams: u32, seat: Seat, shape: &Shape, structure: &Structure) -> Vec<Step> {
    let block = Slots::one(Block(seat.position));
    let most = || structure.allotment.clone();
    let mut steps = vec![shape.keep(block.in_lane(seat.team), Rule::TopOf { register: H, most: most() })];
    let lanes = |first, count| block.in_lanes(first, count, teams);
    steps.extend(bruck::all_gather(seat.team, teams, |team| seat.counterpart(team), lanes));
    steps.push(Step::Sum { slots: block });
    steps.push(shape.keep(block, Rule::Top(most())));
    steps.push(Step::Annotate { slots: block, note: Note::Seen });
    steps
}

/// What B-SAG learns: how many entries a team selects.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// Entries that a team selects of its block.
    h: f64,
    /// By how many h changes.
    step: f64,
    /// Whether the last adjustment went the same way as the one before it.
    flag: bool,
}

impl State for Control {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        vec![&mut self.h, &mut self.step, &mut self.flag]
    }

    /// h keeps its place between its bounds, which go with k/P.
    fn migrate(self, from: &Shape, to: &Shape) -> Self {
        Self { h: self.h / least(from) * least(to), ..self }
    }
}

/// k/P, and at least one entry: where all teams choose different ones, these are L together.
fn least(shape: &Shape) -> f64 {
    (shape.k as f64 / f64::from(shape.workers)).max(1.0)
}

impl Control {
    pub(super) fn start(teams: u32, shape: &Shape) -> Self {
        let (k, p, d) = (shape.k as f64, f64::from(shape.workers), f64::from(teams));
        Self { h: least(shape), step: 0.01 * k * (d - 1.0) / p, flag: false }
    }

    /// Algorithm 2, with N and L summed over the blocks: as long as h goes the right way its steps are doubled every other
    /// time; when it has gone too far it turns round at half the step. h stays between k/P and dk/P.
    pub(super) fn learn(&mut self, teams: u32, shape: &Shape, observed: &Observed) {
        // A hostile note is a number of entries like any other, however large.
        let seen = observed.notes.iter().flatten().filter_map(|note| note.first());
        let too_many = seen.fold(0, |sum: u64, &n| sum.saturating_add(n)) > shape.k as u64;
        if too_many == (self.step > 0.0) {
            self.step *= -0.5;
            self.flag = false;
        } else {
            if self.flag {
                self.step *= 2.0;
            }
            self.flag = !self.flag;
        }
        let most = least(shape) * f64::from(teams);
        self.h = (self.h + self.step).clamp(least(shape), most);
        // A step that h could never take would only have to be taken back, and one below an entry would change nothing:
        // after many turns h could not follow a change any more.
        self.step = self.step.abs().clamp(1.0, most).copysign(self.step);
    }
}
