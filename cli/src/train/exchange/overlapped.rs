//! Bulk synchronous steps over an all-reduce, which begins while the backward pass goes on.

use std::path::Path;
use std::time::Instant;

use candle_core::Tensor;
use gleaner_candle::Overlap;
use gleaner_runtime::report::say;
use gleaner_runtime::{Session, Stepped};

use super::{BUFFERS, Ended, Exchange, Passed, Share, Words};
use crate::crew::{self, meanwhile};
use crate::train::error::TrainResult;
use crate::train::levers::Levers;
use crate::train::settings::Settings;
use crate::train::summary::{Account, Found};
use gleaner_trainer::dct::Dct;
use gleaner_trainer::optimizer::{self, Descent, Optimizer, Rate, Reading, State};
use gleaner_trainer::parameters::{Parameter, Parameters};

pub struct Overlapped<'s> {
    session: &'s Session,
    settings: &'s Settings,
    overlap: Overlap<'s>,
    optimizer: Optimizer,
    /// What gradients are transformed by before they are handed over.
    dct: Option<Dct>,
    /// By how much more than the mean worker this one counts, if batches differ.
    weight: Option<f64>,
    /// The share of its velocity that the optimiser keeps, where it takes entries as if they had not waited.
    momentum: f32,
    /// What rank 0 has found and said.
    findings: Vec<Found>,
}

impl<'s> Overlapped<'s> {
    pub fn new(
        session: &'s Session,
        settings: &'s Settings,
        parameters: &Parameters,
        Share { weight, .. }: Share,
        example: impl FnOnce() -> TrainResult<Tensor>,
    ) -> TrainResult<Self> {
        let (rank, workers) = (session.rank(), session.world_size());
        let (method, merge) = (settings.method.clone(), settings.merge.clone());
        let mut overlap = parameters.overlap(session, method, merge)?;
        // Now, and not with the first step: a run that is resumed loads its residuals into the groups that they come from.
        parameters.watch(&mut overlap)?;
        let loss = example()?;
        if rank == 0 && workers > 1 && settings.merge.needs_times() {
            let note = "measuring the network and the workers' speed for --merge".into();
            meanwhile(&crew::Progress { done: 0, of: settings.steps, note }, || overlap.arrange(&loss))?;
        } else {
            overlap.arrange(&loss)?;
        }
        parameters.unwatch();
        if let Some(option) = settings.needs_all.filter(|_| rank == 0) {
            say(format_args!(
                "gleaner: {option} needs the whole gradient, so all layers are exchanged together after the backward \
                 pass (--merge single)"
            ));
        }
        let momentum = match settings.descent() {
            Descent::Sgd(sgd) => sgd.momentum,
            Descent::LateSgd(_) => 0.0,
            Descent::Adam(adam) => {
                if adam.momentum > 0.0 && settings.method.collective().is_sparse() && rank == 0 {
                    say(format_args!(
                        "gleaner: --momentum {} comes on top of what waits in the residuals, which acts as a momentum for adam: training is \
                         slower; leave the option out, or give 0",
                        adam.momentum
                    ));
                }
                0.0
            }
        };
        let &Levers { dct, sign_update, .. } = &settings.options.levers;
        let dct = dct.map(|block| parameters.dct(block));
        Ok(Self {
            session,
            settings,
            overlap,
            optimizer: Optimizer::new(
                parameters,
                settings.descent(),
                Reading { dct: dct.clone(), signs: sign_update },
            )?,
            dct,
            weight,
            momentum,
            findings: Vec::new(),
        })
    }

    /// The parameters, the running averages, and what the optimiser keeps, as a checkpoint holds them.
    fn own(&self, parameters: &Parameters) -> TrainResult<State> {
        let values = |p: &Parameter| Ok((format!("parameter/{}", p.name), p.values()?.into_owned()));
        let mut own = parameters.list.iter().map(values).collect::<TrainResult<State>>()?;
        own.push((BUFFERS.into(), parameters.buffer_values()?));
        own.extend(self.optimizer.state(parameters)?);
        Ok(own)
    }

    /// Rank 0 says what slows the training, once each.
    fn look_after(&mut self, step: u64) {
        if self.session.rank() != 0 {
            return;
        }
        let findings = self.overlap.gradients().health().findings(self.momentum);
        for finding in findings {
            if self.findings.iter().all(|found| found.finding != finding.name()) {
                let found = Found { finding: finding.name(), step, sentence: finding.to_string() };
                say(format_args!("gleaner: {} ({})", found.sentence, finding.options().join(", ")));
                self.findings.push(found);
            }
        }
    }
}

impl Exchange for Overlapped<'_> {
    fn watch(&mut self, parameters: &Parameters) -> TrainResult<()> {
        if self.settings.clip.is_none() && self.dct.is_none() {
            parameters.watch(&mut self.overlap)?;
        }
        Ok(())
    }

    /// Hands over each gradient as soon as the backward pass has finished it, or all after it where their norm is needed first.
    fn backward(
        &mut self,
        loss: &Tensor,
        parameters: &Parameters,
        rate: f32,
        keeps: bool,
    ) -> TrainResult<()> {
        self.overlap.gradients().keep_accumulated(keeps);
        let rate = self.settings.options.levers.rate_in_residual.then_some(f64::from(rate));
        let factor = self.weight.map_or(rate, |weight| Some(weight * rate.unwrap_or(1.0)));
        // The gradient of so many times the loss is as many times as long, and so may its norm be.
        let weighted = factor.map(|factor| loss.affine(factor, 0.0)).transpose()?;
        let loss = weighted.as_ref().unwrap_or(loss);
        if self.settings.clip.is_none() && self.dct.is_none() {
            return Ok(self.overlap.backward(loss)?);
        }
        let mut gradient = loss.backward()?;
        if let Some(largest) = self.settings.clip {
            parameters.clip(&mut gradient, largest * factor.unwrap_or(1.0) as f32)?;
        }
        if let Some(dct) = &self.dct {
            parameters.transform(&mut gradient, dct)?;
        }
        Ok(self.overlap.hand_over(&gradient)?)
    }

    fn selected(&self) -> Option<Vec<f32>> {
        self.overlap.gradients().accumulated()
    }

    fn end_step(
        &mut self,
        parameters: &mut Parameters,
        Passed { step, rate, .. }: Passed,
    ) -> TrainResult<Ended> {
        let update = self.overlap.wait()?;
        let came = Instant::now();
        if update.skipped().is_none() {
            let levers = &self.settings.options.levers;
            let rate = if levers.rate_in_residual { Rate::Within(rate) } else { Rate::Of(rate) };
            let shortened = |largest: f32| -> TrainResult<f32> {
                Ok((f64::from(largest) / optimizer::norm(&update, parameters)?).min(1.0) as f32)
            };
            let factor = levers.clip_update.map_or(Ok(1.0), shortened)?;
            self.optimizer.apply(&update, parameters, rate, factor)?;
            self.session.record(step, "apply", came..Instant::now());
            self.look_after(step);
        }
        let (entries, skipped) = (update.entries() as u64, update.skipped().cloned());
        let stepped = Stepped { entries, skipped, ..Stepped::default() };
        Ok(Ended { came, times: self.overlap.gradients().times(), stepped })
    }

    fn bytes_received(&self) -> u64 {
        self.overlap.gradients().bytes_received()
    }

    fn account(&self) -> Account {
        let (expected, planned) = (self.overlap.expected(), self.overlap.planned());
        let gradients = self.overlap.gradients();
        let health = gradients.health();
        Account {
            merge: self.settings.merge.name(),
            groups: self.overlap.grouping().map_or(1, |grouping| grouping.groups()),
            mean_density: gradients.mean_density(),
            delivered_norm_share: gradients.delivered_norm_share(),
            steps_skipped: gradients.skipped(),
            seconds_expected_iteration: expected.map(|expected| expected.iteration),
            expected_hidden_share: expected.map(|expected| expected.hidden_share),
            seconds_planned_iteration: planned.map(|planned| planned.iteration),
            planned_hidden_share: planned.map(|planned| planned.hidden_share),
            steps_waiting: (health.looks > 0).then(|| health.waits()),
            findings: self.findings.clone(),
            pass_times: self.overlap.pass_times(),
        }
    }

    fn save(&mut self, path: &Path, parameters: &Parameters, words: &[(&str, String)]) -> TrainResult<()> {
        let own = self.own(parameters)?;
        let values: Vec<(&str, &[f32])> = own.iter().map(|(name, own)| (&name[..], &own[..])).collect();
        Ok(self.overlap.gradients().save_with(path, &values, words)?)
    }

    fn load(
        &mut self,
        path: &Path,
        parameters: &mut Parameters,
        words: &[(&str, String)],
    ) -> TrainResult<Words> {
        let mut own = self.own(parameters)?;
        let mut values: Vec<(&str, &mut [f32])> =
            own.iter_mut().map(|(name, own)| (&name[..], &mut own[..])).collect();
        let mut gradients = self.overlap.gradients();
        let words = gradients.load_with(path, &mut values, words)?;
        let updates = gradients.step() - gradients.skipped();
        drop(gradients);
        let mut own = own.into_iter();
        for (parameter, (_, values)) in parameters.list.iter_mut().zip(&mut own) {
            parameter.update(|into| into.copy_from_slice(&values))?;
        }
        let (_, buffers) = own.next().unwrap_or_default();
        parameters.set_buffer_values(&buffers)?;
        self.optimizer.restore(own.collect(), updates)?;
        Ok(words)
    }
}
