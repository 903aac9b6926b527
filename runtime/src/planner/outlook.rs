//! What a step will take, and with which groups.

use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::Model;
use gleaner_algorithms::merging::{
    Grouping, Layer, MergingError, Pass, Placement, Predicted, Problem, Strategy,
};

use super::Measured;
use super::assumed::Assumed;
use super::cores::{Cores, Found, Shared, Work};

/// By how many times exchanges may take longer than the model says, or shorter.
const MOST: f64 = 100.0;

/// Halvings, until exchanges take what was measured to some millionths.
const HALVINGS: usize = 22;

/// By which share what is expected has to depend on the share that keeps others waiting for what was measured to say anything of it.
const SHOWS: f64 = 0.02;

/// All that a plan depends on besides the network and the times of the passes.
#[derive(Clone, Copy)]
pub(super) struct Outlook<'a> {
    /// Of each layer.
    pub(super) entries: &'a [usize],
    pub(super) method: &'a Method,
    pub(super) workers: u32,
    pub(super) cores: Cores,
    pub(super) work: Work,
    /// What the session measured of the network and the workers' speed.
    pub(super) model: &'a Model,
    pub(super) found: Found,
}

impl Outlook<'_> {
    /// With nothing that stalls the backward pass: for times of layers in which all that does is contained.
    pub(super) fn beside(self) -> Self {
        Self { cores: Cores { place: Placement::Beside, ..self.cores }, ..self }
    }

    /// What these groups take.
    pub(super) fn assume(&self, grouping: &Grouping, times: &Measured) -> Result<Assumed, MergingError> {
        self.with(times, |problem| Assumed::of(problem, grouping, times))
    }

    /// The groups of a strategy.
    pub(super) fn group(&self, strategy: &dyn Strategy, times: &Measured) -> Result<Grouping, MergingError> {
        self.with(times, |problem| strategy.group(problem))
    }

    fn with<T>(
        &self,
        times: &Measured,
        run: impl FnOnce(&Problem) -> Result<T, MergingError>,
    ) -> Result<T, MergingError> {
        let layers = self.entries.iter().zip(&times.layers);
        let layers = layers.map(|(&entries, &backward)| Layer { backward, entries });
        let pass = Pass::new(times.forward, layers.collect())?;
        let predicted = Predicted { model: self.model, method: self.method, workers: self.workers };
        let costs = Shared { predicted, cores: self.cores, work: self.work, found: self.found };
        run(&Problem { pass: &pass, costs: &costs, place: self.cores.place })
    }

    /// How many times longer exchanges take than the model says, for these groups to be under way for as long as was measured and the
    /// iteration to be no shorter, as near as can be. Of one group selecting and merging are as was measured, and as no other waits for it, what
    /// its exchange takes longer is put down as before; of several, first the share that keeps others waiting is changed, and then the factor.
    pub(super) fn fit(&self, grouping: &Grouping, measured: &Measured) -> Result<Found, MergingError> {
        let mut fitted = self.found;
        let takes = |found| Self { found, ..*self }.assume(grouping, measured);
        if grouping.groups() == 1 {
            let model = self.model.forecast(self.method.clone(), self.workers, self.entries.iter().sum())?;
            let work = measured.work / (model.select + model.merge);
            if work.is_finite() && work > 0.0 {
                fitted.work = work;
            }
        } else {
            let of = |held| takes(Found { held, ..fitted });
            let (free, held) = (of(0.0)?, of(1.0)?);
            let shows = |free: f64, held: f64| held > (1.0 + SHOWS) * free;
            if shows(free.times.under_way, held.times.under_way)
                || shows(free.expected.iteration, held.expected.iteration)
            {
                fitted.held = least((0.0, 1.0), |low, high| (low + high) / 2.0, measured, of)?;
            }
        }
        let of = |factor| takes(Found { factor, ..fitted });
        // A square root is the same on all ranks, whatever library they have.
        fitted.factor = least((1.0 / MOST, MOST), |low, high| (low * high).sqrt(), measured, of)?;
        Ok(fitted)
    }
}

/// The least value between two with which groups are under way for as long as was measured, and the iteration is no shorter, where both
/// grow with it; the end that comes nearest if there is none.
fn least(
    (mut low, mut high): (f64, f64),
    middle: impl Fn(f64, f64) -> f64,
    measured: &Measured,
    of: impl Fn(f64) -> Result<Assumed, MergingError>,
) -> Result<f64, MergingError> {
    for _ in 0..HALVINGS {
        let between = middle(low, high);
        let found = of(between)?;
        let is_short =
            found.times.under_way < measured.under_way || found.expected.iteration < measured.iteration;
        *(if is_short { &mut low } else { &mut high }) = between;
    }
    Ok(middle(low, high))
}
