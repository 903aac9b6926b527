//! The operation that hands a gradient over as soon as the backward pass has finished it.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Device, Error, Layout, Result, Shape, Storage, Tensor,
};
use gleaner_runtime::Gradients;

use crate::OverlapError;
use crate::moment::Moment;
use crate::rows::RowGradients;

/// What the operations of one model share with its [`Overlap`](crate::Overlap).
pub(crate) struct Shared {
    gradients: Mutex<Gradients>,
    now: Mutex<Now>,
}

/// What is going on.
#[derive(Default)]
pub(crate) struct Now {
    /// How often watched tensors have become old.
    pub(crate) age: u64,
    /// The backward pass that is under way.
    pub(crate) pass: Option<Pass>,
}

/// A backward pass.
pub(crate) struct Pass {
    pub(crate) began: Moment,
    /// The positions of the parameters whose gradients were handed over, in that order, and when.
    pub(crate) finished: Vec<(usize, Moment)>,
    /// The gradients of rows that were selected of embeddings.
    pub(crate) rows: Vec<RowGradients>,
    /// Why it was stopped.
    pub(crate) error: Option<OverlapError>,
}

impl Pass {
    pub(crate) fn begin(began: Moment) -> Self {
        Self { began, finished: Vec::new(), rows: Vec::new(), error: None }
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

/// The identity. candle runs its backward pass once for each pass of the model, when all parts of the gradient have been
/// added up.
pub(crate) struct Watch {
    pub(crate) name: String,
    pub(crate) position: usize,
    pub(crate) age: u64,
    /// A tensor that outlives its overlap keeps nothing of the job alive.
    pub(crate) shared: Weak<Shared>,
}

impl CustomOp1 for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(slice(storage, layout)?.to_vec()), layout.shape().clone()))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((storage.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _parameter: &Tensor, _watched: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let Some(shared) = self.shared.upgrade() else { return Ok(Some(gradient.clone())) };
        let mut now = shared.now();
        let Now { age, pass: Some(pass) } = &mut *now else { return Ok(Some(gradient.clone())) };
        let handed = if *age == self.age {
            hand_over(&mut shared.gradients(), &self.name, gradient)
        } else {
            Err(OverlapError::Stale(self.name.clone()))
        };
        if let Err(error) = handed {
            let stopped = format!("the gradient of '{}' was not handed over: {error}", self.name);
            pass.error = Some(error);
            return Err(Error::Msg(stopped));
        }
        pass.finished.push((self.position, pass.began.later()?));
        // candle needs it no more, and keeps no copy.
        Ok(None)
    }
}

/// Hands a gradient over from where it lies.
pub(crate) fn hand_over(
    gradients: &mut Gradients,
    name: &str,
    gradient: &Tensor,
) -> std::result::Result<(), OverlapError> {
    #[cfg(feature = "cuda")]
    if gradient.device().is_cuda() {
        let gradient = gradient.contiguous()?;
        return Ok(gradients.ready_on_device(name, &crate::device_slice(&gradient)?)?);
    }
    Ok(with_values(gradient, |values| gradients.ready(name, values))??)
}

/// The values of a contiguous tensor in main memory.
pub(crate) fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => Err(Error::RequiresContiguous { op: "watch" }.bt()),
    }
}

/// Lends the values of a tensor of f32, in row-major order; those on a device are copied from there first.
///
/// # Errors
/// A tensor of another type.
pub fn with_values<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(read(slice(storage, layout)?)),
        _ => candle_core::bail!(
            "expected a tensor in main memory, found one that candle could not bring there"
        ),
    }
}
