//! One worker of a training run: what every rank executes.

mod clock;
mod evaluating;
pub(super) mod metrics;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::arguments::TrainArgs;
use super::checkpoint::Checkpoints;
use super::error::{NoCommonCheckpoint, TrainResult, of_all, said};
use super::exchange::{Exchange, Passed, Share, exchange};
use super::record::Record;
use super::settings::{Settings, expect, unless};
use super::summary::{Evaluated, Summary, dense_bytes_per_step, density};
use super::uneven::{self, Pacer};
use crate::crew::Progress;
use crate::report::CommandError;
use candle_core::Device;
use clock::{Clock, Reporter};
use gleaner_algorithms::residual::OnNonFinite;
use gleaner_runtime::agreement::{all_can, expect_same};
use gleaner_runtime::report::say;
use gleaner_runtime::{Session, Timeline, local_rank, report};
use gleaner_trainer::data::{Dataset, Order};
use gleaner_trainer::layers::{Mode, cross_entropy};
use gleaner_trainer::models::Model;
use gleaner_trainer::parameters::Parameters;
use metrics::Metrics;

/// Joins the other workers and trains; worker 0 reports the progress, and returns the result. Nothing, and not success, where all workers
/// fail for one reason: then the launcher says it, once.
pub fn worker(args: &TrainArgs, progress: impl FnMut(Progress)) -> TrainResult<(ExitCode, Option<Summary>)> {
    let settings = args.settings()?;
    let session = Session::join()?;
    if session.is_server() {
        session.serve()?;
        return Ok((ExitCode::SUCCESS, None));
    }
    let (rank, servers) = (session.rank(), session.servers());
    let trained = expect_servers(args, servers).and_then(|()| train(&session, &settings, progress));
    match trained.map_err(said) {
        Ok(summary) => Ok((ExitCode::SUCCESS, (rank == 0).then_some(summary))),
        Err(error) => {
            // All ranks are to know why; where the job had failed before, or all see the same, they do.
            let is_said = match of_all(&error) {
                Some(failure) => report::failed(&failure),
                None => {
                    session.abort(&error);
                    false
                }
            };
            if let Some(directory) = args.checkpoint.as_deref().filter(|_| servers > 0 && rank == 0)
                && let kept = Checkpoints::of_servers(directory)
                && kept.is_dir()
            {
                say(format_args!(
                    "gleaner: what the parameter servers have applied is in {}; go on from it with --resume",
                    kept.display()
                ));
            }
            if is_said { Ok((ExitCode::FAILURE, None)) } else { Err(error) }
        }
    }
}

/// Trains as one worker of a session that is already joined.
pub fn train(session: &Session, settings: &Settings, progress: impl FnMut(Progress)) -> TrainResult<Summary> {
    let (mut run, checkpoints) = Run::prepare(session, settings)?;
    if let Some(checkpoints) = checkpoints.as_ref().filter(|_| settings.options.resume) {
        run.resume(checkpoints)?;
    }
    let mut summary = run.all_steps(checkpoints.as_ref(), progress)?;
    if let Some(timeline) = run.timeline {
        summary.timeline = timeline.gather()?;
    }
    session.barrier()?;
    Ok(summary)
}

/// Everything that one worker holds.
struct Run<'a> {
    session: &'a Session,
    settings: &'a Settings,
    device: Device,
    dataset: Dataset,
    order: Order,
    model: Box<dyn Model>,
    parameters: Parameters,
    exchange: Box<dyn Exchange + 'a>,
    /// Samples of each worker's passes, by rank.
    batches: Vec<usize>,
    pacer: Pacer,
    record: Option<Record>,
    timeline: Option<Timeline>,
    metrics: Option<Metrics>,
    first_step: u64,
    loss_curve: Vec<(u64, f64)>,
    evaluations: Vec<Evaluated>,
    /// The losses of this worker's batches since the last evaluation, and how many there were.
    losses: (f64, u64),
}

impl<'a> Run<'a> {
    /// Loads the data, puts the model together, and makes sure that all workers have the same of both.
    fn prepare(session: &'a Session, settings: &'a Settings) -> TrainResult<(Self, Option<Checkpoints>)> {
        let rank = session.rank();
        settings.options.uneven.expect_fit(session.world_size(), settings.batch)?;
        let dataset = settings.source.load(settings.options.seed)?;
        // Of several devices, the workers of a host take one each in turn.
        let device = settings.options.device.open(local_rank().unwrap_or(0) as usize)?;
        let (model, mut parameters) =
            settings.model.build(dataset.input, dataset.classes, settings.options.seed, &device)?;
        let identity = settings.identity(&dataset, session);
        let shared = [
            &identity[..],
            &[("schedule", settings.schedule()), ("starting parameters", parameters.digest()?)],
        ]
        .concat();
        expect_same(session, &shared, "start every worker with the same program, options and data")?;
        // Before servers put their state in its place.
        let open = |directory| Checkpoints::open(directory, rank, identity, settings.options.resume);
        let checkpoints = all_can(session, settings.options.checkpoint.as_deref().map(open).transpose())?;
        let example = || {
            let example = dataset.train.batch(&[0], 0, &device)?;
            let logits = model.forward(&example.input, Mode::Evaluation)?;
            Ok(cross_entropy(&logits, &example.targets)?)
        };
        let pass = |samples| {
            uneven::pass_takes(settings, rank, samples, &dataset, model.as_ref(), &parameters, &device)
        };
        let batches = settings.options.uneven.balance.batches(session, settings.batch, pass)?;
        let pacer = Pacer::new(&settings.options.uneven, rank, batches[rank], settings.batch);
        let order = Order::new(settings.options.seed, dataset.train.len(), rank, &batches)?;
        let (samples, weight) = (batches[rank] as u64, uneven::weight(&batches, rank));
        let share = Share { samples, weight, epoch: order.batches_per_epoch() };
        let exchange = exchange(session, settings, &mut parameters, share, example)?;
        let record =
            settings.options.record.as_ref().map(|directory| Record::open(directory, rank)).transpose()?;
        for file in [&settings.options.timeline, &settings.options.layer_times].into_iter().flatten() {
            // Rank 0 sees now whether it can write it at the end.
            let room = if rank == 0 { crate::report::probe(file) } else { Ok(()) };
            all_can(session, room.map_err(CommandError::from))?;
        }
        let timeline = settings.options.timeline.is_some().then(|| session.timeline()).transpose()?;
        let metrics = all_can(session, Metrics::of(settings, rank))?;
        let run = Run {
            session,
            settings,
            device,
            dataset,
            order,
            model,
            parameters,
            exchange,
            batches,
            pacer,
            record,
            timeline,
            metrics,
            first_step: 0,
            loss_curve: Vec::new(),
            evaluations: Vec::new(),
            losses: (0.0, 0),
        };
        Ok((run, checkpoints))
    }

    /// Goes on from the newest step of which all workers have a checkpoint, or from what servers have.
    fn resume(&mut self, checkpoints: &Checkpoints) -> TrainResult<()> {
        let kept = self.exchange.kept();
        self.first_step = match (checkpoints.newest_common_step(self.session), kept) {
            (Err(error), Some(step)) if error.is::<NoCommonCheckpoint>() => step,
            (found, kept) => {
                let step = found?;
                self.loss_curve = checkpoints.load(step, &mut *self.exchange, &mut self.parameters)?;
                kept.unwrap_or(step)
            }
        };
        Ok(())
    }

    /// All steps that are left, with their evaluations and checkpoints.
    fn all_steps(
        &mut self,
        checkpoints: Option<&Checkpoints>,
        progress: impl FnMut(Progress),
    ) -> TrainResult<Summary> {
        let started = Instant::now();
        let mut clock = Clock::new(self.session, self.exchange.bytes_received());
        if let Some(metrics) = &mut self.metrics {
            metrics.begin(self.exchange.bytes_received());
        }
        let mut reporter = Reporter::new(self, progress);
        if self.loss_curve.is_empty() {
            self.evaluate(self.first_step, &mut clock)?;
        }
        for step in self.first_step..self.settings.steps {
            let loss = self.step(step, &mut clock)?;
            let done = step + 1;
            reporter.report(done, loss, &clock, self.exchange.bytes_received());
            if done % self.settings.evaluate_every == 0 && done < self.settings.steps {
                self.evaluate(done, &mut clock)?;
            }
            let last = done == self.settings.steps;
            let every = self.settings.options.checkpoint_every;
            if let Some(checkpoints) =
                checkpoints.filter(|_| last || every.is_some_and(|every| done % every == 0))
            {
                checkpoints.save(done, &mut *self.exchange, &self.parameters, &self.loss_curve)?;
            }
        }
        if let Some(record) = &self.record {
            record.write()?;
        }
        self.exchange.flush(&mut self.parameters)?;
        let last = self.evaluate(self.settings.steps, &mut clock)?;
        self.summary(&last, started.elapsed(), &clock)
    }

    /// One step: a batch forward and backward, its gradients handed over, the common update applied.
    fn step(&mut self, step: u64, clock: &mut Clock) -> TrainResult<f32> {
        let started = Instant::now();
        let (epoch, numbers) = self.order.batch(step);
        let batch = self.dataset.train.batch(numbers, epoch, &self.device)?;
        let skips = self.settings.method.nonfinite() == OnNonFinite::Skip;
        // What the layers learn in a step that is skipped goes with it.
        let buffers = skips.then(|| self.parameters.buffer_values()).transpose()?;
        let began = Instant::now();
        self.exchange.watch(&self.parameters)?;
        let logits = self.model.forward(&batch.input, Mode::Training)?;
        // The loss keeps what its backward pass needs.
        self.parameters.unwatch();
        let loss = cross_entropy(&logits, &batch.targets)?;
        let value = loss.to_scalar::<f32>()?;
        if !value.is_finite() && !skips {
            return Err(format!(
                "at step {step} the loss is {value}, not a finite number; lower --lr, or set --clip"
            )
            .into());
        }
        let is_last = step + 1 == self.settings.steps;
        let forward = began.elapsed();
        self.pacer.between(began);
        let between = Instant::now();
        let keeps = is_last && self.record.is_some();
        let rate = self.settings.learning_rate(step);
        self.exchange.backward(&loss, &self.parameters, rate, keeps)?;
        let backward = between.elapsed();
        self.pacer.after(began, backward);
        if let Some(record) = self.record.as_mut().filter(|_| is_last) {
            record.entries = self.exchange.selected();
        }

        let pass = Passed { step, rate, loss: value };
        let ended = self.exchange.end_step(&mut self.parameters, pass)?;
        if let Some(skipped) = &ended.stepped.skipped {
            if let Some(own) = &skipped.own {
                say(format_args!(
                    "gleaner: rank {} lets all workers skip step {step}: {own}",
                    self.session.rank()
                ));
            }
            if let Some(record) = &mut self.record {
                record.entries = None;
            }
            buffers.iter().try_for_each(|buffers| self.parameters.set_buffer_values(buffers))?;
        }
        let took = started.elapsed();
        clock.count(step, [forward, backward, ended.came - began, took], &ended);
        if let Some(metrics) = &mut self.metrics {
            let received = self.exchange.bytes_received();
            metrics.write(pass, (took, clock.last()), ended.stepped.entries, received)?;
        }
        if value.is_finite() {
            self.losses = (self.losses.0 + f64::from(value), self.losses.1 + 1);
        }
        Ok(value)
    }

    fn summary(&self, last: &Evaluated, elapsed: Duration, clock: &Clock) -> TrainResult<Summary> {
        let (settings, workers) = (self.settings, self.session.world_size());
        let digest = self.parameters.digest()?;
        let advice = "the updates were not the same everywhere; please report this together with the command";
        expect_same(self.session, &[("parameters at the end", digest.clone())], advice)?;
        let own = (self.batches[self.session.rank()], self.exchange.bytes_received());
        let together = clock::all_workers(self.session, clock, own)?;
        let hosting = if self.session.is_colocated() { self.session.servers() } else { 0 };
        let (with_servers, apart) = together.seconds_batch_computation_by_rank.split_at(hosting);
        let mean = |of: &[f64]| (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64);
        let (best, lowest) = (self.best(), self.lowest());
        let steps_here = (settings.steps - self.first_step.min(settings.steps)).max(1);
        Ok(Summary {
            data: settings.source.to_string(),
            model: settings.model.to_string(),
            params: self.parameters.count(),
            workers,
            batches: self.batches.clone(),
            seconds_paced: settings.options.uneven.pace.map(|pace| pace.as_secs_f64()),
            method: settings.method.to_string(),
            optimizer: settings.options.optimizer.name(),
            momentum: settings.momentum,
            rate_in_residual: settings.options.levers.rate_in_residual,
            synchrony: settings.synchrony.name(),
            select_over: settings.method.selects_over().name(),
            density: density(&settings.method, self.parameters.count()),
            steps: settings.steps,
            first_step: self.first_step,
            held_out_loss_first: self.loss_curve.first().map_or(last.held_out_loss, |(_, loss)| *loss),
            held_out_loss: last.held_out_loss,
            held_out_accuracy: last.held_out_accuracy,
            training_loss: self.evaluations.last().and_then(|last| last.training_loss),
            loss_curve: self.loss_curve.clone(),
            evaluations: self.evaluations.clone(),
            seconds_run: elapsed.as_secs_f64(),
            servers: self.session.servers(),
            seconds_batch_computation_colocated: mean(with_servers),
            seconds_batch_computation_apart: mean(apart).filter(|_| self.session.servers() > 0),
            background_share: clock.spent.deferred as f64
                / (steps_here as f64 * self.parameters.count() as f64),
            background_bound: clock.most.map(|most| most as f64 / self.parameters.count() as f64),
            seconds_waited: clock.waits.seconds().to_vec(),
            best_held_out_loss: best.held_out_loss,
            best_held_out_accuracy: best.held_out_accuracy,
            best_step: best.step,
            lowest_held_out_loss: lowest.held_out_loss,
            lowest_held_out_loss_step: lowest.step,
            reached: settings.options.target.reached(&self.evaluations),
            entries_per_step: clock.spent.entries as f64 / steps_here as f64,
            bytes_per_step: together.bytes_received as f64 / steps_here as f64,
            dense_bytes_per_step: dense_bytes_per_step(workers, self.parameters.count()),
            together,
            parameters_digest: digest,
            timeline: None,
            account: self.exchange.account(),
        })
    }
}

/// Refuses another number of servers than the job has.
fn expect_servers(args: &TrainArgs, servers: usize) -> TrainResult<()> {
    let expected = "nothing, or as many servers as whatever has started the workers has started";
    expect([("--servers", expected, unless(args.servers.servers, |asked| *asked as usize == servers))])
}

#[cfg(test)]
mod tests;
