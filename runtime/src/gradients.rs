//! Synchronising a model's gradients step by step.

mod collecting;
mod following;
mod health;
mod regrouping;
mod saving;
mod sharing;
mod times;
mod units;

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::density::AdaptiveDensity;
use gleaner_algorithms::device::{Device, DeviceSlice};
use gleaner_algorithms::{Method, Reduction};

use crate::algorithm::Outcome;
use crate::auto::{Auto, AutoChoice};
use crate::exchange::Exchange;
use crate::failure::{Error, Failure, OutOfMemory};
use crate::group::{Group, Home, Kept};
use crate::layout::{Layout, LayoutError, Parameter};
use crate::notes::Purpose;
use crate::session::{Inner, block_on};
use crate::timeline::WAIT;
use crate::update::{Skipped, Update};

pub(crate) use saving::together;
pub use times::StepTimes;

/// Exchanges a model's gradients: takes them parameter by parameter, and returns the same update on every worker.
///
/// The exchange of a group starts when its last parameter is ready, and runs while the trainer continues. Groups may
/// become ready in different orders on different ranks.
pub struct Gradients {
    session: Arc<Inner>,
    /// The device of the residuals, if they are not in main memory.
    device: Option<Arc<dyn Device>>,
    /// Distinguishes the first group from all others of the session; those after it have the numbers after it.
    stream: u64,
    layout: Arc<Layout>,
    by_name: Arc<HashMap<String, usize>>,
    method: Method,
    /// Chooses the groups' methods, if the method is a choice.
    auto: Option<Auto>,
    exchange: Exchange<f32>,
    gathering: Vec<Gathering>,
    /// Whether to keep what is selected from, and what was kept of it.
    keeps: bool,
    kept: Vec<(usize, Kept<f32>)>,
    /// By which the parameters' groups share k, if they compete for it and have agreed on that.
    weights: Vec<u64>,
    /// The density that follows the share of the norm, if one was asked for.
    density: Option<AdaptiveDensity>,
    /// The share of the norm that was delivered in the step that was looked at last.
    delivered: Option<f64>,
    /// Under local clipping, the gradients of this step by parameter until all are there: their norm decides. Of parameters that
    /// are not sparse, values without indices.
    held: Vec<Entries>,
    /// Parameters that are ready in this step, and how many.
    ready: Vec<bool>,
    given: usize,
    times: StepTimes,
    lost: f64,
    /// What was not finite in this step's own gradients, if anything was and such steps are skipped.
    refused: Arc<Mutex<Option<String>>>,
    skipped: u64,
    /// The parameter whose gradient was the last not to be taken in, and why, until it is given again.
    not_taken: Option<(usize, String)>,
    run: String,
    failed: Option<Failure>,
}

/// A group whose parameters become ready one by one.
#[derive(Default)]
struct Gathering {
    /// Parameters that are not ready yet in this step.
    missing: usize,
    parameters: usize,
    /// Accumulating in this step.
    accumulating: Duration,
    /// When its exchange began.
    began: Option<Instant>,
    /// Whether a gradient of this step was not finite, and all are to leave it out.
    is_refused: bool,
}

impl Gradients {
    pub(crate) fn new(
        session: Arc<Inner>,
        channel: u64,
        layout: &Layout,
        method: Method,
        device: Option<Arc<dyn Device>>,
    ) -> Result<Self, Error> {
        let lines = describe(layout, &method);
        if method.is_auto() {
            // Before anything is measured for it.
            session.agree(Purpose::Gradients, &lines)?;
        }
        let mut gradients = Self::make(session.clone(), stream(channel), layout, method, device)?;
        gradients.auto.iter_mut().for_each(|auto| auto.announce(false, None));
        gradients.run = session.agree_and_draw(Purpose::Gradients, &lines)?;
        Ok(gradients)
    }

    /// Before the first step. The caller lets all ranks come together before they send anything.
    fn make(
        session: Arc<Inner>,
        stream: u64,
        layout: &Layout,
        method: Method,
        device: Option<Arc<dyn Device>>,
    ) -> Result<Self, Error> {
        let layout = &layout.apart(method.is_dense_below());
        let by_name = Arc::new(layout.by_name()?);
        let methods = sharing::methods(&session, layout, &method)?;
        let density = following::begin(layout, &method, device.as_deref())?;
        let mut auto = None;
        if method.is_auto() {
            auto = Some(Auto::new(&session, &methods)?);
        }
        let (mut groups, mut gathering) = (Vec::new(), Vec::new());
        for (number, (method, _)) in methods.into_iter().enumerate() {
            let method = auto.as_ref().map_or(method, |auto| auto.method(number));
            let (membership, layers) = (session.membership(), layout.layers(number));
            let home = match &device {
                _ if layout.is_sparse(number) => Home::Sparse,
                Some(device) => Home::Device(device.clone()),
                None => Home::Host,
            };
            let stream = stream + number as u64;
            groups.push(Group::new(membership, method, layers, stream, Reduction::Sum, home)?.watched());
            let parameters = layout.parameters.iter().filter(|p| p.group == number).count();
            gathering.push(Gathering { missing: parameters, parameters, ..Gathering::default() });
        }
        let ready = vec![false; layout.parameters.len()];
        Ok(Self {
            exchange: Exchange::new(session.clone(), groups, 0, false)?,
            session,
            device,
            stream,
            layout: Arc::new(layout.clone()),
            by_name,
            method,
            auto,
            gathering,
            keeps: false,
            kept: Vec::new(),
            weights: Vec::new(),
            density,
            delivered: None,
            held: vec![Entries::default(); ready.len()],
            ready,
            given: 0,
            times: StepTimes::default(),
            lost: 0.0,
            refused: Arc::default(),
            skipped: 0,
            not_taken: None,
            run: String::new(),
            failed: None,
        })
    }

    /// Hands over the gradient of one parameter. It is added to the parameter's residual before this returns, so `gradient` is
    /// free afterwards; when it completes its group, the exchange begins. With local clipping it is copied, and all
    /// groups begin when the last gradient is ready, since the norm of all of them decides.
    ///
    /// # Errors
    /// A parameter that the layout does not have or that was given before in this step, another length, NaN or infinite
    /// entries (the job then fails on all workers, unless the method [skips](Method::on_nonfinite) such steps), or a job
    /// that has failed.
    pub fn ready(&mut self, parameter: &str, gradient: &[f32]) -> Result<(), Error> {
        let position = self.receive(parameter, gradient.len())?;
        match self.method.correction().clip {
            None => self.take_in(position, |group, name, offset| group.accumulate(name, offset, gradient)),
            Some(_) => self.hold(position, &[], gradient),
        }
    }

    /// [`ready`](Self::ready) of a [sparse parameter](Layout::sparse_parameter), of whose gradient all values but these entries are
    /// zero: memory and time of its step grow with the entries, and not with its length.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); a parameter that is not sparse, indices that do not ascend or are not below its length, and
    /// other than one value for each.
    pub fn ready_sparse(&mut self, parameter: &str, gradient: &Entries) -> Result<(), Error> {
        let position = self.receive_entries(parameter, gradient)?;
        match self.method.correction().clip {
            None => self.take_in(position, |group, name, _| group.accumulate_entries(name, gradient)),
            Some(_) => self.hold(position, &gradient.indices, &gradient.values),
        }
    }

    /// [`ready`](Self::ready) without a copy, where the parameter is a group by itself, nothing of it waits, and the method selects
    /// nothing: the exchange then uses the vector's memory, and the vector has other memory of the same length, whose values mean
    /// nothing. So the values are of no use after it in any case.
    ///
    /// # Errors
    /// As [`ready`](Self::ready).
    pub fn ready_in_place(&mut self, parameter: &str, gradient: &mut Vec<f32>) -> Result<(), Error> {
        let position = self.receive(parameter, gradient.len())?;
        let p = &self.layout.parameters[position];
        let alone = self.gathering[p.group].parameters == 1;
        match self.method.correction().clip {
            None if alone => self.take_in(position, |group, name, _| group.accumulate_whole(name, gradient)),
            None => self.take_in(position, |group, name, offset| group.accumulate(name, offset, gradient)),
            Some(_) => self.hold(position, &[], gradient),
        }
    }

    /// [`ready`](Self::ready) of a gradient that lies on the device of these gradients. The call does not wait. The gradient is read in the
    /// order of its stream, and what the program enqueues there afterwards may overwrite it; or after an event that was recorded
    /// before, and nothing may overwrite it before [`wait`](Self::wait) returns. What is not finite is found when the
    /// group's exchange begins, and fails the job then, or lets the step be skipped.
    ///
    /// # Errors
    /// As [`ready`](Self::ready); gradients [without a device](crate::Session::gradients), memory or a stream of another device,
    /// a stream that is being captured into a graph, and what has failed on the device before. Where memory [is missing](Error::Device), or
    /// memory, stream or event are [refused](gleaner_algorithms::device::DeviceError::Refused), the gradient counts as not given, and may be
    /// given again.
    pub fn ready_on_device(&mut self, parameter: &str, gradient: &DeviceSlice) -> Result<(), Error> {
        let position = self.receive(parameter, gradient.len)?;
        self.take_in(position, |group, _, offset| group.accumulate_there(offset, gradient))
    }

    /// Whether to keep what this worker selects from until [`wait`](Self::wait), for [`accumulated`](Self::accumulated). It
    /// costs a copy in each step.
    pub fn keep_accumulated(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// What this worker selects from in the present step, if it is [kept](Self::keep_accumulated): its gradient and its
    /// residual, in the order of the layout. Nothing before the gradients of all parameters are ready, after
    /// [`wait`](Self::wait), or if one of them was not finite.
    pub fn accumulated(&self) -> Option<Vec<f32>> {
        let parts: Option<Vec<&[f32]>> =
            self.layout.parameters.iter().map(|p| self.accumulated_of(p)).collect();
        parts.filter(|_| self.keeps).map(|parts| parts.concat())
    }

    fn accumulated_of(&self, p: &Parameter) -> Option<&[f32]> {
        let (_, kept) = self.kept.iter().find(|(group, _)| *group == p.group)?;
        // A device that has failed has failed the job.
        self.exchange.group(p.group).keep().ok()?;
        Some(&kept.get()?[p.offset..p.offset + p.len])
    }

    /// Waits for the update of this step and commits it: the residuals change for all groups or for none.
    ///
    /// # Errors
    /// Parameters whose gradients are missing, [`Error::OutOfMemory`], or a job that has failed.
    pub fn wait(&mut self) -> Result<Update, Error> {
        let _blocked = self.session.mailbox.block();
        block_on(self.updated())
    }

    /// [`wait`](Self::wait) for tasks of an async runtime, whichever it is. Dropped before it is ready, the step is
    /// committed nevertheless, and its update is lost.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn updated(&mut self) -> Result<Update, Error> {
        self.alive()?;
        if self.given < self.ready.len() {
            return Err(LayoutError::Missing(self.missing()).into());
        }
        let clock = Instant::now();
        let step = self.exchange.step;
        let counted = self.count_entries();
        let gathered = self.end_step();
        let outcome = match self.exchange.outcome() {
            Some(outcome) => outcome.await.unwrap_or_else(|_| Err(self.session.ended(Some(step)).into())),
            // A layout without parameters.
            None => Ok(Outcome::Delivered { sums: Vec::new(), lost: 0.0, times: Vec::new() }),
        };
        let outcome = outcome.inspect_err(|error| {
            if let Error::Failed(failure) = error {
                self.failed = Some(failure.clone());
            }
        })?;
        self.times.waiting = clock.elapsed();
        self.session.recorder.program(step, WAIT, clock..Instant::now());
        self.lost = 0.0;
        let (groups, skipped) = match outcome {
            Outcome::Delivered { sums, lost, times } => {
                self.record(&gathered, &times);
                self.lost = lost;
                (sums, None)
            }
            // All groups, as rank `by` has asked: no group keeps anything of the step.
            Outcome::LeftOut { by, sums } => {
                self.skipped += 1;
                let own = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                (sums, Some(Skipped { rank: by, own }))
            }
            Outcome::Undone { by: rank } => {
                let own = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
                return Err(OutOfMemory { rank, step, own }.into());
            }
            // No handle of these steps is given out, so nothing can cancel them.
            Outcome::Cancelled { by } => {
                let reason = "it cancelled a step that cannot be cancelled".into();
                return Err(self.fail(Failure { rank: by, step: Some(step), reason }));
            }
        };
        if skipped.is_none() {
            self.revise()?;
            counted.map_or(Ok(()), |counted| self.share_out(&counted))?;
            self.follow_share()?;
        }
        let (layout, by_name) = (self.layout.clone(), self.by_name.clone());
        let (workers, reduction) = (self.session.workers, Reduction::Sum);
        let device = self.device.clone();
        Ok(Update { layout, by_name, groups, workers, step, reduction, skipped, device })
    }

    /// The parameters that are not ready in this step.
    fn missing(&self) -> String {
        let missing = self.layout.parameters.iter().zip(&self.ready).filter(|(_, ready)| !**ready);
        missing.map(|(p, _)| format!("'{}'", p.name)).collect::<Vec<String>>().join(", ")
    }

    /// Makes room for the gradients of the next step. Gives what was gathered for this one.
    fn end_step(&mut self) -> Vec<Gathering> {
        self.ready.fill(false);
        self.given = 0;
        self.kept.clear();
        let next = |Gathering { parameters, .. }: &Gathering| Gathering {
            missing: *parameters,
            parameters: *parameters,
            ..Gathering::default()
        };
        let next = self.gathering.iter().map(next).collect();
        std::mem::replace(&mut self.gathering, next)
    }

    /// Whether no gradient of a step was given yet. What concerns all steps has to wait otherwise, and for ever if the job has
    /// failed.
    fn between_steps(&self, otherwise: impl Into<Error>) -> Result<(), Error> {
        self.alive()?;
        if self.given > 0 { Err(otherwise.into()) } else { Ok(()) }
    }

    /// The methods of the groups: those that were chosen, if the method was a choice.
    pub fn methods(&self) -> Vec<Method> {
        self.exchange.groups().map(|group| group.routine.method().clone()).collect()
    }

    /// What the method `auto` has chosen for each group; nothing where the method was named.
    pub fn chosen(&self) -> Vec<AutoChoice> {
        self.auto.as_ref().map(Auto::chosen).unwrap_or_default()
    }

    /// The number of the present step, from 0.
    pub fn step(&self) -> u64 {
        self.exchange.step
    }

    /// How many steps were [skipped](Update::skipped), those before a checkpoint included.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The sum of the magnitudes of what this worker dropped in the last step and did not collect: 0 under
    /// global residual collection.
    pub fn lost(&self) -> f64 {
        self.lost
    }

    /// Latency rounds of one step: those of the longest group, since groups overlap.
    pub fn rounds(&self) -> u64 {
        self.exchange.groups().map(|group| group.rounds()).max().unwrap_or(0)
    }

    /// Bytes that this worker received so far, headers of messages included.
    pub fn bytes_received(&self) -> u64 {
        self.session.counters.read().bytes_received
    }

    fn alive(&self) -> Result<(), Error> {
        match self.failed.clone().or_else(|| self.session.failure()) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Ends the job on all ranks because this program cannot go on: their next calls fail with this rank's name and the
    /// reason. Returns why the job failed: if it had failed before, that counts.
    pub fn abort(&mut self, reason: &dyn Display) -> Error {
        let (rank, step) = (self.session.rank.0, Some(self.exchange.step));
        self.fail(Failure { rank, step, reason: reason.to_string() })
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

/// Distinguishes the first group of gradients from those that are exchanged side by side with them.
fn stream(channel: u64) -> u64 {
    channel << 16
}

/// What all ranks must agree on, a line each.
pub(crate) fn describe(layout: &Layout, method: &Method) -> String {
    let mut text = format!("method {}\n{} entries in all\n", sharing::named(method), layout.entries());
    text += &format!("on values that are not finite: {}\n", method.nonfinite().name());
    for p in &layout.parameters {
        let kind = if p.is_sparse { "sparse parameter" } else { "parameter" };
        text += &format!("{kind} '{}' with {} entries in group {}\n", p.name, p.len, p.group);
    }
    text
}
