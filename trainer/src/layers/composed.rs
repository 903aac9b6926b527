//! The layers put together from candle's own operations, for tensors on a device.
//!
//! They compute the same up to the order of additions. Where candle's backward pass would be slow on a device, it is derived by hand here
//! as well: a gradient of gathered rows would be scattered by few threads, and sums over rows are read in strides unless they are products.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp3, D, Device, Error, Layout, Result, Shape, Storage, Tensor,
};

use super::Mode;
use super::convolution::Geometry;

/// See [`patches`](super::patches).
pub fn patches(images: &Tensor, geometry: Geometry) -> Result<Tensor> {
    let (count, height, width, channels) = images.dims4()?;
    let (gathered, uses) = geometry.rows(images.device())?;
    let pixels = images.detach().reshape((count, height * width, channels))?;
    let result = pixels.index_select(&gathered, 1)?.reshape(geometry.patch_shape())?;
    let backward = move |gradient: &Tensor| {
        let gradient = gradient.contiguous()?.reshape((count, (), channels))?;
        let mut sum = gradient.index_select(&uses[0], 1)?;
        for uses in &uses[1..] {
            sum = (sum + gradient.index_select(uses, 1)?)?;
        }
        sum.reshape((count, height, width, channels))
    };
    images.apply_op1(Recorded::new(result, backward))
}

/// See [`max_pool`](super::max_pool); of equal maxima each gets a part of the gradient.
pub fn max_pool(images: &Tensor) -> Result<Tensor> {
    let (count, height, width, channels) = images.dims4()?;
    let windows = images.reshape(&[count, height / 2, 2, width / 2, 2, channels][..])?;
    let rows = windows.narrow(2, 0, 1)?.maximum(&windows.narrow(2, 1, 1)?)?;
    let maxima = rows.narrow(4, 0, 1)?.maximum(&rows.narrow(4, 1, 1)?)?;
    maxima.reshape((count, height / 2, width / 2, channels))
}

/// See [`cross_entropy`](super::cross_entropy).
pub fn cross_entropy(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    let targets = Tensor::from_slice(targets, (targets.len(), 1), logits.device())?;
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(1)?)?;
    let sums = shifted.exp()?.sum(1)?.log()?;
    (sums - shifted.gather(&targets, 1)?.squeeze(1)?)?.mean_all()
}

/// See [`lstm`](super::lstm).
pub fn lstm(projected: &Tensor, recurrent: &Tensor) -> Result<Tensor> {
    let (steps, hidden) = (projected.dim(0)?, recurrent.dim(0)?);
    let (mut outputs, mut before) = (Vec::with_capacity(steps), None::<(Tensor, Tensor)>);
    for step in 0..steps {
        let mut gates = projected.get(step)?;
        if let Some((output, _)) = &before {
            gates = (gates + output.matmul(recurrent)?)?;
        }
        let gate = |number: usize| gates.narrow(1, number * hidden, hidden);
        let mut cells = (sigmoid(&gate(0)?)? * gate(2)?.tanh()?)?;
        if let Some((_, earlier)) = &before {
            cells = (cells + (sigmoid(&gate(1)?)? * earlier)?)?;
        }
        let output = (sigmoid(&gate(3)?)? * cells.tanh()?)?;
        outputs.push(output.clone());
        before = Some((output, cells));
    }
    Tensor::stack(&outputs, 0)
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    x.affine(0.5, 0.0)?.tanh()?.affine(0.5, 0.5)
}

/// Mean and (biased) variance of each channel, the last dimension, and how many rows there are.
pub fn mean_and_variance(input: &Tensor) -> Result<(Tensor, Tensor, f64)> {
    let rows = rows(&input.detach())?;
    let count = rows.dim(0)?;
    let shares = Tensor::full(1.0 / count as f32, (1, count), rows.device())?;
    let mean = shares.matmul(&rows)?;
    let variance = shares.matmul(&rows.broadcast_sub(&mean)?.sqr()?)?;
    Ok((mean.squeeze(0)?, variance.squeeze(0)?, count as f64))
}

/// Each channel less its mean, times its inverse deviation, scaled and shifted. In training mean and deviation depend on the input.
pub fn normalise(
    input: &Tensor,
    [scale, shift]: [&Tensor; 2],
    mean: &Tensor,
    inverse_deviation: &Tensor,
    mode: Mode,
) -> Result<Tensor> {
    let shape = input.shape().clone();
    let normalised = rows(&input.detach())?.broadcast_sub(mean)?.broadcast_mul(inverse_deviation)?;
    let result =
        normalised.broadcast_mul(&scale.detach())?.broadcast_add(&shift.detach())?.reshape(&shape)?;
    let factor = (scale.detach() * inverse_deviation)?;
    // With the names of the layer's own backward pass.
    let backward = move |gradient: &Tensor| {
        let gradient = rows(gradient)?;
        let count = gradient.dim(0)?;
        let ones = Tensor::ones((1, count), gradient.dtype(), gradient.device())?;
        let shift_gradient = ones.matmul(&gradient)?;
        let scale_gradient = ones.matmul(&(&gradient * &normalised)?)?;
        let own = match mode {
            Mode::Training => {
                let through = normalised.broadcast_mul(&scale_gradient)?.broadcast_add(&shift_gradient)?;
                (gradient - (through / count as f64)?)?
            }
            Mode::Evaluation => gradient,
        };
        let input_gradient = own.broadcast_mul(&factor)?.reshape(&shape)?;
        Ok([input_gradient, scale_gradient.squeeze(0)?, shift_gradient.squeeze(0)?])
    };
    input.apply_op3(scale, shift, Recorded::new(result, backward))
}

/// Values of a channel each, row by row.
fn rows(values: &Tensor) -> Result<Tensor> {
    values.contiguous()?.reshape(((), values.dim(D::Minus1)?))
}

/// An operation whose result is there already, with the backward pass that belongs to it.
struct Recorded<B> {
    /// Until it is copied.
    result: Mutex<Option<Tensor>>,
    backward: B,
}

impl<B> Recorded<B> {
    fn new(result: Tensor, backward: B) -> Self {
        Self { result: Mutex::new(Some(result)), backward }
    }

    fn take(&self) -> Result<Tensor> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.ok_or_else(|| Error::Msg("an operation that was recorded once is recorded again".into()))
    }

    fn on_host(&self) -> Result<(CpuStorage, Shape)> {
        let result = self.take()?.to_device(&Device::Cpu)?;
        let (storage, layout) = result.storage_and_layout();
        let values = match &*storage {
            Storage::Cpu(storage) => super::slice(storage, layout)?.to_vec(),
            _ => candle_core::bail!("expected a result in main memory"),
        };
        Ok((CpuStorage::F32(values), layout.shape().clone()))
    }

    fn on_device(&self) -> Result<(CudaStorage, Shape)> {
        let result = self.take()?;
        let (storage, layout) = result.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => candle_core::bail!("expected a result on a CUDA device"),
        }
    }
}

impl<B: Fn(&Tensor) -> Result<Tensor>> CustomOp1 for Recorded<B> {
    fn name(&self) -> &'static str {
        "a recorded operation"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_host()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_device()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        (self.backward)(gradient).map(Some)
    }
}

impl<B: Fn(&Tensor) -> Result<[Tensor; 3]>> CustomOp3 for Recorded<B> {
    fn name(&self) -> &'static str {
        "a recorded operation"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_host()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_device()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [first, second, third] = (self.backward)(gradient)?;
        Ok((Some(first), Some(second), Some(third)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::random;
    use super::*;
    use candle_core::Var;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn assert_near(a: &Tensor, b: &Tensor, what: &str) {
        assert_eq!(a.shape(), b.shape(), "{what}");
        let far =
            values(a).iter().zip(values(b)).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f32::max);
        assert!(far < 1e-4, "{what}: {far}");
    }

    /// Both give the same, and so do their gradients of a sum in which every entry counts differently.
    fn assert_same(what: &str, inputs: &[Var], [ours, composed]: [&dyn Fn() -> Result<Tensor>; 2]) {
        let (ours, composed) = (ours().unwrap(), composed().unwrap());
        assert_near(&composed, &ours, what);
        let weights = random(9, ours.dims());
        let gradients =
            |result: &Tensor| (result * weights.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
        let (ours, composed) = (gradients(&ours), gradients(&composed));
        for (number, input) in inputs.iter().enumerate() {
            assert_near(
                composed.get(input).unwrap(),
                ours.get(input).unwrap(),
                &format!("{what}, input {number}"),
            );
        }
    }

    #[test]
    fn layers_are_those_of_the_processor() {
        for stride in [1, 2] {
            let images = random(1, &[2, 6, 4, 3]);
            let composed = || patches(&images, Geometry::new(&images, stride)?);
            assert_same(
                "patches",
                std::slice::from_ref(&images),
                [&|| super::super::patches(&images, stride), &composed],
            );
        }
        let images = random(2, &[2, 4, 6, 3]);
        assert_same(
            "maximum",
            std::slice::from_ref(&images),
            [&|| super::super::max_pool(&images), &|| max_pool(&images)],
        );
        let (logits, targets) = (random(3, &[5, 7]), [0, 6, 3, 3, 1]);
        let losses: [&dyn Fn() -> Result<Tensor>; 2] =
            [&|| super::super::cross_entropy(&logits, &targets), &|| cross_entropy(&logits, &targets)];
        assert_same("cross-entropy", std::slice::from_ref(&logits), losses);
        let (projected, recurrent) = (random(4, &[4, 2, 12]), random(5, &[3, 12]));
        let layers: [&dyn Fn() -> Result<Tensor>; 2] =
            [&|| super::super::lstm(&projected, &recurrent), &|| lstm(&projected, &recurrent)];
        assert_same("lstm", &[projected.clone(), recurrent.clone()], layers);
    }
}
