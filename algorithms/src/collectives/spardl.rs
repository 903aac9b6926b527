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
//! | B-SAG (equation 7, corrected) | 2l + ⌈log2 d⌉ | 2k(P − d)/P + 2h(d − 1) + 2N(P − d)/d + 2(m − 1), with h from k/P to L and N, what the last selection leaves, too; the last term is that of notes |

use std::collections::BTreeSet;

use gleaner_units as units;

use super::spar_all_gather::{self, Bridge, Control};
use super::{Collective, CostRange, MethodError, Setting, Shape, Structure, bruck, ceil_log2, error};
use crate::Rank;
use crate::schedule::{After, Cost, How, Observed, Receive, Rule, Send, Slots, Step};

/// SparDL with its teams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparDl {
    /// Into how many teams the workers are divided, d: a divisor of P (§3.3).
    pub teams: u32,
    /// How the teams come together.
    pub sag: Sag,
}

/// One team.
impl Default for SparDl {
    fn default() -> Self {
        Self { teams: 1, sag: Sag::Auto }
    }
}

/// How SparDL's teams come together: Spar-All-Gather (§3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sag {
    /// R-SAG where the number of teams is a power of two, B-SAG otherwise.
    #[default]
    Auto,
    /// R-SAG: recursive doubling with a selection after each exchange.
    Recursive,
    /// B-SAG: a selection of h entries, then Bruck's all-gather.
    Bruck,
}

impl Sag {
    const NAMES: [(Self, &str); 3] =
        [(Self::Auto, "auto"), (Self::Recursive, "recursive"), (Self::Bruck, "bruck")];
}

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
    fn of(rank: Rank, workers: u32, teams: u32) -> Self {
        let members = workers / teams;
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

/// The divisors of a number of workers, ascending.
fn divisors(workers: u32) -> BTreeSet<u32> {
    // Those up to the root, and what each leaves.
    let small = (1..=workers.isqrt()).filter(|d| workers.is_multiple_of(*d));
    small.flat_map(|d| [d, workers / d]).collect()
}

impl Collective for SparDl {
    /// Only B-SAG learns.
    type State = Option<Control>;

    fn name(&self) -> &'static str {
        "spardl"
    }

    fn summary(&self) -> &'static str {
        "SparDL: 2⌈log2 P⌉ rounds, 4k(P−1)/P words; with d teams 2⌈log2 P/d⌉ + ⌈log2 d⌉ rounds"
    }

    fn options(&self) -> Vec<Setting> {
        let sag = Sag::NAMES.iter().find(|(sag, _)| *sag == self.sag).map_or("", |(_, name)| *name);
        vec![
            Setting {
                name: "teams",
                value: self.teams.to_string(),
                expects: "a divisor of the number of workers",
            },
            Setting { name: "sag", value: sag.into(), expects: "auto, recursive or bruck" },
        ]
    }

    fn with(&self, option: &str, value: &str) -> Option<Self> {
        match option {
            "teams" => Some(Self { teams: units::within(..)(value).ok()?, ..*self }),
            "sag" => {
                Sag::NAMES.iter().find(|(_, name)| *name == value).map(|&(sag, _)| Self { sag, ..*self })
            }
            _ => None,
        }
    }

    fn variant(&self) -> String {
        let teams = if self.teams == 1 { "1 team".into() } else { format!("{} teams", self.teams) };
        match self.sag {
            Sag::Auto if self.teams == 1 => String::new(),
            Sag::Auto => teams,
            Sag::Recursive => teams + " by R-SAG",
            Sag::Bruck => teams + " by B-SAG",
        }
    }

    /// Every number of teams in both ways, or in the number or way that was asked for.
    fn family(&self, workers: u32) -> Vec<Self> {
        let asked = |teams: &u32| [1, *teams].contains(&self.teams);
        let ways = |teams: u32| [Sag::Recursive, Sag::Bruck].map(|sag| Self { teams, sag });
        let several = divisors(workers).into_iter().filter(|&teams| teams > 1).filter(asked).flat_map(ways);
        let one = Some(Self::default()).filter(|_| self.teams == 1);
        one.into_iter().chain(several.filter(|m| [Sag::Auto, m.sag].contains(&self.sag))).collect()
    }

    fn accepts(&self, shape: &Shape) -> Result<(), MethodError> {
        let (workers, teams) = (shape.workers, self.teams);
        if teams == 0 || !workers.is_multiple_of(teams) {
            let divisors = error::listed(divisors(workers).iter().map(u32::to_string));
            return Err(MethodError::Refused(format!(
                "{workers} workers cannot be divided into {teams} equal teams; choose {divisors}"
            )));
        }
        if self.sag == Sag::Recursive && !teams.is_power_of_two() {
            return Err(MethodError::Refused(format!(
                "R-SAG needs a number of teams that is a power of two, and {teams} is not; choose B-SAG, or another number of teams"
            )));
        }
        Ok(())
    }

    fn blocks(&self, shape: &Shape) -> u32 {
        shape.workers / self.teams
    }

    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        if Bridge::of(self) == Bridge::Bruck { self.teams } else { 1 }
    }

    fn lane(&self, rank: Rank, shape: &Shape) -> u32 {
        let team = Seat::of(rank, shape.workers, self.teams).team;
        if Bridge::of(self) == Bridge::Bruck { team } else { 0 }
    }

    fn start(&self, shape: &Shape) -> Option<Control> {
        (Bridge::of(self) == Bridge::Bruck).then(|| Control::start(self.teams, shape))
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let seat = Seat::of(rank, shape.workers, self.teams);
        let mut steps = spar_reduce_scatter(seat, shape, structure, self.lane(rank, shape));
        steps.extend(spar_all_gather::steps(self, seat, shape, structure));
        let (position, members) = (seat.position, seat.members);
        let blocks = |first, count| Slots::cyclic(first, count, members);
        steps.extend(bruck::all_gather(position, members, |i| seat.member(i), blocks));
        steps
    }

    fn learn(&self, shape: &Shape, _: &Structure, state: &mut Option<Control>, observed: &Observed) {
        if let Some(control) = state {
            control.learn(self.teams, shape, observed);
        }
    }

    fn delivers(&self, shape: &Shape) -> (u64, u64) {
        let k = shape.k as u64;
        // B-SAG starts with h = k/P, which is all that is left of a block where the teams choose the same.
        if Bridge::of(self) == Bridge::Bruck { (k.div_ceil(u64::from(self.teams)), k) } else { (k, k) }
    }

    fn cost(&self, shape: &Shape) -> Option<CostRange> {
        let (d, m) = (u64::from(self.teams), u64::from(shape.workers / self.teams));
        let l = u64::from(ceil_log2(m as u32));
        let levels = u64::from(ceil_log2(self.teams));
        let len = shape.n as u64 / m;
        let block = |k: u64| (2 * k).min(len);
        let full = (shape.k as u64).div_ceil(m);
        let rounds = 2 * l + levels;
        // B-SAG's N, with each block of the last all-gather.
        let note = if Bridge::of(self) == Bridge::Bruck { 2 } else { 0 };
        let cost = |between: u64, gathered: u64| {
            let words = (m - 1) * block(full) + between + (m - 1) * (block(gathered) + note);
            Cost { rounds, messages: rounds, words_received: words, words_critical: words }
        };
        Some(match Bridge::of(self) {
            Bridge::None | Bridge::Recursive => CostRange::fixed(cost(levels * block(full), full)),
            Bridge::Bruck => {
                let least = (shape.k as u64).div_ceil(u64::from(shape.workers));
                CostRange {
                    low: cost((d - 1) * block(least), least),
                    high: cost((d - 1) * block(full), full),
                }
            }
        })
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
