//! Workers that are not equally fast: batches in proportion to their speed, and passes whose time is set.

use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::Device;
use clap::Args;
use gleaner_runtime::Session;
use gleaner_trainer::data::Dataset;
use gleaner_trainer::layers::{Mode, cross_entropy};
use gleaner_trainer::models::Model;
use gleaner_trainer::parameters::Parameters;
use gleaner_units as units;

use super::error::TrainResult;
use super::settings::Settings;
use crate::crew::gather;
use crate::report::refused;
use crate::simulate::expect_ranks;

/// Passes whose median counts; one more before them finds memory that is not there yet.
const PASSES: usize = 3;

/// Options of it.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Uneven {
    /// How the samples of a step, --batch times the workers, are distributed: even; speed, measured before the first step, so that
    /// unequal hosts finish together; or the samples of each rank, such as 24,8,16,16
    #[arg(long, value_name = "HOW", default_value = "even")]
    pub balance: Balance,
    /// Make a pass of --batch samples take at least this long, and others in proportion to their samples, by sleeping
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub pace: Option<Duration>,
    /// Make the passes of this rank FACTOR times as long, with --pace; may be repeated
    #[arg(long, value_name = "RANK=FACTOR", requires = "pace", value_parser = crate::simulate::slow)]
    pub slow: Vec<(u32, f64)>,
}

impl Uneven {
    /// Refuses samples that do not go with so many workers, and slow ranks that are not among them; `batch` samples for each worker together.
    pub fn expect_fit(&self, workers: usize, batch: usize) -> TrainResult<()> {
        self.balance.expect_fit(workers, batch)?;
        expect_ranks(&self.slow, workers).map_err(|reason| refused(format!("--slow: {reason}")))
    }
}

/// How the samples of a step are distributed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// As many to every worker.
    #[default]
    Even,
    /// In proportion to what each worker's passes take.
    Speed,
    /// So many to each rank.
    Given(Vec<usize>),
}

impl FromStr for Balance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let samples = |number: &str| units::count(number.trim()).ok().filter(|&samples| samples > 0);
        match text {
            "even" => Ok(Balance::Even),
            "speed" => Ok(Balance::Speed),
            _ => text.split(',').map(samples).collect::<Option<_>>().map(Balance::Given).ok_or_else(|| {
                format!(
                    "expected even, speed, or the samples of each rank, such as 24,8,16,16, found {text:?}"
                )
            }),
        }
    }
}

impl Balance {
    fn expect_fit(&self, workers: usize, batch: usize) -> TrainResult<()> {
        let samples = batch.saturating_mul(workers);
        match self {
            Balance::Given(given) if given.len() != workers || given.iter().sum::<usize>() != samples => {
                let found: Vec<String> = given.iter().map(usize::to_string).collect();
                let found = found.join(",");
                Err(refused(format!(
                    "--balance: expected the samples of each of {workers} workers, {samples} together, found {found}; correct it, or let \
                     them be distributed by speed"
                )))
            }
            _ => Ok(()),
        }
    }

    /// How many samples of a step each rank takes, the same on all ranks; `batch` for each worker together. `pass` says what a pass of so many
    /// samples takes here. All workers call it together.
    pub fn batches(
        &self,
        session: &Session,
        batch: usize,
        mut pass: impl FnMut(usize) -> TrainResult<Duration>,
    ) -> TrainResult<Vec<usize>> {
        let workers = session.world_size();
        let mut batches = vec![batch; workers];
        match self {
            Balance::Even => {}
            Balance::Given(given) => {
                self.expect_fit(workers, batch)?;
                batches.clone_from(given);
            }
            Balance::Speed => {
                // A part of a pass does not grow with its samples, so the first answer is corrected once.
                for _ in 0..2 {
                    session.barrier()?;
                    let own = batches[session.rank()];
                    let speed = own as f64 / pass(own)?.as_secs_f64().max(1e-6);
                    let speeds: Vec<f64> = gather(session, &speed)?;
                    batches = split(batch * workers, &speeds);
                }
            }
        }
        Ok(batches)
    }
}

/// So many samples in proportion to speeds, at least one for each, of what rounding leaves the most to whom it takes most from.
fn split(samples: usize, speeds: &[f64]) -> Vec<usize> {
    let sum: f64 = speeds.iter().sum();
    let due: Vec<f64> = speeds.iter().map(|speed| samples as f64 * speed / sum).collect();
    let mut batches: Vec<usize> = due.iter().map(|due| (*due as usize).max(1)).collect();
    let most_due = |batches: &[usize], sign: f64| {
        let owed = |rank: &usize| sign * (due[*rank] - batches[*rank] as f64);
        let may = |rank: &usize| sign > 0.0 || batches[*rank] > 1;
        (0..batches.len()).rev().filter(may).max_by(|a, b| owed(a).total_cmp(&owed(b))).unwrap_or(0)
    };
    while batches.iter().sum::<usize>() < samples {
        let rank = most_due(&batches, 1.0);
        batches[rank] += 1;
    }
    while batches.iter().sum::<usize>() > samples {
        let rank = most_due(&batches, -1.0);
        batches[rank] -= 1;
    }
    batches
}

/// By how much more than those of the mean worker the samples of a rank count, if batches differ.
pub fn weight(batches: &[usize], rank: usize) -> Option<f64> {
    let samples: usize = batches.iter().sum();
    let is_even = batches.iter().all(|&other| other == batches[0]);
    (!is_even).then(|| (batches[rank] * batches.len()) as f64 / samples as f64)
}

/// Makes passes take as long as they are to.
#[derive(Debug, Default)]
pub struct Pacer {
    least: Duration,
    /// What the last backward pass took.
    backward: Duration,
}

impl Pacer {
    /// For passes of `own` samples at a rank, where `batch` are what the pace is of.
    pub fn new(uneven: &Uneven, rank: usize, own: usize, batch: usize) -> Self {
        let slow = uneven.slow.iter().filter(|(slow, _)| *slow as usize == rank).map(|(_, factor)| factor);
        let share = own as f64 / batch.max(1) as f64 * slow.product::<f64>();
        let least = uneven.pace.unwrap_or_default().mul_f64(share);
        Self { least, backward: Duration::ZERO }
    }

    /// Between the passes: leaves as much time as the backward pass took last, in which gradients may be exchanged already.
    pub fn between(&self, began: Instant) {
        thread::sleep(self.least.saturating_sub(began.elapsed() + self.backward));
    }

    /// After the backward pass, which took so long.
    pub fn after(&mut self, began: Instant, backward: Duration) {
        self.backward = backward;
        thread::sleep(self.least.saturating_sub(began.elapsed()));
    }
}

/// How long a forward and a backward pass of so many samples take on this worker. What layers learn in them is forgotten.
pub fn pass_takes(
    settings: &Settings,
    rank: usize,
    samples: usize,
    dataset: &Dataset,
    model: &dyn Model,
    parameters: &Parameters,
    device: &Device,
) -> TrainResult<Duration> {
    let examples = dataset.train.len() as u32;
    let numbers: Vec<u32> = (0..samples as u32).map(|number| number % examples.max(1)).collect();
    let batch = dataset.train.batch(&numbers, 0, device)?;
    let buffers = parameters.buffer_values()?;
    let mut pacer = Pacer::new(&settings.options.uneven, rank, samples, settings.batch);
    let mut took = Vec::new();
    for _ in 0..=PASSES {
        let began = Instant::now();
        let loss = cross_entropy(&model.forward(&batch.input, Mode::Training)?, &batch.targets)?;
        pacer.between(began);
        let between = Instant::now();
        loss.backward()?;
        device.synchronize()?;
        pacer.after(began, between.elapsed());
        took.push(began.elapsed());
    }
    parameters.set_buffer_values(&buffers)?;
    let passes = &mut took[1..];
    passes.sort();
    Ok(passes[PASSES / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_speeds_and_none_is_lost() {
        for (samples, speeds, expected) in [
            (64, &[1.0, 1.0, 1.0, 1.0][..], &[16, 16, 16, 16][..]),
            (64, &[3.0, 1.0, 3.0, 1.0], &[24, 8, 24, 8]),
            // 3.2, 3.2 and 1.6.
            (8, &[2.0, 2.0, 1.0], &[3, 3, 2]),
            // No rank is left without a sample.
            (4, &[1000.0, 1.0, 1.0], &[2, 1, 1]),
            (3, &[1e9, 1e-9, 1.0], &[1, 1, 1]),
        ] {
            assert_eq!(split(samples, speeds), expected, "{samples} by {speeds:?}");
        }
    }

    #[test]
    fn weights_are_those_of_the_mean_over_samples() {
        assert_eq!(weight(&[4, 4], 1), None);
        let batches = [24, 8, 16];
        let weights: Vec<f64> = (0..3).filter_map(|rank| weight(&batches, rank)).collect();
        assert_eq!(weights, [1.5, 0.5, 1.0]);
    }

    #[test]
    fn one_worker_takes_all_and_wrong_numbers_are_refused() {
        let session = Session::join().unwrap();
        let mut measured = Vec::new();
        let mut pass = |samples| {
            measured.push(samples);
            Ok(Duration::from_millis(samples as u64))
        };
        assert_eq!(Balance::Speed.batches(&session, 5, &mut pass).unwrap(), [5]);
        assert_eq!(measured, [5, 5]);
        let refusal = |text: &str| {
            let balance: Balance = text.parse().unwrap();
            balance.batches(&session, 5, |_| Ok(Duration::ZERO)).unwrap_err().to_string()
        };
        assert!(refusal("3,2").contains("expected the samples of each of 1 workers, 5 together, found 3,2"));
        assert!(refusal("4").contains("found 4"));
        for wrong in ["", "fast", "3,0", "1,-1"] {
            assert!(wrong.parse::<Balance>().unwrap_err().contains("expected even, speed, or"), "{wrong}");
        }
    }

    #[test]
    fn paced_passes_take_their_time() {
        let uneven =
            Uneven { pace: Some(Duration::from_millis(8)), slow: vec![(1, 3.0)], ..Uneven::default() };
        let least = |rank, own| Pacer::new(&uneven, rank, own, 16).least;
        assert_eq!([least(0, 16), least(0, 4), least(1, 16)], [8, 2, 24].map(Duration::from_millis));
        let mut pacer = Pacer::new(&uneven, 0, 16, 16);
        let began = Instant::now();
        pacer.between(began);
        pacer.after(began, Duration::from_millis(1));
        assert!(began.elapsed() >= Duration::from_millis(8));
        assert_eq!(Pacer::new(&Uneven::default(), 0, 16, 16).least, Duration::ZERO);
    }
}
