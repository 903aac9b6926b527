//! A method at work on one gradient, on one worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Method, MethodError, Shape, Structure};
use crate::device::DeviceError;
use crate::residual::VersionError;
use crate::schedule::{
    Candidates, CheckError, Cost, Execution, ExecutionError, Finished, Memory, Program, Proof, Step, Volume,
    check,
};
use crate::{Accumulator, Element, Layers, Membership, Rank, Sparsity};

/// A schedule that was proved right, with what follows from that.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// This worker's program.
    pub program: Arc<Program>,
    /// What a step of it costs at most.
    pub cost: Cost,
}

/// A method that cannot run.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum RoutineError {
    /// An invalid method or option.
    #[error(transparent)]
    Method(#[from] MethodError),
    /// Schedules that do not add up.
    #[error("the schedules of this method are wrong: {0}")]
    Check(#[from] CheckError),
    /// A step that cannot end.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A trial run that failed.
    #[error("a step of this method fails: {0}")]
    Run(#[from] ExecutionError),
    /// A residual on a device that has failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// What workers must have learnt alike.
    #[error("{rank} has learnt something else than rank 0, from the same update")]
    Disagree {
        /// The first rank that differs.
        rank: Rank,
    },
    /// What was learnt elsewhere.
    #[error(
        "what was learnt is not of this method, or not of as many workers: it has {agreed} agreed numbers and {own} of its own"
    )]
    Memory {
        /// How many agreed numbers it has.
        agreed: usize,
        /// How many of this worker's own.
        own: usize,
    },
}

crate::sentence::debug_as_sentence!(RoutineError);

/// Schedules that were proved right: for one worker, or for all workers of a job in one process, which prove each once.
#[derive(Debug, Default)]
struct Programs {
    /// For whom; None for all workers.
    rank: Option<Rank>,
    /// The last one was asked for last.
    known: Vec<(Shape, Structure, Vec<Prepared>)>,
    /// What was proved last for workers that take turns: the first turn, rotated since.
    turning: Option<(Shape, Structure, Proof)>,
}

/// Structures that are remembered besides one for each worker: a method may take turns among the workers, or among a few
/// programs.
const REMEMBERED: usize = 4;

impl Programs {
    /// A worker's schedule with this structure, proved together with those of all others.
    fn prepare(
        &mut self,
        method: &Method,
        shape: &Shape,
        structure: &Structure,
        membership: Membership,
    ) -> Result<Prepared, RoutineError> {
        let found = self.known.iter().position(|(s, known, _)| s == shape && known == structure);
        let of_all = match found {
            Some(place) => self.known.remove(place).2,
            None => self.prove(method, shape, structure, membership.epoch)?,
        };
        let prepared = self.of(membership.rank, &of_all)?.clone();
        if self.known.len() >= REMEMBERED + shape.workers as usize {
            self.known.remove(0);
        }
        self.known.push((shape.clone(), structure.clone(), of_all));
        Ok(prepared)
    }

    /// What a worker has of what was prepared.
    fn of<'a>(&self, rank: Rank, prepared: &'a [Prepared]) -> Result<&'a Prepared, MethodError> {
        prepared.get(self.rank.map_or(rank.index(), |_| 0)).ok_or(MethodError::NoWorkers)
    }

    fn prove(
        &mut self,
        method: &Method,
        shape: &Shape,
        structure: &Structure,
        epoch: u16,
    ) -> Result<Vec<Prepared>, RoutineError> {
        let Some(turn) = structure.turn else {
            return Ok(self.programs(&*shared(method, shape, structure)?, epoch));
        };
        let first = structure.clone().with_turn(0);
        let proof = match self.turning.take() {
            Some((known, of, proof)) if known == *shape && of == first => proof,
            _ => check(method.schedules_of(shape, &first))?,
        };
        let proof = proof.rotated(turn)?;
        let programs = self.programs(&proof, epoch);
        self.turning = Some((shape.clone(), first, proof));
        Ok(programs)
    }

    fn programs(&self, proof: &Proof, epoch: u16) -> Vec<Prepared> {
        let wanted = |rank: &Rank| self.rank.is_none_or(|this| *rank == this);
        let prepared =
            |rank| Prepared { program: Arc::new(proof.program(rank).of_epoch(epoch)), cost: proof.cost };
        (0..proof.workers()).map(Rank).filter(wanted).map(prepared).collect()
    }
}

/// A proof that many workers of one process may use, and what it is of.
type Shared = (Method, Shape, Structure, Arc<Proof>);

/// Jobs of fewer workers prove their schedules faster than it would be worth to wait for each other.
const MANY: u32 = 64;

/// Proves schedules, once for all workers of this process that have the very same method: in tests and simulations there may
/// be thousands. Only proofs of rotations are kept, which are small.
fn shared(method: &Method, shape: &Shape, structure: &Structure) -> Result<Arc<Proof>, RoutineError> {
    static PROOFS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
    let prove = || Ok::<_, RoutineError>(Arc::new(check(method.schedules_of(shape, structure))?));
    if shape.workers < MANY {
        return prove();
    }
    let mut proofs = PROOFS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same = |(of, s, known, _): &Shared| of.is_same(method) && s == shape && known == structure;
    if let Some((.., proof)) = proofs.iter().find(|known| is_same(known)) {
        return Ok(Arc::clone(proof));
    }
    let proof = prove()?;
    if proof.rotates() {
        if proofs.len() == REMEMBERED {
            proofs.remove(0);
        }
        proofs.push((method.clone(), shape.clone(), structure.clone(), Arc::clone(&proof)));
    }
    Ok(proof)
}

/// A method at work on one gradient, on one worker: its schedules, step after step, and what it has learnt.
///
/// Most methods have one schedule for all steps. Where what was learnt changes the structure, the schedules of all
/// workers are made and proved right again; the last few structures are remembered.
#[derive(Clone, Debug)]
pub struct Routine {
    method: Method,
    layers: Layers,
    shape: Shape,
    membership: Membership,
    memory: Arc<Memory>,
    structure: Structure,
    prepared: Prepared,
    /// What runs in steps that deliver everything, if there are such.
    whole: Option<Prepared>,
    /// What completes the sums of all others, if they are to be completed and are not by themselves.
    second: Option<Prepared>,
    programs: Arc<Mutex<Programs>>,
    stream: u64,
}

impl Routine {
    /// A method before its first step, with a gradient of this many entries or of these layers. `stream` distinguishes gradients
    /// that are exchanged side by side: it must be the same on all workers, and seeds the random numbers of rounding.
    ///
    /// # Errors
    /// As [`Method::shape`], and schedules that the checker refuses.
    pub fn new(
        method: Method,
        membership: Membership,
        layers: impl Into<Layers>,
        stream: u64,
    ) -> Result<Self, RoutineError> {
        let programs = Programs { rank: Some(membership.rank), ..Programs::default() };
        Self::with(method, membership, layers.into(), stream, Arc::new(Mutex::new(programs)))
    }

    /// The same on every worker of a job in this process.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn all(method: &Method, workers: u32, layers: &Layers) -> Result<Vec<Self>, RoutineError> {
        let programs = Arc::new(Mutex::new(Programs::default()));
        let place = |rank| Membership::first(rank, workers);
        let routine = |rank| Self::with(method.clone(), place(rank), layers.clone(), 0, programs.clone());
        (0..workers.max(1)).map(Rank).map(routine).collect()
    }

    fn with(
        method: Method,
        membership: Membership,
        layers: Layers,
        stream: u64,
        programs: Arc<Mutex<Programs>>,
    ) -> Result<Self, RoutineError> {
        let shape = method.in_step(0, layers.entries())?.shape(membership.workers, layers.clone())?;
        let memory = method.memory(&shape);
        let structure = method.structure(&shape, &memory)?;
        let prepared = lock(&programs).prepare(&method, &shape, &structure, membership)?;
        let has_whole = method.collective().is_sparse() && !method.delivers_whole().is_none();
        let beside = |other: &Method| beside(other, &layers, membership, &programs);
        let whole = has_whole.then(|| beside(&Method::ring())).transpose()?;
        let aligns = prepared.program.schedule().steps.iter().any(Step::aligns);
        let completes = method.completes_sums() && !aligns;
        let second = completes.then(|| beside(&method.completion())).transpose()?;
        let memory = Arc::new(memory);
        Ok(Self {
            method,
            layers,
            shape,
            membership,
            memory,
            structure,
            prepared,
            whole,
            second,
            programs,
            stream,
        })
    }

    /// Whether the next step delivers everything.
    fn is_whole(&self) -> bool {
        self.whole.is_some() && self.method.delivers_whole().contains(self.memory.steps)
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// What the schedules of the next step are made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The schedule of the next step.
    pub fn prepared(&self) -> &Prepared {
        match &self.whole {
            Some(whole) if self.is_whole() => whole,
            _ => &self.prepared,
        }
    }

    /// How many latency rounds the next step has.
    pub fn rounds(&self) -> u64 {
        let second = self.second.as_ref().filter(|_| !self.is_whole());
        self.prepared().cost.rounds + second.map_or(0, |second| second.cost.rounds)
    }

    /// What each peer may send at most in a step that is like the next one, whatever is learnt until then: a peer that is a step
    /// ahead knows more than this worker.
    ///
    /// # Errors
    /// Schedules that the checker refuses.
    pub fn volumes<T: Element>(&self) -> Result<BTreeMap<Rank, Volume>, RoutineError> {
        let mut volumes = self.prepared.program.volumes::<T>();
        for (rank, volume) in self.whole.iter().flat_map(|whole| whole.program.volumes::<T>()) {
            let most = volumes.entry(rank).or_default();
            *most = most.max(volume);
        }
        let (collective, Membership { rank, epoch, .. }) = (self.method.collective(), self.membership);
        let mut programs = lock(&self.programs);
        for kind in collective.kinds(&self.shape) {
            let structure = Structure::loosest(&self.shape, collective.blocks(&self.shape), kind);
            let prepared = programs.prove(&self.method, &self.shape, &structure, epoch)?;
            for (rank, volume) in programs.of(rank, &prepared)?.program.volumes_in_any_blocks::<T>() {
                let most = volumes.entry(rank).or_default();
                *most = most.max(volume);
            }
        }
        // Of a step, after what was sent before.
        for (rank, Volume { blocks, bytes }) in self.second.iter().flat_map(|s| s.program.volumes::<T>()) {
            let most = volumes.entry(rank).or_default();
            *most = Volume { blocks: most.blocks + blocks, bytes: most.bytes.saturating_add(bytes) };
        }
        Ok(volumes)
    }

    /// What was learnt.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Starts the next step on an accumulator with its candidates.
    pub fn begin<T: Element>(
        &self,
        accumulator: impl Into<Accumulator<T>>,
        candidates: Vec<Candidates<T>>,
    ) -> Execution<T> {
        let execution = Execution::new(self.prepared().program.clone(), accumulator, candidates)
            .with(self.memory.clone(), seed(self.stream, self.memory.steps));
        match &self.second {
            Some(second) if !self.is_whole() => {
                execution.completing(second.program.clone(), self.method.collection())
            }
            _ => execution,
        }
    }

    /// Learns from a finished step and prepares the next one. Says whether its schedule is another one than before.
    ///
    /// # Errors
    /// Schedules that the checker refuses; nothing was learnt then.
    pub fn learn<T: Element>(&mut self, finished: &Finished<T>) -> Result<bool, RoutineError> {
        let mut memory = Memory::clone(&self.memory);
        memory.steps += 1;
        // To look at all that was delivered takes time, for nothing where nothing is learnt. Of a step that delivers everything
        // there is nothing to learn for those that do not.
        if !(self.is_whole() || memory.agreed.is_empty() && memory.own.is_empty()) {
            self.method.learn(&self.shape, &self.structure, &mut memory, &finished.observed());
        }
        let shape = self.shape_in(memory.steps)?;
        if shape != self.shape {
            memory = self.method.migrate(&self.shape, &shape, &memory);
        }
        self.go_on(shape, memory)
    }

    /// Goes over to another number of entries between two steps, with what was learnt. Says whether the schedule is another one now.
    ///
    /// # Errors
    /// k above n, and schedules that the checker refuses. All stays as it is then.
    pub fn aim_at(&mut self, k: usize) -> Result<bool, RoutineError> {
        let method = self.method.clone().k(k);
        let before = std::mem::replace(&mut self.method, method);
        let aimed = self.shape_in(self.memory.steps).map_err(RoutineError::from).and_then(|shape| {
            let memory = self.method.migrate(&self.shape, &shape, &self.memory);
            self.go_on(shape, memory)
        });
        if aimed.is_err() {
            self.method = before;
        }
        aimed
    }

    /// Goes on from what was learnt before. Says whether the schedule is another one now.
    ///
    /// # Errors
    /// What another method has learnt, and schedules that the checker refuses. All stays as it is then.
    pub fn restore(&mut self, memory: Memory) -> Result<bool, RoutineError> {
        let (agreed, own) = (memory.agreed.len(), memory.own.len());
        if (self.memory.agreed.len(), self.memory.own.len()) != (agreed, own) {
            return Err(RoutineError::Memory { agreed, own });
        }
        self.go_on(self.shape_in(memory.steps)?, memory)
    }

    /// Goes on from what was learnt of another gradient or among another number of workers, as far as it can be carried over.
    /// Says whether the schedule is another one now.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), and a gradient or a number of workers that this method cannot have had.
    pub fn adopt(
        &mut self,
        memory: Memory,
        workers: u32,
        layers: impl Into<Layers>,
    ) -> Result<bool, RoutineError> {
        let layers = layers.into();
        let method = match self.method.sparsity() {
            // Of another length: the same density.
            Sparsity::K(k) => {
                let k = rescaled(k, self.layers.entries(), layers.entries());
                self.method.clone().selecting(Sparsity::K(k))
            }
            Sparsity::Density(_) => self.method.clone(),
        };
        let before = method.in_step(memory.steps, layers.entries())?.shape(workers, layers)?;
        let present = self.shape_in(memory.steps)?;
        self.restore(if before == present { memory } else { self.method.migrate(&before, &present, &memory) })
    }

    /// The shape of a step, at its density.
    fn shape_in(&self, step: u64) -> Result<Shape, MethodError> {
        let method = self.method.in_step(step, self.layers.entries())?;
        method.shape(self.shape.workers, self.layers.clone())
    }

    /// Prepares the step after what was learnt.
    fn go_on(&mut self, shape: Shape, memory: Memory) -> Result<bool, RoutineError> {
        let structure = self.method.structure(&shape, &memory)?;
        let was_whole = self.is_whole();
        let changed = shape != self.shape || structure != self.structure;
        if changed {
            self.prepared =
                lock(&self.programs).prepare(&self.method, &shape, &structure, self.membership)?;
            (self.shape, self.structure) = (shape, structure);
        }
        self.memory = Arc::new(memory);
        Ok(changed || was_whole != self.is_whole())
    }
}

/// The first schedule of another method for the same gradient.
fn beside(
    method: &Method,
    layers: &Layers,
    membership: Membership,
    programs: &Mutex<Programs>,
) -> Result<Prepared, RoutineError> {
    let shape = method.shape(membership.workers, layers.clone())?;
    let structure = method.structure(&shape, &method.memory(&shape))?;
    let mut programs = lock(programs);
    let prepared = programs.prove(method, &shape, &structure, membership.epoch)?;
    Ok(programs.of(membership.rank, &prepared)?.clone())
}

/// Programs are whole whenever they can be locked, also where a thread died with them.
fn lock(programs: &Mutex<Programs>) -> std::sync::MutexGuard<'_, Programs> {
    programs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// k of n entries, of so many.
fn rescaled(k: usize, n: usize, to: usize) -> usize {
    (k as u128 * to as u128).div_ceil(n.max(1) as u128) as usize
}

/// The seed of a step's rounding.
fn seed(stream: u64, step: u64) -> u64 {
    (stream ^ step.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
