//! Large cases carry lengths: the schedules of all workers are walked through with the expected length of every bag.
//!
//! It follows the same schedules as an execution does, step by step. A selection keeps as many entries as its rule says; a
//! threshold that was learnt keeps the job's density. How many entries remain of a sum says [`Overlap`], and what they take
//! on the wire says [`bytes_per_entry`].

use std::collections::{HashMap, VecDeque};

use gleaner_algorithms::collectives::{MethodError, RoutineError, Shape};
use gleaner_algorithms::forecast::bytes_per_entry;
use gleaner_algorithms::schedule::{
    After, How, Observed, OwnChoice, Place, Rule, Schedule, Slots, Step, Tally,
};
use gleaner_algorithms::{Block, Method, Partition, Rank};

use super::overlap::Overlap;
use super::trace::{Op, Part, Trace, accumulated, handled, pieces};

/// Messages of all workers together, at most.
pub const MOST_MESSAGES: u64 = 1 << 22;

/// Places for bags of all workers together, at most.
pub const MOST_SLOTS: u64 = 1 << 26;

/// The most messages that one payload is cut into: longer pieces than those of the wire change little. Fewer where there
/// are many payloads.
const MOST_PIECES: u64 = 32;

/// Pieces of all payloads together, as long as each has one.
const MOST_IN_PIECES: u64 = 1 << 20;

/// Bytes before each bag.
const HEADER: f64 = 8.0;

/// Why lengths cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum LengthsError {
    /// A method that cannot run.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// A coding that cannot be measured.
    #[error(transparent)]
    Routine(#[from] RoutineError),
    /// Too much for a simulation.
    #[error(
        "{method} among {workers} workers sends about {messages} messages and has {slots} places for bags; a simulation has \
         at most {MOST_MESSAGES} and {MOST_SLOTS}: choose fewer workers"
    )]
    Large {
        /// The method.
        method: &'static str,
        /// Workers.
        workers: u32,
        /// What rank 0 sends, times the number of workers.
        messages: u64,
        /// Of all workers.
        slots: u64,
    },
    /// Schedules that wait for what nobody sends.
    #[error("the schedules of {method} do not end: rank {rank} waits for a message that nobody sends")]
    Waits {
        /// The method.
        method: &'static str,
        /// Who waits.
        rank: usize,
    },
}

/// One typical step of a method, after the first.
///
/// # Errors
/// A method that cannot run among so many workers, and what is too large.
pub fn trace(method: Method, workers: u32, n: usize, overlap: Overlap) -> Result<Trace, LengthsError> {
    let shape = method.shape(workers, n)?;
    let messages = refuse_large(method, &shape)?;
    let schedules = typical(method, &shape);
    let mut walk = Walk::new(&schedules, Sizes::new(method)?, overlap, &shape);
    walk.pieces = (MOST_IN_PIECES / messages.max(1)).clamp(1, MOST_PIECES) as usize;
    let mut unfinished = true;
    while std::mem::take(&mut unfinished) {
        let mut progress = false;
        let mut waiting = None;
        for (rank, schedule) in schedules.iter().enumerate() {
            let before = walk.workers[rank].place();
            if !walk.go_on(rank, schedule) {
                waiting = Some(rank);
                unfinished = true;
            }
            progress |= walk.workers[rank].place() != before;
        }
        match waiting {
            Some(rank) if !progress => {
                return Err(LengthsError::Waits { method: method.collective().name(), rank });
            }
            _ => {}
        }
    }
    Ok(walk.finish())
}

/// About how many payloads are sent.
fn refuse_large(method: Method, shape: &Shape) -> Result<u64, LengthsError> {
    let schedule = method.schedule(Rank(0), shape.workers, shape.n)?;
    let sends = |step: &Step| match step {
        Step::Exchange { sends, .. } => sends.len() as u64,
        _ => 0,
    };
    let workers = u64::from(shape.workers);
    let messages = schedule.steps.iter().map(sends).sum::<u64>() * workers;
    let slots = schedule.partition.blocks() as u64 * u64::from(schedule.lanes) * workers;
    if messages > MOST_MESSAGES || slots > MOST_SLOTS {
        let (method, workers) = (method.collective().name(), shape.workers);
        return Err(LengthsError::Large { method, workers, messages, slots });
    }
    Ok(messages)
}

/// The schedules of the second step, after a first one in which all went as it should: first steps are not typical.
fn typical(method: Method, shape: &Shape) -> Vec<Schedule> {
    /// Indices that a method is shown of each block: enough to see that they are spread evenly.
    const SHOWN: usize = 64;
    let mut memory = method.memory(shape);
    let structure = method.collective().structure(shape, &memory);
    let blocks = structure.partition.blocks();
    let shown = |block: u32| {
        let len = structure.partition.block_len(Block(block));
        let count = SHOWN.min(structure.allotment[block as usize] as usize);
        Some((0..count).map(|i| (len * i / count) as u32).collect())
    };
    let observed = Observed {
        counts: structure.allotment.iter().map(|&k| k as usize).collect(),
        smallest: 1.0,
        notes: vec![None; blocks],
        proposed: (0..blocks as u32).map(shown).collect(),
        own: OwnChoice { entries: shape.k, smallest: 1.0 },
    };
    memory.steps += 1;
    method.learn(shape, &structure, &mut memory, &observed);
    method.schedules_after(shape, &memory)
}

/// What entries take on the wire.
struct Sizes {
    /// For densities 1/2, 1/4 and so on: bytes of an entry told exactly, and told by the method's coding.
    table: Vec<(f64, f64)>,
    /// Bytes of a dense value.
    dense: f64,
}

impl Sizes {
    /// Densities down to this power of 1/2 are measured.
    const DEPTH: u32 = 16;

    fn new(method: Method) -> Result<Self, RoutineError> {
        let n = 1usize << 20;
        let bytes = |coded: Method, depth: u32| bytes_per_entry(coded.k(n >> depth), n);
        let exact = Method::auto();
        let coded = exact.coding(method.values());
        let table = (1..=Self::DEPTH).map(|depth| Ok((bytes(exact, depth)?, bytes(coded, depth)?)));
        Ok(Self { table: table.collect::<Result<_, RoutineError>>()?, dense: 4.0 })
    }

    /// Bytes of a sparse entry: its index, and its value if it was rounded or not.
    fn entry(&self, density: f64, rounded: bool) -> f64 {
        let depth = (-density.max(1e-12).log2() - 1.0).clamp(0.0, f64::from(Self::DEPTH - 1));
        let (whole, rest) = (depth.floor() as usize, depth.fract());
        let at = |i: usize| {
            let (exact, coded) = self.table[i.min(self.table.len() - 1)];
            if rounded { coded } else { exact }
        };
        at(whole) * (1.0 - rest) + at(whole + 1) * rest
    }

    /// Bytes of an index alone.
    fn index(&self, density: f64) -> f64 {
        self.entry(density, false) - self.dense
    }

    /// Bytes of a value alone.
    fn value(&self, density: f64, rounded: bool) -> f64 {
        self.entry(density, rounded) - self.index(density)
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The worker's own accumulator, with so many sums laid over it.
    Own,
    Sparse,
    /// All values; `switched` if it became so because many entries came together.
    Dense {
        switched: bool,
    },
    Aligned,
    Proposal,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    form: Form,
    /// Entries, or sums laid over an accumulator.
    entries: f32,
    /// How many of them all workers chose.
    common: f32,
    rounded: bool,
    /// One of several pieces that have nothing in common.
    piece: bool,
    /// Numbers of a note.
    note: u32,
}

impl Held {
    fn new(form: Form, entries: f64, common: f64) -> Self {
        Self { form, entries: entries as f32, common: common as f32, rounded: false, piece: false, note: 0 }
    }

    fn entries(&self) -> f64 {
        f64::from(self.entries)
    }

    /// What sparse entries become.
    fn of_sparse(entries: f64, common: f64, len: f64) -> Self {
        let form = if is_dense(entries, len) { Form::Dense { switched: true } } else { Form::Sparse };
        Self::new(form, entries, common)
    }
}

/// As bags turn dense: an entry takes twice what a value does.
fn is_dense(entries: f64, len: f64) -> bool {
    2.0 * entries > len
}

/// A message under way.
struct Flight {
    held: Vec<Option<Held>>,
    /// Messages with headers and sparse entries, then those with dense values.
    open: usize,
    lent: usize,
    round: u64,
}

struct Worker {
    held: Vec<Option<Held>>,
    step: usize,
    sent: bool,
    received: usize,
    finished_round: u64,
    round: u64,
    /// Whether the next exchange's block went ahead.
    passed_on: Option<usize>,
    tally: Tally,
    /// Own entries chosen, and entries dropped later.
    chosen: f64,
    dropped: f64,
    selects: bool,
}

impl Worker {
    fn place(&self) -> (usize, bool, usize) {
        (self.step, self.sent, self.received)
    }
}

struct Walk<'a> {
    partition: &'a Partition,
    blocks: usize,
    lanes: u32,
    n: f64,
    k: f64,
    sizes: Sizes,
    overlap: Overlap,
    /// Into how many messages a payload is cut at most.
    pieces: usize,
    workers: Vec<Worker>,
    flights: HashMap<(u32, u32), VecDeque<Flight>>,
    trace: Trace,
}

impl<'a> Walk<'a> {
    fn new(schedules: &'a [Schedule], sizes: Sizes, overlap: Overlap, shape: &Shape) -> Self {
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

    fn len(&self, place: Place) -> f64 {
        self.partition.block_len(place.block) as f64
    }

    fn index(&self, place: Place) -> usize {
        place.lane as usize * self.blocks + place.block.index()
    }

    /// Runs a worker until it waits. Says whether it has finished.
    fn go_on(&mut self, rank: usize, schedule: &Schedule) -> bool {
        while let Some(step) = schedule.steps.get(self.workers[rank].step) {
            match step {
                Step::Keep { slots, rule, coding } => {
                    self.keep(
                        rank,
                        schedule,
                        *slots,
                        rule,
                        *coding != gleaner_algorithms::bag::Coding::Exact,
                    );
                }
                Step::Sum { slots } => slots.blocks(self.blocks).for_each(|block| self.sum(rank, block)),
                Step::Split { slots } => slots.blocks(self.blocks).for_each(|block| self.split(rank, block)),
                Step::Annotate { slots, note } => {
                    for place in slots.places(self.blocks, self.lanes) {
                        let index = self.index(place);
                        if let Some(held) = &mut self.workers[rank].held[index] {
                            held.note = note.len() as u32;
                        }
                    }
                }
                Step::Propose { slots, rule } => self.propose(rank, *slots, rule),
                Step::Align { slots, coding } => {
                    self.align(rank, schedule, *slots, *coding != gleaner_algorithms::bag::Coding::Exact);
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
    fn flush(&mut self, rank: usize, part: Part) {
        let tally = std::mem::take(&mut self.workers[rank].tally);
        self.trace.work(rank, part, handled(tally, 1.0));
    }

    /// How many entries a rule keeps of each of these places, with how many of them common to all workers.
    fn kept(&self, rule: &Rule, places: &[Place], held: &[Held]) -> Vec<(f64, f64)> {
        let lens: Vec<f64> = places.iter().map(|&place| self.len(place)).collect();
        let there = |i: usize| match held[i].form {
            Form::Own => lens[i],
            _ => held[i].entries(),
        };
        let total: f64 = (0..held.len()).map(there).sum();
        let covered: f64 = lens.iter().sum();
        let together = match rule {
            Rule::Jointly(k) => Some(*k as f64),
            Rule::By(selection) => Some(selection.k as f64),
            // What was learnt keeps the density.
            Rule::Above { most, .. } => Some((self.k * covered / self.n).min(*most as f64)),
            _ => None,
        };
        let one = |i: usize| {
            let there = there(i);
            let kept = match rule {
                Rule::Top(k) | Rule::TopOf { most: k, .. } | Rule::Random(k) => {
                    f64::from(k[places[i].block.index()]).min(there)
                }
                Rule::Every | Rule::Dense => there,
                _ => together.map_or(there, |k| there * (k / total.max(1.0)).min(1.0)),
            };
            let common = match (rule, held[i].form) {
                (Rule::Random(_), _) => kept,
                (_, Form::Own) => self.overlap.shared * kept,
                // What all chose is large in the sum.
                _ => f64::from(held[i].common).min(kept),
            };
            (kept, common)
        };
        (0..held.len()).map(one).collect()
    }

    fn keep(&mut self, rank: usize, schedule: &Schedule, slots: Slots, rule: &Rule, rounds: bool) {
        let mut places: Vec<Place> = slots.places(self.blocks, self.lanes).collect();
        let every = matches!(rule, Rule::Every);
        places.retain(|&place| {
            let index = self.index(place);
            let held = &mut self.workers[rank].held[index];
            match held {
                Some(held) if held.form == Form::Aligned && every => {
                    held.rounded |= rounds;
                    false
                }
                held => held.is_some(),
            }
        });
        let held: Vec<Held> =
            places.iter().filter_map(|&place| self.workers[rank].held[self.index(place)]).collect();
        let bags = held.iter().all(|held| held.form != Form::Own);
        let kept = self.kept(rule, &places, &held);
        for ((place, held), (kept, common)) in places.into_iter().zip(held).zip(kept) {
            let (len, index) = (self.len(place), self.index(place));
            let worker = &mut self.workers[rank];
            if matches!(rule, Rule::Dense) {
                worker.tally.dense += len;
            }
            if matches!(rule, Rule::Every | Rule::Dense) && !rounds && bags {
                if let Some(Held { form, .. }) = &mut worker.held[index]
                    && matches!(rule, Rule::Dense)
                {
                    *form = Form::Dense { switched: false };
                }
                continue;
            }
            worker.selects |= !matches!(rule, Rule::Every | Rule::Dense) || rounds;
            let own = held.form == Form::Own && place.lane == schedule.lane;
            if own {
                worker.tally.chosen += kept;
                worker.chosen += kept;
                worker.dropped += held.entries() * (1.0 - kept / len.max(1.0)).max(0.0);
            } else {
                worker.tally.chosen += held.entries();
                worker.dropped += (held.entries() - kept).max(0.0);
            }
            let bag = match rule {
                Rule::Dense => Held::new(Form::Dense { switched: false }, kept, common),
                _ => Held::of_sparse(kept, common, len),
            };
            worker.held[index] = Some(Held { rounded: rounds, note: held.note, ..bag });
        }
    }

    /// How many entries two bags of a block have together, and how many of them all workers chose.
    fn together(&self, a: Held, b: Held, len: f64) -> (f64, f64) {
        if a.form == Form::Own || b.form == Form::Own {
            return (len, 0.0);
        }
        if a.piece && b.piece {
            return (a.entries() + b.entries(), f64::from(a.common) + f64::from(b.common));
        }
        let common = f64::from(a.common.max(b.common));
        let alone = |held: Held| (held.entries() - f64::from(held.common)).max(0.0);
        let (a, b) = (alone(a), alone(b));
        let support = (self.overlap.support * len).max(a).max(b).min(len).max(1.0);
        let sum = common + a + b - a * b / support;
        (sum.min(len), common)
    }

    fn sum(&mut self, rank: usize, block: Block) {
        let len = self.partition.block_len(block) as f64;
        let mut bags = Vec::new();
        for lane in 0..self.lanes {
            let index = self.index(Place { block, lane });
            let slot = &mut self.workers[rank].held[index];
            bags.extend(slot.take_if(|held| held.form != Form::Proposal));
        }
        let levels = f64::from(bags.len().next_power_of_two().trailing_zeros().max(1));
        let mut all: Option<Held> = None;
        let tally = &mut self.workers[rank].tally;
        for bag in &bags {
            match bag.form {
                Form::Sparse | Form::Aligned => tally.merged += bag.entries() * levels,
                _ => tally.dense += len,
            }
        }
        let switched =
            bags.iter().all(|bag| bag.form != Form::Own && bag.form != Form::Dense { switched: false });
        for bag in bags {
            all = Some(match all {
                None => bag,
                Some(sum) => {
                    let (entries, common) = self.together(sum, bag, len);
                    let piece = sum.piece && bag.piece;
                    Held { piece, ..Held::of_sparse(entries, common, len) }
                }
            });
        }
        let index = self.index(Place { block, lane: 0 });
        self.workers[rank].held[index] = all.map(|sum| match sum.form {
            Form::Own => Held::new(Form::Dense { switched }, len, 0.0),
            Form::Dense { .. } => Held { form: Form::Dense { switched }, piece: false, ..sum },
            _ => Held { piece: false, ..Held::of_sparse(sum.entries(), f64::from(sum.common), len) },
        });
    }

    fn split(&mut self, rank: usize, block: Block) {
        let first = self.index(Place { block, lane: 0 });
        let Some(whole) = self.workers[rank].held[first].take() else { return };
        self.workers[rank].tally.chosen += whole.entries();
        let share = f64::from(self.lanes);
        for lane in 0..self.lanes {
            let index = self.index(Place { block, lane });
            let piece = Held::new(Form::Sparse, whole.entries() / share, f64::from(whole.common) / share);
            self.workers[rank].held[index] = Some(Held { piece: true, ..piece });
        }
    }

    fn propose(&mut self, rank: usize, slots: Slots, rule: &Rule) {
        let places: Vec<Place> = slots.places(self.blocks, self.lanes).collect();
        let own = vec![Held::new(Form::Own, 0.0, 0.0); places.len()];
        let kept = self.kept(rule, &places, &own);
        for (place, (kept, common)) in places.into_iter().zip(kept) {
            let index = self.index(place);
            self.workers[rank].tally.chosen += kept;
            self.workers[rank].held[index] = Some(Held::new(Form::Proposal, kept, common));
        }
    }

    fn align(&mut self, rank: usize, schedule: &Schedule, slots: Slots, rounded: bool) {
        for block in slots.blocks(self.blocks) {
            let len = self.partition.block_len(block) as f64;
            let mut all: Option<Held> = None;
            for lane in 0..self.lanes {
                let index = self.index(Place { block, lane });
                if let Some(proposal) = self.workers[rank].held[index].filter(|h| h.form == Form::Proposal) {
                    all = Some(match all {
                        None => proposal,
                        Some(sum) => {
                            let (entries, common) = self.together(sum, proposal, len);
                            Held::new(Form::Proposal, entries, common)
                        }
                    });
                }
            }
            let entries = all.map_or(0.0, |held| held.entries());
            let index = self.index(Place { block, lane: schedule.lane });
            let worker = &mut self.workers[rank];
            worker.tally.chosen += entries;
            worker.chosen += entries;
            worker.selects = true;
            worker.held[index] = Some(Held { rounded, ..Held::new(Form::Aligned, entries, entries) });
        }
    }

    /// Bytes that a bag takes among the others of a message and in messages of its own; as what it is told.
    fn told(&mut self, rank: usize, held: Held, len: f64) -> (f64, f64, Held) {
        let tally = &mut self.workers[rank].tally;
        let entries = held.entries();
        let density = entries / len.max(1.0);
        match held.form {
            Form::Own => {
                if held.entries > 0.0 {
                    tally.dense += len;
                }
                (0.0, self.sizes.dense * len, Held::new(Form::Dense { switched: false }, len, 0.0))
            }
            Form::Sparse => {
                tally.encoded += entries;
                (entries * self.sizes.entry(density, held.rounded), 0.0, held)
            }
            Form::Dense { switched: true } if density < 31.0 / 32.0 => {
                tally.encoded += entries;
                tally.dense += len;
                let sparse = entries * self.sizes.entry(density, held.rounded);
                (sparse.min(self.sizes.dense * len), 0.0, held)
            }
            Form::Dense { .. } => {
                let value = self.sizes.value(0.5, held.rounded);
                let dense = Held { form: Form::Dense { switched: false }, ..held };
                if held.rounded { (value * len, 0.0, dense) } else { (0.0, value * len, dense) }
            }
            Form::Proposal => {
                tally.encoded += entries;
                (entries * self.sizes.index(density), 0.0, held)
            }
            Form::Aligned => {
                tally.encoded += entries;
                (entries * self.sizes.value(density, held.rounded), 0.0, held)
            }
        }
    }

    fn send(&mut self, rank: usize, send: &gleaner_algorithms::schedule::Send, ahead: Option<usize>) {
        let (mut open, mut lent, mut bags) = (0.0, 0.0, Vec::with_capacity(send.slots.count as usize));
        for place in send.slots.places(self.blocks, self.lanes) {
            let (len, index) = (self.len(place), self.index(place));
            let held = match send.after {
                After::Drop => self.workers[rank].held[index].take(),
                After::Retain => self.workers[rank].held[index],
            };
            open += HEADER;
            if let Some(held) = held {
                let (among, alone, told) = self.told(rank, held, len);
                open += among + 8.0 * f64::from(held.note);
                lent += alone;
                bags.push(Some(told));
            } else {
                bags.push(None);
            }
        }
        let counts = (pieces(open, self.pieces), if lent > 0.0 { pieces(lent, self.pieces) } else { 0 });
        self.flush(rank, Part::Select);
        if ahead.is_none() {
            let ops = &mut self.trace.workers[rank];
            let to = send.to.0;
            let one = |bytes: f64, count: usize| Op::Send { to, bytes: (bytes / count.max(1) as f64) as f32 };
            ops.extend(std::iter::repeat_n(one(open, counts.0), counts.0));
            ops.extend(std::iter::repeat_n(one(lent, counts.1), counts.1));
        }
        let lent = ahead.unwrap_or(counts.1);
        let flight = Flight { held: bags, open: counts.0, lent, round: self.workers[rank].round };
        self.flights.entry((rank as u32, send.to.0)).or_default().push_back(flight);
    }

    fn receive(
        &mut self,
        rank: usize,
        receive: &gleaner_algorithms::schedule::Receive,
        flight: Flight,
        onward: Option<Rank>,
    ) {
        let worker = &mut self.workers[rank];
        worker.round = worker.round.max(flight.round);
        let (from, count) = (receive.from.0, flight.open + flight.lent);
        let onward = onward.filter(|_| {
            matches!(&flight.held[..], [Some(held)] if held.form == Form::Dense { switched: false } && held.note == 0)
                && flight.lent > 0
        });
        for (place, came) in receive.slots.places(self.blocks, self.lanes).zip(&flight.held) {
            if let Some(came) = came {
                self.take(rank, place, *came, receive.how);
            }
        }
        let place = Place { block: receive.slots.first, lane: 0 };
        let bytes = (self.sizes.dense * self.len(place) / flight.lent.max(1) as f64) as f32;
        let tally = std::mem::take(&mut self.workers[rank].tally);
        let work = handled(tally, 1.0 / count as f64);
        for piece in 0..count {
            self.trace.workers[rank].push(Op::Receive { from });
            self.trace.work(rank, Part::Merge, work);
            if let Some(Rank(to)) = onward {
                let bytes = if piece < flight.open { HEADER as f32 } else { bytes };
                self.trace.workers[rank].push(Op::Send { to, bytes });
            }
        }
        if onward.is_some() {
            self.workers[rank].passed_on = Some(flight.lent);
        }
    }

    /// Adds a bag to what is held, or places it.
    fn take(&mut self, rank: usize, place: Place, came: Held, how: How) {
        let (len, index) = (self.len(place), self.index(place));
        let held = self.workers[rank].held[index].filter(|_| how == How::Add);
        let sum = held.map(|held| self.together(held, came, len));
        let worker = &mut self.workers[rank];
        let tally = &mut worker.tally;
        let result = match (came.form, held) {
            (Form::Proposal, _) => came,
            (Form::Aligned, held) => {
                tally.merged += came.entries();
                Held { rounded: came.rounded && held.is_none(), ..came }
            }
            (Form::Sparse, None) => {
                tally.merged += came.entries();
                came
            }
            (Form::Sparse, Some(held)) => {
                tally.merged += came.entries();
                let (entries, common) = sum.unwrap_or_default();
                match held.form {
                    Form::Own => {
                        tally.merged += held.entries();
                        let overlay = self.together(Held { form: Form::Sparse, ..held }, came, len);
                        self.workers[rank].held[index] = Some(Held::new(Form::Own, overlay.0, overlay.1));
                        return;
                    }
                    Form::Dense { switched } => {
                        tally.dense += len;
                        Held::new(Form::Dense { switched }, entries, common)
                    }
                    _ => {
                        tally.merged += held.entries();
                        Held::of_sparse(entries, common, len)
                    }
                }
            }
            (_, held) => {
                let dense = Form::Dense { switched: false };
                if came.form != dense {
                    tally.merged += came.entries();
                    tally.dense += len;
                }
                match held {
                    None => came,
                    Some(held) => {
                        tally.dense += len;
                        if held.form == Form::Sparse || (held.form == Form::Own && held.entries > 0.0) {
                            tally.dense += len;
                        }
                        let (entries, common) = sum.unwrap_or_default();
                        Held::new(came.form, entries, common)
                    }
                }
            }
        };
        self.workers[rank].held[index] = Some(result);
    }

    /// What committing handles, and the trace.
    fn finish(mut self) -> Trace {
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
            tally.committed += worker.chosen + worker.dropped;
            let round = worker.finished_round;
            self.trace.rounds = self.trace.rounds.max(round);
            self.trace.delivered = delivered;
            self.trace.work(rank, Part::Merge, handled(tally, 1.0));
        }
        self.trace
    }
}
