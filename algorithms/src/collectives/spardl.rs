//! SparDL: Spar-Reduce-Scatter within each team, Spar-All-Gather between the teams, Bruck's all-gather within each
//! team.
//!
//! Zhao, Yin, Mao, Chen, Gao: SparDL: Distributed Deep Learning Training with Efficient Sparse Communication, §3 and
//! Algorithm 1. For any number of workers P and any number of teams d that divides it, with m = P/d workers in a team,
//! l = ⌈log2 m⌉ and L = dk/P entries in a block:
//!
//! | | rounds | words received by every worker |
//! |---|---|---|
//! | one team (equation 3) | 2l | 4k(P − 1)/P |
//! | R-SAG (equation 5) | 2l + log2 d | 4k(P − d)/P + 2L log2 d |
//! | B-SAG (equation 7, corrected) | 2l + ⌈log2 d⌉ | 2k(P − d)/P + 2h(d − 1) + 2N(P − d)/d, with h from k/P to L and N, what the last selection leaves, too |

use super::spar_all_gather::{self, Bridge};
use super::{Collective, CostRange, MethodError, Sag, Shape, Structure, bruck, ceil_log2, method};
use crate::Rank;
use crate::schedule::{After, Cost, How, Memory, Observed, Receive, Rule, Send, Slots, Step};

/// See the module.
#[derive(Debug)]
pub struct SparDl;

/// A worker's place in its team.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    /// Which team.
    pub(super) team: u32,
    /// Which member of it.
    pub(super) position: u32,
    /// Workers in a team, m.
    pub(super) members: u32,
}

impl Seat {
    fn of(rank: Rank, shape: &Shape) -> Self {
        let members = shape.workers / shape.teams;
        Self { team: rank.0 / members, position: rank.0 % members, members }
    }

    /// Another member of this team.
    fn member(self, position: u32) -> Rank {
        Rank(self.team * self.members + position)
    }

    /// The worker in the same position of another team.
    pub(super) fn counterpart(self, team: u32) -> Rank {
        Rank(team * self.members + self.position)
    }
}

impl Collective for SparDl {
    fn name(&self) -> &'static str {
        "spardl"
    }

    fn summary(&self) -> &'static str {
        "SparDL: 2⌈log2 P⌉ rounds, 4k(P−1)/P words; with d teams 2⌈log2 P/d⌉ + ⌈log2 d⌉ rounds"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn accepts(&self, shape: &Shape) -> Result<(), MethodError> {
        method::refuse_selector(self.name(), shape)?;
        let Shape { workers, teams, .. } = *shape;
        if teams == 0 || !workers.is_multiple_of(teams) {
            return Err(MethodError::Teams { teams, workers });
        }
        if shape.sag == Sag::Recursive && !teams.is_power_of_two() {
            return Err(MethodError::Recursive { teams });
        }
        Ok(())
    }

    fn blocks(&self, shape: &Shape) -> u32 {
        shape.workers / shape.teams
    }

    fn lanes(&self, shape: &Shape, _: &Structure) -> u32 {
        if Bridge::of(shape) == Bridge::Bruck { shape.teams } else { 1 }
    }

    fn lane(&self, rank: Rank, shape: &Shape) -> u32 {
        if Bridge::of(shape) == Bridge::Bruck { Seat::of(rank, shape).team } else { 0 }
    }

    fn memory(&self, shape: &Shape) -> Memory {
        if Bridge::of(shape) == Bridge::Bruck { spar_all_gather::memory(shape) } else { Memory::default() }
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let seat = Seat::of(rank, shape);
        let mut steps = spar_reduce_scatter(seat, shape, structure, self.lane(rank, shape));
        steps.extend(spar_all_gather::steps(seat, shape, structure));
        let (position, members) = (seat.position, seat.members);
        let blocks = |first, count| Slots::cyclic(first, count, members);
        steps.extend(bruck::all_gather(position, members, |i| seat.member(i), blocks));
        steps
    }

    fn learn(&self, shape: &Shape, _: &Structure, memory: &mut Memory, observed: &Observed) {
        if Bridge::of(shape) == Bridge::Bruck {
            spar_all_gather::learn(shape, memory, observed);
        }
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        let k = shape.k as u64;
        // B-SAG starts with h = k/P, which is all that is left of a block where the teams choose the same.
        if Bridge::of(shape) == Bridge::Bruck { (k.div_ceil(u64::from(shape.teams)), k) } else { (k, k) }
    }

    fn cost(&self, shape: &Shape) -> CostRange {
        let (d, m) = (u64::from(shape.teams), u64::from(shape.workers / shape.teams));
        let l = u64::from(ceil_log2(m as u32));
        let levels = u64::from(ceil_log2(shape.teams));
        let len = shape.n as u64 / m;
        let block = |k: u64| (2 * k).min(len);
        let full = (shape.k as u64).div_ceil(m);
        let rounds = 2 * l + levels;
        let cost = |between: u64, gathered: u64| {
            let words = (m - 1) * block(full) + between + (m - 1) * block(gathered);
            Cost { rounds, messages: rounds, words_received: words, words_critical: words }
        };
        match Bridge::of(shape) {
            Bridge::None | Bridge::Recursive => CostRange::fixed(cost(levels * block(full), full)),
            Bridge::Bruck => {
                let least = (shape.k as u64).div_ceil(u64::from(shape.workers));
                CostRange {
                    low: cost((d - 1) * block(least), least),
                    high: cost((d - 1) * block(full), full),
                }
            }
        }
    }
}

/// Spar-Reduce-Scatter within a team (§3.1, with "Optimization for SRS"). The member w keeps block w and cuts the others,
/// round the circle, into sending bags B₁ … B_l of 1, 2, 4, … blocks; the last one holds the E = m − 2^(l−1) that remain.
/// It sends them from the last to the first, each to the member at the distance of the bag's first block, which holds
/// all those blocks still (Theorem 3.1). Only the blocks about to be sent are sparsified, and at the end the one that
/// stays.
fn spar_reduce_scatter(seat: Seat, shape: &Shape, structure: &Structure, lane: u32) -> Vec<Step> {
    let rule = || Rule::Top(structure.allotment.clone());
    let (w, m) = (seat.position, seat.members);
    let blocks = |first, count| Slots::cyclic(first, count, m).in_lane(lane);
    let mut steps = Vec::new();
    for distance in (0..ceil_log2(m)).rev().map(|i| 1 << i) {
        let count = distance.min(m - distance);
        let bag = blocks(w + distance, count);
        steps.push(shape.keep(bag, rule()));
        steps.push(Step::Exchange {
            sends: vec![Send { to: seat.member((w + distance) % m), slots: bag, after: After::Drop }],
            receives: vec![Receive {
                from: seat.member((w + m - distance) % m),
                slots: blocks(w, count),
                how: How::Add,
            }],
        });
    }
    steps.push(shape.keep(blocks(w, 1), rule()));
    steps
}
