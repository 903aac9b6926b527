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

/// Halvings of the logarithm of that, until they take what was measured to some millionths.
const HALVINGS: usize = 22;

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
    /// iteration to be no shorter, as near as can be. Of one group no other waits, so what it takes longer is put down as before; of
    /// several, first the share that keeps others waiting is changed, and then the factor.
    pub(super) fn fit(&self, grouping: &Grouping, measured: &Measured) -> Result<Found, MergingError> {
        let mut fitted = self.found;
        let takes = |found| Self { found, ..*self }.assume(grouping, measured);
        if grouping.groups() > 1 && fitted.factor > 1.0 {
            let of = |held| takes(Found { held, ..fitted });
            fitted.held = least(0.0, 1.0, measured, of)?;
        }
        let of = |log: f64| takes(Found { factor: log.exp(), ..fitted });
        fitted.factor = least(-MOST.ln(), MOST.ln(), measured, of)?.exp();
        Ok(fitted)
    }
}

/// The least value between two with which groups are under way for as long as was measured, and the iteration is no shorter, where both
/// grow with it; the end that comes nearest if there is none.
fn least(
    low: f64,
    high: f64,
    measured: &Measured,
    of: impl Fn(f64) -> Result<Assumed, MergingError>,
) -> Result<f64, MergingError> {
    let (mut low, mut high) = (low, high);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        let found = of(middle)?;
        let is_short =
            found.times.under_way < measured.under_way || found.expected.iteration < measured.iteration;
        *(if is_short { &mut low } else { &mut high }) = middle;
    }
    Ok((low + high) / 2.0)
}
