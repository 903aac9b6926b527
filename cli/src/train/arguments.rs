//! The options of `gleaner train`, and the settings that follow from them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::merging;
use gleaner_algorithms::residual::{Collection, Correction, OnNonFinite};
use gleaner_algorithms::{SelectOver, synchrony};

use super::error::TrainResult;
use super::levers::{Levers, Optimizer};
use super::settings::{Settings, expect, flag, unless, written};
use super::summary::Target;
use super::uneven::{Balance, Uneven};
use super::worker::metrics;
use crate::choice::Choice;
use crate::crew::{self, Servers};
use gleaner_trainer::data::Source;
use gleaner_trainer::device::Place;
use gleaner_trainer::models::ModelKind;
use gleaner_units as units;

const EXAMPLES: &str = "\
Examples:
  gleaner train
          four workers on this machine learn a fixed copy of this documentation, character by character,
          and exchange one gradient entry in twenty, in 4 bits
  gleaner train --method ring
          the same with every entry, to compare
  gleaner train --data cifar10:/data/cifar10 --model resnet20 --steps 20000 --lr-drops 0.5,0.75 \\
                --checkpoint run1 --checkpoint-every 500
          a paper's workload; add --resume to go on after an interruption
  gleaner train --method ring --servers 1 --synchrony ssp/3
          four workers and a parameter server, with no worker more than three steps ahead of another";

/// Train a model with several workers that exchange sparse gradients.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TrainArgs {
    /// What to train on: text (the built-in documentation), digits (built-in images), text:FILE, mnist:DIR, cifar10:DIR,
    /// cifar100:DIR, synthetic, or data that are new in every step: fresh-text, fresh-digits or fresh-clicks
    #[arg(long, default_value = "text", value_name = "DATA")]
    pub data: String,
    /// The model [default: lstm for text, mlp for digits, mnist and synthetic, resnet20 for cifar, clicks for clicks]
    #[arg(long, value_enum)]
    pub model: Option<ModelKind>,
    /// Where to compute: cpu, or in a build with CUDA, cuda (of several devices, the workers of a host take one each in turn) or cuda:N
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: Place,
    #[command(flatten)]
    pub choice: Choice,
    /// Which dropped entries are collected: global, partial or local
    #[arg(long, default_value = "global", value_name = "WHICH")]
    pub residual: Collection,
    /// When workers exchange, and what they see of each other: bsp, osp or local/STEPS, and with --servers also asp, ssp/STEPS, dssp or r2sp
    #[arg(long, value_name = "SYNCHRONY", default_value = "bsp")]
    pub synchrony: String,
    /// Which layers are selected from and exchanged together while the backward pass goes on: optimal, layer-wise, single,
    /// threshold/ENTRIES, mg-wfbp, omgs or omgs-printed [default: optimal, or single with --clip and --clip-local]
    #[arg(long, value_name = "STRATEGY")]
    pub merge: Option<String>,
    /// What entries are selected from: group (each group of layers selects the same share of its entries) or gradient (groups
    /// compete for k of the whole gradient)
    #[arg(long, value_name = "WHAT", default_value = "group")]
    pub select_over: SelectOver,
    #[command(flatten)]
    pub servers: Servers,
    /// How many workers to start on this machine; ignored under gleaner launch, mpirun, srun and torchrun
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = units::within::<u32>(1..=1024))]
    pub workers: u32,
    /// How long a silent worker counts as alive [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = crew::timeout)]
    pub timeout: Option<Duration>,
    /// How many steps to train [default: 320 for text, 500 for others]
    #[arg(long, value_parser = units::within::<u64>(1..))]
    pub steps: Option<u64>,
    /// Samples per worker and step [default: 16; 1 sample of text is 64 characters]
    #[arg(long, value_name = "SAMPLES", value_parser = units::within::<usize>(1..))]
    pub batch: Option<usize>,
    #[command(flatten)]
    pub uneven: Uneven,
    #[command(flatten)]
    pub target: Target,
    /// The learning rate [default: by model]
    #[arg(long, value_parser = units::number::<f32>, allow_negative_numbers = true)]
    pub lr: Option<f32>,
    /// When the learning rate drops to a tenth, as shares of the run: 0.5,0.75
    #[arg(long, value_delimiter = ',', value_name = "SHARE,…", value_parser = units::share)]
    pub lr_drops: Vec<f64>,
    /// How parameters follow the updates
    #[arg(long, value_enum, default_value_t)]
    pub optimizer: Optimizer,
    /// How much of the last update the next one keeps, of adam β₁ [default: 0.9; 0 with
    /// --momentum-correction and --residual-decay, and with adam where the method is sparse]
    #[arg(long, value_parser = units::single_share, allow_negative_numbers = true)]
    pub momentum: Option<f32>,
    /// Momentum before selection instead of after it: how much of a worker's last velocity the next one keeps
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0.0, value_parser = units::single_share, allow_negative_numbers = true)]
    pub momentum_correction: f32,
    /// Let velocities start afresh at the entries that a worker sent; with --momentum-correction
    #[arg(long)]
    pub mask_momentum: bool,
    /// How strongly parameters are pulled towards zero
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = units::single_share, allow_negative_numbers = true)]
    pub weight_decay: f32,
    /// The largest norm of a worker's gradient; longer ones are shortened [default: 0, any length]
    #[arg(long, value_name = "NORM", value_parser = units::number::<f32>, allow_negative_numbers = true)]
    pub clip: Option<f32>,
    /// Shorten a worker's gradient to a norm of at most NORM/√P, where P is the number of workers [default: any length]
    #[arg(long, value_name = "NORM", value_parser = units::number::<f32>, allow_negative_numbers = true, conflicts_with = "clip")]
    pub clip_local: Option<f32>,
    /// Let the density fall from 25% to what it is set to, over this many steps
    #[arg(long, value_name = "STEPS", default_value_t = 0, value_parser = units::within::<u64>(..))]
    pub warmup_density: u64,
    #[command(flatten)]
    pub levers: Levers,
    /// What to do with a step in which a gradient is NaN or infinite: refuse ends the run, skip leaves the step out on all
    /// workers
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    pub on_nonfinite: OnNonFinite,
    /// Random seed, of the starting parameters, the order of the data, and synthetic data
    #[arg(long, default_value_t = 1, value_parser = units::within::<u64>(..))]
    pub seed: u64,
    /// Evaluate on held-out data every this many steps [default: a tenth of the run for text, a quarter for others]
    #[arg(long, value_name = "STEPS", value_parser = units::within::<u64>(1..))]
    pub evaluate_every: Option<u64>,
    /// Where to keep checkpoints
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Write a checkpoint every this many steps, and after the last [default: only after the last]
    #[arg(long, requires = "checkpoint", value_name = "STEPS", value_parser = units::within::<u64>(1..))]
    pub checkpoint_every: Option<u64>,
    /// Go on from the newest step of which every worker has a checkpoint
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Write what each worker selects from in the last step, its gradient and its residual, to gradient-RANK.npy
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Write what each worker did when, as a trace that https://ui.perfetto.dev and chrome://tracing open, or, if the name ends with
    /// .svg, draw a step of it
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// Write what the passes of each layer took at rank 0, as gleaner merge-plan --layers and gleaner simulate --layers take it
    #[arg(long, value_name = "FILE")]
    pub layer_times: Option<PathBuf>,
    /// Write a line for each step as it is done, its loss, times and bytes at rank 0: as CSV or as JSON, by the name's ending
    #[arg(long, value_name = "FILE.csv|FILE.jsonl")]
    pub metrics: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

impl TrainArgs {
    /// Checks the options and fills in what was left open.
    pub fn settings(&self) -> TrainResult<Settings> {
        self.device.expect_built()?;
        let source: Source = self.data.parse()?;
        let model = self.model.unwrap_or_else(|| ModelKind::default_for(&source));
        let text = source.is_text();
        let steps = self.steps.unwrap_or(if text { 320 } else { 500 });
        let clip = self.clip.unwrap_or(0.0);
        let correction = Correction {
            momentum: self.momentum_correction,
            mask: self.mask_momentum,
            clip: self.clip_local,
            warm_up: self.warmup_density,
            ef21: self.levers.ef21,
            decay: self.levers.residual_decay,
        };
        correction.check()?;
        let corrected = correction.momentum > 0.0;
        expect([(
            "--momentum",
            "0, or nothing, beside --momentum-correction, which is the momentum of each worker",
            unless(self.momentum, |momentum| !corrected || *momentum == 0.0),
        )])?;
        let lr_drops: Vec<u64> =
            self.lr_drops.iter().map(|share| (share * steps as f64).ceil() as u64).collect();
        let whole =
            self.levers.whole_steps(steps, &lr_drops, [self.evaluate_every, self.checkpoint_every])?;
        let method = self.choice.method()?.residual(self.residual).select_over(self.select_over);
        method.competes()?;
        // Entries that wait until they are delivered bring a momentum of their own (docs, Keeping accuracy).
        let has_none = corrected
            || correction.decay.is_some()
            || self.optimizer == Optimizer::Adam && method.collective().is_sparse();
        let needs_all = match self.clip_local {
            Some(_) => Some("--clip-local"),
            None if clip > 0.0 => Some("--clip"),
            None => self.levers.dct.map(|_| "--dct"),
        };
        let merge = self.merge.as_deref().unwrap_or(if needs_all.is_some() { "single" } else { "optimal" });
        let at_once = match clip > 0.0 {
            true => Some(format!("--clip {clip}")),
            false => self.levers.dct.map(|n| format!("--dct {n}")),
        };
        expect([
            (
                "--merge",
                "single, or nothing, beside --clip, --clip-local and --dct, which need the whole gradient before any of it \
                 is exchanged",
                unless(needs_all.map(|_| merge), |merge| *merge == "single"),
            ),
            (
                "--layer-times",
                "no --clip and no --dct, beside which all gradients are taken from the backward pass at once",
                at_once.filter(|_| self.layer_times.is_some()),
            ),
        ])?;
        let method = self.levers.set(method).corrected(correction).whole_steps(whole);
        let settings = Settings {
            source,
            model,
            method: method.on_nonfinite(self.on_nonfinite),
            synchrony: synchrony::named(&self.synchrony)
                .map_err(|error| format!("--synchrony: {error}"))?
                .into(),
            merge: merging::named(merge).map_err(|error| format!("--merge: {error}"))?.into(),
            needs_all,
            steps,
            batch: self.batch.unwrap_or(16),
            lr: self.lr.unwrap_or(default_learning_rate(model, self.optimizer)),
            lr_drops,
            momentum: match self.levers.ef21 {
                // All updates are added up.
                true => 1.0,
                false => self.momentum.unwrap_or(if has_none { 0.0 } else { 0.9 }),
            },
            clip: (clip > 0.0).then_some(clip),
            evaluate_every: self.evaluate_every.unwrap_or(steps.div_ceil(if text { 10 } else { 4 }).max(1)),
            options: self.clone(),
        };
        settings.method.share_fits().map_err(MethodError::from)?;
        settings.method.decay_fits().map_err(MethodError::from)?;
        self.check(&settings)?;
        settings.expect_fit()?;
        Ok(settings)
    }

    fn check(&self, settings: &Settings) -> TrainResult<()> {
        let &Levers { ef21, rate_in_residual, clip_update, dct, sign_update, .. } = &self.levers;
        let (aim, is_sgd) = (self.target.target_accuracy, self.optimizer == Optimizer::Sgd);
        let from_0_below_1 = "a number from 0 to below 1";
        let below_1 = |share: f32| unless(Some(share), |share| (0.0..1.0).contains(share));
        let wrong_drop = self.lr_drops.iter().find(|share| !(0.0..=1.0).contains(*share));
        let adam = |with: bool| (with && !is_sgd).then(|| self.optimizer.name().to_owned());
        expect([
            ("--lr", "a number above 0", unless(Some(settings.lr), |lr| *lr > 0.0 && lr.is_finite())),
            ("--lr-drops", "shares of the run from 0 to 1", wrong_drop.map(f64::to_string)),
            ("--momentum", from_0_below_1, below_1(settings.momentum).filter(|_| !ef21)),
            ("--weight-decay", from_0_below_1, below_1(self.weight_decay)),
            ("--clip", "a norm, or 0", unless(self.clip, |clip| *clip >= 0.0)),
            ("--clip-update", "a norm above 0", unless(clip_update, |norm| *norm > 0.0 && norm.is_finite())),
            (
                "--rate-in-residual",
                "--optimizer sgd: adam divides updates by their size, and a rate in them with it",
                adam(rate_in_residual),
            ),
            (
                "--weight-decay",
                "0 beside --ef21, with which the optimiser adds up all that it is given",
                unless(Some(self.weight_decay), |decay| !ef21 || *decay == 0.0),
            ),
            ("--optimizer", "sgd beside --ef21, whose updates are changes, and no gradients", adam(ef21)),
            (
                "--clip-update",
                "nothing beside --ef21, whose updates are changes, and no steps",
                unless(clip_update, |_| !ef21),
            ),
            (
                "--sign-update",
                "--optimizer sgd without --ef21: adam divides updates by their size, and those of EF21 are changes",
                flag(sign_update && (!is_sgd || ef21)),
            ),
            (
                "--sign-update",
                "nothing of --clip-update and --rate-in-residual, of which signs keep nothing",
                flag(sign_update && (clip_update.is_some() || rate_in_residual)),
            ),
            (
                "--dct",
                "--device cpu, where it is computed",
                unless(dct.map(|_| self.device), |device| *device == Place::Cpu),
            ),
            (
                "--clip-local",
                "nothing beside --rate-in-residual, with which the norm would be one of steps; use --clip",
                unless(self.clip_local, |_| !rate_in_residual),
            ),
            (
                "--clip-local",
                "nothing beside --balance, with which norms of gradients are of different numbers of samples",
                unless(self.clip_local, |_| self.uneven.balance == Balance::Even),
            ),
            ("--target-accuracy", "a share from 0 to 1", unless(aim, |aim| (0.0..=1.0).contains(aim))),
            (
                "--target-accuracy",
                "images, which are classified; aim at a --target-loss for other data",
                unless(aim.map(|_| &settings.source), |data| {
                    !data.is_text() && **data != Source::FreshClicks
                }),
            ),
            (
                "--record",
                "nothing beside --device cuda, with which what is selected from stays on the device",
                unless(written(&self.record), |_| self.device == Place::Cpu),
            ),
            (
                "--metrics",
                "the name of a file that ends with .csv or .jsonl",
                written(&self.metrics).filter(|path| !metrics::is_known(Path::new(path))),
            ),
        ])
    }
}

/// With momentum 0.9: measured for text and the perceptron. The convolutional networks begin
/// unstably at this rate before their loss falls, and have not been trained for long here.
fn default_learning_rate(model: ModelKind, optimizer: Optimizer) -> f32 {
    match model {
        _ if optimizer == Optimizer::Adam => 0.002,
        ModelKind::Lstm => 1.0,
        ModelKind::Transformer => 0.1,
        ModelKind::Mlp | ModelKind::Cnn => 0.02,
        ModelKind::Clicks => 0.1,
        ModelKind::Resnet20 | ModelKind::Vgg16 | ModelKind::Vgg19 => 0.05,
    }
}

#[cfg(test)]
mod tests;
