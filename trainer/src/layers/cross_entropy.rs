//! Softmax and cross-entropy in one operation.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// The mean over the rows of −ln `softmax(logits)[target]`, in nats; logits are (rows, classes).
pub fn cross_entropy(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    let (rows, classes) = logits.dims2()?;
    if rows != targets.len() || targets.iter().any(|&target| target as usize >= classes) {
        candle_core::bail!("expected {rows} targets below {classes}, one for each row of logits");
    }
    if !logits.device().is_cpu() {
        return super::composed::cross_entropy(logits, targets);
    }
    let logits = logits.contiguous()?;
    let (loss, probabilities) = super::with_values(&logits, |values| softmax(values, classes, targets))?;
    logits.apply_op1(CrossEntropy { loss: loss / rows as f32, probabilities, targets: targets.to_vec() })
}

/// How many rows have their largest logit at the target.
pub fn correct_predictions(logits: &Tensor, targets: &[u32]) -> Result<usize> {
    let classes = logits.dim(1)?;
    super::with_values(logits, |values| {
        let rows = values.chunks_exact(classes).zip(targets);
        rows.filter(|(row, target)| row.iter().all(|&logit| logit <= row[**target as usize])).count()
    })
}

/// The sum of the losses, and softmax of each row.
fn softmax(logits: &[f32], classes: usize, targets: &[u32]) -> (f32, Vec<f32>) {
    let mut loss = 0.0_f64;
    let mut probabilities = Vec::with_capacity(logits.len());
    for (row, &target) in logits.chunks_exact(classes).zip(targets) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let start = probabilities.len();
        probabilities.extend(row.iter().map(|&logit| (logit - largest).exp()));
        let sum: f32 = probabilities[start..].iter().sum();
        probabilities[start..].iter_mut().for_each(|probability| *probability /= sum);
        loss += f64::from(largest - row[target as usize]) + f64::from(sum).ln();
    }
    (loss as f32, probabilities)
}

struct CrossEntropy {
    loss: f32,
    probabilities: Vec<f32>,
    targets: Vec<u32>,
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![self.loss]), Shape::from(())))
    }

    /// ∂loss/∂logit = (softmax − 1 at the target) / rows.
    fn bwd(&self, logits: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let scale = gradient.to_scalar::<f32>()? / self.targets.len() as f32;
        let mut result: Vec<f32> = self.probabilities.iter().map(|probability| probability * scale).collect();
        let classes = logits.dim(1)?;
        for (row, &target) in result.chunks_exact_mut(classes).zip(&self.targets) {
            row[target as usize] -= scale;
        }
        Ok(Some(Tensor::from_vec(result, logits.shape(), logits.device())?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::gradient_check::{assert_gradients, random};
    use super::*;
    use candle_core::{Device, Var};

    #[test]
    fn is_the_logarithm_of_the_class_count_for_equal_logits() {
        let logits = Var::zeros((4, 10), candle_core::DType::F32, &Device::Cpu).unwrap();
        let loss = cross_entropy(&logits, &[0, 3, 9, 5]).unwrap().to_scalar::<f32>().unwrap();
        assert!((loss - 10.0_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn gradients_match_differences() {
        let logits = random(5, &[3, 4]);
        assert_gradients(std::slice::from_ref(&logits), 1e-2, 1e-3, || cross_entropy(&logits, &[1, 0, 3]));
    }

    #[test]
    fn counts_the_rows_whose_largest_logit_is_the_target() {
        let logits = Tensor::new(&[[0.0_f32, 1.0], [1.0, 0.0], [3.0, 2.0]], &Device::Cpu).unwrap();
        assert_eq!(correct_predictions(&logits, &[1, 1, 0]).unwrap(), 2);
    }
}
