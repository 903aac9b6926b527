//! The walk of all workers through their schedules.

use std::collections::{HashMap, VecDeque};

use gleaner_algorithms::collectives::Shape;
use gleaner_algorithms::schedule::{Machine, Place, Progress, Schedule, Slots, Store, Tally};
use gleaner_algorithms::{Block, Method, Rank};

use super::held::{Form, Held, Sizes};
use super::{MOST_IN_PIECES, MOST_PIECES};
use crate::Error;
use crate::simulation::overlap::Overlap;
use crate::simulation::trace::{Part, Trace, accumulated, handled};

/// A message under way.
pub(super) struct Flight {
    pub slots: Slots,
    pub held: Vec<Option<Held>>,
    /// Messages with headers and sparse entries, then those with dense values.
    pub open: usize,
    pub lent: usize,
    pub round: u64,
}

/// What is known of a worker besides what it holds.
#[derive(Default)]
pub(super) struct Worker {
    /// Whether the next exchange's block went ahead.
    pub passed_on: Option<usize>,
    pub tally: Tally,
    /// Own entries chosen, and entries dropped later.
    pub chosen: f64,
    pub dropped: f64,
    pub selects: bool,
}

/// All that the readers of all workers know together.
pub(super) struct Walk<'a> {
    /// The method's name.
    method: &'static str,
    /// Of all ranks, or of rank 0 where the others are rotations.
    pub schedules: &'a [Schedule],
    pub n: f64,
    pub k: f64,
    pub sizes: Sizes,
    pub overlap: Overlap,
    /// Into how many messages a payload is cut at most.
    pub pieces: usize,
    /// Whose machine is running.
    pub rank: usize,
    pub workers: Vec<Worker>,
    pub flights: HashMap<(u32, u32), VecDeque<Flight>>,
    pub trace: Trace,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        method: &Method,
        schedules: &'a [Schedule],
        overlap: Overlap,
        shape: &Shape,
    ) -> Result<Self, Error> {
        let mut trace = Trace::new(schedules.len());
        (0..schedules.len()).for_each(|rank| trace.work(rank, Part::Select, accumulated(shape.n as f64)));
        let messages: u64 = schedules.iter().map(Schedule::messages).sum();
        Ok(Self {
            method: method.collective().name(),
            schedules,
            n: shape.n as f64,
            k: shape.k as f64,
            sizes: Sizes::new(method)?,
            overlap,
            pieces: (MOST_IN_PIECES / messages.max(1)).clamp(1, MOST_PIECES) as usize,
            rank: 0,
            workers: schedules.iter().map(|_| Worker::default()).collect(),
            flights: HashMap::new(),
            trace,
        })
    }

    /// Runs all workers to their ends.
    pub(super) fn run(mut self) -> Result<Trace, Error> {
        let schedules = self.schedules;
        let machine = |schedule: &Schedule| {
            let mut held = Store::new(schedule.partition.blocks(), schedule.lanes);
            for block in (0..held.blocks() as u32).map(Block) {
                *held.at(Place { block, lane: schedule.lane }) = Some(Held::new(Form::Own, 0.0, 0.0));
            }
            Machine::new(held)
        };
        let mut machines: Vec<Machine<Self>> = schedules.iter().map(machine).collect();
        loop {
            let (mut progress, mut waiting) = (false, None);
            for (rank, (schedule, machine)) in schedules.iter().zip(&mut machines).enumerate() {
                self.rank = rank;
                let before = machine.place();
                while let Progress::Waiting(from) = machine.advance(schedule, &mut self)? {
                    self.flush(Part::Select);
                    let Some(flight) = self.next_from(from) else {
                        waiting = Some(rank);
                        break;
                    };
                    machine.receive(schedule, &mut self, (from, flight.round), flight)?;
                }
                progress |= machine.place() != before;
            }
            match waiting {
                None => break,
                Some(rank) if !progress => {
                    let (method, problem) = (self.method, "waits for a message that is never sent");
                    return Err(format!("the schedules of {method} do not end: rank {rank} {problem}").into());
                }
                Some(_) => {}
            }
        }
        for (rank, machine) in machines.iter().enumerate() {
            self.rank = rank;
            self.finish(machine);
        }
        Ok(self.trace)
    }

    pub(super) fn worker(&mut self) -> &mut Worker {
        &mut self.workers[self.rank]
    }

    /// A peer, as the trace names it: one worker that runs in place of all is its own.
    pub(super) fn peer(&self, rank: Rank) -> u32 {
        if self.schedules.len() > 1 { rank.0 } else { 0 }
    }

    /// The next message from a peer to this worker, if it was sent.
    fn next_from(&mut self, from: Rank) -> Option<Flight> {
        let peers = (self.peer(from), self.rank as u32);
        let mut flight = self.flights.get_mut(&peers)?.pop_front()?;
        if self.schedules.len() == 1 {
            // What this one sends, the peer sends, rotated.
            flight.slots = flight.slots.rotated_with(&mut flight.held, from.0, &self.schedules[0]);
        }
        Some(flight)
    }

    pub(super) fn len(&self, place: Place) -> f64 {
        self.schedules[0].partition.block_len(place.block) as f64
    }

    /// Writes down what was handled since the last time.
    pub(super) fn flush(&mut self, part: Part) {
        let tally = std::mem::take(&mut self.worker().tally);
        self.trace.work(self.rank, part, handled(tally, 1.0));
    }

    /// Writes down what committing handles.
    fn finish(&mut self, machine: &Machine<Self>) {
        self.flush(Part::Select);
        let worker = &self.workers[self.rank];
        let mut tally = Tally { cleared: worker.chosen, committed: worker.dropped, ..Tally::default() };
        let mut delivered = 0.0;
        for block in (0..machine.held.blocks() as u32).map(Block) {
            let place = Place { block, lane: 0 };
            let len = self.len(place);
            match machine.held.get(place) {
                Some(held) if held.form == Form::Sparse || held.form == Form::Aligned => {
                    tally.committed += held.entries();
                    delivered += held.entries();
                }
                Some(held) => {
                    delivered += if held.form == Form::Own { len } else { held.entries() };
                    tally.committed_dense += if worker.selects { len } else { 0.0 };
                }
                None => {}
            }
        }
        self.trace.rounds = self.trace.rounds.max(machine.finished());
        self.trace.delivered = delivered;
        self.trace.work(self.rank, Part::Merge, handled(tally, 1.0));
    }
}
