//! What a run is to do: the options, checked and complete.

use std::path::PathBuf;
use std::sync::Arc;

use gleaner_algorithms::merging::Strategy;
use gleaner_algorithms::residual::OnNonFinite;
use gleaner_algorithms::synchrony::{LateSgd, Sgd, Synchrony};
use gleaner_algorithms::{Method, SelectOver};
use gleaner_runtime::Session;

use super::arguments::TrainArgs;
use super::checkpoint::{Checkpoints, Identity};
use super::error::{TrainResult, wrong};
use super::levers::{Levers, Optimizer, When};
use super::record::Record;
use super::worker::metrics::Metrics;
use crate::report;
use gleaner_trainer::data::{Dataset, Order, Source};
use gleaner_trainer::models::ModelKind;
use gleaner_trainer::optimizer::{Adam, Descent};

/// Options that were checked, and what follows from them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As they were given. What has a field of its own here is taken from there: it is complete.
    pub options: TrainArgs,
    pub source: Source,
    pub model: ModelKind,
    /// How gradients are exchanged, and how many of their entries.
    pub method: Method,
    /// When workers exchange, and what they see of each other.
    pub synchrony: Arc<dyn Synchrony>,
    /// Which layers are exchanged together.
    pub merge: Arc<dyn Strategy>,
    /// The option that needs the whole gradient, so that nothing can be exchanged before.
    pub needs_all: Option<&'static str>,
    pub steps: u64,
    /// Examples per worker and step.
    pub batch: usize,
    /// The learning rate at first.
    pub lr: f32,
    /// The steps from which the learning rate is a tenth of what it was.
    pub lr_drops: Vec<u64>,
    /// What the next update keeps of the last.
    pub momentum: f32,
    /// The largest norm of a worker's gradient.
    pub clip: Option<f32>,
    /// Steps between evaluations.
    pub evaluate_every: u64,
}

/// Refuses the first of these options of which something is found that it may not have: its name, what is expected, and what is found.
pub fn expect(
    options: impl IntoIterator<Item = (&'static str, &'static str, Option<String>)>,
) -> TrainResult<()> {
    match options.into_iter().find_map(|(option, expected, found)| Some((option, expected, found?))) {
        Some((option, expected, found)) => Err(wrong(option, expected, &found)),
        None => Ok(()),
    }
}

/// A value that is set and does not fit.
pub fn unless<T: ToString>(value: Option<T>, fits: impl FnOnce(&T) -> bool) -> Option<String> {
    value.filter(|value| !fits(value)).map(|value| value.to_string())
}

/// A path that is set.
pub fn written(path: &Option<PathBuf>) -> Option<String> {
    path.as_deref().map(|path| path.display().to_string())
}

/// An option that is set and has no value.
pub fn flag(is_set: bool) -> Option<String> {
    is_set.then(|| "it".into())
}

impl Settings {
    pub fn learning_rate(&self, step: u64) -> f32 {
        self.lr_drops.iter().filter(|&&drop| step >= drop).fold(self.lr, |rate, _| rate * 0.1)
    }

    pub fn sgd(&self) -> Sgd {
        Sgd { momentum: self.momentum, weight_decay: self.options.weight_decay, nesterov: false }
    }

    /// How parameters follow the updates, where each worker applies them itself.
    pub fn descent(&self) -> Descent {
        let (momentum, weight_decay) = (self.momentum, self.options.weight_decay);
        match self.options.optimizer {
            _ if self.counts_waiting() => Descent::LateSgd(LateSgd::new(self.sgd())),
            Optimizer::Sgd => Descent::Sgd(self.sgd()),
            Optimizer::Adam => Descent::Adam(Adam { momentum, weight_decay, ..Adam::default() }),
        }
    }

    /// Whether the optimiser's momentum counts the steps that entries have waited: where they do, and an update holds sums of gradients, entry by
    /// entry.
    fn counts_waiting(&self) -> bool {
        let &Levers { plain_momentum, dct, sign_update, .. } = &self.options.levers;
        let is_late = self.method.collective().is_sparse() && !plain_momentum;
        let correction = self.method.correction();
        let holds_gradients = dct.is_none() && !sign_update && !correction.ef21 && correction.decay.is_none();
        self.options.optimizer == Optimizer::Sgd && self.momentum > 0.0 && is_late && holds_gradients
    }

    /// How parameters follow the updates, in words: what one optimiser keeps is of no use to another.
    fn follows(&self, is_overlapped: bool) -> String {
        let &Levers { dct, sign_update, .. } = &self.options.levers;
        let parts = [
            Some(self.options.optimizer.name().to_owned()),
            (is_overlapped && self.counts_waiting()).then(|| "counting how long entries wait".to_owned()),
            dct.map(|block| format!("of a cosine transform in blocks of {block}")),
            sign_update.then(|| "by signs".to_owned()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// What must be the same on all workers, besides [`Self::identity`].
    pub fn schedule(&self) -> String {
        let Self { steps, lr, lr_drops, momentum, clip, evaluate_every, merge, .. } = self;
        let TrainArgs { weight_decay, resume, uneven, timeline, layer_times, levers, .. } = &self.options;
        let (synchrony, updates) = (self.synchrony.name(), levers.clip_update);
        let [timeline, layer_times] = [timeline, layer_times].map(Option::is_some);
        format!(
            "synchrony {synchrony}, steps {steps}, lr {lr} dropping at {lr_drops:?}, momentum {momentum}, weight decay {weight_decay}, clip \
             {clip:?}, updates {updates:?}, evaluation every {evaluate_every}, resume {resume}, merge {merge:?}, timeline {timeline}, \
             layer times {layer_times}, {uneven:?}"
        )
    }

    /// What must stay the same over workers, and over the interruptions of a run.
    ///
    /// Data are known by what they contain, not by where they lie, which may differ from machine to machine.
    pub fn identity(&self, dataset: &Dataset, session: &Session) -> Identity {
        let source = self.source.to_string();
        let kind = source.split(':').next().unwrap_or_default();
        vec![
            ("model", self.model.to_string()),
            ("data", format!("{kind} with SHA-256 {}", dataset.fingerprint())),
            ("method", self.method.to_string()),
            ("seed", self.options.seed.to_string()),
            ("batch", self.batch.to_string()),
            ("synchrony", self.synchrony.name()),
            ("optimizer", self.follows(self.is_overlapped(session))),
            ("rate in residual", self.options.levers.rate_in_residual.to_string()),
        ]
    }

    /// Whether gradients are exchanged while the backward pass goes on, every step by itself.
    pub fn is_overlapped(&self, session: &Session) -> bool {
        self.is_bulk() && session.servers() == 0
    }

    fn is_bulk(&self) -> bool {
        self.synchrony.name() == "bsp"
    }

    /// Refuses what only goes with an exchange that overlaps with the backward pass, where there is another one.
    pub fn expect_replica(&self) -> TrainResult<()> {
        let layers = "nothing beside --servers, or another --synchrony than bsp, under which each layer is exchanged by itself";
        let none = "nothing beside --servers, or another --synchrony than bsp, which keep no such gradients and times";
        let alone = "refuse beside --servers, or another --synchrony than bsp, which have no step of all workers to take back";
        let velocity = "0, or nothing, beside --synchrony local, which sends differences that have the momentum of the steps in them";
        let correction = self.method.correction().momentum;
        let plain = "nothing beside --servers, or another --synchrony than bsp, where sgd is what servers and replicas do";
        let (options, levers) = (&self.options, &self.options.levers);
        let is_local = self.synchrony.local().is_some();
        let named = levers.deliver_all.iter().find_map(When::word).filter(|_| is_local).map(str::to_owned);
        let optimizer = (options.optimizer != Optimizer::Sgd).then(|| options.optimizer.name().into());
        let correction = (is_local && correction > 0.0).then(|| correction.to_string());
        let gradient = (self.method.selects_over() == SelectOver::Gradient).then(|| "gradient".into());
        expect([
            ("--merge", layers, options.merge.as_ref().map(|_| self.merge.name().to_owned())),
            ("--record", none, written(&options.record)),
            ("--layer-times", none, written(&options.layer_times)),
            ("--optimizer", plain, optimizer),
            ("--rate-in-residual", plain, flag(levers.rate_in_residual)),
            ("--ef21", plain, flag(self.method.correction().ef21)),
            ("--residual-decay", plain, self.method.correction().decay.map(|decay| decay.to_string())),
            ("--dct", plain, levers.dct.map(|block| block.to_string())),
            ("--plain-momentum", plain, flag(levers.plain_momentum)),
            ("--sign-update", plain, flag(levers.sign_update)),
            ("--norm-share", layers, self.method.follows_norm_share().map(|share| share.to_string())),
            ("--clip-update", plain, levers.clip_update.map(|norm| norm.to_string())),
            ("--on-nonfinite", alone, (self.method.nonfinite() == OnNonFinite::Skip).then(|| "skip".into())),
            (
                "--select-over",
                "group beside --servers, or another --synchrony than bsp, under which each layer is exchanged by itself",
                gradient,
            ),
            ("--momentum-correction", velocity, correction),
            (
                "--deliver-all",
                "every/STEPS alone beside --synchrony local, of which exchanges are counted, and not steps",
                named,
            ),
        ])
    }

    /// The same, as far as it is known before a job has begun.
    pub(super) fn expect_fit(&self) -> TrainResult<()> {
        if self.is_bulk() { Ok(()) } else { self.expect_replica() }
    }

    /// Sees whether the workers that are asked for can begin on this machine: the data are there, the model reads them and there are enough,
    /// options fit the number of workers, and files can be written. The process that starts the workers refuses it once, before there are
    /// workers that all say it.
    pub fn expect_start(&self) -> TrainResult<()> {
        let options = &self.options;
        let workers = options.workers as usize;
        options.uneven.expect_fit(workers, self.batch)?;
        let (input, examples) = self.source.outline(options.seed)?;
        self.model.expect_reads(input)?;
        Order::new(options.seed, examples, 0, &vec![self.batch; workers])?;
        // What makes directories comes last: a run that is refused for something else leaves none behind.
        let files = [&options.timeline, &options.layer_times];
        files.into_iter().flatten().try_for_each(|file| report::probe(file))?;
        options.metrics.as_deref().map_or(Ok(()), Metrics::probe)?;
        options.record.as_deref().map_or(Ok(()), |directory| Record::open(directory, 0).map(drop))?;
        options.checkpoint.as_deref().map_or(Ok(()), Checkpoints::probe)
    }
}
