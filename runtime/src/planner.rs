//! Which layers are exchanged together, by what steps really take.
//!
//! Layers are in the order in which the backward pass finishes them. A strategy that needs
//! times begins with one group. The medians of the first steps over steps and ranks, and the cost model of the session, then
//! give its groups (OMGS-SGD, Algorithm 2). After that they are checked against what is measured, at the same steps on all
//! ranks, which compute with the same numbers and so get the same groups.

mod assumed;
mod cores;
mod error;
pub mod layers;
mod outlook;

use std::sync::Arc;

use gleaner_algorithms::forecast::Model;
use gleaner_algorithms::merging::{Affine, Grouping, Layer, Pass, Placement, Problem, Strategy};
use gleaner_algorithms::{Method, Sparsity};
use gleaner_statistics::median;

use crate::failure::Error;
use crate::gradients::StepTimes;
use crate::report::say;
use crate::session::Session;
use assumed::Assumed;
use cores::{Cores, Found, Work};
use outlook::Outlook;

pub use assumed::Expected;
pub use error::PlanError;

/// Steps that are measured before the first plan.
const FIRST: usize = 5;

/// Steps of new groups before they are checked.
const STEADY: usize = 10;

/// Steps between two checks after that.
const WINDOW: usize = 20;

/// The most bytes in which a rank reports what its steps took.
const NOTE: usize = 1 << 17;

/// What a step took on one worker, in seconds; or the medians of several.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// From when the pass began to the backward pass.
    pub forward: f64,
    /// The backward pass of each layer.
    pub layers: Vec<f64>,
    /// For how long groups were under way.
    pub under_way: f64,
    /// What of that was selecting and merging, of all groups.
    pub work: f64,
    /// From when the pass began until the update was there.
    pub iteration: f64,
}

impl Measured {
    /// From how long the forward pass, each layer and the whole step took, in seconds, and where the step's time went.
    pub fn new(forward: f64, layers: Vec<f64>, times: &StepTimes, iteration: f64) -> Self {
        let work = (times.select + times.merge).as_secs_f64();
        Self { forward, layers, under_way: times.under_way.as_secs_f64(), work, iteration }
    }
}

/// What a plan replaces.
enum Before {
    /// No plan.
    Nothing,
    /// These groups: times have drifted.
    Drifted(Grouping),
    /// These groups, of which the first steps have shown what groups take.
    Shown(Grouping),
}

/// Decides which layers are exchanged together, on every rank alike.
pub struct Planner {
    strategy: Arc<dyn Strategy>,
    workers: u32,
    /// The entries of each layer.
    entries: Vec<usize>,
    grouping: Grouping,
    /// What the session measured of the network.
    model: Option<Model>,
    /// What steps are found to take beyond it.
    found: Found,
    /// Whether there was a plan by what several groups had shown since times drifted last.
    is_shown: bool,
    cores: Cores,
    /// What exchanges take of the cores.
    work: Work,
    steps: Vec<Measured>,
    /// What the present groups are based on, once there is a plan.
    assumed: Option<Assumed>,
}

impl Planner {
    /// For layers of this many entries.
    ///
    /// # Errors
    /// No layers, or layers without entries.
    pub fn new(strategy: Arc<dyn Strategy>, workers: u32, entries: Vec<usize>) -> Result<Self, PlanError> {
        let layers = entries.len();
        let mut planner = Self {
            strategy,
            workers,
            entries,
            grouping: Grouping::new(vec![layers.max(1)], layers.max(1))?,
            model: None,
            found: Found::NONE,
            is_shown: false,
            cores: Cores::OWN,
            work: Work::default(),
            steps: Vec::new(),
            assumed: None,
        };
        // Also where times are needed: layers that cannot be are refused now.
        let layer = |&entries: &usize| Layer { backward: 0.0, entries };
        let pass = Pass::new(0.0, planner.entries.iter().map(layer).collect())?;
        if !planner.strategy.needs_times() {
            let costs = Affine::default();
            planner.grouping =
                planner.strategy.group(&Problem { pass: &pass, costs: &costs, place: Placement::Beside })?;
        }
        Ok(planner)
    }

    /// Measures the network and the workers' speed, if that is needed and was not done in this session. All ranks call it
    /// together.
    ///
    /// # Errors
    /// The job has failed.
    pub fn measure(&mut self, session: &Session, method: &Method) -> Result<(), PlanError> {
        if self.plans() {
            let n = self.entries.iter().sum();
            let probed = session.probe(n)?;
            let model = Model::new(probed.network, probed.speed, method, n);
            self.model = Some(model.map_err(Error::from)?);
            self.work = Work { message: probed.speed.message * 1e-9, byte: probed.handling };
            self.cores = Cores::agree(session)?;
        }
        Ok(())
    }

    /// Whether times decide. A single worker exchanges nothing.
    fn plans(&self) -> bool {
        self.workers > 1 && self.strategy.needs_times()
    }

    /// The present groups.
    pub fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// A step has ended. All ranks call it after the same steps. Says whether there are other groups now.
    ///
    /// # Errors
    /// A job that has failed, or a rank with other layers.
    pub fn conclude(
        &mut self,
        session: &Session,
        method: &Method,
        step: Measured,
    ) -> Result<bool, PlanError> {
        if !self.plans() {
            return Ok(false);
        }
        self.steps.push(step);
        let due = match &self.assumed {
            None => FIRST,
            Some(assumed) if assumed.is_new => STEADY,
            Some(_) => WINDOW,
        };
        if self.steps.len() < due {
            return Ok(false);
        }
        let (measured, groups) = (self.agree(session)?, self.grouping.clone());
        let Some(before) = self.revise(method, measured)? else { return Ok(false) };
        if session.rank() == 0 {
            self.announce(&before);
        }
        Ok(groups != self.grouping)
    }

    /// The medians over the steps of what counts for all ranks: a layer is finished when the last of them has it, and the rank for which
    /// groups are under way for the shortest time waits for no other. All ranks end a step together, so one whose step is
    /// shorter began it later, by that much. The same on every rank.
    fn agree(&mut self, session: &Session) -> Result<Measured, PlanError> {
        let steps = std::mem::take(&mut self.steps);
        // The forward pass, the layers, how long groups were under way, the work of that, and the whole step.
        let width = self.entries.len() + 4;
        let recent = steps.len().min(NOTE / 4 / width).max(1);
        let mut own: Vec<f32> = Vec::with_capacity(recent * width);
        for Measured { forward, layers, under_way, work, iteration } in &steps[steps.len() - recent..] {
            let finished = layers.iter().scan(*forward, |at, layer| {
                *at += layer;
                Some(*at as f32)
            });
            own.push(*forward as f32);
            own.extend(finished);
            own.extend([*under_way as f32, *work as f32, *iteration as f32]);
        }
        let note: Vec<u8> = own.iter().flat_map(|seconds| seconds.to_le_bytes()).collect();
        let mut ranks: Vec<Vec<f64>> = Vec::new();
        for (rank, found) in session.all_gather(&note)?.iter().enumerate() {
            let (words, rest) = found.as_chunks::<4>();
            if words.len() != own.len() || !rest.is_empty() {
                return Err(PlanError::Times { rank, expected: note.len(), found: found.len() });
            }
            ranks.push(words.iter().map(|&word| f64::from(f32::from_le_bytes(word))).collect());
        }
        let over = |value: &dyn Fn(&[f64]) -> f64, worst: fn(f64, f64) -> f64| {
            let of_step = |step: usize| {
                ranks
                    .iter()
                    .map(|rank| value(&rank[step * width..][..width]))
                    .reduce(worst)
                    .unwrap_or_default()
            };
            (0..recent).map(of_step).collect::<Vec<f64>>()
        };
        let iterations = over(&|times| times[width - 1], f64::max);
        // Of each rank less its own iteration, so that the latest is found whenever each began.
        let finished: Vec<f64> = (0..width - 3)
            .map(|column| {
                let before_end = over(&|times| times[column] - times[width - 1], f64::max);
                median(iterations.iter().zip(before_end).map(|(whole, latest)| whole + latest))
            })
            .collect();
        Ok(Measured {
            forward: finished[0],
            layers: finished.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            under_way: median(over(&|times| times[width - 3], f64::min)),
            work: median(over(&|times| times[width - 2], f64::max)),
            iteration: median(iterations),
        })
    }

    /// Takes other groups where these times ask for it: the first time, when they have drifted, and once after each of these, with what the first
    /// steps of several groups show of groups; otherwise what is expected of the present ones is renewed. Gives the groups before and
    /// why they are left; nothing where all stays as it was planned.
    fn revise(&mut self, method: &Method, measured: Measured) -> Result<Option<Before>, PlanError> {
        let Some(model) = self.model else { return Ok(None) };
        let method = &spread(method, self.entries.iter().sum());
        let (workers, cores, work, found) = (self.workers, self.cores, self.work, self.found);
        let mut outlook =
            Outlook { entries: &self.entries, method, workers, cores, work, model: &model, found };
        outlook.found = outlook.beside().fit(&self.grouping, &measured)?;
        let (mut alone, mut why) = (measured.clone(), Before::Nothing);
        if let Some(assumed) = &mut self.assumed {
            let shows = assumed.is_new && !self.is_shown && self.grouping.groups() > 1;
            let renewed = outlook.beside().assume(&self.grouping, &measured)?;
            outlook.found.stall = (outlook.found.stall + assumed.renew(&renewed, &measured)).max(0.0);
            alone = assumed.without_stalls(measured);
            why = match assumed.differs(&alone) {
                true => Before::Drifted(self.grouping.clone()),
                false => Before::Shown(self.grouping.clone()),
            };
            if matches!(why, Before::Shown(_)) && !shows {
                self.found = outlook.found;
                return Ok(None);
            }
        }
        self.found = outlook.found;
        self.is_shown = matches!(why, Before::Shown(_));
        let grouping = outlook.group(&*self.strategy, &alone)?;
        let planned = outlook.assume(&grouping, &alone)?;
        let present = outlook.assume(&self.grouping, &alone)?;
        let before = self.assumed.take();
        if planned.is_better(&present) {
            self.assumed = Some(match before {
                None => planned,
                Some(_) => planned.corrected(&present, alone.iteration),
            });
            self.grouping = grouping;
            return Ok(Some(why));
        }
        self.assumed = Some(match (before, &why) {
            (None, _) => present,
            (Some(before), Before::Drifted(_)) => before.on(alone),
            (Some(before), _) => before,
        });
        Ok(matches!(why, Before::Nothing).then_some(why))
    }

    /// What a step takes by the present plan, once there is one: renewed with every check.
    pub fn expected(&self) -> Option<Expected> {
        self.assumed.as_ref().map(|assumed| assumed.expected)
    }

    /// What it was expected to take when the present groups were taken.
    pub fn planned(&self) -> Option<Expected> {
        self.assumed.as_ref().map(|assumed| assumed.planned)
    }

    fn announce(&self, before: &Before) {
        let Some(Expected { iteration, hidden_share }) = self.expected() else { return };
        let why = match before {
            Before::Nothing => String::new(),
            Before::Drifted(groups) => format!("times have drifted: instead of {groups}, "),
            Before::Shown(groups) => format!("by what {groups} took, "),
        };
        say(format_args!(
            "gleaner: {why}{} puts {} layers into {} ({}): {:.1} ms a step expected, {:.0}% of the exchange hidden",
            self.strategy.name(),
            self.entries.len(),
            match self.grouping.groups() {
                1 => "one group".into(),
                groups => format!("{groups} groups"),
            },
            self.grouping,
            1e3 * iteration,
            100.0 * hidden_share,
        ));
    }
}

/// The method with its entries as a share, which holds for groups of any length.
fn spread(method: &Method, n: usize) -> Method {
    match method.sparsity() {
        Sparsity::Density(_) => method.clone(),
        Sparsity::K(k) => method.clone().selecting(Sparsity::Density((k as f64 / n.max(1) as f64).min(1.0))),
    }
}

#[cfg(test)]
mod tests;
