//! Which layers travel together, by what steps really take.
//!
//! Layers are in the order in which the backward pass finishes them. A strategy that needs
//! times begins with one group. The medians of the first steps over steps and ranks, and the cost model of the session, then
//! give its groups (OMGS-SGD, Algorithm 2). After that they are checked against what is measured, at the same steps on all
//! ranks, which compute with the same numbers and so come to the same groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::{fs, thread};

use gleaner_algorithms::forecast::Model;
use gleaner_algorithms::merging::{
    Affine, Costs, GroupCost, Grouping, Layer, MergingError, Pass, Placement, Predicted, Problem, Span,
    Strategy, evaluate,
};
use gleaner_algorithms::{Method, Sparsity};
use gleaner_runtime::Session;
use gleaner_runtime::report::say;

use crate::OverlapError;

/// Steps that are measured before the first plan.
pub(crate) const FIRST: usize = 5;

/// Steps between two checks of a plan.
pub(crate) const WINDOW: usize = 20;

/// By which share times may differ from those that a plan assumes.
const DRIFT: f64 = 0.25;

/// By which share of an iteration another plan must be better.
const GAIN: f64 = 0.02;

/// The most bytes in which a rank tells what its steps took.
const NOTE: usize = 1 << 17;

/// What a step took on one worker, in seconds; or the medians of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// From the first watched tensor to the backward pass.
    pub(crate) forward: f64,
    /// The backward pass of each layer.
    pub(crate) layers: Vec<f64>,
    /// For how long groups were under way.
    pub(crate) under_way: f64,
    /// From the first watched tensor until the update was there.
    pub(crate) iteration: f64,
}

/// See the module.
pub(crate) struct Planner {
    strategy: Arc<dyn Strategy>,
    workers: u32,
    /// The entries of each layer.
    entries: Vec<usize>,
    grouping: Grouping,
    /// What the session measured of the network, and how exchanges have changed since.
    model: Option<Model>,
    /// Where selection runs: beside the backward pass if a core is free for it.
    place: Placement,
    steps: Vec<Measured>,
    /// What the present groups are based on, once there is a plan.
    assumed: Option<Assumed>,
}

/// What a step takes by the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// From the first parameter that is watched until the update is there, in seconds.
    pub iteration: f64,
    /// The share of the time in which groups are under way that lies within the passes.
    pub hidden_share: f64,
}

struct Assumed {
    times: Measured,
    expected: Expected,
    /// By how much the backward pass of each layer is longer because selection runs in it.
    stalls: Vec<f64>,
    /// What the groups' exchanges take, one after the other.
    exchange: f64,
}

impl Assumed {
    /// What the evaluator makes of a grouping in these times.
    fn of(problem: &Problem, grouping: &Grouping, times: &Measured) -> Result<Self, MergingError> {
        let timeline = evaluate(problem, grouping)?;
        let length = |span: Span| span.end - span.begin;
        let (mut exchange, mut under_way, mut until) = (0.0, 0.0, 0.0_f64);
        let mut stalls = vec![0.0; times.layers.len()];
        for group in &timeline.groups {
            exchange += length(group.exchange);
            under_way += group.exchange.end - until.max(group.compute.end);
            until = group.exchange.end;
            if let Some(next) =
                stalls.get_mut(group.layers.end).filter(|_| problem.place == Placement::InBackward)
            {
                *next = length(group.select);
            }
        }
        let passes = problem.pass.forward() + problem.pass.backward() + stalls.iter().sum::<f64>();
        let exposed = (timeline.iteration - passes).max(0.0);
        let hidden_share = if under_way > 0.0 { (1.0 - exposed / under_way).max(0.0) } else { 1.0 };
        let expected = Expected { iteration: timeline.iteration, hidden_share };
        Ok(Self { times: Measured { under_way, ..times.clone() }, expected, stalls, exchange })
    }
}

impl Planner {
    /// For layers of so many entries.
    ///
    /// # Errors
    /// No layers, or layers without entries.
    pub(crate) fn new(
        strategy: Arc<dyn Strategy>,
        workers: u32,
        entries: Vec<usize>,
    ) -> Result<Self, OverlapError> {
        let layers = entries.len();
        let mut planner = Self {
            strategy,
            workers,
            entries,
            grouping: Grouping::new(vec![layers.max(1)], layers.max(1))?,
            model: None,
            place: Placement::Beside,
            steps: Vec::new(),
            assumed: None,
        };
        // Also where times are needed: layers that cannot be are refused now.
        let pass = planner.pass(0.0, &vec![0.0; layers])?;
        if !planner.strategy.needs_times() {
            let costs = Affine::default();
            planner.grouping =
                planner.strategy.group(&Problem { pass: &pass, costs: &costs, place: Placement::Beside })?;
        }
        Ok(planner)
    }

    /// Measures the network and the workers' speed, if that is needed and nobody has in this session. All ranks call it
    /// together.
    ///
    /// # Errors
    /// The job has failed.
    pub(crate) fn measure(&mut self, session: &Session, method: &Method) -> Result<(), OverlapError> {
        if self.plans() {
            let n = self.entries.iter().sum();
            let probed = session.probe(n)?;
            let model = Model::new(probed.network, probed.speed, method, n);
            self.model = Some(model.map_err(gleaner_runtime::Error::from)?);
            self.place = place(session)?;
        }
        Ok(())
    }

    /// Whether times decide. A single worker exchanges nothing.
    fn plans(&self) -> bool {
        self.workers > 1 && self.strategy.needs_times()
    }

    /// The present groups.
    pub(crate) fn grouping(&self) -> &Grouping {
        &self.grouping
    }

    /// A step has ended. All ranks call it after the same steps. Says whether there are other groups now.
    ///
    /// # Errors
    /// A job that has failed, or a rank with other layers.
    pub(crate) fn conclude(
        &mut self,
        session: &Session,
        method: &Method,
        step: Measured,
    ) -> Result<bool, OverlapError> {
        if !self.plans() {
            return Ok(false);
        }
        self.steps.push(step);
        let due = if self.assumed.is_some() { WINDOW } else { FIRST };
        if self.steps.len() < due {
            return Ok(false);
        }
        let measured = self.agree(session)?;
        let is_first = self.assumed.is_none();
        let Some(before) = self.revise(method, measured)? else { return Ok(false) };
        if session.rank() == 0 {
            self.announce((!is_first).then_some(&before));
        }
        Ok(before != self.grouping)
    }

    /// The medians over the steps of what counts for all ranks: a layer is finished when the last of them has it, and the rank for which
    /// groups are under way for the shortest time waits for no other. All ranks end a step together, so one whose step is
    /// shorter began it later, by that much. The same on every rank.
    fn agree(&mut self, session: &Session) -> Result<Measured, OverlapError> {
        let steps = std::mem::take(&mut self.steps);
        // The forward pass, the layers, how long groups were under way, and the whole step.
        let width = self.entries.len() + 3;
        let recent = steps.len().min(NOTE / 4 / width).max(1);
        let mut own: Vec<f32> = Vec::with_capacity(recent * width);
        for Measured { forward, layers, under_way, iteration } in &steps[steps.len() - recent..] {
            let finished = layers.iter().scan(*forward, |at, layer| {
                *at += layer;
                Some(*at as f32)
            });
            own.push(*forward as f32);
            own.extend(finished);
            own.extend([*under_way as f32, *iteration as f32]);
        }
        let note: Vec<u8> = own.iter().flat_map(|seconds| seconds.to_le_bytes()).collect();
        let mut ranks: Vec<Vec<f64>> = Vec::new();
        for (rank, found) in session.all_gather(&note)?.iter().enumerate() {
            let (words, rest) = found.as_chunks::<4>();
            if words.len() != own.len() || !rest.is_empty() {
                return Err(OverlapError::Times { rank, expected: note.len(), found: found.len() });
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
        let finished: Vec<f64> = (0..width - 2)
            .map(|column| {
                let before_end = over(&|times| times[column] - times[width - 1], f64::max);
                median(iterations.iter().zip(before_end).map(|(whole, latest)| whole + latest).collect())
            })
            .collect();
        Ok(Measured {
            forward: finished[0],
            layers: finished.windows(2).map(|pair| pair[1] - pair[0]).collect(),
            under_way: median(over(&|times| times[width - 2], f64::min)),
            iteration: median(iterations),
        })
    }

    /// Takes other groups where these times ask for it: the first time, and when they have drifted. Gives the groups before;
    /// nothing where all stays as it was planned.
    fn revise(&mut self, method: &Method, mut measured: Measured) -> Result<Option<Grouping>, OverlapError> {
        let Some(mut model) = self.model else { return Ok(None) };
        if let Some(assumed) = &self.assumed {
            let stalled = measured.layers.iter_mut().zip(&assumed.stalls);
            stalled.for_each(|(layer, stall)| *layer = (*layer - stall).max(0.0));
            if !differ(&assumed.times, &measured) {
                return Ok(None);
            }
        }
        let method = spread(method, self.entries.iter().sum());
        let pass = self.pass(measured.forward, &measured.layers)?;
        let place = self.place;
        let outlook = |model: &Model, grouping: &Grouping| {
            let costs = self.costs(model, &method);
            Assumed::of(&Problem { pass: &pass, costs: &costs, place }, grouping, &measured)
        };
        // What takes another time than the model says is put down to the network.
        let present = outlook(&model, &self.grouping)?;
        if present.exchange > 0.0 {
            let slower = 1.0 + (measured.under_way - present.times.under_way) / present.exchange;
            let slower = slower.clamp(0.1, 10.0);
            model.network.latency = model.network.latency.mul_f64(slower);
            model.network.bytes_per_second /= slower;
        }
        let costs = self.costs(&model, &method);
        let grouping = self.strategy.group(&Problem { pass: &pass, costs: &costs, place })?;
        let (planned, present) = (outlook(&model, &grouping)?, outlook(&model, &self.grouping)?);
        self.model = Some(model);
        let is_first = self.assumed.is_none();
        if planned.expected.iteration > (1.0 - GAIN) * present.expected.iteration {
            self.assumed = Some(present);
            return Ok(is_first.then(|| self.grouping.clone()));
        }
        self.assumed = Some(planned);
        Ok(Some(std::mem::replace(&mut self.grouping, grouping)))
    }

    fn costs<'a>(&self, model: &'a Model, method: &'a Method) -> Shared<'a> {
        Shared { predicted: Predicted { model, method, workers: self.workers }, place: self.place }
    }

    /// What a step takes by the present plan, once there is one.
    pub(crate) fn expected(&self) -> Option<Expected> {
        self.assumed.as_ref().map(|assumed| assumed.expected)
    }

    fn announce(&self, before: Option<&Grouping>) {
        let Some(Expected { iteration, hidden_share }) = self.expected() else { return };
        let why = before.map_or(String::new(), |before| format!("times have drifted: instead of {before}, "));
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

    fn pass(&self, forward: f64, times: &[f64]) -> Result<Pass, OverlapError> {
        let layers = self.entries.iter().zip(times);
        Ok(Pass::new(forward, layers.map(|(&entries, &backward)| Layer { backward, entries }).collect())?)
    }
}

/// What the session's model predicts. Where the backward pass has to share its cores, merging takes its time as selecting does.
struct Shared<'a> {
    predicted: Predicted<'a>,
    place: Placement,
}

impl Costs for Shared<'_> {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        if self.place == Placement::Beside {
            return self.predicted.of(entries);
        }
        let Predicted { model, method, workers } = self.predicted;
        let forecast = model.forecast(method.clone(), workers, entries)?;
        Ok(GroupCost { select: forecast.select + forecast.merge, exchange: forecast.exchange })
    }
}

/// Beside the backward pass, unless more workers than cores are on a machine. The same on every rank.
fn place(session: &Session) -> Result<Placement, OverlapError> {
    // The same for all that run on one kernel, whatever their host is called.
    let machine = fs::read("/proc/sys/kernel/random/boot_id");
    let machine = machine.unwrap_or_else(|_| session.rank().to_le_bytes().into());
    let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
    let notes = session.all_gather(&[&cores.to_le_bytes()[..], &machine].concat())?;
    let mut workers: HashMap<&[u8], u32> = HashMap::new();
    let is_crowded = notes.iter().any(|note| {
        let Some((cores, machine)) = note.split_first_chunk() else { return false };
        let here = workers.entry(machine).or_default();
        *here += 1;
        *here > u32::from_le_bytes(*cores)
    });
    Ok(if is_crowded { Placement::InBackward } else { Placement::Beside })
}

/// Whether steps take other times: all differences of the layers together, against the backward pass, or groups are under way for
/// another time.
fn differ(assumed: &Measured, measured: &Measured) -> bool {
    let pairs = || assumed.layers.iter().zip(&measured.layers);
    let difference: f64 = pairs().map(|(a, b)| (a - b).abs()).sum();
    difference > DRIFT * assumed.layers.iter().sum::<f64>()
        || (assumed.under_way - measured.under_way).abs() > DRIFT * assumed.under_way
}

/// The method with its entries as a share, which holds for groups of any length.
fn spread(method: &Method, n: usize) -> Method {
    match method.sparsity() {
        Sparsity::Density(_) => method.clone(),
        Sparsity::K(k) => method.clone().density((k as f64 / n.max(1) as f64).min(1.0)),
    }
}

/// The median, of two in the middle the lower one; 0 of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
