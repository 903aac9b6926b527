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
    Affine, Cost, Costs, Grouping, Layer, MergingError, Pass, Place, Predicted, Problem, Span, Strategy,
    Timeline, evaluate,
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

/// What a step took on one worker, in seconds; or the medians of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// From the first watched tensor to the backward pass.
    pub(crate) forward: f64,
    /// The backward pass of each layer.
    pub(crate) layers: Vec<f64>,
    /// For how long groups were under way.
    pub(crate) exchange: f64,
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
    place: Place,
    steps: Vec<Measured>,
    /// What the present groups are based on, once there is a plan.
    assumed: Option<Assumed>,
}

/// What a step takes by the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// From the first parameter that is watched until the update is there, in seconds.
    pub iteration: f64,
    /// The share of selection and exchange that lies within the passes.
    pub hidden_share: f64,
}

impl Expected {
    fn of(pass: &Pass, timeline: &Timeline) -> Self {
        let compute = pass.forward() + pass.backward();
        let length = |span: Span| span.end - span.begin;
        let work: f64 =
            timeline.groups.iter().map(|group| length(group.select) + length(group.exchange)).sum();
        let exposed = timeline.iteration - compute;
        let hidden_share = if work > 0.0 { (1.0 - exposed / work).max(0.0) } else { 1.0 };
        Self { iteration: timeline.iteration, hidden_share }
    }
}

struct Assumed {
    times: Measured,
    expected: Expected,
    /// What exchanges of these groups take, once that was measured.
    exchange: Option<f64>,
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
            place: Place::Beside,
            steps: Vec::new(),
            assumed: None,
        };
        // Also where times are needed: layers that cannot be are refused now.
        let pass = planner.pass(0.0, &vec![0.0; layers])?;
        if !planner.strategy.needs_times() {
            let costs = Affine::default();
            planner.grouping =
                planner.strategy.group(&Problem { pass: &pass, costs: &costs, place: Place::Beside })?;
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

    /// The medians over the steps, and of these over the ranks; both passes are stretched so that together they take as long as on the
    /// rank that was last in a step, for which all others wait. The same on every rank.
    fn agree(&mut self, session: &Session) -> Result<Measured, OverlapError> {
        let steps = std::mem::take(&mut self.steps);
        let layers = self.entries.len();
        let over_steps = |of: &dyn Fn(&Measured) -> f64| median(steps.iter().map(of).collect());
        let mut own = vec![over_steps(&|step| step.forward), over_steps(&|step| step.exchange)];
        own.extend((0..layers).map(|layer| over_steps(&|step| step.layers[layer])));
        own.extend(steps.iter().map(|step| step.forward + step.layers.iter().sum::<f64>()));
        let note: Vec<u8> = own.iter().flat_map(|seconds| seconds.to_le_bytes()).collect();
        let mut ranks: Vec<Vec<f64>> = Vec::new();
        for (rank, found) in session.all_gather(&note)?.iter().enumerate() {
            let (words, rest) = found.as_chunks::<8>();
            if words.len() != own.len() || !rest.is_empty() {
                return Err(OverlapError::Times { rank, expected: note.len(), found: found.len() });
            }
            ranks.push(words.iter().map(|&word| f64::from_le_bytes(word)).collect());
        }
        let column = |i: usize| ranks.iter().map(move |rank| rank[i]);
        let typical = |i: usize| median(column(i).collect());
        let last = |i: usize| column(2 + layers + i).fold(0.0, f64::max);
        let passes = typical(0) + (0..layers).map(|layer| typical(2 + layer)).sum::<f64>();
        let longest = median((0..steps.len()).map(last).collect());
        let stretch = if passes > 0.0 { (longest / passes).max(1.0) } else { 1.0 };
        Ok(Measured {
            forward: stretch * typical(0),
            // The last rank to begin waits for nobody: it sees the exchange alone.
            exchange: column(1).fold(f64::INFINITY, f64::min),
            layers: (0..layers).map(|layer| stretch * typical(2 + layer)).collect(),
        })
    }

    /// Takes other groups where these times ask for it: the first time, and when they have drifted. Gives the groups before;
    /// nothing where all stays as it was planned.
    fn revise(&mut self, method: &Method, measured: Measured) -> Result<Option<Grouping>, OverlapError> {
        let Some(model) = &mut self.model else { return Ok(None) };
        let is_first = self.assumed.is_none();
        if let Some(assumed) = &mut self.assumed {
            let slower = match assumed.exchange {
                Some(exchange) if exchange > 0.0 => (measured.exchange / exchange).clamp(0.01, 100.0),
                _ => 1.0,
            };
            if !differ(&assumed.times, &measured) && (slower - 1.0).abs() <= DRIFT {
                assumed.exchange.get_or_insert(measured.exchange);
                return Ok(None);
            }
            model.network.latency = model.network.latency.mul_f64(slower);
            model.network.bytes_per_second /= slower;
        }
        let model = *model;
        let method = spread(method, self.entries.iter().sum());
        let beside = Predicted { model: &model, method: &method, workers: self.workers };
        let within = Within(beside);
        let costs: &dyn Costs = if self.place == Place::Beside { &beside } else { &within };
        let pass = self.pass(measured.forward, &measured.layers)?;
        let problem = Problem { pass: &pass, costs, place: self.place };
        let grouping = self.strategy.group(&problem)?;
        let expect =
            |grouping: &Grouping| Ok::<_, OverlapError>(Expected::of(&pass, &evaluate(&problem, grouping)?));
        let (expected, present) = (expect(&grouping)?, expect(&self.grouping)?);
        let exchange = Some(measured.exchange);
        if expected.iteration > (1.0 - GAIN) * present.iteration {
            let exchange = exchange.filter(|_| !is_first);
            self.assumed = Some(Assumed { times: measured, expected: present, exchange });
            return Ok(is_first.then(|| self.grouping.clone()));
        }
        self.assumed = Some(Assumed { times: measured, expected, exchange: None });
        Ok(Some(std::mem::replace(&mut self.grouping, grouping)))
    }

    /// What a step takes by the present plan, once there is one.
    pub(crate) fn expected(&self) -> Option<Expected> {
        self.assumed.as_ref().map(|assumed| assumed.expected)
    }

    fn announce(&self, before: Option<&Grouping>) {
        let Some(Expected { iteration, hidden_share }) = self.expected() else { return };
        let why = before.map_or(String::new(), |before| format!("times have drifted: instead of {before}, "));
        say(format_args!(
            "gleaner: {why}{} puts {} layers into {} ({}): {:.1} ms a step expected, {:.0}% of selection and exchange hidden",
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

/// Costs where the backward pass has to share its cores: merging takes its time as selecting does.
struct Within<'a>(Predicted<'a>);

impl Costs for Within<'_> {
    fn of(&self, entries: usize) -> Result<Cost, MergingError> {
        let Predicted { model, method, workers } = self.0;
        let forecast = model.forecast(method.clone(), workers, entries)?;
        Ok(Cost { select: forecast.select + forecast.merge, exchange: forecast.exchange })
    }
}

/// Beside the backward pass, unless more workers than cores are on a machine. The same on every rank.
fn place(session: &Session) -> Result<Place, OverlapError> {
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
    Ok(if is_crowded { Place::InBackward } else { Place::Beside })
}

/// Whether layers take other times: all differences together, against the backward pass.
fn differ(assumed: &Measured, measured: &Measured) -> bool {
    let pairs = || assumed.layers.iter().zip(&measured.layers);
    let difference: f64 = pairs().map(|(a, b)| (a - b).abs()).sum();
    difference > DRIFT * assumed.layers.iter().sum::<f64>()
}

/// The method with its entries as a share, which holds for groups of any length.
fn spread(method: &Method, n: usize) -> Method {
    match method.sparsity() {
        Sparsity::Density(_) => method.clone(),
        Sparsity::K(k) => method.clone().density((k as f64 / n.max(1) as f64).min(1.0)),
    }
}

/// The median, of two in the middle the lower one; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests;
