#![doc = include_str!("../README.md")]

/// The examples of the book's page, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/guide/burn.md")]
mod page {}

mod error;
mod module;
mod watch;

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use gleaner_algorithms::merging::{Grouping, Single, Strategy};
use gleaner_algorithms::{Method, Sparsity};
use gleaner_runtime::planner::{Expected, Measured, Planner, layers};
use gleaner_runtime::{Gradients, Layout, Session, Update};

pub use error::OverlapError;

use module::{Found, Means, Parameter, Rest, Watcher};
use watch::{Pass, Shared, Watched};

/// The positions of the parameters whose gradients are finished, in that order, and when after the beginning of the pass.
type Finished = Vec<(usize, Duration)>;

/// The parameters of a module whose gradients are exchanged while the backward pass goes on.
///
/// A step is: [`watch`](Self::watch) each layer in the forward pass, [`backward`](Self::backward), [`wait`](Self::wait),
/// change the parameters. An error ends the job: all ranks name this one and the reason.
pub struct Overlap<'s> {
    session: &'s Session,
    /// In the order of the module.
    parameters: Vec<Parameter>,
    positions: HashMap<ParamId, usize>,
    strategy: Arc<dyn Strategy>,
    /// Of the whole gradient: groups may have others.
    sparsity: Sparsity,
    shared: Arc<Shared>,
    /// What was watched in this step, and since when.
    watched: HashMap<usize, DispatchTensor>,
    since: Option<Instant>,
    /// What this step's passes took, once its gradients are handed over.
    handed: Option<Passes>,
    /// The parameters of each layer in the order in which backpropagation finishes them, and the layers' groups; from the first
    /// backward pass on.
    layers: Option<(Vec<Vec<usize>>, Planner)>,
}

/// What a step's passes took on this rank.
struct Passes {
    forward: Duration,
    /// The positions of the parameters whose gradients were finished in the backward pass, in that order, and when.
    finished: Finished,
}

impl<'s> Overlap<'s> {
    /// Agrees with all ranks on the parameters of a module that require gradients, and on the method. They are one group until the
    /// first backward pass has shown their order. The strategy's groups follow then, or, if it needs times, after five steps that
    /// are measured; a single worker stays with one group in that case.
    ///
    /// # Errors
    /// No parameters that require gradients, or some that are not of f32 on `Device::flex().autodiff()`; ranks that differ, an invalid method; a method that clips
    /// gradients, with another strategy than `single`.
    pub fn new(
        session: &'s Session,
        module: &impl Module,
        method: Method,
        strategy: Arc<dyn Strategy>,
    ) -> Result<Self, OverlapError> {
        if method.correction().clip.is_some() && strategy.name() != Single.name() {
            return Err(OverlapError::Clipped(strategy.name()));
        }
        let Found { parameters, positions, .. } = Found::of(module)?;
        let add =
            |layout: Layout, parameter: &Parameter| layout.parameter(&parameter.name, parameter.entries);
        let sparsity = method.sparsity();
        let gradients = session.gradients(&parameters.iter().fold(Layout::new(), add), method)?;
        Ok(Self {
            session,
            parameters,
            positions,
            strategy,
            sparsity,
            shared: Arc::new(Shared::new(gradients)),
            watched: HashMap::new(),
            since: None,
            handed: None,
            layers: None,
        })
    }

    /// A layer with the present values of its parameters, to be applied to `input` in the forward pass in its stead. Its gradients
    /// are handed over before the backward pass goes on to what `input` was made of. In one step a parameter gives the same tensor
    /// however often it is watched, so a layer may be used in several places; watch it first with the input that is computed
    /// first.
    ///
    /// # Errors
    /// A layer of another module.
    pub fn watch<M: Module, const D: usize>(
        &mut self,
        layer: &M,
        input: &Tensor<D>,
    ) -> Result<M, OverlapError> {
        self.watch_with(layer, Some(input.clone().into_dispatch()))
    }

    /// [`watch`](Self::watch) for a layer that is applied to data, such as the first one, or an embedding.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn watch_first<M: Module>(&mut self, layer: &M) -> Result<M, OverlapError> {
        self.watch_with(layer, None)
    }

    fn watch_with<M: Module>(&mut self, layer: &M, input: Option<DispatchTensor>) -> Result<M, OverlapError> {
        self.since.get_or_insert_with(Instant::now);
        let Self { parameters, positions, shared, watched: known, .. } = self;
        let age = shared.now().age;
        let watched = |position: usize| {
            let (name, shared) = (parameters[position].name.clone(), Arc::downgrade(shared));
            Watched { name, position, age, shared }
        };
        let mut watcher = Watcher { positions, known, input, watched, error: None };
        let layer = layer.clone().map(&mut watcher);
        watcher.error.map_or(Ok(layer), Err)
    }

    /// Learns from a loss in which order the backward pass finishes the gradients, without handing them over, and takes the
    /// strategy's groups if it needs no times. All ranks call it together. What was watched before is old then.
    ///
    /// The first step does so by itself. This is for a job that goes on from a checkpoint: it has the groups of the job before it when
    /// it [loads](Gradients::load) that.
    ///
    /// # Errors
    /// Ranks whose order differs.
    pub fn arrange<const D: usize>(&mut self, loss: &Tensor<D>) -> Result<(), OverlapError> {
        let arranged = self.run(loss, false).and_then(|(_, finished)| self.order(&finished));
        self.forget();
        arranged.map_err(|error| self.fail(error))
    }

    /// Makes groups in the order in which gradients were finished. The parameters that the model does not use come last.
    fn order(&mut self, finished: &[(usize, Duration)]) -> Result<(), OverlapError> {
        if self.layers.is_some() {
            return Ok(());
        }
        let mut order: Vec<usize> = finished.iter().map(|&(position, _)| position).collect();
        let unused = (0..self.parameters.len()).rev().filter(|position| !order.contains(position));
        order.extend(unused.collect::<Vec<_>>());
        let mut gradients = self.shared.gradients();
        let Some(method) = method(&gradients, self.sparsity) else { return Ok(()) };
        let count = |position: usize| self.parameters[position].entries;
        let layers = layers::of(&order, count, &method);
        let entries = layers.iter().map(|layer| layer.iter().copied().map(count).sum()).collect();
        let mut planner = Planner::new(self.strategy.clone(), self.session.world_size() as u32, entries)?;
        gradients.regroup(&self.layout(&layers, planner.grouping()))?;
        planner.measure(self.session, &method)?;
        drop(gradients);
        self.layers = Some((layers, planner));
        Ok(())
    }

    fn layout(&self, layers: &[Vec<usize>], grouping: &Grouping) -> Layout {
        let mut layout = Layout::new();
        for group in grouping.ranges() {
            layout = layers[group].iter().flatten().fold(layout.group(), |layout, &position| {
                let Parameter { name, entries } = &self.parameters[position];
                layout.parameter(name, *entries)
            });
        }
        layout
    }

    /// Runs the backward pass, in which gradients are handed over layer by layer. A parameter that is used without being watched is
    /// handed over when the pass is over, and so is a gradient of zeros for one that the model does not use.
    ///
    /// # Errors
    /// Gradients that are not finite; a parameter that is used both as watched and directly, or as it was watched in an earlier
    /// step; a second call in one step; a job that has failed.
    pub fn backward<const D: usize>(
        &mut self,
        loss: &Tensor<D>,
        module: &impl Module,
    ) -> Result<(), OverlapError> {
        let passed = self.pass(loss, module);
        passed.map_err(|error| self.fail(error))
    }

    fn pass<const D: usize>(&mut self, loss: &Tensor<D>, module: &impl Module) -> Result<(), OverlapError> {
        if self.handed.is_some() {
            return Err(OverlapError::Twice);
        }
        let forward = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let (store, finished) = self.run(loss, true)?;
        let mut rest = Rest {
            parameters: &self.parameters,
            positions: &self.positions,
            finished: vec![false; self.parameters.len()],
            store: GradientsParams::from_grads(store, module),
            gradients: &mut self.shared.gradients(),
            error: None,
        };
        finished.iter().for_each(|&(position, _)| rest.finished[position] = true);
        module.visit(&mut rest);
        rest.error.map_or(Ok(()), Err)?;
        self.handed = Some(Passes { forward, finished });
        Ok(())
    }

    /// A backward pass, what burn kept of it, and what was finished in it.
    fn run<const D: usize>(
        &self,
        loss: &Tensor<D>,
        hands_over: bool,
    ) -> Result<(burn::tensor::Gradients, Finished), OverlapError> {
        let began = Instant::now();
        self.shared.now().pass = Some(Pass::begin(began, hands_over));
        let store = loss.backward();
        let pass = self.shared.now().pass.take();
        let (finished, error) = pass.map_or((Vec::new(), None), |pass| (pass.finished, pass.error));
        let step = self.shared.gradients().step();
        self.session.record(step, "forward", self.since.unwrap_or(began)..began);
        let mut before = began;
        for &(position, after) in &finished {
            let name = &self.parameters[position].name;
            self.session.record(step, format!("backward {name}"), before..began + after);
            before = began + after;
        }
        error.map_or(Ok((store, finished)), Err)
    }

    /// Waits for the update of this step, the same on every rank, and goes over to other groups where the order of the gradients or
    /// the measured times ask for it, together with all ranks.
    ///
    /// # Errors
    /// No backward pass before, or a job that has failed.
    pub fn wait(&mut self) -> Result<Update, OverlapError> {
        let (since, handed) = (self.since, self.handed.take());
        self.forget();
        let waited = self.end_step(since, handed);
        waited.map_err(|error| self.fail(error))
    }

    fn end_step(&mut self, since: Option<Instant>, handed: Option<Passes>) -> Result<Update, OverlapError> {
        let mut gradients = self.shared.gradients();
        let update = gradients.wait()?;
        let iteration = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let times = gradients.times();
        drop(gradients);
        let Some(Passes { forward, finished }) = handed.filter(|_| update.skipped().is_none()) else {
            return Ok(update);
        };
        if self.layers.is_none() {
            self.order(&finished)?;
            return Ok(update);
        }
        let mut gradients = self.shared.gradients();
        let (Some((layers, planner)), Some(method)) = (&mut self.layers, method(&gradients, self.sparsity))
        else {
            return Ok(update);
        };
        let between = layers::between(layers, &finished);
        let measured = Measured::new(forward.as_secs_f64(), between, &times, iteration);
        if planner.conclude(self.session, &method, measured)? {
            let (layers, grouping) = (layers.clone(), planner.grouping().clone());
            gradients.regroup(&self.layout(&layers, &grouping))?;
        }
        Ok(update)
    }

    /// What was watched is old from here on.
    fn forget(&mut self) {
        self.watched.clear();
        self.since = None;
        self.shared.now().age += 1;
    }

    /// An update as burn's optimisers take gradients: the mean over the workers for each parameter, with zeros where nothing was
    /// delivered. Nothing at all for a step that was [skipped](Update::skipped).
    ///
    /// # Errors
    /// An update of other parameters.
    pub fn means(&self, update: &Update, module: &impl Module) -> Result<GradientsParams, OverlapError> {
        let (parameters, positions) = (&*self.parameters, &self.positions);
        let mut means = Means { parameters, positions, update, means: GradientsParams::new(), error: None };
        if update.skipped().is_none() {
            module.visit(&mut means);
        }
        means.error.map_or(Ok(means.means), Err)
    }

    /// What the gradients are handed over to: for times, checkpoints and counts. It is free between the calls of this type.
    pub fn gradients(&self) -> MutexGuard<'_, Gradients> {
        self.shared.gradients()
    }

    /// The present groups: how many layers each has, in the order in which backpropagation finishes them.
    pub fn grouping(&self) -> Option<&Grouping> {
        self.layers.as_ref().map(|(_, planner)| planner.grouping())
    }

    /// The names of the parameters whose gradients were handed over in this step's backward pass, in that order, and when after its
    /// beginning. Those that were handed over after it are not among them.
    pub fn finished(&self) -> impl Iterator<Item = (&str, Duration)> {
        let finished = self.handed.iter().flat_map(|passes| &passes.finished);
        finished.map(|&(position, after)| (self.parameters[position].name.as_str(), after))
    }

    /// What a step takes by the plan, once there is one: none with a strategy that needs no times, or a single worker.
    pub fn expected(&self) -> Option<Expected> {
        self.layers.as_ref().and_then(|(_, planner)| planner.expected())
    }

    /// Ends the job on all ranks, unless it has failed already.
    fn fail(&self, error: OverlapError) -> OverlapError {
        if !matches!(error, OverlapError::Runtime(gleaner_runtime::Error::Failed(_))) {
            self.shared.gradients().abort(&error);
        }
        error
    }
}

/// The method of the first group, with the sparsity of the whole gradient.
fn method(gradients: &Gradients, sparsity: Sparsity) -> Option<Method> {
    Some(gradients.methods().into_iter().next()?.selecting(sparsity))
}
