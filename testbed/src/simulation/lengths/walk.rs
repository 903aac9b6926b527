//! The walk of all workers through their schedules.

use std::collections::{HashMap, VecDeque};

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::Shape;
use gleaner_algorithms::schedule::{Place, Schedule, Step, Tally};
use gleaner_algorithms::{Block, Partition};

use super::MOST_PIECES;
use super::held::{Form, Held, Sizes};
use crate::simulation::overlap::Overlap;
use crate::simulation::trace::{Part, Trace, accumulated, handled};

/// A message under way.
pub(super) struct Flight {
    pub held: Vec<Option<Held>>,
    /// Messages with headers and sparse entries, then those with dense values.
    pub open: usize,
    pub lent: usize,
    pub round: u64,
}

pub(super) struct Worker {
    pub held: Vec<Option<Held>>,
    pub step: usize,
    pub sent: bool,
    pub received: usize,
    pub finished_round: u64,
    pub round: u64,
    /// Whether the next exchange's block went ahead.
    pub passed_on: Option<usize>,
    pub tally: Tally,
    /// Own entries chosen, and entries dropped later.
    pub chosen: f64,
    pub dropped: f64,
    pub selects: bool,
}

impl Worker {
    pub(super) fn place(&self) -> (usize, bool, usize) {
        (self.step, self.sent, self.received)
    }
}

pub(super) struct Walk<'a> {
    pub partition: &'a Partition,
    pub blocks: usize,
    pub lanes: u32,
    pub n: f64,
    pub k: f64,
    pub sizes: Sizes,
    pub overlap: Overlap,
    /// Into how many messages a payload is cut at most.
    pub pieces: usize,
    pub workers: Vec<Worker>,
    pub flights: HashMap<(u32, u32), VecDeque<Flight>>,
    pub trace: Trace,
}

impl<'a> Walk<'a> {
    pub(super) fn new(schedules: &'a [Schedule], sizes: Sizes, overlap: Overlap, shape: &Shape) -> Self {
        let partition = &schedules[0].partition;
        let (blocks, lanes) = (partition.blocks(), schedules[0].lanes);
        let worker = |schedule: &Schedule| {
            let mut held = vec![None; blocks * lanes as usize];
            let own = schedule.lane as usize * blocks;
            held[own..own + blocks].fill(Some(Held::new(Form::Own, 0.0, 0.0)));
            Worker {
                held,
                step: 0,
                sent: false,
                received: 0,
                finished_round: 0,
                round: 0,
                passed_on: None,
                tally: Tally::default(),
                chosen: 0.0,
                dropped: 0.0,
                selects: false,
            }
        };
        let mut trace = Trace::new(schedules.len());
        (0..schedules.len()).for_each(|rank| trace.work(rank, Part::Select, accumulated(shape.n as f64)));
        Self {
            partition,
            blocks,
            lanes,
            n: shape.n as f64,
            k: shape.k as f64,
            sizes,
            overlap,
            pieces: MOST_PIECES as usize,
            workers: schedules.iter().map(worker).collect(),
            flights: HashMap::new(),
            trace,
        }
    }

    pub(super) fn len(&self, place: Place) -> f64 {
        self.partition.block_len(place.block) as f64
    }

    pub(super) fn index(&self, place: Place) -> usize {
        place.lane as usize * self.blocks + place.block.index()
    }

    /// Runs a worker until it waits. Says whether it has finished.
    pub(super) fn go_on(&mut self, rank: usize, schedule: &Schedule) -> bool {
        while let Some(step) = schedule.steps.get(self.workers[rank].step) {
            match step {
                Step::Keep { slots, rule, coding } => {
                    self.keep(rank, schedule, *slots, rule, *coding != Coding::Exact);
                }
                Step::Sum { slots } => slots.blocks(self.blocks).for_each(|block| self.sum(rank, block)),
                Step::Split { slots } => slots.blocks(self.blocks).for_each(|block| self.split(rank, block)),
                Step::Annotate { slots, .. } => {
                    for place in slots.places(self.blocks, self.lanes) {
                        let index = self.index(place);
                        if let Some(held) = &mut self.workers[rank].held[index] {
                            held.note = 1;
                        }
                    }
                }
                Step::Propose { slots, rule } => self.propose(rank, *slots, rule),
                Step::Align { slots, coding } => {
                    self.align(rank, schedule, *slots, *coding != Coding::Exact);
                }
                Step::Exchange { sends, receives } => {
                    if !self.workers[rank].sent {
                        let worker = &mut self.workers[rank];
                        (worker.sent, worker.round) = (true, worker.finished_round + 1);
                        let ahead = worker.passed_on.take();
                        sends.iter().for_each(|send| self.send(rank, send, ahead));
                    }
                    while let Some(receive) = receives.get(self.workers[rank].received) {
                        self.flush(rank, Part::Select);
                        let queue = self.flights.entry((receive.from.0, rank as u32)).or_default();
                        let Some(flight) = queue.pop_front() else { return false };
                        let last = self.workers[rank].received + 1 == receives.len();
                        let onward = schedule.passes_on(self.workers[rank].step).filter(|_| last);
                        self.receive(rank, receive, flight, onward);
                        self.workers[rank].received += 1;
                    }
                    let worker = &mut self.workers[rank];
                    (worker.sent, worker.received, worker.finished_round) = (false, 0, worker.round);
                }
            }
            self.workers[rank].step += 1;
        }
        true
    }

    /// Writes down what was handled since the last time.
    pub(super) fn flush(&mut self, rank: usize, part: Part) {
        let tally = std::mem::take(&mut self.workers[rank].tally);
        self.trace.work(rank, part, handled(tally, 1.0));
    }

    /// What committing handles, and the trace.
    pub(super) fn finish(mut self) -> Trace {
        for rank in 0..self.workers.len() {
            self.flush(rank, Part::Select);
            let mut tally = Tally::default();
            let mut delivered = 0.0;
            let worker = &self.workers[rank];
            for block in (0..self.blocks as u32).map(Block) {
                let len = self.partition.block_len(block) as f64;
                match worker.held[block.index()] {
                    Some(held) if held.form == Form::Sparse || held.form == Form::Aligned => {
                        tally.committed += held.entries();
                        delivered += held.entries();
                    }
                    Some(held) => {
                        delivered += if held.form == Form::Own { len } else { held.entries() };
                        tally.settled += if worker.selects { len } else { 0.0 };
                    }
                    None => {}
                }
            }
            tally.cleared += worker.chosen;
            tally.committed += worker.dropped;
            let round = worker.finished_round;
            self.trace.rounds = self.trace.rounds.max(round);
            self.trace.delivered = delivered;
            self.trace.work(rank, Part::Merge, handled(tally, 1.0));
        }
        self.trace
    }
}
