//! Synchronising a model's gradients step by step.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_algorithms::collectives::{Prepared, Routine};
use gleaner_algorithms::residual::Residual;
use gleaner_algorithms::schedule::{Finished, Memory, Step};
use gleaner_algorithms::{Method, Sparsity};
use tokio::sync::oneshot;

use crate::algorithm::{Run, RunTimes};
use crate::auto::Auto;
use crate::checkpoint::{self, CheckpointError, State};
use crate::failure::{Error, Failure};
use crate::layout::{Layout, LayoutError};
use crate::notes::{self, Purpose};
use crate::session::Inner;
use crate::update::Update;

/// A trainer's handle: gradients go in parameter by parameter, the same update comes out on every worker.
///
/// A group of parameters is exchanged from the moment that its last one is ready, while the trainer goes on; groups may
/// become ready in different orders on different ranks.
pub struct Gradients {
    session: Arc<Inner>,
    channel: u8,
    layout: Arc<Layout>,
    by_name: Arc<HashMap<String, usize>>,
    method: Method,
    /// Chooses the groups' methods, if the method is a choice.
    auto: Option<Auto>,
    groups: Vec<Group>,
    /// Parameters that are ready in this step, and how many.
    ready: Vec<bool>,
    given: usize,
    step: u64,
    times: StepTimes,
    lost: f64,
    failed: Option<Failure>,
}

type Done = oneshot::Receiver<Result<(Finished, RunTimes), Failure>>;

struct Group {
    routine: Routine,
    residual: Residual,
    /// How many bytes each peer may have waiting here for this group.
    granted: BTreeMap<u32, u64>,
    /// Parameters that are not ready yet in this step.
    missing: usize,
    parameters: usize,
    /// Accumulating in this step.
    accumulating: Duration,
    running: Option<Done>,
}

/// Where this worker's time in a step went, summed over its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Accumulating gradients, choosing entries and preparing messages.
    pub select: Duration,
    /// Waiting for messages.
    pub exchange: Duration,
    /// Taking received entries in, and committing residuals.
    pub merge: Duration,
    /// How long `wait` kept the trainer waiting.
    pub waiting: Duration,
}

impl Gradients {
    pub(crate) fn new(
        session: Arc<Inner>,
        channel: u8,
        layout: &Layout,
        method: Method,
    ) -> Result<Self, Error> {
        let by_name = Arc::new(layout.by_name()?);
        let (rank, workers) = (session.post.rank, session.post.workers);
        let agree = || {
            let notes = session.gather(Purpose::Agree, describe(layout, method).as_bytes())?;
            notes::agree(&notes).map_err(|failure| session.fail(failure))
        };
        let mut methods = Vec::new();
        let mut before = 0;
        for group in 0..layout.group_count() {
            let n = layout.group_entries(group);
            let method = match method.sparsity() {
                Sparsity::Density(_) => method,
                // An explicit k is shared out to the groups by their lengths.
                Sparsity::K(k) => {
                    method
                        .sparsity()
                        .k(layout.entries())
                        .map_err(gleaner_algorithms::collectives::MethodError::from)?;
                    let upto = |entries: usize| {
                        (k as u128 * entries as u128 / layout.entries().max(1) as u128) as usize
                    };
                    method.k(upto(before + n) - upto(before))
                }
            };
            before += n;
            methods.push((method, n));
        }
        let mut auto = None;
        if method.is_auto() {
            // Before anything is measured for it.
            agree()?;
            auto = Some(Auto::new(&session, &methods)?);
        }
        let mut groups = Vec::new();
        for (group, (method, n)) in methods.into_iter().enumerate() {
            let method = auto.as_ref().map_or(method, |auto| auto.method(group));
            let routine = Routine::new(method, rank, workers, n, stream(channel, group))?;
            let schedule = &routine.prepared().schedule;
            let residual = Residual::new(schedule.partition.clone(), schedule.quotas());
            let parameters = layout.parameters.iter().filter(|p| p.group == group).count();
            let mut group = Group {
                routine,
                residual,
                granted: BTreeMap::new(),
                missing: parameters,
                parameters,
                accumulating: Duration::ZERO,
                running: None,
            };
            group.grant(&session);
            groups.push(group);
        }
        agree()?;
        let ready = vec![false; layout.parameters.len()];
        let layout = Arc::new(layout.clone());
        let times = StepTimes::default();
        Ok(Self {
            session,
            channel,
            layout,
            by_name,
            method,
            auto,
            groups,
            ready,
            given: 0,
            step: 0,
            times,
            lost: 0.0,
            failed: None,
        })
    }

    /// The gradient of one parameter is ready. It is added to the parameter's residual at once, so `gradient` is
    /// free when this returns; when it completes its group, the exchange begins.
    ///
    /// # Errors
    /// A parameter that the layout does not have or that was given before in this step, another length, NaN or infinite
    /// entries (the step then fails on all workers), or a job that has failed.
    pub fn ready(&mut self, parameter: &str, gradient: &[f32]) -> Result<(), Error> {
        self.alive()?;
        let position = *self.by_name.get(parameter).ok_or_else(|| LayoutError::Unknown(parameter.into()))?;
        let p = &self.layout.parameters[position];
        if gradient.len() != p.len {
            let (name, expected, found) = (p.name.clone(), p.len, gradient.len());
            return Err(LayoutError::Length { name, expected, found }.into());
        }
        if self.ready[position] {
            return Err(LayoutError::Again(p.name.clone()).into());
        }
        if self.given == 0 {
            self.times = StepTimes::default();
        }
        let clock = Instant::now();
        let group = &mut self.groups[p.group];
        if let Err(e) = group.residual.accumulate(p.offset, gradient) {
            let index = e.entry - p.offset;
            let reason = format!(
                "the gradient of '{parameter}' has {} at entry {index}: lower the learning rate, clip the gradients, or look for what \
                 makes them so",
                if gradient[index].is_finite() {
                    "an infinite sum with its residual".into()
                } else {
                    gradient[index].to_string()
                }
            );
            let failure = Failure { rank: self.session.post.rank.0, step: Some(self.step), reason };
            return Err(self.fail(failure));
        }
        self.ready[position] = true;
        self.given += 1;
        group.missing -= 1;
        if group.missing == 0 {
            let (accumulator, candidates) = group.residual.begin();
            let execution = group.routine.begin(accumulator, candidates);
            let (done, running) = oneshot::channel();
            group.running = Some(running);
            // Before the exchange begins: it may be over by the time that this thread goes on.
            self.times.select += clock.elapsed();
            group.accumulating += clock.elapsed();
            self.session.run(Run {
                channel: self.channel,
                group: p.group as u16,
                step: self.step,
                schedule: group.routine.prepared().schedule.clone(),
                execution,
                done,
            });
        } else {
            self.times.select += clock.elapsed();
            group.accumulating += clock.elapsed();
        }
        Ok(())
    }

    /// Waits for the update of this step and commits it: the residuals change for all groups or for none.
    ///
    /// # Errors
    /// Parameters whose gradients are missing, or a job that has failed.
    pub fn wait(&mut self) -> Result<Update, Error> {
        self.alive()?;
        let missing: Vec<String> = (self.layout.parameters.iter().zip(&self.ready))
            .filter(|(_, ready)| !**ready)
            .map(|(p, _)| format!("'{}'", p.name))
            .collect();
        if !missing.is_empty() {
            return Err(LayoutError::Missing(missing.join(", ")).into());
        }
        let clock = Instant::now();
        let mut finished = Vec::with_capacity(self.groups.len());
        let running: Vec<Option<Done>> = self.groups.iter_mut().map(|group| group.running.take()).collect();
        for done in running.into_iter().flatten() {
            match self.session.block_on(done) {
                Ok(Ok(result)) => finished.push(result),
                Ok(Err(failure)) => return Err(self.fail(failure)),
                Err(_) => {
                    let reason = "its worker's actors ended unexpectedly".into();
                    let failure = Failure { rank: self.session.post.rank.0, step: Some(self.step), reason };
                    return Err(self.fail(failure));
                }
            }
        }
        self.times.waiting = clock.elapsed();
        let clock = Instant::now();
        let mut updates = Vec::with_capacity(finished.len());
        self.lost = 0.0;
        for (number, (group, (finished, times))) in self.groups.iter_mut().zip(finished).enumerate() {
            let committing = Instant::now();
            let partition = group.residual.partition().clone();
            let changed = group.routine.learn(&finished)?;
            let committed = group.residual.commit(finished, self.method.collection());
            if changed {
                group.change(&self.session);
            }
            self.lost +=
                committed.lost.iter().flat_map(|l| &l.values).map(|v| f64::from(v.abs())).sum::<f64>();
            updates.push((partition, committed.update));
            group.missing = group.parameters;
            self.times.select += times.select;
            self.times.merge += times.merge;
            self.times.exchange += times.total.saturating_sub(times.select + times.merge);
            let accumulating = std::mem::take(&mut group.accumulating);
            if let Some(auto) = &mut self.auto {
                auto.record(number, accumulating + times.total + committing.elapsed());
            }
        }
        self.times.merge += clock.elapsed();
        self.ready.fill(false);
        self.given = 0;
        let (layout, workers, step) = (self.layout.clone(), self.session.post.workers, self.step);
        self.step += 1;
        self.revise()?;
        Ok(Update { layout, by_name: self.by_name.clone(), groups: updates, workers, step })
    }

    /// Goes over to other methods where the choice is revised. What was not delivered stays.
    fn revise(&mut self) -> Result<(), Error> {
        let Some(auto) = &mut self.auto else { return Ok(()) };
        let changed = auto.revise(&self.session)?;
        self.change_methods(&changed)
    }

    /// All ranks call it together, between two steps.
    fn change_methods(&mut self, groups: &[usize]) -> Result<(), Error> {
        let Some(auto) = &self.auto else { return Ok(()) };
        for &number in groups {
            let (rank, workers) = (self.session.post.rank, self.session.post.workers);
            let group = &mut self.groups[number];
            let (n, stream) = (group.routine.shape().n, stream(self.channel, number));
            group.routine = Routine::new(auto.method(number), rank, workers, n, stream)?;
            group.change(&self.session);
        }
        if !groups.is_empty() {
            // Nobody sends before all have granted.
            self.session.gather(Purpose::Revise, &[])?;
        }
        Ok(())
    }

    /// The methods of the groups: those that were chosen, if the method was a choice.
    pub fn methods(&self) -> Vec<Method> {
        self.groups.iter().map(|group| group.routine.method()).collect()
    }

    /// What a checkpoint names.
    fn method_names(&self) -> String {
        match &self.auto {
            None => self.method.to_string(),
            Some(_) => {
                let mut names: Vec<String> = self.methods().iter().map(Method::to_string).collect();
                // Groups that all run the same one name it once.
                if names.iter().all(|name| *name == names[0]) {
                    names.truncate(1);
                }
                names.join(BETWEEN)
            }
        }
    }

    /// Goes over to the methods that a checkpoint names, as far as they are candidates. All ranks call it together.
    fn resume(&mut self, names: &str) -> Result<(), Error> {
        let Some(auto) = &mut self.auto else { return Ok(()) };
        let names: Vec<&str> = names.split(BETWEEN).collect();
        let mut changed = Vec::new();
        for number in 0..self.groups.len() {
            let name = if names.len() == 1 { names.first() } else { names.get(number) };
            if name.is_some_and(|name| auto.resume(number, name)) {
                changed.push(number);
            }
        }
        self.change_methods(&changed)
    }

    /// The number of the present step, from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Where the time of the last step went.
    pub fn times(&self) -> StepTimes {
        self.times
    }

    /// The sum of the magnitudes of what this worker dropped in the last step and did not collect: 0 under
    /// global residual collection.
    pub fn lost(&self) -> f64 {
        self.lost
    }

    /// Latency rounds of one step: those of the longest group, since groups overlap.
    pub fn rounds(&self) -> u64 {
        self.groups.iter().map(|g| g.routine.prepared().cost.rounds).max().unwrap_or(0)
    }

    /// Bytes that this worker received so far, headers of messages included.
    pub fn bytes_received(&self) -> u64 {
        self.session.post.traffic().bytes_received
    }

    /// Writes residuals, the algorithm's state and the step as safetensors: beside, then renamed, so that `path`
    /// holds a whole checkpoint or the one before. Call it between steps.
    ///
    /// # Errors
    /// A file that cannot be written, or a call in the middle of a step.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.between_steps()?;
        let residuals = self
            .layout
            .parameters
            .iter()
            .map(|p| (p.name.clone(), self.groups[p.group].residual.read(p.offset..p.offset + p.len)));
        let state = State {
            step: self.step,
            rank: self.session.post.rank.0,
            workers: self.session.post.workers,
            method: self.method_names(),
            residuals: residuals.collect(),
            thresholds: self.groups.iter().map(|g| g.residual.thresholds().to_vec()).collect(),
            memories: self.groups.iter().map(|g| g.routine.memory().clone()).collect(),
        };
        Ok(checkpoint::save(path, &state)?)
    }

    /// Goes on from what [`save`](Self::save) wrote, bit by bit. All ranks must load checkpoints of the same step.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another rank, world size, method or layout.
    pub fn load(&mut self, path: &Path) -> Result<(), Error> {
        self.between_steps()?;
        let mut state = checkpoint::load(path)?;
        let (rank, workers) = (self.session.post.rank.0, self.session.post.workers);
        state.expect(path, "rank", state.rank, rank)?;
        state.expect(path, "world size", state.workers, workers)?;
        self.resume(&state.method)?;
        state.expect(path, "method", &state.method, &self.method_names())?;
        state.expect(path, "number of parameters", state.residuals.len(), self.layout.parameters.len())?;
        for p in &self.layout.parameters {
            let len = state.residuals.get(&p.name).map(Vec::len);
            state.expect(path, &format!("length of '{}'", p.name), Found(len), Found(Some(p.len)))?;
        }
        for p in &self.layout.parameters {
            if let Some(residual) = state.residuals.remove(&p.name) {
                self.groups[p.group].residual.restore(p.offset, &residual);
            }
        }
        for (group, thresholds) in self.groups.iter_mut().zip(state.thresholds) {
            // Another grouping has other blocks: it predicts afresh, which costs time and changes nothing.
            if thresholds.len() == group.residual.partition().blocks() {
                group.residual.restore_thresholds(thresholds);
            }
        }
        for (group, memory) in self.groups.iter_mut().zip(state.memories) {
            if group.routine.restore(memory)? {
                group.change(&self.session);
            }
        }
        self.step = state.step;
        Ok(())
    }

    /// A checkpoint is of a whole step: not of one that is under way, nor of one that failed.
    fn between_steps(&self) -> Result<(), Error> {
        self.alive()?;
        if self.given > 0 { Err(CheckpointError::MidStep.into()) } else { Ok(()) }
    }

    fn alive(&self) -> Result<(), Error> {
        match self.failed.clone().or_else(|| self.session.post.failure()) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    fn fail(&mut self, failure: Failure) -> Error {
        let error = self.session.fail(failure.clone());
        self.failed = Some(match &error {
            Error::Failed(first) => first.clone(),
            _ => failure,
        });
        error
    }
}

/// An optional length in a message.
#[derive(PartialEq)]
struct Found(Option<usize>);

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(len) => write!(f, "{len}"),
            None => write!(f, "missing"),
        }
    }
}

impl Group {
    /// Lets the peers have waiting here what the present schedule lets them send. What was granted before stays: a peer may
    /// be one step ahead, or behind.
    fn grant(&mut self, session: &Inner) {
        // A method that learns may go over to a schedule that this worker does not know yet: no bag is longer than two words
        // for each entry.
        let learns =
            *self.routine.memory() != Memory { steps: self.routine.memory().steps, ..Memory::default() };
        let any = if learns { 8 * self.routine.shape().n as u64 } else { 0 };
        for (peer, bytes) in largest_receives(self.routine.prepared()) {
            let bytes = bytes.max(any);
            let granted = self.granted.entry(peer).or_default();
            let more = (2 * bytes).saturating_sub(*granted);
            *granted += more;
            session.grant(peer, more);
        }
    }

    /// Goes over to another schedule, between two steps.
    fn change(&mut self, session: &Inner) {
        let schedule = &self.routine.prepared().schedule;
        self.residual.recut(schedule.partition.clone(), schedule.quotas());
        self.grant(session);
    }
}

/// Between the names of methods in a checkpoint.
const BETWEEN: &str = " | ";

/// Tells gradients apart that are exchanged side by side.
fn stream(channel: u8, group: usize) -> u64 {
    u64::from(channel) << 16 | group as u64
}

/// The most bytes that each peer may send in one step, by the bounds that the checker derived.
fn largest_receives(Prepared { schedule, proof, .. }: &Prepared) -> BTreeMap<u32, u64> {
    let mut bytes = BTreeMap::new();
    for (i, step) in schedule.steps.iter().enumerate() {
        if let Step::Exchange { receives, .. } = step {
            for (receive, expected) in receives.iter().zip(proof.expected.get(&i).into_iter().flatten()) {
                let of_block = |e: &gleaner_algorithms::bag::wire::Expected| {
                    8 + (8 * u64::from(e.bound)).max(4 * u64::from(e.len))
                };
                // A payload costs a little more than its length; every block may begin one.
                *bytes.entry(receive.from.0).or_default() +=
                    expected.iter().map(|e| of_block(e) + 4096).sum::<u64>();
            }
        }
    }
    bytes
}

/// What all ranks must agree on, a line each.
fn describe(layout: &Layout, method: Method) -> String {
    let mut text = format!("method {method}\n{} entries in all\n", layout.entries());
    for p in &layout.parameters {
        text += &format!("parameter '{}' with {} entries in group {}\n", p.name, p.len, p.group);
    }
    text
}
