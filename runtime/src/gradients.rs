//! Synchronising a model's gradients step by step.

mod regrouping;
mod saving;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::residual::{OnNonFinite, norm};
use gleaner_algorithms::{Method, Partition, Reduction, Sparsity};
use tokio::sync::oneshot;

use crate::algorithm::{Done, Run, Stopped};
use crate::auto::{Auto, Chosen};
use crate::failure::{Error, Failure};
use crate::group::Group;
use crate::layout::{Layout, LayoutError};
use crate::notes::Purpose;
use crate::session::Inner;
use crate::steps::Cause;
use crate::tag::StepId;
use crate::update::{Skipped, Update};

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
    groups: Vec<Gathering>,
    /// Under local clipping, the gradients of this step by parameter until all are there: their norm decides.
    held: Vec<Vec<f32>>,
    /// Parameters that are ready in this step, and how many.
    ready: Vec<bool>,
    given: usize,
    step: u64,
    times: StepTimes,
    lost: f64,
    /// What was not finite in this step's own gradients, if anything was and such steps are skipped.
    refused: Option<String>,
    skipped: u64,
    failed: Option<Failure>,
}

/// A group whose parameters become ready one by one.
struct Gathering {
    group: Group,
    /// Parameters that are not ready yet in this step.
    missing: usize,
    parameters: usize,
    /// Accumulating in this step.
    accumulating: Duration,
    /// When its exchange began.
    began: Option<Instant>,
    running: Option<Done>,
}

/// Where this worker's time in a step went, summed over its groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Accumulating gradients, choosing entries and preparing messages.
    pub select: Duration,
    /// Waiting for messages.
    pub exchange: Duration,
    /// Taking received entries in, putting the update together, and committing residuals.
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
        let lines = describe(layout, &method);
        let agree = || session.agree(Purpose::Gradients, &lines);
        if method.is_auto() {
            // Before anything is measured for it.
            agree()?;
        }
        let gradients = Self::make(session.clone(), channel, layout, method)?;
        agree()?;
        Ok(gradients)
    }

    /// Before the first step. The caller lets all ranks come together before they send anything.
    fn make(session: Arc<Inner>, channel: u8, layout: &Layout, method: Method) -> Result<Self, Error> {
        let by_name = Arc::new(layout.by_name()?);
        let mut methods = Vec::new();
        let mut before = 0;
        for number in 0..layout.group_count() {
            let n = layout.layers(number).entries();
            let method = match method.sparsity() {
                Sparsity::Density(_) => method.clone(),
                // An explicit k is shared out to the groups by their lengths; none goes without an entry, or it would wait
                // for ever.
                Sparsity::K(k) => {
                    method
                        .sparsity()
                        .k(layout.entries())
                        .map_err(gleaner_algorithms::collectives::MethodError::from)?;
                    let upto = |entries: usize| {
                        (k as u128 * entries as u128 / layout.entries().max(1) as u128) as usize
                    };
                    method.clone().k((upto(before + n) - upto(before)).max(k.min(1)).min(n))
                }
            };
            before += n;
            methods.push((method, n));
        }
        let mut auto = None;
        if method.is_auto() {
            auto = Some(Auto::new(&session, &methods)?);
        }
        let mut groups = Vec::new();
        for (number, (method, _)) in methods.into_iter().enumerate() {
            let method = auto.as_ref().map_or(method, |auto| auto.method(number));
            let group =
                Group::new(&session, method, layout.layers(number), stream(channel, number), Reduction::Sum)?;
            let parameters = layout.parameters.iter().filter(|p| p.group == number).count();
            groups.push(Gathering {
                group,
                missing: parameters,
                parameters,
                accumulating: Duration::ZERO,
                began: None,
                running: None,
            });
        }
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
            held: vec![Vec::new(); ready.len()],
            ready,
            given: 0,
            step: 0,
            times,
            lost: 0.0,
            refused: None,
            skipped: 0,
            failed: None,
        })
    }

    /// The gradient of one parameter is ready. It is added to the parameter's residual at once, so `gradient` is
    /// free when this returns; when it completes its group, the exchange begins. With local clipping it is copied, and all
    /// groups begin when the last gradient is there, since the norm of all of them decides.
    ///
    /// # Errors
    /// A parameter that the layout does not have or that was given before in this step, another length, NaN or infinite
    /// entries (the job then fails on all workers, unless the method [skips](Method::on_nonfinite) such steps), or a job
    /// that has failed.
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
        self.ready[position] = true;
        self.given += 1;
        if self.method.correction().clip.is_none() {
            return self.take_in(position, gradient);
        }
        let clock = Instant::now();
        let held = &mut self.held[position];
        held.clear();
        held.extend_from_slice(gradient);
        self.times.select += clock.elapsed();
        if self.given == self.ready.len() { self.clip() } else { Ok(()) }
    }

    /// Takes in the gradients of all parameters, shortened together where they are too long.
    fn clip(&mut self) -> Result<(), Error> {
        let clock = Instant::now();
        // Of all parameters together: the norm of their norms.
        let norms: Vec<f64> = self.held.iter().map(|values| norm(values)).collect();
        let factor = self.method.correction().shortening(norm(&norms), self.session.post.workers);
        if let Some(factor) = factor {
            self.held.iter_mut().flatten().for_each(|value| *value *= factor as f32);
        }
        self.times.select += clock.elapsed();
        let mut held = std::mem::take(&mut self.held);
        let taken = held.iter_mut().enumerate().try_for_each(|(i, values)| self.take_in(i, values));
        self.held = held;
        taken
    }

    /// Adds a parameter's gradient to its residual, and begins its group's exchange with the last.
    fn take_in(&mut self, position: usize, gradient: &[f32]) -> Result<(), Error> {
        let clock = Instant::now();
        let p = &self.layout.parameters[position];
        let gathering = &mut self.groups[p.group];
        let id = StepId::new(gathering.group.epoch(), self.channel, p.group as u16, self.step);
        if let Err(reason) = gathering.group.accumulate(&p.name, p.offset, gradient) {
            if self.method.nonfinite() == OnNonFinite::Skip {
                // A group that waits for the others to leave it out does not begin.
                gathering.running.get_or_insert_with(|| self.session.leave_out(id, self.step));
                self.refused.get_or_insert(reason);
                self.count(position, clock.elapsed());
                return Ok(());
            }
            let failure = Failure { rank: self.session.post.rank.0, step: Some(self.step), reason };
            return Err(self.fail(failure));
        }
        let last = gathering.missing == 1 && gathering.running.is_none();
        if last {
            let (program, execution) = gathering.group.begin()?;
            let (done, running) = oneshot::channel();
            gathering.running = Some(running);
            let group = p.group;
            // The clock stops first: the exchange may take the processor at once.
            self.count(position, clock.elapsed());
            self.groups[group].began = Some(Instant::now());
            self.session.run(Run { id, step: self.step, program, execution, done });
        } else {
            self.count(position, clock.elapsed());
        }
        Ok(())
    }

    /// A parameter's gradient was taken in, which took so long.
    fn count(&mut self, position: usize, took: Duration) {
        let gathering = &mut self.groups[self.layout.parameters[position].group];
        gathering.missing -= 1;
        gathering.accumulating += took;
        self.times.select += took;
    }

    /// What this worker selects from in the present step: its gradient and its residual, in the order of the layout. Nothing
    /// before the gradients of all parameters are ready, after [`wait`](Self::wait), or if one of them was not finite.
    pub fn accumulated(&self) -> Option<Vec<f32>> {
        let mut entries = Vec::with_capacity(self.layout.entries());
        for p in &self.layout.parameters {
            entries.extend_from_slice(self.groups[p.group].group.accumulated(p.offset..p.offset + p.len)?);
        }
        Some(entries)
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
        let mut skipped = None;
        let running: Vec<Option<Done>> = self.groups.iter_mut().map(|g| g.running.take()).collect();
        for done in running.into_iter().flatten() {
            match self.session.block_on(done) {
                Ok(Ok(result)) => finished.push(result),
                Ok(Err(Stopped::Failed(failure))) => return Err(self.fail(failure)),
                // All ranks come to the same for each group, so all name the same rank.
                Ok(Err(Stopped::Cancelled { by, cause: Cause::NonFinite })) => {
                    skipped.get_or_insert(by);
                }
                // No handle of these steps is given out, so nobody can cancel them.
                Ok(Err(Stopped::Cancelled { cause: Cause::Wish, .. })) | Err(_) => {
                    let reason = "its worker's actors ended unexpectedly".into();
                    let failure = Failure { rank: self.session.post.rank.0, step: Some(self.step), reason };
                    return Err(self.fail(failure));
                }
            }
        }
        self.times.waiting = clock.elapsed();
        self.lost = 0.0;
        if let Some(rank) = skipped {
            return self.leave_out(rank);
        }
        let clock = Instant::now();
        let mut updates = Vec::with_capacity(finished.len());
        // Whoever was kept waiting until the end also waited for being woken.
        let awaited = self.times.waiting > AWAITED;
        for (number, (gathering, (finished, times))) in self.groups.iter_mut().zip(finished).enumerate() {
            let committing = Instant::now();
            let delivered = gathering.group.commit(&self.session.post, finished)?;
            self.lost += delivered.lost;
            updates.push(delivered.sums);
            gathering.missing = gathering.parameters;
            let accumulating = std::mem::take(&mut gathering.accumulating);
            let since = gathering.began.take().filter(|_| awaited);
            let rest = since.map_or(times.total + committing.elapsed(), |began| began.elapsed());
            if let Some(auto) = &mut self.auto {
                auto.record(number, accumulating + rest);
            }
            self.times.select += times.select;
            self.times.merge += times.merge;
            self.times.exchange += times.total.saturating_sub(times.select + times.merge);
        }
        self.times.merge += clock.elapsed();
        let update = self.end_step(updates, None);
        self.revise()?;
        Ok(update)
    }

    /// Ends a step that all ranks left out, as `rank` has asked: no group keeps anything of it.
    fn leave_out(&mut self, rank: u32) -> Result<Update, Error> {
        let mut nothing = Vec::with_capacity(self.groups.len());
        for gathering in &mut self.groups {
            nothing.push(gathering.group.leave_out()?);
            gathering.missing = gathering.parameters;
            (gathering.accumulating, gathering.began) = (Duration::ZERO, None);
        }
        self.skipped += 1;
        let own = self.refused.take();
        Ok(self.end_step(nothing, Some(Skipped { rank, own })))
    }

    fn end_step(&mut self, groups: Vec<(Partition, Vec<Bag>)>, skipped: Option<Skipped>) -> Update {
        self.ready.fill(false);
        self.given = 0;
        self.step += 1;
        Update {
            layout: self.layout.clone(),
            by_name: self.by_name.clone(),
            groups,
            workers: self.session.post.workers,
            step: self.step - 1,
            reduction: Reduction::Sum,
            skipped,
        }
    }

    /// Whether no gradient of a step was given yet. What concerns all steps has to wait otherwise, and for ever if the job has
    /// failed.
    fn between_steps(&self, otherwise: impl Into<Error>) -> Result<(), Error> {
        self.alive()?;
        if self.given > 0 { Err(otherwise.into()) } else { Ok(()) }
    }

    /// The methods of the groups: those that were chosen, if the method was a choice.
    pub fn methods(&self) -> Vec<Method> {
        self.groups.iter().map(|g| g.group.routine.method().clone()).collect()
    }

    /// What the method `auto` has come to for each group; nothing where the method was named.
    pub fn chosen(&self) -> Vec<Chosen> {
        self.auto.as_ref().map(Auto::chosen).unwrap_or_default()
    }

    /// The number of the present step, from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// How many steps were [skipped](Update::skipped), those before a checkpoint included.
    pub fn skipped(&self) -> u64 {
        self.skipped
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
        self.groups.iter().map(|g| g.group.rounds()).max().unwrap_or(0)
    }

    /// Bytes that this worker received so far, headers of messages included.
    pub fn bytes_received(&self) -> u64 {
        self.session.post.traffic().bytes_received
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

/// A trainer that waits longer than this is taken to wait for the exchange.
const AWAITED: Duration = Duration::from_micros(100);

/// Tells gradients apart that are exchanged side by side.
fn stream(channel: u8, group: usize) -> u64 {
    u64::from(channel) << 16 | group as u64
}

/// What all ranks must agree on, a line each.
fn describe(layout: &Layout, method: &Method) -> String {
    let mut text = format!("method {method}\n{} entries in all\n", layout.entries());
    text += &format!("on values that are not finite: {}\n", method.nonfinite().name());
    for p in &layout.parameters {
        text += &format!("parameter '{}' with {} entries in group {}\n", p.name, p.len, p.group);
    }
    text
}
