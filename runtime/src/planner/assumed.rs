//! What a plan assumes of a step, and what it then expects.

use gleaner_algorithms::merging::{Grouping, MergingError, Placement, Problem, Span, evaluate};

use super::Measured;

/// By which share times may differ from those that a plan assumes.
const DRIFT: f64 = 0.25;

/// By which share of the backward pass groups may at most make it longer than expected: what is more is not put down to them.
const STALLED: f64 = 0.5;

/// How many groups have to stall the backward pass for half of what a group is found to stall it longer to be believed: of fewer, steps differ by
/// more than groups do.
const FEW: f64 = 8.0;

/// By which share of an iteration another plan must be better.
const GAIN: f64 = 0.02;

/// What a step takes by the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// From the beginning of the forward pass until the update is there, in seconds.
    pub iteration: f64,
    /// The share of the time in which groups are under way that lies within the passes.
    pub hidden_share: f64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Assumed {
    /// The times that the groups rest on, with nothing that stalls the layers. Groups are under way for as long as is expected.
    pub(super) times: Measured,
    pub(super) expected: Expected,
    /// What was expected when the groups were taken.
    pub(super) planned: Expected,
    /// By how much the backward pass of each layer is longer because of what is done for the groups: what was expected, and once there were steps
    /// with them, what was found.
    stalls: Vec<f64>,
    /// Whether the groups have not been checked since they were taken.
    pub(super) is_new: bool,
}

impl Assumed {
    /// What the evaluator makes of a grouping in these times.
    pub(super) fn of(problem: &Problem, grouping: &Grouping, times: &Measured) -> Result<Self, MergingError> {
        let timeline = evaluate(problem, grouping)?;
        let length = |span: Span| span.end - span.begin;
        let under_way = timeline.under_way(|group| group.compute.end);
        let mut stalls = vec![0.0; times.layers.len()];
        for group in &timeline.groups {
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
        let times = Measured { under_way, ..times.clone() };
        Ok(Self { times, expected, planned: expected, stalls, is_new: true })
    }

    /// Measured times less what is expected to stall the layers. What stalls one layer by the plan may really stall several after it, so no
    /// layer is finished before the one before, and what is too much for one is taken off the next.
    pub(super) fn without_stalls(&self, mut measured: Measured) -> Measured {
        let (mut finished, mut stalled, mut alone) = (0.0, 0.0, 0.0_f64);
        for (layer, stall) in measured.layers.iter_mut().zip(&self.stalls) {
            finished += *layer;
            stalled += stall;
            let before = alone;
            alone = alone.max(finished - stalled);
            *layer = alone - before;
        }
        measured
    }

    /// Whether steps take other times: some layer is finished sooner or later by more than a share of the backward pass, or groups are under
    /// way for another time.
    pub(super) fn differs(&self, measured: &Measured) -> bool {
        let ends = |times: &Measured| -> Vec<f64> {
            times
                .layers
                .iter()
                .scan(0.0, |end, layer| {
                    *end += layer;
                    Some(*end)
                })
                .collect()
        };
        let (assumed, found) = (ends(&self.times), ends(measured));
        let most = assumed.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let under_way = self.times.under_way;
        most > DRIFT * assumed.last().copied().unwrap_or_default()
            || (under_way - measured.under_way).abs() > DRIFT * under_way
    }

    /// Expects of the same groups what was made of measured times. What the groups rest on stays: a drift of many small steps is one. The first
    /// time, what the layers take longer is put down to the groups, which are all that has changed, unless it is far from what was expected of
    /// them. Gives by how much longer than expected each group stalls them then, in
    /// seconds, by a ridge regression: few groups say little.
    pub(super) fn renew(&mut self, renewed: &Self, measured: &Measured) -> f64 {
        let exposed = (1.0 - renewed.expected.hidden_share) * renewed.times.under_way;
        let hidden_share =
            if measured.under_way > 0.0 { (1.0 - exposed / measured.under_way).max(0.0) } else { 1.0 };
        self.expected = Expected { hidden_share, ..renewed.expected };
        if std::mem::take(&mut self.is_new) {
            let layers = || measured.layers.iter().zip(&self.times.layers);
            let found: Vec<f64> = layers().map(|(measured, alone)| measured - alone).collect();
            let more = found.iter().sum::<f64>() - self.stalls.iter().sum::<f64>();
            let groups = self.stalls.iter().filter(|stall| **stall > 0.0).count() as f64;
            if more.abs() <= STALLED * self.times.layers.iter().sum::<f64>() {
                self.stalls = found;
                return more * groups / (groups * groups + FEW * FEW);
            }
        }
        0.0
    }

    /// The same groups, which rest on these times now.
    pub(super) fn on(self, times: Measured) -> Self {
        Self { times, ..self }
    }

    /// Expects iterations this many times longer, or shorter, as with other groups were found instead of what is expected of those in the same
    /// times: what the model misses of them it misses of these.
    pub(super) fn corrected(mut self, other: &Self, found: f64) -> Self {
        if found > 0.0 && other.expected.iteration > 0.0 {
            let times = found / other.expected.iteration;
            self.expected.iteration *= times;
            self.planned.iteration *= times;
        }
        self
    }

    /// Whether an iteration is shorter by so much that other groups are worth it.
    pub(super) fn is_better(&self, other: &Self) -> bool {
        self.expected.iteration <= (1.0 - GAIN) * other.expected.iteration
    }
}
