//! The one machine that reads schedules.
//!
//! It owns the program counter, the slots, and the order of sending and receiving. What a slot *holds* belongs to a
//! [`Reader`]: symbols prove a schedule ([`check`](super::check())), values run it ([`Execution`](super::Execution)), lengths
//! simulate it. What a step means is written once in each reader, and a reader that lacks a step does not compile.

use std::collections::VecDeque;

use super::{Lanes, Note, Place, Receive, Rule, Schedule, Send, Slots, Step};
use crate::bag::Coding;
use crate::{Block, Rank};

/// What slots hold, and how each step changes it.
pub trait Reader {
    /// What one slot holds.
    type Held;
    /// What comes from a peer at once.
    type Message;
    /// A piece of computing that may be done elsewhere, in any order with the others of its step.
    type Work;
    /// Why a step cannot be done.
    type Error: From<Fault>;

    /// Keeps what the rule chooses of some slots. Work that is handed out has taken its slots with it; the machine continues when
    /// all of it is back.
    ///
    /// # Errors
    /// Those of the reader, here and in all other steps.
    fn keep(
        &mut self,
        held: &mut Slotted<Self>,
        at: usize,
        slots: Slots,
        rule: &Rule,
        coding: Coding,
    ) -> Works<Self>;

    /// Stores the indices that a rule chooses of the worker's own accumulator.
    fn propose(&mut self, held: &mut Slotted<Self>, at: usize, slots: Slots, rule: &Rule) -> Works<Self>;

    /// Keeps the worker's own values at the indices that were proposed.
    fn align(&mut self, held: &mut Slotted<Self>, at: usize, slots: Slots, coding: Coding) -> Did<Self>;

    /// Adds up all lanes of a block.
    fn sum(&mut self, held: &mut Slotted<Self>, at: usize, block: Block) -> Did<Self>;

    /// Cuts the bag of a block into as many pieces as there are lanes.
    fn split(&mut self, held: &mut Slotted<Self>, at: usize, block: Block) -> Did<Self>;

    /// Ties a note to some bags.
    fn annotate(&mut self, held: &mut Slotted<Self>, at: usize, slots: Slots, note: Note) -> Did<Self>;

    /// Sends some slots, in a latency round.
    fn send(&mut self, held: &mut Slotted<Self>, at: usize, send: &Send, round: u64) -> Did<Self>;

    /// Takes in a message for a receive. Returns whether the receive is complete.
    ///
    /// # Errors
    /// As the reader has them.
    fn receive(
        &mut self,
        held: &mut Slotted<Self>,
        at: Arrival<'_>,
        message: Self::Message,
    ) -> Result<bool, Self::Error>;

    /// A step is done, which began in one latency round and ended in another.
    fn passed(&mut self, _at: usize, _began: u64, _ended: u64) {}
}

/// The slots of a reader.
pub type Slotted<R> = Store<<R as Reader>::Held>;
/// The result of most steps.
pub type Did<R> = Result<(), <R as Reader>::Error>;
/// The result of a choice of entries: work that is not done yet.
pub type Works<R> = Result<Vec<<R as Reader>::Work>, <R as Reader>::Error>;

/// For which receive something came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The step, by its place in the schedule.
    pub step: usize,
    /// Which of its receives.
    pub index: usize,
    /// That receive.
    pub receive: &'a Receive,
    /// Whether it is the step's last.
    pub last: bool,
    /// The latency round that the exchange has reached, this message included.
    pub round: u64,
}

/// A step that names what does not exist, or a message that no step waits for. No checked schedule has such steps.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A peer or slots that do not exist.
    #[error("step {step} of {rank} names a peer or slots {slots} that do not exist")]
    Nowhere {
        /// Whose step.
        rank: Rank,
        /// The step.
        step: usize,
        /// The slots that it names.
        slots: Slots,
    },
    /// Work that was handed out and is not back, where nothing else can be done.
    #[error("work that was handed out is not back yet; expected it to be done first")]
    Elsewhere,
    /// A choice of entries that was never proposed.
    #[error(
        "{rank} keeps entries that are sampled at random; those can only be proposed, and kept by aligning to the proposal"
    )]
    Sampled {
        /// The worker that keeps them.
        rank: Rank,
    },
    /// A message that is not waited for.
    #[error("{rank} receives a message from {from} that it does not wait for")]
    Unexpected {
        /// Its receiver.
        rank: Rank,
        /// Its sender.
        from: Rank,
    },
}

crate::sentence::debug_as_sentence!(Fault);

/// The state of a machine after it has run.
#[derive(Debug, PartialEq)]
pub enum Progress<W> {
    /// It needs the next message from this rank.
    Waiting(Rank),
    /// This is to be done, here or elsewhere, and given back.
    Work(W),
    /// Work that was handed out is not back yet.
    Working,
    /// It is done.
    Finished,
}

/// What a worker's slots hold.
#[derive(Clone, Debug)]
pub struct Store<H> {
    blocks: usize,
    lanes: u32,
    held: Vec<Option<H>>,
}

impl<H> Store<H> {
    /// Empty slots for this many blocks in this many lanes.
    pub fn new(blocks: usize, lanes: u32) -> Self {
        let held = (0..blocks * lanes as usize).map(|_| None).collect();
        Self { blocks, lanes, held }
    }

    /// What is held in a place.
    pub fn at(&mut self, place: Place) -> &mut Option<H> {
        &mut self.held[place.lane as usize * self.blocks + place.block.index()]
    }

    /// As [`at`](Self::at), to look at.
    pub fn get(&self, place: Place) -> Option<&H> {
        self.held[place.lane as usize * self.blocks + place.block.index()].as_ref()
    }

    /// The places of some slots, lane by lane.
    pub fn places(&self, slots: Slots) -> impl Iterator<Item = Place> + use<H> {
        slots.places(self.blocks, self.lanes)
    }

    /// The places of a block in all lanes.
    pub fn lanes_of(&self, block: Block) -> impl Iterator<Item = Place> + use<H> {
        (0..self.lanes).map(move |lane| Place { block, lane })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many lanes there are.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    fn has(&self, slots: Slots) -> bool {
        let Lanes { first, count, .. } = slots.lanes;
        slots.first.index() < self.blocks
            && (1..=self.blocks).contains(&(slots.count as usize))
            && first < self.lanes
            && (1..=self.lanes).contains(&count)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Machine<R: Reader> {
    /// The slots.
    pub held: Store<R::Held>,
    step: usize,
    /// Whether the sends of the current exchange have left, and how many of its receives are complete.
    sent: bool,
    received: usize,
    /// Work that is to be handed out, and how much is elsewhere.
    works: VecDeque<R::Work>,
    elsewhere: usize,
    /// The last latency round that this worker finished, and the one that the current exchange has reached.
    finished: u64,
    round: u64,
}

impl<R: Reader> Machine<R> {
    /// A worker at the beginning of its schedule.
    pub fn new(held: Store<R::Held>) -> Self {
        let works = VecDeque::new();
        Self { held, step: 0, sent: false, received: 0, works, elsewhere: 0, finished: 0, round: 0 }
    }

    /// Runs until a message is needed, work is to be done, or all is done.
    ///
    /// # Errors
    /// Those of the reader. The machine cannot be used afterwards.
    pub fn advance(&mut self, schedule: &Schedule, reader: &mut R) -> Result<Progress<R::Work>, R::Error> {
        loop {
            if let Some(work) = self.works.pop_front() {
                self.elsewhere += 1;
                return Ok(Progress::Work(work));
            }
            if self.elsewhere > 0 {
                return Ok(Progress::Working);
            }
            let Some(step) = schedule.steps.get(self.step) else { return Ok(Progress::Finished) };
            let (at, began, held) = (self.step, self.finished + 1, &mut self.held);
            if let Some(slots) = wrong_slots(schedule, step, held) {
                return Err(Fault::Nowhere { rank: schedule.rank, step: at, slots }.into());
            }
            match step {
                Step::Keep { slots, rule, coding } => {
                    self.works.extend(reader.keep(held, at, *slots, rule, *coding)?);
                }
                Step::Propose { slots, rule } => self.works.extend(reader.propose(held, at, *slots, rule)?),
                Step::Align { slots, coding } => reader.align(held, at, *slots, *coding)?,
                Step::Sum { slots } => {
                    slots.blocks(held.blocks).try_for_each(|block| reader.sum(held, at, block))?;
                }
                Step::Split { slots } => {
                    slots.blocks(held.blocks).try_for_each(|block| reader.split(held, at, block))?;
                }
                Step::Annotate { slots, note } => reader.annotate(held, at, *slots, *note)?,
                Step::Exchange { sends, receives } => {
                    if !std::mem::replace(&mut self.sent, true) {
                        self.round = began;
                        sends.iter().try_for_each(|send| reader.send(held, at, send, began))?;
                    }
                    if let Some(receive) = receives.get(self.received) {
                        return Ok(Progress::Waiting(receive.from));
                    }
                    (self.sent, self.received, self.finished) = (false, 0, self.round);
                }
            }
            reader.passed(at, began, step.exchange().map_or(began, |_| self.finished));
            self.step += 1;
        }
    }

    /// Takes a message in that its sender sent in a latency round.
    ///
    /// # Errors
    /// A message that is not waited for, and those of the reader. The machine cannot be used afterwards.
    pub fn receive(
        &mut self,
        schedule: &Schedule,
        reader: &mut R,
        (from, round): (Rank, u64),
        message: R::Message,
    ) -> Result<(), R::Error> {
        let receives = match schedule.exchange(self.step) {
            Some((_, receives)) if self.sent => &receives[self.received..],
            _ => &[],
        };
        let Some((receive, rest)) = receives.split_first().filter(|(receive, _)| receive.from == from) else {
            return Err(Fault::Unexpected { rank: schedule.rank, from }.into());
        };
        self.round = self.round.max(round);
        let (step, index, last, round) = (self.step, self.received, rest.is_empty(), self.round);
        let at = Arrival { step, index, receive, last, round };
        if reader.receive(&mut self.held, at, message)? {
            self.received += 1;
        }
        Ok(())
    }

    /// Work that was handed out is back, and its slots are filled.
    pub fn done(&mut self) {
        self.elsewhere = self.elsewhere.saturating_sub(1);
    }

    /// The last latency round that it finished.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Progress: having sent counts, even if it waits in the same step.
    pub fn place(&self) -> (usize, bool, usize) {
        (self.step, self.sent, self.received)
    }
}

/// Slots of a step that do not exist, or those of a peer that does not.
fn wrong_slots<H>(schedule: &Schedule, step: &Step, held: &Store<H>) -> Option<Slots> {
    let peer = |rank: Rank| rank.0 < schedule.workers && rank != schedule.rank;
    let mut names = step.names();
    names.find(|&(rank, slots)| !rank.is_none_or(peer) || !held.has(slots)).map(|(_, slots)| slots)
}
