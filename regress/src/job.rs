//! A run: every worker's samples, what the workers agree on, and its epochs.

use std::time::Instant;

use gleaner_algorithms::bag::Entries;
use gleaner_runtime::agreement::expect_same;
use gleaner_runtime::{AutoChoice, Session};
use twox_hash::XxHash3_128;

use crate::agreement::gather;
use crate::columns::Columns;
use crate::compact::Compact;
use crate::coordinates::Coordinates;
use crate::error::RegressError;
use crate::evaluation::Evaluation;
use crate::exchange::Exchange;
use crate::model::Model;
use crate::order::Order;
use crate::scoring;
use crate::settings::{Algorithm, Descent, Settings};
use crate::sgd::Sgd;

mod prepare;

use prepare::Prepared;
pub(crate) use prepare::signs;

/// The result of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// From 1.
    pub epoch: u64,
    /// What its steps took, in seconds, on the worker that took longest; without evaluations.
    pub seconds: f64,
    /// The part of it in which a worker handed its vectors over and waited for their sums, in seconds, the mean over the workers.
    pub communication_seconds: f64,
    /// What the worker that received most received.
    pub bytes_received: u64,
    /// Of SGD, the mean loss of the samples, each as it was when its turn came, without penalties.
    pub training_loss: Option<f64>,
    /// Of coordinate descent, the objective after it.
    pub objective: Option<f64>,
    /// On the samples that were held out, if any were.
    pub held_out: Option<Evaluation>,
}

/// The result of a run; the same on every worker.
#[derive(Clone, Debug)]
pub struct Trained {
    /// Samples trained on, of all workers.
    pub samples: u64,
    /// Their non-zero entries.
    pub nonzeros: u64,
    /// What reading or making the samples took, in seconds, on the worker that took longest.
    pub loading_seconds: f64,
    /// Steps of an epoch.
    pub steps: u64,
    /// The learning rate at first, of SGD.
    pub rate: Option<f64>,
    /// All epochs.
    pub epochs: Vec<Epoch>,
    /// What the method `auto` has chosen.
    pub auto: Option<AutoChoice>,
    /// The objective before the first step, with all weights at zero.
    pub objective_first: f64,
    /// The objective at the end.
    pub objective: f64,
    /// The model.
    pub model: Model,
    /// XXH3 of 128 bits over its weights, in hexadecimal digits.
    pub digest: String,
}

/// Trains as one worker of a session. `progress` gets the steps done, all steps, and how the last epoch went.
///
/// # Errors
/// Options or data that do not fit, on this worker or another, and an exchange that fails.
pub fn train(
    session: &Session,
    settings: &Settings,
    mut progress: impl FnMut(u64, u64, Option<&Epoch>),
) -> Result<Trained, RegressError> {
    settings.check()?;
    let mut prepared = Prepared::of(session, settings)?;
    let ran = match &settings.algorithm {
        Algorithm::Sgd(descent) => by_samples(session, settings, descent, &mut prepared, &mut progress),
        Algorithm::Scd { coordinates } => {
            by_coordinates(session, settings, *coordinates, &mut prepared, &mut progress)
        }
    }?;
    let digest = digest(&ran.weights);
    let advice = "the sums were not the same everywhere; please report this together with the command";
    expect_same(session, &[("weights at the end", digest.clone())], advice)?;
    session.barrier()?;
    Ok(Trained {
        samples: prepared.all,
        nonzeros: prepared.nonzeros,
        loading_seconds: prepared.seconds,
        steps: ran.steps,
        rate: ran.rate,
        epochs: ran.epochs,
        auto: ran.auto,
        objective_first: ran.objective_first,
        objective: ran.objective,
        model: Model {
            loss: settings.loss,
            penalty: settings.penalty,
            features: prepared.features,
            bias: settings.bias,
            classes: prepared.classes,
            weights: Entries::from_dense(&ran.weights),
        },
        digest,
    })
}

/// The result of the epochs.
struct Ran {
    rate: Option<f64>,
    steps: u64,
    epochs: Vec<Epoch>,
    auto: Option<AutoChoice>,
    objective_first: f64,
    objective: f64,
    weights: Vec<f32>,
}

fn digest(weights: &[f32]) -> String {
    let mut hash = XxHash3_128::new();
    weights.iter().for_each(|weight| hash.write(&weight.to_le_bytes()));
    format!("{:032x}", hash.finish_128())
}

fn by_samples(
    session: &Session,
    settings: &Settings,
    descent: &Descent,
    prepared: &mut Prepared,
    progress: &mut dyn FnMut(u64, u64, Option<&Epoch>),
) -> Result<Ran, RegressError> {
    let rate = match descent.rate {
        Some(rate) => rate,
        None => prepared.rate(settings),
    };
    let seed = descent.shuffles.then_some(settings.seed);
    let order = Order::new(session.rank(), prepared.held.clone(), descent.batch, seed);
    let exchange = Exchange::new(session, prepared.n, &settings.method, descent.staleness)?;
    let samples = Compact::of(std::mem::take(&mut prepared.samples));
    let training = (&samples, &prepared.signs[..]);
    let goal = (settings.loss, settings.penalty);
    let mut sgd = Sgd::new(descent, training, goal, rate, order, (prepared.n, exchange));
    let (steps, mut epochs) = (sgd.steps(), Vec::new());
    for epoch in 0..settings.epochs {
        let watch = Watch::start(session);
        let done = |step| progress(epoch * steps + step, settings.epochs * steps, epochs.last());
        let losses = sgd.epoch(epoch, done)?;
        let spent = sgd.exchange().take_spent().as_secs_f64();
        let gathered = watch.stop(session, epoch, spent, losses)?;
        let training_loss = Some(gathered.1 / prepared.all as f64);
        let held_out = match prepared.held_out {
            Some(_) => prepared.evaluate(session, settings, &sgd.weights())?,
            None => None,
        };
        epochs.push(Epoch { training_loss, held_out, ..gathered.0 });
        expect_finite(epoch, training_loss)?;
    }
    let weights = sgd.weights();
    let of_these: Vec<f32> = samples.features.all.iter().map(|&index| weights[index as usize]).collect();
    let scores = scoring::scores(&samples.samples, &prepared.signs, &of_these);
    let own = scores.iter().map(|score| settings.loss.value(score.margin, score.y.into())).sum();
    let own_first = scores.iter().map(|score| settings.loss.value(0.0, score.y.into())).sum();
    let gathered = gather(session, &[own, own_first])?;
    let [losses, first] = [0, 1].map(|at: usize| gathered.iter().map(|gathered| gathered[at]).sum::<f64>());
    let penalty = settings.penalty.value(weights.iter().map(|&weight| weight.into()));
    let objective = losses / prepared.all as f64 + penalty;
    expect_finite(settings.epochs - 1, Some(objective))?;
    let auto = sgd.exchange().chosen();
    let objective_first = first / prepared.all as f64;
    Ok(Ran { rate: Some(rate), steps, epochs, auto, objective_first, objective, weights })
}

fn by_coordinates(
    session: &Session,
    settings: &Settings,
    coordinates: usize,
    prepared: &mut Prepared,
    progress: &mut dyn FnMut(u64, u64, Option<&Epoch>),
) -> Result<Ran, RegressError> {
    let columns = Columns::of(&std::mem::take(&mut prepared.samples), prepared.n);
    let exchange = Exchange::new(session, columns.len().max(1), &settings.method, 1)?;
    let place = (session.rank(), session.world_size());
    let goal = (settings.loss, settings.penalty);
    let chosen = (settings.seed, coordinates);
    let mut scd = Coordinates::new(&columns, &prepared.signs, goal, place, chosen, exchange);
    let (steps, mut epochs) = (scd.steps(), Vec::new());
    let objective_first = scd.value();
    let mut objective = objective_first;
    for epoch in 0..settings.epochs {
        let watch = Watch::start(session);
        let done = |step| progress(epoch * steps + step, settings.epochs * steps, epochs.last());
        objective = scd.epoch(epoch, done)?;
        let spent = scd.exchange().take_spent().as_secs_f64();
        let (gathered, _) = watch.stop(session, epoch, spent, 0.0)?;
        let held_out = match prepared.held_out {
            Some(_) => prepared.evaluate(session, settings, &scd.weights(prepared.n))?,
            None => None,
        };
        epochs.push(Epoch { objective: Some(objective), held_out, ..gathered });
        expect_finite(epoch, Some(objective))?;
    }
    let weights = scd.weights(prepared.n);
    let auto = scd.exchange().chosen();
    Ok(Ran { rate: None, steps, epochs, auto, objective_first, objective, weights })
}

fn expect_finite(epoch: u64, loss: Option<f64>) -> Result<(), RegressError> {
    match loss.filter(|loss| !loss.is_finite()) {
        Some(loss) => Err(RegressError::Diverged { epoch: epoch + 1, loss }),
        None => Ok(()),
    }
}

/// What an epoch takes.
struct Watch {
    began: Instant,
    received: u64,
}

impl Watch {
    fn start(session: &Session) -> Self {
        Self { began: Instant::now(), received: session.traffic().bytes_received }
    }

    /// The epoch over all workers, and the sum of what they give.
    fn stop(
        self,
        session: &Session,
        epoch: u64,
        spent: f64,
        given: f64,
    ) -> Result<(Epoch, f64), RegressError> {
        let seconds = self.began.elapsed().as_secs_f64();
        let received = session.traffic().bytes_received - self.received;
        let gathered = gather(session, &[seconds, spent, received as f64, given])?;
        let most = |at: usize| gathered.iter().map(|gathered| gathered[at]).fold(0.0, f64::max);
        let sum = |at: usize| gathered.iter().map(|gathered| gathered[at]).sum::<f64>();
        let epoch = Epoch {
            epoch: epoch + 1,
            seconds: most(0),
            communication_seconds: sum(1) / gathered.len() as f64,
            bytes_received: most(2) as u64,
            training_loss: None,
            objective: None,
            held_out: None,
        };
        Ok((epoch, sum(3)))
    }
}
