//! What a step will take, and with which groups.

use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::Model;
use gleaner_algorithms::merging::{
    Grouping, Layer, MergingError, Pass, Placement, Predicted, Problem, Strategy,
};

use super::Measured;
use super::assumed::Assumed;
use super::cores::{Cores, Shared, Work};

/// By how many times exchanges may take longer than the model said, or shorter.
const MOST: f64 = 10.0;

/// Halvings of the logarithm of that, until they take what was measured to some millionths.
const HALVINGS: usize = 20;

/// All that a plan depends on besides the network and the times of the passes.
#[derive(Clone, Copy)]
pub(super) struct Outlook<'a> {
    /// Of each layer.
    pub(super) entries: &'a [usize],
    pub(super) method: &'a Method,
    pub(super) workers: u32,
    pub(super) cores: Cores,
    pub(super) work: Work,
}

impl Outlook<'_> {
    /// With nothing that stalls the backward pass: for times of layers in which all that does is contained.
    pub(super) fn beside(self) -> Self {
        Self { cores: Cores { place: Placement::Beside, ..self.cores }, ..self }
    }

    /// What these groups take.
    pub(super) fn assume(
        &self,
        model: &Model,
        grouping: &Grouping,
        times: &Measured,
    ) -> Result<Assumed, MergingError> {
        self.with(model, times, |problem| Assumed::of(problem, grouping, times))
    }

    /// The groups of a strategy.
    pub(super) fn group(
        &self,
        model: &Model,
        strategy: &dyn Strategy,
        times: &Measured,
    ) -> Result<Grouping, MergingError> {
        self.with(model, times, |problem| strategy.group(problem))
    }

    fn with<T>(
        &self,
        model: &Model,
        times: &Measured,
        run: impl FnOnce(&Problem) -> Result<T, MergingError>,
    ) -> Result<T, MergingError> {
        let layers = self.entries.iter().zip(&times.layers);
        let layers = layers.map(|(&entries, &backward)| Layer { backward, entries });
        let pass = Pass::new(times.forward, layers.collect())?;
        let predicted = Predicted { model, method: self.method, workers: self.workers };
        let costs = Shared { predicted, cores: self.cores, work: self.work };
        run(&Problem { pass: &pass, costs: &costs, place: self.cores.place })
    }

    /// The model with a network so much slower, or faster, that these groups are under way for as long as was measured, and that the iteration
    /// is no shorter, as near as can be: what takes another time than the model says is put down to the network.
    pub(super) fn fit(
        &self,
        model: Model,
        grouping: &Grouping,
        measured: &Measured,
    ) -> Result<Model, MergingError> {
        let of = |factor: f64| self.assume(&slower(model, factor), grouping, measured);
        let under_way = factor(measured.under_way, |factor| Ok(of(factor)?.times.under_way))?;
        let iteration = factor(measured.iteration, |factor| Ok(of(factor)?.expected.iteration))?;
        Ok(slower(model, under_way.max(iteration)))
    }
}

/// The model with a network this many times slower.
fn slower(mut model: Model, factor: f64) -> Model {
    model.network.latency = model.network.latency.mul_f64(factor);
    model.network.bytes_per_second /= factor;
    model
}

/// By how many times something has to be more, or less, so that what grows with it takes so long.
fn factor(seconds: f64, of: impl Fn(f64) -> Result<f64, MergingError>) -> Result<f64, MergingError> {
    let (mut low, mut high) = (1.0 / MOST, MOST);
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        *(if of(middle)? < seconds { &mut low } else { &mut high }) = middle;
    }
    Ok((low * high).sqrt())
}
