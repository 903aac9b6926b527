//! What a run is to do: the options, checked and complete.

use std::path::PathBuf;
use std::sync::Arc;

use gleaner_algorithms::merging::Strategy;
use gleaner_algorithms::residual::OnNonFinite;
use gleaner_algorithms::synchrony::{LateSgd, Sgd, Synchrony};
use gleaner_algorithms::{Method, SelectOver};
use gleaner_runtime::Session;

use super::error::TrainError;
use super::levers::Optimizer;
use super::model_file::Identity;
use super::target::Target;
use super::uneven::Uneven;
use gleaner_trainer::data::{Dataset, Source};
use gleaner_trainer::device::Place;
use gleaner_trainer::models::ModelKind;
use gleaner_trainer::optimizer::{Adam, Descent};

/// Checked options with all defaults filled in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the data come from.
    pub source: Source,
    /// What is trained.
    pub model: ModelKind,
    /// Where it is computed.
    pub device: Place,
    /// How gradients are exchanged, and how many of their entries.
    pub method: Method,
    /// When workers exchange, and what they see of each other.
    pub synchrony: Arc<dyn Synchrony>,
    /// Which layers travel together.
    pub merge: Arc<dyn Strategy>,
    /// Whether that was asked for.
    pub chose_merge: bool,
    /// The option that needs the whole gradient, so that nothing can be exchanged before.
    pub needs_all: Option<&'static str>,
    /// Steps of the whole run.
    pub steps: u64,
    /// Examples per worker and step.
    pub batch: usize,
    /// How they are dealt out, and what passes take.
    pub uneven: Uneven,
    /// What accuracy or loss is aimed at.
    pub target: Target,
    /// The learning rate at first.
    pub lr: f32,
    /// The steps from which the learning rate is a tenth of what it was.
    pub lr_drops: Vec<u64>,
    /// How parameters follow the updates.
    pub optimizer: Optimizer,
    /// Whether gradients are multiplied by the learning rate before they are accumulated.
    pub rate_in_residual: bool,
    /// The largest norm of an update.
    pub clip_update: Option<f32>,
    /// In blocks of how many values gradients are transformed before they are selected from.
    pub dct: Option<usize>,
    /// Whether only the signs of updates are followed.
    pub sign_update: bool,
    /// What the next update keeps of the last.
    pub momentum: f32,
    /// Whether momentum takes late entries as if they had not waited.
    pub plain_momentum: bool,
    /// Pull towards zero.
    pub weight_decay: f32,
    /// The largest norm of a worker's gradient.
    pub clip: Option<f32>,
    /// The seed of the run.
    pub seed: u64,
    /// Steps between evaluations.
    pub evaluate_every: u64,
    /// Where checkpoints are kept, and the steps between them if any.
    pub checkpoint: Option<(PathBuf, Option<u64>)>,
    /// Whether to go on from a checkpoint.
    pub resume: bool,
    /// Where the gradients of the last step are written to.
    pub record: Option<PathBuf>,
    /// Where rank 0 writes the timeline to.
    pub timeline: Option<PathBuf>,
    /// Where rank 0 writes what layers took to.
    pub layer_times: Option<PathBuf>,
    /// Where rank 0 writes what each step came to.
    pub metrics: Option<PathBuf>,
}

impl Settings {
    /// The learning rate of a step.
    pub fn learning_rate(&self, step: u64) -> f32 {
        self.lr_drops.iter().filter(|&&drop| step >= drop).fold(self.lr, |rate, _| rate * 0.1)
    }

    /// The optimiser.
    pub fn sgd(&self) -> Sgd {
        Sgd { momentum: self.momentum, weight_decay: self.weight_decay, nesterov: false }
    }

    /// How parameters follow the updates, where each worker applies them itself.
    pub fn descent(&self) -> Descent {
        let (momentum, weight_decay) = (self.momentum, self.weight_decay);
        match self.optimizer {
            Optimizer::Sgd if self.counts_waiting() => Descent::LateSgd(LateSgd::new(self.sgd())),
            Optimizer::Sgd => Descent::Sgd(self.sgd()),
            Optimizer::Adam => Descent::Adam(Adam { momentum, weight_decay, ..Adam::default() }),
        }
    }

    /// Whether the optimiser's momentum counts the steps that entries have waited: where they do, and an update holds gradients, entry by
    /// entry.
    fn counts_waiting(&self) -> bool {
        let is_late = self.method.collective().is_sparse() && !self.plain_momentum;
        let holds_gradients = self.dct.is_none() && !self.sign_update && !self.method.correction().ef21;
        self.momentum > 0.0 && is_late && holds_gradients
    }

    /// What must be the same on all workers, besides [`Self::identity`].
    pub fn schedule(&self) -> String {
        format!(
            "synchrony {}, steps {}, lr {} dropping at {:?}, momentum {}, weight decay {}, clip {:?}, updates {:?}, evaluation every {}, resume {}, merge {:?}, timeline {}, layer times {}, {:?}",
            self.synchrony.name(),
            self.steps,
            self.lr,
            self.lr_drops,
            self.momentum,
            self.weight_decay,
            self.clip,
            self.clip_update,
            self.evaluate_every,
            self.resume,
            self.merge,
            self.timeline.is_some(),
            self.layer_times.is_some(),
            self.uneven,
        )
    }

    /// What must stay the same over workers, and over the interruptions of a run.
    ///
    /// Data are known by what they contain, not by where they lie, which may differ from machine to machine.
    pub fn identity(&self, dataset: &Dataset, workers: usize) -> Identity {
        let source = self.source.to_string();
        let kind = source.split(':').next().unwrap_or_default();
        let mut identity = vec![
            ("workers", workers.to_string()),
            ("model", self.model.to_string()),
            ("data", format!("{kind} with SHA-256 {}", dataset.fingerprint())),
            ("method", self.method.to_string()),
            ("seed", self.seed.to_string()),
            ("batch", self.batch.to_string()),
        ];
        if self.synchrony.name() != "bsp" {
            identity.push(("synchrony", self.synchrony.name()));
        }
        // What the one keeps is of no use to the other.
        identity.push(("optimizer", self.optimizer.name().into()));
        identity.push(("rate in residual", self.rate_in_residual.to_string()));
        if let Some(block) = self.dct {
            identity.push(("dct", block.to_string()));
        }
        if self.counts_waiting() {
            identity.push(("momentum", "of late entries".into()));
        }
        if self.sign_update {
            identity.push(("sign update", true.to_string()));
        }
        identity
    }

    /// Whether gradients are exchanged while the backward pass goes on, every step by itself.
    pub fn is_overlapped(&self, session: &Session) -> bool {
        self.is_bulk() && session.servers() == 0
    }

    fn is_bulk(&self) -> bool {
        self.synchrony.name() == "bsp"
    }

    /// Refuses what only goes with an exchange that overlaps with the backward pass, where there is another one.
    pub fn expect_replica(&self) -> Result<(), TrainError> {
        let layers = "nothing beside --servers, or another --synchrony than bsp, under which each layer travels by itself";
        let none = "nothing beside --servers, or another --synchrony than bsp, which keep no such gradients and times";
        let alone = "refuse beside --servers, or another --synchrony than bsp, which have no step of all workers to take back";
        let velocity = "0, or nothing, beside --synchrony local, which sends differences that have the momentum of the steps in them";
        let correction = self.method.correction().momentum;
        let plain = "nothing beside --servers, or another --synchrony than bsp, where sgd is what servers and replicas do";
        let path = |path: &Option<PathBuf>| path.as_deref().map(|path| path.display().to_string());
        for (option, expected, found) in [
            ("--merge", layers, self.chose_merge.then(|| self.merge.name().to_owned())),
            ("--record", none, path(&self.record)),
            ("--layer-times", none, path(&self.layer_times)),
            ("--optimizer", plain, (self.optimizer != Optimizer::Sgd).then(|| self.optimizer.name().into())),
            ("--rate-in-residual", plain, self.rate_in_residual.then(|| "it".into())),
            ("--ef21", plain, self.method.correction().ef21.then(|| "it".into())),
            ("--residual-decay", plain, self.method.correction().decay.map(|decay| decay.to_string())),
            ("--dct", plain, self.dct.map(|block| block.to_string())),
            ("--plain-momentum", plain, self.plain_momentum.then(|| "it".into())),
            ("--sign-update", plain, self.sign_update.then(|| "it".into())),
            ("--norm-share", layers, self.method.follows_norm_share().map(|share| share.to_string())),
            ("--clip-update", plain, self.clip_update.map(|norm| norm.to_string())),
            ("--on-nonfinite", alone, (self.method.nonfinite() == OnNonFinite::Skip).then(|| "skip".into())),
            (
                "--select-over",
                "group beside --servers, or another --synchrony than bsp, under which each layer travels by itself",
                (self.method.selects_over() == SelectOver::Gradient).then(|| "gradient".into()),
            ),
            (
                "--momentum-correction",
                velocity,
                (self.synchrony.local().is_some() && correction > 0.0).then(|| correction.to_string()),
            ),
        ] {
            if let Some(found) = found {
                return Err(TrainError::Setting { option, expected, found });
            }
        }
        Ok(())
    }

    /// The same, as far as it is known before a job has begun.
    pub(super) fn expect_fit(&self) -> Result<(), TrainError> {
        if self.is_bulk() { Ok(()) } else { self.expect_replica() }
    }
}
