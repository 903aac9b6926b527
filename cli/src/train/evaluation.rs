//! Loss and accuracy on held-out data, the same numbers on every worker.

use candle_core::Device;

use super::error::TrainError;
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

    let (losses, batches) = trained.losses;
    let own = [losses, batches as f64, trained.bytes_received as f64].map(f64::to_le_bytes);
    let mut all = [0.0; 5];
    let mut bytes_received = 0;
    for (rank, note) in &notes_of_present(session, &[sums?, own].as_flattened().concat())? {
        let of_rank = numbers(note, *rank, "the sums of an evaluation, and bytes", all.len() + 1)?;
        all.iter_mut().zip(&of_rank).for_each(|(sum, own)| *sum += own);
        bytes_received = bytes_received.max(of_rank[all.len()] as u64);
    }
    let [loss, correct, rows, losses, batches] = all;
    let accuracy = matches!(input, Input::Images(_)).then_some(correct / rows);
    let training_loss = (batches > 0.0).then_some(losses / batches);
    Ok(Evaluation { loss: loss / rows, accuracy, training_loss, bytes_received })
}

/// Sum of losses, correct answers and rows over this worker's examples, as bytes.
fn own_share(
    session: &Session,
    model: &dyn Model,
    examples: &Examples,
    device: &Device,
) -> Result<[[u8; 8]; 3], TrainError> {
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
    Ok([loss, correct as f64, rows as f64].map(f64::to_le_bytes))
}

fn mean_over_workers(session: &Session, own: &[f32]) -> Result<Vec<f32>, TrainError> {
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let note: Vec<u8> = own.iter().flat_map(|&value| f64::from(value).to_le_bytes()).collect();
    let mut sums = vec![0.0; own.len()];
    let notes = notes_of_present(session, &note)?;
    for (rank, note) in &notes {
        let values = numbers(note, *rank, "running averages", own.len())?;
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    Ok(sums.into_iter().map(|sum| (sum / notes.len() as f64) as f32).collect())
}

/// What all workers say, by rank. A worker without which the others go on says nothing.
fn notes_of_present(session: &Session, own: &[u8]) -> Result<Vec<(usize, Vec<u8>)>, TrainError> {
    let notes = session.all_gather(own)?.into_iter().enumerate();
    Ok(notes.filter(|(_, note)| !note.is_empty()).collect())
}

/// The numbers in a note of exactly this length.
fn numbers(note: &[u8], rank: usize, expected: &'static str, count: usize) -> Result<Vec<f64>, TrainError> {
    let (words, rest) = note.as_chunks::<8>();
    if words.len() != count || !rest.is_empty() {
        return Err(TrainError::Note { rank, expected, found: note.len() });
    }
    Ok(words.iter().map(|&word| f64::from_le_bytes(word)).collect())
}
