//! Over an all-reduce: every worker has the optimiser, and the same mean gradients lead to the same parameters.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::Correction;
use gleaner_algorithms::synchrony::osp::importance;
use gleaner_algorithms::synchrony::{Sgd, Stage};

use super::carrier::{Carrier, Finished, TRUTH, Turn};
use super::splitter::Splitter;
use crate::checkpoint::{CheckpointError, State, lacks};
use crate::failure::Error;
use crate::gradients::Gradients;
use crate::layout::Layout;
use crate::session::Inner;
use crate::update::Skipped;

/// What a checkpoint calls the velocities, the means that have come and are not applied, and of which units these are; then the steps
/// of the units, and how many of them were left out.
const VELOCITIES: &str = "velocities";
const MEANS: &str = "means";
const CAME: &str = "came";
const STEPS: &str = "steps";
const SKIPPED: &str = "skipped";

/// See the module.
pub(super) struct Reduced {
    units: Vec<Unit>,
    sgd: Sgd,
    /// All updates that were applied are in these, on every worker alike.
    truth: Vec<f32>,
    velocities: Vec<f32>,
    /// The last mean gradients.
    means: Vec<f32>,
    /// By how much more than the mean worker this one counts, if it does.
    weight: Option<f32>,
    /// What was started and is not applied, by stage.
    under_way: [Vec<Travelling>; 2],
    /// A gradient that is weighted.
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

/// A unit that was started.
struct Travelling {
    unit: usize,
    /// The rate of its step.
    rate: f32,
    came: Option<Came>,
}

/// A unit whose mean gradient has come.
#[derive(Default)]
struct Came {
    under_way: Duration,
    entries: u64,
    skipped: Option<Skipped>,
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
        let (truth, zeros) = (initial.to_vec(), vec![0.0; initial.len()]);
        let (under_way, scratch) = (Default::default(), Vec::new());
        let (velocities, means) = (zeros.clone(), zeros);
        Ok(Self { units, sgd, truth, velocities, means, weight, under_way, scratch, splitter })
    }

    /// Waits for the means of what was started in a stage.
    fn receive(&mut self, stage: Stage) -> Result<(), Error> {
        for travelling in self.under_way[stage as usize].iter_mut().filter(|it| it.came.is_none()) {
            let unit = &mut self.units[travelling.unit];
            let update = unit.gradients.wait()?;
            self.means[unit.range.clone()].fill(0.0);
            for (name, range) in &unit.parameters {
                update.add_to(name, &mut self.means[range.clone()], 1.0)?;
            }
            let under_way = unit.gradients.times().under_way;
            let (entries, skipped) = (update.entries() as u64, update.skipped().cloned());
            travelling.came = Some(Came { under_way, entries, skipped });
        }
        Ok(())
    }

    /// One step of the optimiser for a unit.
    fn apply(&mut self, number: usize, rate: f32) {
        let range = self.units[number].range.clone();
        let (truth, mean) = (&mut self.truth[range.clone()], &self.means[range.clone()]);
        self.sgd.step(truth, &mut self.velocities[range], mean, rate);
        if let Some(splitter) = &mut self.splitter {
            splitter.importances[number] = importance(truth, mean);
        }
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
            self.under_way[stage as usize].push(Travelling {
                unit: number,
                rate: turn.pass.rate,
                came: None,
            });
        }
        Ok(())
    }

    fn finish(&mut self, stage: Stage, parameters: &mut [f32]) -> Result<Finished, Error> {
        self.receive(stage)?;
        // Of all units or of none: nothing fails any more.
        let mut finished = Finished::default();
        for Travelling { unit, rate, came } in std::mem::take(&mut self.under_way[stage as usize]) {
            let Came { under_way, entries, skipped } = came.unwrap_or_default();
            if skipped.is_none() {
                self.apply(unit, rate);
            }
            finished.under_way = finished.under_way.max(under_way);
            finished.entries += entries;
            finished.skipped = finished.skipped.or(skipped);
            let range = self.units[unit].range.clone();
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

    fn save(&mut self, state: &mut State) -> Result<(), Error> {
        self.receive(Stage::Background)?;
        let (mut steps, mut skipped) = (0, Vec::new());
        for unit in &self.units {
            let unit = unit.gradients.state()?;
            steps = unit.step;
            skipped.push(unit.skipped as f64);
            state.skipped = state.skipped.max(unit.skipped);
            state.waiting.extend(unit.waiting);
            state.groups.extend(unit.groups);
        }
        state.numbers.insert(STEPS.into(), vec![steps as f64]);
        state.numbers.insert(SKIPPED.into(), skipped);
        state.values.insert(TRUTH.into(), self.truth.clone());
        state.values.insert(VELOCITIES.into(), self.velocities.clone());
        let came = self.under_way[Stage::Background as usize].iter().flat_map(|travelling| {
            // The rank that had a step left out, or none.
            let skipped = travelling.came.as_ref().and_then(|came| came.skipped.as_ref());
            let by = skipped.map_or(-1.0, |skipped| f64::from(skipped.rank));
            let entries = travelling.came.as_ref().map_or(0, |came| came.entries);
            [travelling.unit as f64, travelling.rate.into(), entries as f64, by]
        });
        let came: Vec<f64> = came.collect();
        if !came.is_empty() {
            state.values.insert(MEANS.into(), self.means.clone());
        }
        state.numbers.insert(CAME.into(), came);
        self.splitter.iter().for_each(|splitter| splitter.save(state));
        Ok(())
    }

    fn expects(&self, path: &Path, state: &State) -> Result<(), CheckpointError> {
        let parameters: usize = self.units.iter().map(|unit| unit.parameters.len()).sum();
        state.expect(path, "number of parameters", state.waiting.len(), parameters)?;
        self.units.iter().try_for_each(|unit| unit.gradients.expect_parameters(path, state))
    }

    fn load(&mut self, state: &State) -> Result<(), Error> {
        let entries = self.truth.len();
        let (truth, velocities) = (state.values_of(TRUTH, entries)?, state.values_of(VELOCITIES, entries)?);
        let (&[steps], skipped) = (state.numbers_of(STEPS)?, state.numbers_of(SKIPPED)?) else {
            return Err(lacks(STEPS).into());
        };
        let (came, rest) = state.numbers_of(CAME)?.as_chunks::<4>();
        let exist = |unit: f64| (unit as usize) < self.units.len();
        if !rest.is_empty()
            || !came.iter().all(|&[unit, ..]| exist(unit))
            || skipped.len() != self.units.len()
        {
            return Err(lacks(CAME).into());
        }
        if !came.is_empty() {
            self.means.copy_from_slice(state.values_of(MEANS, entries)?);
        }
        self.truth.copy_from_slice(truth);
        self.velocities.copy_from_slice(velocities);
        let travelling = |&[unit, rate, entries, by]: &[f64; 4]| {
            let skipped = (by >= 0.0).then_some(Skipped { rank: by as u32, own: None });
            let came = Came { under_way: Duration::ZERO, entries: entries as u64, skipped };
            Travelling { unit: unit as usize, rate: rate as f32, came: Some(came) }
        };
        self.under_way = [Vec::new(), came.iter().map(travelling).collect()];
        for (unit, &skipped) in self.units.iter_mut().zip(skipped) {
            unit.gradients.go_on_at(state, steps as u64, skipped as u64)?;
        }
        self.splitter.as_mut().map_or(Ok(()), |splitter| splitter.load(state))?;
        Ok(())
    }
}
