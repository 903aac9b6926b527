#![doc = include_str!("../README.md")]

/// The examples of the book's page, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/guide/candle.md")]
mod page {}

#[cfg(feature = "cuda")]
mod device;
mod error;
mod moment;
mod rows;
mod times;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};
use gleaner_algorithms::device::Device;
use gleaner_algorithms::merging::{Grouping, Single, Strategy};
use gleaner_algorithms::{Method, Sparsity};
use gleaner_runtime::planner::{Measured, Planner, layers};
use gleaner_runtime::{Gradients, Layout, Session, Update};

#[cfg(feature = "cuda")]
pub use device::device_slice;
pub use error::OverlapError;
pub use rows::Rows;
pub use times::{LayerTime, PassTimes};
pub use watch::with_values;

pub use gleaner_runtime::planner::Expected;

use moment::Moment;
use rows::with_sparse;
use watch::{Pass, Shared, Watch, hand_over};

/// The parameters of a model whose gradients are exchanged while the backward pass goes on.
///
/// A step is: [`watch`](Self::watch) each parameter in the forward pass, [`backward`](Self::backward), [`wait`](Self::wait),
/// change the parameters. An error ends the job: all ranks name this one and the reason.
pub struct Overlap<'s> {
    session: &'s Session,
    /// By name, so that all ranks have the same order also where they come out of a hash map.
    parameters: Vec<(String, Var)>,
    /// The same of those whose gradients are sparse.
    embeddings: Vec<(String, Var)>,
    strategy: Arc<dyn Strategy>,
    /// Of the whole gradient: groups may have others.
    sparsity: Sparsity,
    shared: Arc<Shared>,
    /// What was watched in this step, and since when.
    watched: HashMap<usize, Tensor>,
    since: Option<Instant>,
    /// Whether this step's gradients are handed over, and what its passes took.
    handed: Option<(Duration, Vec<(usize, Duration)>)>,
    /// The parameters of each layer in the order in which backpropagation finishes them, and the layers' groups; from the first
    /// loss on.
    layers: Option<(Vec<Vec<usize>>, Planner)>,
    /// What the last steps took here, [`RECENT`] at most.
    recent: VecDeque<Measured>,
}

/// Steps whose times are kept.
const RECENT: usize = 128;

impl<'s> Overlap<'s> {
    /// Agrees with all ranks on the parameters, which have names of their own, and on the method. Until the first loss is known
    /// they are one group. The strategy's groups follow then, or, if it needs times, after five steps that are measured; a single
    /// worker stays with one group in that case.
    ///
    /// # Errors
    /// Parameters that are not of f32 in main memory or on a CUDA device, two of one name, ranks that differ, an invalid method; a method that clips
    /// gradients, with another strategy than `single`.
    pub fn new(
        session: &'s Session,
        parameters: impl IntoIterator<Item = (String, Var)>,
        method: Method,
        strategy: Arc<dyn Strategy>,
    ) -> Result<Self, OverlapError> {
        Self::with_embeddings(session, parameters, [], method, strategy)
    }

    /// [`new`](Self::new) with embeddings beside: matrices of which a step uses some [rows](Self::rows). They are
    /// [sparse parameters](Layout::sparse_parameter): all their gradients are delivered, and each is a group by itself. They are
    /// handed over when the backward pass is over.
    ///
    /// # Errors
    /// As [`new`](Self::new); embeddings on a device, and those that are no matrices.
    pub fn with_embeddings(
        session: &'s Session,
        parameters: impl IntoIterator<Item = (String, Var)>,
        embeddings: impl IntoIterator<Item = (String, Var)>,
        method: Method,
        strategy: Arc<dyn Strategy>,
    ) -> Result<Self, OverlapError> {
        if method.correction().clip.is_some() && strategy.name() != Single.name() {
            return Err(OverlapError::Clipped(strategy.name()));
        }
        let (parameters, embeddings) = (sorted(parameters), sorted(embeddings));
        for (name, parameter) in &parameters {
            let (dtype, device) = (parameter.dtype(), parameter.device());
            let is_usable = device.is_cpu() || cfg!(feature = "cuda") && device.is_cuda();
            if dtype != DType::F32 || !is_usable {
                let (name, device) = (name.clone(), device.location());
                return Err(OverlapError::Kind { name, dtype, device });
            }
        }
        rows::expect_tables(&embeddings)?;
        let sparsity = method.sparsity();
        let add = |layout: Layout, (name, var): &(String, Var)| layout.parameter(name, var.elem_count());
        let layout = with_sparse(parameters.iter().fold(Layout::new(), add), &embeddings);
        let gradients = match device_of(&parameters)? {
            Some(device) => session.gradients_on(device, &layout, method)?,
            None => session.gradients(&layout, method)?,
        };
        Ok(Self {
            session,
            parameters,
            embeddings,
            strategy,
            sparsity,
            shared: Arc::new(Shared::new(gradients)),
            watched: HashMap::new(),
            since: None,
            handed: None,
            layers: None,
            recent: VecDeque::new(),
        })
    }

    /// A parameter with its present values, to be used in the forward pass in its stead. In one step it gives the same tensor
    /// however often it is asked, so a parameter may be used in several places; after [`wait`](Self::wait) that tensor is old.
    /// candle visits the left operand of an operation last: a parameter that stands to the right of what comes from earlier
    /// layers is finished soonest.
    ///
    /// # Errors
    /// An unknown name.
    pub fn watch(&mut self, name: &str) -> Result<Tensor, OverlapError> {
        let position = self.parameters.binary_search_by(|(known, _)| known.as_str().cmp(name));
        let position = position.map_err(|_| OverlapError::Unknown(name.into()))?;
        if let Some(watched) = self.watched.get(&position) {
            return Ok(watched.clone());
        }
        self.since.get_or_insert_with(Instant::now);
        let (name, shared) = (name.to_owned(), Arc::downgrade(&self.shared));
        let watch = Watch { name, position, age: self.shared.now().age, shared };
        let watched = self.parameters[position].1.apply_op1(watch)?;
        self.watched.insert(position, watched.clone());
        Ok(watched)
    }

    /// All parameters [watched](Self::watch), by name: what candle_nn's `VarBuilder::from_tensors` takes, with which a model is
    /// put together in every forward pass.
    ///
    /// # Errors
    /// None but those of candle.
    pub fn tensors(&mut self) -> Result<HashMap<String, Tensor>, OverlapError> {
        let names: Vec<String> = self.parameters.iter().map(|(name, _)| name.clone()).collect();
        names.into_iter().map(|name| Ok((name.clone(), self.watch(&name)?))).collect()
    }

    /// Learns from a loss in which order the backward pass will finish the gradients, without running it, and takes the
    /// strategy's groups if it needs no times. All ranks call it together. What was watched before is old then.
    ///
    /// [`backward`](Self::backward) does so with the first loss. This is for a job that goes on from a checkpoint: it has the groups of
    /// the job before it when it [loads](Gradients::load) that.
    ///
    /// # Errors
    /// Ranks whose order differs.
    pub fn arrange(&mut self, loss: &Tensor) -> Result<(), OverlapError> {
        let arranged = self.order(loss);
        self.forget();
        arranged.map_err(|error| self.fail(error))
    }

    fn order(&mut self, loss: &Tensor) -> Result<(), OverlapError> {
        if self.layers.is_some() || self.parameters.is_empty() {
            return Ok(());
        }
        let positions: HashMap<TensorId, usize> =
            self.watched.iter().map(|(&position, watched)| (watched.id(), position)).collect();
        let mut order: Vec<usize> =
            loss.sorted_nodes().iter().filter_map(|node| positions.get(&node.id()).copied()).collect();
        // What the model does not use so far.
        let unused = (0..self.parameters.len()).rev().filter(|position| !order.contains(position));
        order.extend(unused.collect::<Vec<_>>());
        let mut gradients = self.shared.gradients();
        let Some(method) = method(&gradients, self.sparsity) else { return Ok(()) };
        let count = |position: usize| self.parameters[position].1.elem_count();
        // What is too small to be selected from is a group by itself.
        order.retain(|&position| count(position) >= method.is_dense_below());
        if order.is_empty() {
            return Ok(());
        }
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
                let (name, parameter) = &self.parameters[position];
                layout.parameter(name, parameter.elem_count())
            });
        }
        let mut others: Vec<usize> = (0..self.parameters.len()).collect();
        others.retain(|position| !layers.iter().flatten().any(|other| other == position));
        let add = |layout: Layout, position: &usize| {
            let (name, parameter) = &self.parameters[*position];
            layout.parameter(name, parameter.elem_count())
        };
        with_sparse(others.iter().fold(layout.group(), add), &self.embeddings)
    }

    /// Runs the backward pass, in which gradients are handed over one by one. A parameter that is used without being watched is
    /// handed over when the pass is over, and so is a gradient of zeros for one that the model does not use.
    ///
    /// # Errors
    /// A pass that fails; gradients that are not finite; a parameter that is used both as watched and directly, or as it was
    /// watched in an earlier step; a second call in one step; a job that has failed.
    pub fn backward(&mut self, loss: &Tensor) -> Result<(), OverlapError> {
        let passed = self.pass(loss);
        passed.map_err(|error| self.fail(error))
    }

    fn pass(&mut self, loss: &Tensor) -> Result<(), OverlapError> {
        if self.handed.is_some() {
            return Err(OverlapError::Twice);
        }
        self.order(loss)?;
        let moment = Moment::begin(loss.device())?;
        let forward = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let began = Instant::now();
        self.shared.now().pass = Some(Pass::begin(moment));
        let store = loss.backward();
        let Some(Pass { began: moment, finished, rows, error }) = self.shared.now().pass.take() else {
            return Ok(());
        };
        if let Some(error) = error {
            return Err(error);
        }
        let positions: Vec<usize> = finished.iter().map(|&(position, _)| position).collect();
        let store = store?;
        self.hand_over_rest(&store, &positions)?;
        self.hand_over_rows(&store, rows)?;
        let finished = finished.into_iter().map(|(position, at)| Ok((position, at.since(&moment)?)));
        let finished: Vec<(usize, Duration)> = finished.collect::<candle_core::Result<_>>()?;
        self.record(began, &finished, loss.device());
        self.handed = Some((forward, finished));
        Ok(())
    }

    /// What the passes of this step did when, for a timeline. The forward pass began with the first parameter that was watched.
    fn record(&self, began: Instant, finished: &[(usize, Duration)], device: &candle_core::Device) {
        let step = self.shared.gradients().step();
        self.session.record(step, "forward", self.since.unwrap_or(began)..began);
        let mut before = began;
        for &(position, after) in finished {
            let name = &self.parameters[position].0;
            let (what, during) = (format!("backward {name}"), before..began + after);
            match device.is_cpu() {
                true => self.session.record(step, what, during),
                false => self.session.record_on_device(step, what, during),
            }
            before = began + after;
        }
    }

    /// Hands over all gradients of a backward pass that ran without this one: for what needs all of them first, such as their
    /// norm. Nothing overlaps then. A parameter that has none there has a gradient of zeros.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn hand_over(&mut self, store: &GradStore) -> Result<(), OverlapError> {
        let handed = match self.handed {
            Some(_) => Err(OverlapError::Twice),
            None => self.hand_over_rest(store, &[]).and_then(|()| self.hand_over_rows(store, Vec::new())),
        };
        handed.map_err(|error| self.fail(error))?;
        self.handed = Some((Duration::ZERO, Vec::new()));
        Ok(())
    }

    fn hand_over_rest(&self, store: &GradStore, finished: &[usize]) -> Result<(), OverlapError> {
        let mut is_finished = vec![false; self.parameters.len()];
        finished.iter().for_each(|&position| is_finished[position] = true);
        let mut gradients = self.shared.gradients();
        for (position, (name, parameter)) in self.parameters.iter().enumerate().rev() {
            match (is_finished[position], store.get(parameter)) {
                (true, None) => {}
                (true, Some(_)) => return Err(OverlapError::TwoWays(name.clone())),
                (false, Some(gradient)) => hand_over(&mut gradients, name, gradient)?,
                (false, None) => gradients.ready(name, &vec![0.0; parameter.elem_count()])?,
            }
        }
        Ok(())
    }

    /// Waits for the update of this step, the same on every rank, and goes over to other groups where the measured times ask for
    /// it, together with all ranks.
    ///
    /// # Errors
    /// No backward pass before, or a job that has failed.
    pub fn wait(&mut self) -> Result<Update, OverlapError> {
        let (since, handed) = (self.since, self.handed.take());
        self.forget();
        let waited = self.end_step(since, handed);
        waited.map_err(|error| self.fail(error))
    }

    fn end_step(
        &mut self,
        since: Option<Instant>,
        handed: Option<(Duration, Vec<(usize, Duration)>)>,
    ) -> Result<Update, OverlapError> {
        let mut gradients = self.shared.gradients();
        let update = gradients.wait()?;
        let iteration = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let (Some((layers, planner)), Some((forward, finished))) = (&mut self.layers, handed) else {
            return Ok(update);
        };
        if update.skipped().is_some() {
            return Ok(update);
        }
        let between = layers::between(layers, &finished);
        let measured = Measured::new(forward.as_secs_f64(), between, &gradients.times(), iteration);
        if !finished.is_empty() {
            self.recent.truncate(RECENT - 1);
            self.recent.push_front(measured.clone());
        }
        let Some(method) = method(&gradients, self.sparsity) else { return Ok(update) };
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

    /// An update as candle's optimisers take gradients: the mean over the workers for each parameter, with zeros where nothing was
    /// delivered. Nothing at all for a step that was [skipped](Update::skipped).
    ///
    /// # Errors
    /// An update of other parameters.
    pub fn means(&self, update: &Update) -> Result<GradStore, OverlapError> {
        let mut store = GradStore::default();
        if update.skipped().is_some() {
            return Ok(store);
        }
        for (name, parameter) in self.parameters.iter().chain(&self.embeddings) {
            #[cfg(feature = "cuda")]
            if parameter.device().is_cuda() {
                store.insert(parameter, device::mean(update, name, parameter)?);
                continue;
            }
            let values = update.values(name).map_err(gleaner_runtime::Error::from)?;
            store.insert(parameter, Tensor::from_vec(values, parameter.shape(), parameter.device())?);
        }
        Ok(store)
    }

    /// What the gradients are handed over to: for times, checkpoints and counts. It is free between the calls of this type.
    pub fn gradients(&self) -> MutexGuard<'_, Gradients> {
        self.shared.gradients()
    }

    /// The present groups: how many layers each has, in the order in which backpropagation finishes them.
    pub fn grouping(&self) -> Option<&Grouping> {
        self.layers.as_ref().map(|(_, planner)| planner.grouping())
    }

    /// What a step takes by the plan, once there is one: none with a strategy that needs no times, or a single worker. It is renewed from
    /// what steps take, ten steps after the groups were taken for the first time.
    pub fn expected(&self) -> Option<Expected> {
        self.layers.as_ref().and_then(|(_, planner)| planner.expected())
    }

    /// What a step was expected to take when the present groups were taken, before any step was taken with them.
    pub fn planned(&self) -> Option<Expected> {
        self.layers.as_ref().and_then(|(_, planner)| planner.planned())
    }

    /// Ends the job on all ranks, unless it has failed already.
    fn fail(&self, error: OverlapError) -> OverlapError {
        if !matches!(error, OverlapError::Runtime(gleaner_runtime::Error::Failed(_))) {
            self.shared.gradients().abort(&error);
        }
        error
    }
}

/// By name.
fn sorted(parameters: impl IntoIterator<Item = (String, Var)>) -> Vec<(String, Var)> {
    let mut parameters: Vec<(String, Var)> = parameters.into_iter().collect();
    parameters.sort_by(|(a, _), (b, _)| a.cmp(b));
    parameters
}

/// Where residuals lie if not in main memory: with the parameters, which are all in one place.
fn device_of(parameters: &[(String, Var)]) -> Result<Option<Arc<dyn Device>>, OverlapError> {
    let Some((_, first)) = parameters.first() else { return Ok(None) };
    let is_elsewhere = |(_, other): &&(String, Var)| !other.device().same_device(first.device());
    if let Some((name, other)) = parameters.iter().find(is_elsewhere) {
        return Err(OverlapError::Apart { name: name.clone(), device: other.device().location() });
    }
    #[cfg(feature = "cuda")]
    if first.device().is_cuda() {
        return device::open(first.device()).map(Some);
    }
    Ok(None)
}

/// The method of the first group, with the sparsity of the whole gradient.
fn method(gradients: &Gradients, sparsity: Sparsity) -> Option<Method> {
    Some(gradients.methods().into_iter().next()?.selecting(sparsity))
}
