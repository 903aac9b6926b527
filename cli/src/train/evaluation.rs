//! Loss and accuracy on held-out data, the same numbers on every worker.

use candle_core::Device;

use super::error::TrainError;
use crate::crew::gather;
use gleaner_runtime::Session;
use gleaner_trainer::data::{Examples, Input};
use gleaner_trainer::layers::{Mode, correct_predictions, cross_entropy};
use gleaner_trainer::models::Model;
use gleaner_trainer::parameters::Parameters;

/// Examples per forward pass.
const BATCH: usize = 64;

/// What held-out data say about a model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Evaluation {
    /// The mean cross-entropy in nats, per character or per image.
    pub loss: f64,
    /// The share of images classified correctly; none for other data.
    pub accuracy: Option<f64>,
    /// The mean over all workers' batches since the last evaluation; none if there were no steps.
    pub training_loss: Option<f64>,
    /// What the worker that received most has received by now.
    pub bytes_received: u64,
}

/// What a worker reports of its training in an evaluation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trained {
    /// The sum of the losses of its batches since the last evaluation, and how many there were.
    pub losses: (f64, u64),
    /// What it has received by now.
    pub bytes_received: u64,
}

/// Each worker evaluates every P-th example, then all add up all workers' sums in rank order.
///
/// Running averages follow each worker's own batches; for the evaluation their mean over the workers takes their place.
pub fn evaluate(
    session: &Session,
    model: &dyn Model,
    parameters: &Parameters,
    examples: &Examples,
    input: Input,
    device: &Device,
    trained: Trained,
) -> Result<Evaluation, TrainError> {
    let own_buffers = parameters.buffer_values()?;
    parameters.set_buffer_values(&mean_over_workers(session, &own_buffers)?)?;
    let sums = own_share(session, model, examples, device);
    parameters.set_buffer_values(&own_buffers)?;

    let ([loss, correct, rows], (losses, batches)) = (sums?, trained.losses);
    let mut all = [loss, correct, rows, losses, batches as f64];
    add_up(session, &mut all)?;
    let [loss, correct, rows, losses, batches] = all;
    let bytes_received = gather(session, &trained.bytes_received)?.into_iter().max().unwrap_or_default();
    let accuracy = matches!(input, Input::Images(_)).then_some(correct / rows);
    let training_loss = (batches > 0.0).then_some(losses / batches);
    Ok(Evaluation { loss: loss / rows, accuracy, training_loss, bytes_received })
}

/// Sum of losses, correct answers and rows over this worker's examples.
fn own_share(
    session: &Session,
    model: &dyn Model,
    examples: &Examples,
    device: &Device,
) -> Result<[f64; 3], TrainError> {
    let own: Vec<u32> =
        (0..examples.len() as u32).skip(session.rank()).step_by(session.world_size()).collect();
    let (mut loss, mut correct, mut rows) = (0.0, 0, 0);
    for numbers in own.chunks(BATCH) {
        let batch = examples.batch(numbers, 0, device)?;
        let logits = model.forward(&batch.input, Mode::Evaluation)?.detach();
        let mean = cross_entropy(&logits, &batch.targets)?.to_scalar::<f32>()?;
        loss += f64::from(mean) * batch.targets.len() as f64;
        correct += correct_predictions(&logits, &batch.targets)?;
        rows += batch.targets.len();
    }
    Ok([loss, correct as f64, rows as f64])
}

fn mean_over_workers(session: &Session, own: &[f32]) -> Result<Vec<f32>, TrainError> {
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let mut sums: Vec<f64> = own.iter().map(|&value| value.into()).collect();
    let workers = add_up(session, &mut sums)? as f64;
    Ok(sums.into_iter().map(|sum| (sum / workers) as f32).collect())
}

/// Puts the sums over all workers, added in rank order, in the place of the numbers of this one; gives how many workers there are.
fn add_up(session: &Session, numbers: &mut [f64]) -> Result<usize, TrainError> {
    // As bits, since JSON has no number that is not finite.
    let own: Vec<u64> = numbers.iter().map(|number| number.to_bits()).collect();
    let of_ranks: Vec<Vec<u64>> = gather(session, &own)?;
    numbers.fill(0.0);
    for bits in &of_ranks {
        numbers.iter_mut().zip(bits).for_each(|(sum, bits)| *sum += f64::from_bits(*bits));
    }
    Ok(of_ranks.len())
}
