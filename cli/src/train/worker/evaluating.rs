//! What the evaluations of a run were, and which were best.

use super::Run;
use super::clock::Clock;
use crate::train::error::TrainError;
use crate::train::evaluation::{self, Evaluation, Trained};
use crate::train::summary::Evaluated;

impl Run<'_> {
    pub(super) fn evaluate(&mut self, step: u64, clock: &mut Clock) -> Result<Evaluation, TrainError> {
        let (held_out, input, device) = (&self.dataset.held_out, self.dataset.input, &self.device);
        let (model, parameters) = (self.model.as_ref(), &self.parameters);
        let bytes_received = self.exchange.bytes_received() - clock.bytes_at_start;
        let trained = Trained { losses: self.losses, bytes_received };
        let evaluation =
            evaluation::evaluate(self.session, model, parameters, held_out, input, device, trained)?;
        clock.waits.share(self.session)?;
        if self.loss_curve.last().is_none_or(|(last, _)| *last < step) {
            self.loss_curve.push((step, evaluation.loss));
        }
        if self.evaluations.last().is_none_or(|last| last.step < step) {
            self.losses = (0.0, 0);
            self.evaluations.push(Evaluated {
                step,
                seconds: clock.spent.worked.as_secs_f64(),
                entries: clock.spent.entries,
                held_out_loss: evaluation.loss,
                held_out_accuracy: evaluation.accuracy,
                training_loss: evaluation.training_loss,
                bytes_received: evaluation.bytes_received,
            });
        }
        Ok(evaluation)
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
