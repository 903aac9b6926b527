//! The operation that hands a gradient over as soon as the backward pass has finished it.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Tape;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Flex, TensorData, backend_extension, try_read_sync};
use gleaner_runtime::Gradients;

use crate::OverlapError;

/// What the operations of one model share with its [`Overlap`](crate::Overlap).
pub(crate) struct Shared {
    gradients: Mutex<Gradients>,
    now: Mutex<Now>,
}

/// What is going on.
#[derive(Default)]
pub(crate) struct Now {
    /// How often watched layers have become old.
    pub(crate) age: u64,
    /// The backward pass that is under way.
    pub(crate) pass: Option<Pass>,
}

/// A backward pass.
pub(crate) struct Pass {
    began: Instant,
    /// Whether gradients are handed over. Otherwise it is about their order alone.
    hands_over: bool,
    /// The positions of the parameters whose gradients are finished, in that order, and when after the beginning.
    pub(crate) finished: Vec<(usize, Duration)>,
    /// Why nothing is handed over any more. burn's pass itself goes on.
    pub(crate) error: Option<OverlapError>,
}

impl Pass {
    pub(crate) fn begin(began: Instant, hands_over: bool) -> Self {
        Self { began, hands_over, finished: Vec::new(), error: None }
    }
}

impl Shared {
    pub(crate) fn new(gradients: Gradients) -> Self {
        Self { gradients: Mutex::new(gradients), now: Mutex::default() }
    }

    pub(crate) fn gradients(&self) -> MutexGuard<'_, Gradients> {
        lock(&self.gradients)
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, Now> {
        lock(&self.now)
    }
}

/// A thread that panicked with it ends the job with its session.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A parameter that is watched.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) position: usize,
    pub(crate) age: u64,
    /// A tensor that outlives its overlap keeps nothing of the job alive.
    pub(crate) shared: Weak<Shared>,
}

impl Debug for Watched {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "parameter '{}'", self.name)
    }
}

impl Watched {
    fn finish(&self, data: impl FnOnce() -> Result<TensorData, String>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut now = shared.now();
        let Now { age, pass: Some(pass) } = &mut *now else { return };
        if pass.error.is_some() {
            return;
        }
        let handed = match *age == self.age {
            false => Err(OverlapError::Stale(self.name.clone())),
            true if pass.hands_over => {
                with_values(&self.name, data(), |values| shared.gradients().ready(&self.name, values))
            }
            true => Ok(()),
        };
        match handed {
            Ok(()) => pass.finished.push((self.position, pass.began.elapsed())),
            Err(error) => pass.error = Some(error),
        }
    }
}

/// Hands over the values of a gradient.
pub(crate) fn with_values(
    name: &str,
    data: Result<TensorData, String>,
    ready: impl FnOnce(&[f32]) -> Result<(), gleaner_runtime::Error>,
) -> Result<(), OverlapError> {
    let unreadable = |reason: String| OverlapError::Unreadable { name: name.into(), reason };
    let data = data.map_err(unreadable)?;
    let values = data.as_slice().map_err(|error| unreadable(format!("{error:?}")))?;
    Ok(ready(values)?)
}

/// The identity. Its second operand only says where it stands: burn's backward pass goes from depth to depth, and an operation
/// is one deeper than the deepest of its operands. With the parameter alone it would be one deep, for every parameter, and
/// all gradients would be finished at the end of the pass.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait Watch: Backend {
    fn watch(parameter: FloatTensor<Self>, input: FloatTensor<Self>, watched: Watched) -> FloatTensor<Self>;
}

impl Watch for Flex {
    fn watch(parameter: FloatTensor<Self>, _: FloatTensor<Self>, _: Watched) -> FloatTensor<Self> {
        parameter
    }
}

impl<B: Backend, C: CheckpointStrategy> Watch for Autodiff<B, C> {
    fn watch(parameter: FloatTensor<Self>, input: FloatTensor<Self>, watched: Watched) -> FloatTensor<Self> {
        let (values, node) = parameter.into_parts();
        match HandOver.prepare::<C>([node, input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(watched, values),
            OpsKind::UnTracked(prepared) => prepared.finish(values),
        }
    }
}

#[derive(Debug)]
struct HandOver;

impl<B: Backend> Backward<B, 2> for HandOver {
    type State = Watched;

    /// All places where the parameter is used are deeper, so their parts have been added up. The parameter itself gets nothing.
    fn backward(self, ops: Ops<Watched, 2>, tape: &mut Tape, _: &mut Checkpointer) {
        let gradient = tape.consume::<B>(&ops.node);
        ops.state.finish(|| match try_read_sync(B::float_into_data(gradient)) {
            Some(Ok(data)) => Ok(data),
            Some(Err(error)) => Err(format!("{error:?}")),
            None => Err("its device cannot be waited for".into()),
        });
    }
}
