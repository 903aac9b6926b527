//! Over an all-reduce: every worker has the optimiser, and the same mean gradients lead to the same parameters.

use std::ops::Range;
use std::sync::Arc;

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::Correction;
use gleaner_algorithms::synchrony::osp::importance;
use gleaner_algorithms::synchrony::{Sgd, Stage};

use super::carrier::{Carrier, Finished, Turn};
use super::splitter::Splitter;
use crate::failure::Error;
use crate::gradients::Gradients;
use crate::layout::Layout;
use crate::session::Inner;
use crate::update::Update;

/// See the module.
pub(super) struct Reduced {
    units: Vec<Unit>,
    sgd: Sgd,
    /// All updates that have come are in these, on every worker alike.
    truth: Vec<f32>,
    velocities: Vec<f32>,
    /// By how much more than the mean worker this one counts, if it does.
    weight: Option<f32>,
    /// What was started, by stage: units, with the rates of their steps.
    under_way: [Vec<(usize, f32)>; 2],
    /// A gradient that is weighted, or a mean.
    scratch: Vec<f32>,
    /// Under OSP.
    splitter: Option<Splitter>,
}

/// A group of the layout.
struct Unit {
    gradients: Gradients,
    range: Range<usize>,
    /// Its parameters, and where they are.
    parameters: Vec<(String, Range<usize>)>,
}

impl Reduced {
    /// All ranks have agreed on all of this, and come together before any of them begins a step.
    pub(super) fn new(
        session: &Arc<Inner>,
        channel: u64,
        layout: &Layout,
        (method, sgd): (&Method, Sgd),
        initial: &[f32],
        weight: Option<f32>,
        splitter: Option<Splitter>,
    ) -> Result<Self, Error> {
        // Clipping is by the norm of the whole gradient, before any unit has its part.
        let method = method.clone().corrected(Correction { clip: None, ..*method.correction() });
        let gradients = Gradients::of_each_group(session, channel, layout, &method)?;
        let units = gradients.into_iter().zip(layout.ranges());
        let mut units: Vec<Unit> =
            units.map(|(gradients, range)| Unit { gradients, range, parameters: Vec::new() }).collect();
        for p in &layout.parameters {
            let unit = &mut units[p.group];
            let start = unit.range.start + p.offset;
            unit.parameters.push((p.name.clone(), start..start + p.len));
        }
        let (truth, velocities) = (initial.to_vec(), vec![0.0; initial.len()]);
        let under_way = Default::default();
        Ok(Self { units, sgd, truth, velocities, weight, under_way, scratch: Vec::new(), splitter })
    }

    /// One step of the optimiser for a unit.
    fn apply(&mut self, number: usize, update: &Update, rate: f32) -> Result<(), Error> {
        let unit = &self.units[number];
        self.scratch.clear();
        self.scratch.resize(unit.range.len(), 0.0);
        for (name, range) in &unit.parameters {
            let within = range.start - unit.range.start..range.end - unit.range.start;
            update.add_to(name, &mut self.scratch[within], 1.0)?;
        }
        let (truth, velocities) =
            (&mut self.truth[unit.range.clone()], &mut self.velocities[unit.range.clone()]);
        self.sgd.step(truth, velocities, &self.scratch, rate);
        if let Some(splitter) = &mut self.splitter {
            splitter.importances[number] = importance(truth, &self.scratch);
        }
        Ok(())
    }
}

impl Carrier for Reduced {
    fn start(&mut self, stage: Stage, units: &[usize], gradient: &[f32], turn: &Turn) -> Result<(), Error> {
        for &number in units {
            let unit = &mut self.units[number];
            for (name, range) in &unit.parameters {
                let mut values = &gradient[range.clone()];
                if let Some(weight) = self.weight {
                    self.scratch.clear();
                    self.scratch.extend(values.iter().map(|value| weight * value));
                    values = &self.scratch;
                }
                unit.gradients.ready(name, values)?;
            }
            self.under_way[stage as usize].push((number, turn.pass.rate));
        }
        Ok(())
    }

    fn finish(&mut self, stage: Stage, parameters: &mut [f32]) -> Result<Finished, Error> {
        let started = std::mem::take(&mut self.under_way[stage as usize]);
        let mut finished = Finished::default();
        let mut updates = Vec::with_capacity(started.len());
        for &(unit, rate) in &started {
            let gradients = &mut self.units[unit].gradients;
            let update = gradients.wait()?;
            finished.under_way = finished.under_way.max(gradients.times().under_way);
            finished.entries += update.entries() as u64;
            finished.skipped = finished.skipped.or_else(|| update.skipped().cloned());
            updates.push((unit, rate, update));
        }
        // Of all units or of none: only now can nothing fail any more.
        for (unit, rate, update) in &updates {
            if update.skipped().is_none() {
                self.apply(*unit, update, *rate)?;
            }
            let range = self.units[*unit].range.clone();
            parameters[range.clone()].copy_from_slice(&self.truth[range]);
        }
        Ok(finished)
    }

    fn split(&mut self, turn: &Turn) -> Result<Vec<bool>, Error> {
        let none = vec![false; self.units.len()];
        self.splitter.as_mut().map_or(Ok(none), |splitter| splitter.split(turn))
    }

    fn budget(&self) -> Option<(u64, u64)> {
        self.splitter.as_ref().map(|splitter| (splitter.budget() as u64, splitter.most() as u64))
    }

    fn flush(&mut self, parameters: &mut [f32]) -> Result<(), Error> {
        for stage in [Stage::Routine, Stage::Background] {
            self.finish(stage, parameters)?;
        }
        parameters.copy_from_slice(&self.truth);
        Ok(())
    }
}
