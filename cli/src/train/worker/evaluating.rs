//! Loss and accuracy on held-out data, the same numbers on every worker, and which were best.

use super::Run;
use super::clock::Clock;
use crate::crew::gather;
use crate::train::error::TrainResult;
use crate::train::summary::Evaluated;
use gleaner_runtime::Session;
use gleaner_trainer::data::Input;
use gleaner_trainer::layers::{Mode, correct_predictions, cross_entropy};

/// Examples per forward pass.
const BATCH: usize = 64;

impl Run<'_> {
    /// Each worker evaluates every P-th example, then all add up all workers' sums in rank order.
    ///
    /// Running averages follow each worker's own batches; for the evaluation their mean over the workers takes their place.
    pub(super) fn evaluate(&mut self, step: u64, clock: &mut Clock) -> TrainResult<Evaluated> {
        let session = self.session;
        let own_buffers = self.parameters.buffer_values()?;
        self.parameters.set_buffer_values(&mean_over_workers(session, &own_buffers)?)?;
        let sums = self.own_share();
        self.parameters.set_buffer_values(&own_buffers)?;

        let ([loss, correct, rows], (losses, batches)) = (sums?, self.losses);
        let mut all = [loss, correct, rows, losses, batches as f64];
        add_up(session, &mut all)?;
        let [loss, correct, rows, losses, batches] = all;
        let received = self.exchange.bytes_received() - clock.bytes_at_start;
        let bytes_received = gather(session, &received)?.into_iter().max().unwrap_or_default();
        clock.waits.share(session)?;
        let evaluated = Evaluated {
            step,
            seconds: clock.spent.worked.as_secs_f64(),
            entries: clock.spent.entries,
            held_out_loss: loss / rows,
            held_out_accuracy: matches!(self.dataset.input, Input::Images(_)).then_some(correct / rows),
            training_loss: (batches > 0.0).then_some(losses / batches),
            bytes_received,
        };
        if self.loss_curve.last().is_none_or(|(last, _)| *last < step) {
            self.loss_curve.push((step, evaluated.held_out_loss));
        }
        if self.evaluations.last().is_none_or(|last| last.step < step) {
            self.losses = (0.0, 0);
            self.evaluations.push(evaluated.clone());
        }
        Ok(evaluated)
    }

    /// Sum of losses, correct answers and rows over this worker's examples.
    fn own_share(&self) -> TrainResult<[f64; 3]> {
        let examples = &self.dataset.held_out;
        let (rank, workers) = (self.session.rank(), self.session.world_size());
        let own: Vec<u32> = (0..examples.len() as u32).skip(rank).step_by(workers).collect();
        let (mut loss, mut correct, mut rows) = (0.0, 0, 0);
        for numbers in own.chunks(BATCH) {
            let batch = examples.batch(numbers, 0, &self.device)?;
            let logits = self.model.forward(&batch.input, Mode::Evaluation)?.detach();
            let mean = cross_entropy(&logits, &batch.targets)?.to_scalar::<f32>()?;
            loss += f64::from(mean) * batch.targets.len() as f64;
            correct += correct_predictions(&logits, &batch.targets)?;
            rows += batch.targets.len();
        }
        Ok([loss, correct as f64, rows as f64])
    }

    /// The evaluation of this process with the highest accuracy, or where there is none with the lowest loss; the first of those.
    pub(super) fn best(&self) -> Evaluated {
        self.first_by(|best, next| match (best.held_out_accuracy, next.held_out_accuracy) {
            (Some(best), Some(next)) => next > best,
            _ => next.held_out_loss < best.held_out_loss,
        })
    }

    /// The evaluation of this process with the lowest loss; the first of those.
    pub(super) fn lowest(&self) -> Evaluated {
        self.first_by(|lowest, next| next.held_out_loss < lowest.held_out_loss)
    }

    fn first_by(&self, is_better: impl Fn(&Evaluated, &Evaluated) -> bool) -> Evaluated {
        let first = self.evaluations.first().cloned().unwrap_or_default();
        self.evaluations
            .iter()
            .fold(first, |best, next| if is_better(&best, next) { next.clone() } else { best })
    }
}

fn mean_over_workers(session: &Session, own: &[f32]) -> TrainResult<Vec<f32>> {
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let mut sums: Vec<f64> = own.iter().map(|&value| value.into()).collect();
    let workers = add_up(session, &mut sums)? as f64;
    Ok(sums.into_iter().map(|sum| (sum / workers) as f32).collect())
}

/// Puts the sums over all workers, added in rank order, in the place of the numbers of this one; gives how many workers there are.
fn add_up(session: &Session, numbers: &mut [f64]) -> TrainResult<usize> {
    // As bits, since JSON has no number that is not finite.
    let own: Vec<u64> = numbers.iter().map(|number| number.to_bits()).collect();
    let of_ranks: Vec<Vec<u64>> = gather(session, &own)?;
    numbers.fill(0.0);
    for bits in &of_ranks {
        numbers.iter_mut().zip(bits).for_each(|(sum, bits)| *sum += f64::from_bits(*bits));
    }
    Ok(of_ranks.len())
}
