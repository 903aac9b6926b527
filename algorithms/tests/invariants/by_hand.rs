//! Schedules written by hand, in few words.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::{Collective, MethodError, Number, Shape, State, Structure};
use gleaner_algorithms::schedule::{After, How, Memory, Receive, Rule, Schedule, Send, Slots, Step};
use gleaner_algorithms::{Method, Partition, Rank};

/// One schedule for each list of steps, on a gradient of n entries in this many blocks.
pub fn schedules(n: usize, blocks: usize, steps: Vec<Vec<Step>>) -> Vec<Schedule> {
    let partition = Partition::even(n, blocks);
    let workers = steps.len() as u32;
    let ranks = (0..workers).map(Rank);
    ranks
        .zip(steps)
        .map(|(rank, steps)| Schedule {
            rank,
            workers,
            partition: partition.clone(),
            lanes: 1,
            lane: 0,
            steps,
        })
        .collect()
}

pub fn slots(first: u32, count: u32) -> Slots {
    Slots::range(first, count)
}

/// Of every named block the k largest, k the same in all `of` blocks.
pub fn keep(slots: Slots, k: u32, of: usize) -> Step {
    Step::Keep { slots, rule: Rule::Top(vec![k; of].into()), coding: Coding::Exact }
}

pub fn exchange(sends: Vec<Send>, receives: Vec<Receive>) -> Step {
    Step::Exchange { sends, receives }
}

/// A slot leaves.
pub fn give(to: u32, slots: Slots) -> Send {
    Send { to: Rank(to), slots, after: After::Drop }
}

/// A copy of a slot leaves.
pub fn copy(to: u32, slots: Slots) -> Send {
    Send { to: Rank(to), slots, after: After::Retain }
}

pub fn add(from: u32, slots: Slots) -> Receive {
    Receive { from: Rank(from), slots, how: How::Add }
}

pub fn place(from: u32, slots: Slots) -> Receive {
    Receive { from: Rank(from), slots, how: How::Place }
}

/// Both send a copy of all and add what comes: the whole of one block.
pub fn swap(peer: u32) -> Step {
    exchange(vec![copy(peer, slots(0, 1))], vec![add(peer, slots(0, 1))])
}

/// Numbers that were learnt before: agreed ones, and a worker's own.
#[derive(Clone, Debug, Default)]
struct Given(Vec<f64>, Vec<f64>);

impl State for Given {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        self.0.iter_mut().map(|number| number as &mut dyn Number).collect()
    }

    fn own(&mut self) -> Vec<&mut dyn Number> {
        self.1.iter_mut().map(|number| number as &mut dyn Number).collect()
    }
}

/// Schedules that were written out, as a method.
#[derive(Clone, Debug)]
struct ByHand(Vec<Schedule>, Memory);

impl Collective for ByHand {
    type State = Given;

    fn name(&self) -> &'static str {
        "by-hand"
    }

    fn summary(&self) -> &'static str {
        "written out"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn blocks(&self, _: &Shape) -> u32 {
        self.0[0].partition.blocks() as u32
    }

    fn lanes(&self, _: &Shape, _: &Structure) -> u32 {
        self.0[0].lanes
    }

    fn lane(&self, rank: Rank, _: &Shape) -> u32 {
        self.0[rank.index()].lane
    }

    fn start(&self, _: &Shape) -> Given {
        Given(self.1.agreed.clone(), self.1.own.clone())
    }

    fn structure(&self, _: &Shape, _: u64, _: &Given) -> Result<Structure, MethodError> {
        Structure::of(self.0[0].partition.clone(), 0, 0)
    }

    fn steps(&self, rank: Rank, _: &Shape, _: &Structure) -> Vec<Step> {
        self.0[rank.index()].steps.clone()
    }
}

/// The method that runs these schedules, with what was learnt before.
pub fn method(schedules: Vec<Schedule>, memory: Memory) -> Method {
    Method::of(ByHand(schedules, memory)).k(0)
}
