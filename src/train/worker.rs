//! One worker of a training run: what every rank executes.

use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;

use super::agreement::expect_agreement;
use super::arguments::{Settings, TrainArgs};
use super::checkpoint::{Checkpoints, Identity, State};
use super::data::{Dataset, Order};
use super::error::TrainError;
use super::evaluation::{self, Evaluation};
use super::layers::{Mode, cross_entropy, with_values};
use super::models::Model;
use super::optimizer::Optimizer;
use super::parameters::Parameters;
use super::record::Record;
use super::summary::{Evaluated, Progress, Summary, dense_bytes_per_step, density};
use gleaner_algorithms::residual::OnNonFinite;
use gleaner_runtime::{Gradients, Session};

/// The shortest time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Joins the other workers and trains; worker 0 is told of the progress, and returns what came of it.
pub fn worker(args: &TrainArgs, progress: impl FnMut(Progress)) -> Result<Option<Summary>, TrainError> {
    let settings = args.settings()?;
    let session = Session::join()?;
    let summary = train(&session, &settings, progress)?;
    Ok((session.rank() == 0).then_some(summary))
}

/// Trains as one worker of a session that is already joined.
pub fn train(
    session: &Session,
    settings: &Settings,
    progress: impl FnMut(Progress),
) -> Result<Summary, TrainError> {
    let mut run = Run::prepare(session, settings)?;
    let checkpoints = run.open_checkpoints()?;
    if let Some(checkpoints) = checkpoints.as_ref().filter(|_| settings.resume) {
        run.first_step = checkpoints.newest_common_step(session)?;
        checkpoints.load(run.first_step, &mut run.state())?;
    }
    let summary = run.all_steps(checkpoints.as_ref(), progress)?;
    session.barrier()?;
    Ok(summary)
}

/// Everything that one worker holds.
struct Run<'a> {
    session: &'a Session,
    settings: &'a Settings,
    dataset: Dataset,
    order: Order,
    model: Box<dyn Model>,
    parameters: Parameters,
    optimizer: Optimizer,
    gradients: Gradients,
    identity: Identity,
    record: Option<Record>,
    first_step: u64,
    loss_curve: Vec<(u64, f64)>,
    evaluations: Vec<Evaluated>,
}

impl<'a> Run<'a> {
    /// Loads the data, puts the model together, and makes sure that all workers have the same of both.
    fn prepare(session: &'a Session, settings: &'a Settings) -> Result<Self, TrainError> {
        let (rank, workers) = (session.rank(), session.world_size());
        let dataset = settings.source.load(settings.seed)?;
        let order = Order::new(settings.seed, dataset.train.len(), rank, workers, settings.batch)?;
        let (model, parameters) = settings.model.build(dataset.input, dataset.classes, settings.seed)?;
        let identity = identity(settings, &dataset, workers);
        let schedule = format!(
            "steps {}, lr {} dropping at {:?}, momentum {}, weight decay {}, clip {:?}, evaluation every {}, resume {}",
            settings.steps,
            settings.lr,
            settings.lr_drops,
            settings.momentum,
            settings.weight_decay,
            settings.clip,
            settings.evaluate_every,
            settings.resume,
        );
        let shared =
            [&identity[..], &[("schedule", schedule), ("starting parameters", parameters.digest())]].concat();
        expect_agreement(session, &shared, "start every worker with the same program, options and data")?;
        let gradients = session.gradients(&parameters.layout(), settings.method.clone())?;
        let optimizer = Optimizer::new(&parameters, settings.momentum, settings.weight_decay);
        let record = settings.record.as_ref().map(|directory| Record::open(directory, rank)).transpose()?;
        let loss_curve = Vec::new();
        let first_step = 0;
        Ok(Run {
            session,
            settings,
            dataset,
            order,
            model,
            parameters,
            optimizer,
            gradients,
            identity,
            record,
            first_step,
            loss_curve,
            evaluations: Vec::new(),
        })
    }

    fn open_checkpoints(&self) -> Result<Option<Checkpoints>, TrainError> {
        let Some((directory, _)) = &self.settings.checkpoint else { return Ok(None) };
        let checkpoints = Checkpoints::open(directory, self.session.rank(), self.identity.clone())?;
        if !self.settings.resume {
            checkpoints.expect_none()?;
        }
        Ok(Some(checkpoints))
    }

    fn state(&mut self) -> State<'_> {
        State {
            parameters: &mut self.parameters,
            optimizer: &mut self.optimizer,
            gradients: &mut self.gradients,
            loss_curve: &mut self.loss_curve,
        }
    }

    /// All steps that are left, with their evaluations and checkpoints.
    fn all_steps(
        &mut self,
        checkpoints: Option<&Checkpoints>,
        progress: impl FnMut(Progress),
    ) -> Result<Summary, TrainError> {
        let started = Instant::now();
        let mut clock = Clock::new(self.gradients.bytes_received());
        let mut reporter = Reporter::new(self, progress);
        if self.loss_curve.is_empty() {
            self.evaluate(self.first_step, &clock)?;
        }
        for step in self.first_step..self.settings.steps {
            let loss = self.step(step, &mut clock)?;
            let done = step + 1;
            reporter.report(done, loss, &clock, &self.gradients);
            if done % self.settings.evaluate_every == 0 && done < self.settings.steps {
                self.evaluate(done, &clock)?;
            }
            let last = done == self.settings.steps;
            let every = self.settings.checkpoint.as_ref().and_then(|(_, every)| *every);
            if let Some(checkpoints) =
                checkpoints.filter(|_| last || every.is_some_and(|every| done % every == 0))
            {
                checkpoints.save(done, &self.state())?;
            }
        }
        if let Some(record) = &self.record {
            record.write()?;
        }
        let evaluation = self.evaluate(self.settings.steps, &clock)?;
        self.summary(evaluation, started.elapsed(), &clock)
    }

    /// One step: a batch forward and backward, its gradients handed over, the common update applied.
    fn step(&mut self, step: u64, clock: &mut Clock) -> Result<f32, TrainError> {
        let started = Instant::now();
        let (epoch, numbers) = self.order.batch(step);
        let batch = self.dataset.train.batch(numbers, epoch)?;
        let skips = self.settings.method.nonfinite() == OnNonFinite::Skip;
        // What the layers learn in a step that is skipped goes with it.
        let buffers = skips.then(|| self.parameters.buffer_values());
        let logits = self.model.forward(&batch.input, Mode::Training)?;
        let loss = cross_entropy(&logits, &batch.targets)?;
        let value = loss.to_scalar::<f32>()?;
        if !value.is_finite() && !skips {
            return Err(TrainError::Diverged { step, loss: value });
        }
        self.hand_over(&loss.backward()?)?;
        if let Some(record) = self.record.as_mut().filter(|_| step + 1 == self.settings.steps) {
            record.entries = self.gradients.accumulated();
        }

        let waiting = Instant::now();
        let update = self.gradients.wait()?;
        clock.waited += waiting.elapsed();
        clock.entries += update.entries() as u64;
        match update.skipped() {
            None => {
                let rate = self.settings.learning_rate(step);
                self.optimizer.apply(&update, &mut self.parameters, rate)?;
            }
            Some(skipped) => {
                if let Some(own) = &skipped.own {
                    eprintln!(
                        "gleaner: rank {} lets all workers skip step {step}: {own}",
                        self.session.rank()
                    );
                }
                if let Some(record) = &mut self.record {
                    record.entries = None;
                }
                buffers.iter().for_each(|buffers| self.parameters.set_buffer_values(buffers));
            }
        }
        clock.worked += started.elapsed();
        Ok(value)
    }

    /// Declares every parameter's gradient ready, the last layer's first: the order in which backpropagation ends.
    ///
    /// candle gives all gradients at once when its backward pass is over, so the exchange does not overlap with it yet.
    /// Hooks that fire while the pass is running, one per layer or group of merged layers, come with layer merging; and
    /// clipping, which needs the norm of the whole gradient first, keeps a worker from using them.
    fn hand_over(&mut self, store: &GradStore) -> Result<(), TrainError> {
        let scale = self.clipping(store)?;
        let mut clipped = Vec::new();
        for parameter in self.parameters.list.iter().rev() {
            let Some(gradient) = store.get(parameter.variable()) else { continue };
            with_values(gradient, |gradient| {
                if scale < 1.0 {
                    clipped.clear();
                    clipped.extend(gradient.iter().map(|value| value * scale));
                    self.gradients.ready(&parameter.name, &clipped)
                } else {
                    self.gradients.ready(&parameter.name, gradient)
                }
            })??;
        }
        Ok(())
    }

    /// The factor, at most one, that shortens the gradient to the norm allowed.
    fn clipping(&self, store: &GradStore) -> Result<f32, TrainError> {
        let Some(largest) = self.settings.clip else { return Ok(1.0) };
        let mut sum = 0.0;
        for gradient in self.parameters.list.iter().filter_map(|parameter| store.get(parameter.variable())) {
            sum += with_values(gradient, |values| {
                values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>()
            })?;
        }
        Ok((f64::from(largest) / sum.sqrt()).min(1.0) as f32)
    }

    fn evaluate(&mut self, step: u64, clock: &Clock) -> Result<Evaluation, TrainError> {
        let (held_out, input) = (&self.dataset.held_out, self.dataset.input);
        let evaluation =
            evaluation::evaluate(self.session, self.model.as_ref(), &self.parameters, held_out, input)?;
        if self.loss_curve.last().is_none_or(|(last, _)| *last < step) {
            self.loss_curve.push((step, evaluation.loss));
        }
        if self.evaluations.last().is_none_or(|last| last.step < step) {
            self.evaluations.push(Evaluated {
                step,
                seconds: clock.worked.as_secs_f64(),
                entries: clock.entries,
                held_out_loss: evaluation.loss,
                held_out_accuracy: evaluation.accuracy,
            });
        }
        Ok(evaluation)
    }

    fn summary(
        &self,
        evaluation: Evaluation,
        elapsed: Duration,
        clock: &Clock,
    ) -> Result<Summary, TrainError> {
        let (settings, workers) = (self.settings, self.session.world_size());
        let digest = self.parameters.digest();
        let advice = "the updates were not the same everywhere; please report this together with the command";
        expect_agreement(self.session, &[("parameters at the end", digest.clone())], advice)?;
        let (bytes_received, waiting_share) = self.worst_of_all_workers(clock)?;
        let steps_here = (settings.steps - self.first_step.min(settings.steps)).max(1);
        Ok(Summary {
            data: settings.source.to_string(),
            model: settings.model.to_string(),
            parameters: self.parameters.count(),
            workers,
            method: settings.method.to_string(),
            density: density(&settings.method, self.parameters.count()),
            steps: settings.steps,
            steps_skipped: self.gradients.skipped(),
            first_step: self.first_step,
            held_out_loss_first: self.loss_curve.first().map_or(evaluation.loss, |(_, loss)| *loss),
            held_out_loss: evaluation.loss,
            held_out_accuracy: evaluation.accuracy,
            loss_curve: self.loss_curve.clone(),
            evaluations: self.evaluations.clone(),
            seconds: elapsed.as_secs_f64(),
            waiting_share,
            entries_per_step: clock.entries as f64 / steps_here as f64,
            bytes_received,
            bytes_per_step: bytes_received as f64 / steps_here as f64,
            dense_bytes_per_step: dense_bytes_per_step(workers, self.parameters.count()),
            parameters_digest: digest,
        })
    }

    /// The most bytes and the largest waiting share of any worker.
    fn worst_of_all_workers(&self, clock: &Clock) -> Result<(u64, f64), TrainError> {
        let bytes = self.gradients.bytes_received() - clock.bytes_at_start;
        let note = [bytes.to_le_bytes(), clock.waiting_share().to_le_bytes()].concat();
        let (mut most, mut longest) = (0, 0.0_f64);
        for (rank, note) in self.session.all_gather(&note)?.iter().enumerate() {
            let ([bytes, share], []) = note.as_chunks::<8>() else {
                return Err(TrainError::Note {
                    rank,
                    expected: "bytes and waiting share",
                    found: note.len(),
                });
            };
            most = most.max(u64::from_le_bytes(*bytes));
            longest = longest.max(f64::from_le_bytes(*share));
        }
        Ok((most, longest))
    }
}

/// What must stay the same over workers, and over the interruptions of a run.
///
/// Data are known by what they contain, not by where they lie, which may differ from machine to machine.
fn identity(settings: &Settings, dataset: &Dataset, workers: usize) -> Identity {
    let source = settings.source.to_string();
    let kind = source.split(':').next().unwrap_or_default();
    vec![
        ("workers", workers.to_string()),
        ("model", settings.model.to_string()),
        ("data", format!("{kind} with SHA-256 {}", dataset.fingerprint())),
        ("method", settings.method.to_string()),
        ("seed", settings.seed.to_string()),
        ("batch", settings.batch.to_string()),
    ]
}

/// Where the time of the steps went.
struct Clock {
    worked: Duration,
    waited: Duration,
    /// The updates' entries.
    entries: u64,
    bytes_at_start: u64,
}

impl Clock {
    fn new(bytes_at_start: u64) -> Self {
        Clock { worked: Duration::ZERO, waited: Duration::ZERO, entries: 0, bytes_at_start }
    }

    fn waiting_share(&self) -> f64 {
        share(self.waited, self.worked)
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// Tells the caller of worker 0 how far the run is.
struct Reporter<F> {
    progress: Option<F>,
    steps: u64,
    dense_bytes_per_step: f64,
    last: Instant,
    last_step: u64,
    last_bytes: u64,
    last_worked: Duration,
    last_waited: Duration,
}

impl<F: FnMut(Progress)> Reporter<F> {
    fn new(run: &Run, progress: F) -> Self {
        Reporter {
            progress: (run.session.rank() == 0).then_some(progress),
            steps: run.settings.steps,
            dense_bytes_per_step: dense_bytes_per_step(run.session.world_size(), run.parameters.count()),
            last: Instant::now(),
            last_step: run.first_step,
            last_bytes: run.gradients.bytes_received(),
            last_worked: Duration::ZERO,
            last_waited: Duration::ZERO,
        }
    }

    fn report(&mut self, done: u64, loss: f32, clock: &Clock, gradients: &Gradients) {
        let Some(progress) = &mut self.progress else { return };
        if self.last.elapsed() < REPORT_INTERVAL && done < self.steps {
            return;
        }
        let (worked, waited) = (clock.worked - self.last_worked, clock.waited - self.last_waited);
        let steps = (done - self.last_step) as f64;
        let bytes = gradients.bytes_received();
        progress(Progress {
            step: done,
            steps: self.steps,
            loss,
            steps_per_second: steps / worked.as_secs_f64().max(f64::MIN_POSITIVE),
            waiting_share: share(waited, worked),
            bytes_per_step: (bytes - self.last_bytes) as f64 / steps,
            dense_bytes_per_step: self.dense_bytes_per_step,
        });
        self.last = Instant::now();
        self.last_step = done;
        self.last_bytes = bytes;
        self.last_worked = clock.worked;
        self.last_waited = clock.waited;
    }
}

#[cfg(test)]
mod tests;
