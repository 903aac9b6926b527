//! What keeps the accuracy of a training whose gradients are sent late, besides the corrections of a method.

use std::num::NonZeroU64;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use gleaner_algorithms::Method;
use gleaner_algorithms::residual::WholeSteps;

use super::error::{TrainResult, wrong};
use gleaner_units as units;

/// The options.
#[derive(Args, Clone, Debug, Default)]
pub struct Levers {
    /// Multiply gradients by the learning rate of their own step before they are accumulated: what waits keeps that rate when the
    /// rate drops
    #[arg(long)]
    pub rate_in_residual: bool,
    /// Error feedback with momentum, EF21-SGDM: workers exchange by how much their velocities have changed, and the optimiser adds it
    /// all up; with --momentum-correction
    #[arg(long)]
    pub ef21: bool,
    /// Deliver every entry, as a dense ring does, in some steps: every/STEPS, drops (the last step before each drop of the learning
    /// rate), evaluations or checkpoints (the last step before each, by --evaluate-every and --checkpoint-every), end (the last step), or
    /// several of these: drops,evaluations
    #[arg(long, value_delimiter = ',', value_name = "WHEN")]
    pub deliver_all: Vec<When>,
    /// Deliver all entries of parameters that have fewer than this, such as biases, in every step
    #[arg(long, value_name = "ENTRIES", default_value_t = 0, value_parser = units::count)]
    pub dense_below: usize,
    /// Once the entries of an update are agreed on, let every worker add what it has there, in a second exchange of at most as many
    /// entries
    #[arg(long)]
    pub complete_sums: bool,
    /// Let what waits decay: in each step a worker keeps this share of its residual, such as 0.999, and the residual is the momentum (DeMo) [default:
    /// 1]
    #[arg(long, value_name = "SHARE", value_parser = units::single_share, allow_negative_numbers = true)]
    pub residual_decay: Option<f32>,
    /// Select from the discrete cosine transform of gradients, in blocks of this many values of a parameter, and take it back in the update
    #[arg(long, value_name = "VALUES", value_parser = units::within::<usize>(2..=4096))]
    pub dct: Option<usize>,
    /// Follow only the signs of an update
    #[arg(long)]
    pub sign_update: bool,
    /// Let the density follow the gradients, so that a step delivers this share of the squared norm of what workers select from, such as 0.5; in the
    /// mean over the steps, no more than the density that is set [default: the same density in every step]
    #[arg(long, value_name = "SHARE", value_parser = units::share, allow_negative_numbers = true)]
    pub norm_share: Option<f64>,
    /// Let the optimiser's momentum take every entry of an update as if it had not waited, as the SGD of other libraries does
    #[arg(long)]
    pub plain_momentum: bool,
    /// The largest norm of an update; longer ones are shortened, the same on all workers [default: any length]
    #[arg(long, value_name = "NORM", value_parser = units::number::<f32>, allow_negative_numbers = true)]
    pub clip_update: Option<f32>,
}

/// When all entries are delivered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// In every n-th step.
    Every(NonZeroU64),
    /// In the last step before each drop of the learning rate.
    Drops,
    /// In the last step before each evaluation.
    Evaluations,
    /// In the last step before each checkpoint.
    Checkpoints,
    /// In the last step.
    End,
}

/// Those that have a word on the command line, which name steps of the run.
const NAMED: [(&str, When); 4] = [
    ("drops", When::Drops),
    ("evaluations", When::Evaluations),
    ("checkpoints", When::Checkpoints),
    ("end", When::End),
];

impl When {
    /// Its word, if it has one.
    pub fn word(&self) -> Option<&'static str> {
        NAMED.iter().find(|(_, when)| when == self).map(|(word, _)| *word)
    }
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let every = text.strip_prefix("every/").and_then(|steps| units::within(1..)(steps).ok());
        let every = every.and_then(NonZeroU64::new).map(When::Every);
        let named = NAMED.iter().find(|(word, _)| *word == text).map(|(_, when)| *when);
        every.or(named).ok_or_else(|| {
            format!(
                "expected every/STEPS with at least one step, drops, evaluations, checkpoints or end, found '{text}'"
            )
        })
    }
}

impl Levers {
    /// A method with those of these that are its own.
    pub fn set(&self, method: Method) -> Method {
        let method = if self.complete_sums { method.complete_sums() } else { method };
        let method = self.norm_share.map_or(method.clone(), |share| method.norm_share(share));
        method.dense_below(self.dense_below)
    }

    /// The steps in which every entry is delivered, of a run of so many steps whose rate drops before these, and that is evaluated and kept after
    /// each so many, where that was asked for.
    pub fn whole_steps(
        &self,
        steps: u64,
        drops: &[u64],
        [evaluations, checkpoints]: [Option<u64>; 2],
    ) -> TrainResult<WholeSteps> {
        let refusal = |expected: &str, found: &str| wrong("--deliver-all", expected, found);
        let given = |interval: Option<u64>, expected: &str| {
            interval.and_then(NonZeroU64::new).ok_or_else(|| refusal(expected, "none"))
        };
        if self.deliver_all.iter().filter(|when| matches!(when, When::Every(_))).count() > 1 {
            return Err(refusal("every/STEPS once", "several"));
        }
        let (mut every, mut at) = (Vec::new(), Vec::<u64>::new());
        for when in &self.deliver_all {
            match *when {
                When::Every(steps) => every.push(steps),
                When::Drops => at.extend(drops.iter().filter_map(|drop| drop.checked_sub(1))),
                When::Evaluations => every.push(given(evaluations, "--evaluate-every beside evaluations")?),
                When::Checkpoints => every.push(given(checkpoints, "--checkpoint-every beside checkpoints")?),
                When::End => {}
            }
            // A run is evaluated and kept after its last step, too.
            if matches!(when, When::Evaluations | When::Checkpoints | When::End) {
                at.extend(steps.checked_sub(1));
            }
        }
        every.sort_unstable();
        if let Some((shortest, longer)) = every.split_first()
            && let Some(other) = longer.iter().find(|every| !every.get().is_multiple_of(shortest.get()))
        {
            let found = format!("intervals of {shortest} and {other} steps");
            return Err(refusal("intervals of which the shortest divides the others", &found));
        }
        let whole = WholeSteps { every: every.first().copied(), at: Vec::new() };
        at.retain(|step| !whole.contains(*step));
        at.sort_unstable();
        at.dedup();
        Ok(WholeSteps { at, ..whole })
    }
}

/// How parameters follow the updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum.
    #[default]
    Sgd,
    /// Adam, with decoupled weight decay.
    Adam,
}

impl Optimizer {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Optimizer::Sgd => "sgd",
            Optimizer::Adam => "adam",
        }
    }
}
