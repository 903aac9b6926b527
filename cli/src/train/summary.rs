//! What a run reports at its end.

use clap::Args;
use serde::Serialize;

use gleaner_algorithms::{Method, Sparsity};
use gleaner_candle::PassTimes;
use gleaner_units as units;

use super::error::TrainResult;
use crate::report::{self, counted};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub data: String,
    pub model: String,
    /// How many numbers the model has.
    pub params: usize,
    pub workers: usize,
    /// Samples of each worker's passes, by rank.
    pub batches: Vec<usize>,
    /// What a pass of the set batch was made to take at least, in seconds: computation is paced then, and not what this machine takes.
    pub seconds_paced: Option<f64>,
    pub method: String,
    /// How parameters followed the updates.
    pub optimizer: &'static str,
    /// How much of the last update the optimiser kept for the next one, of Adam β₁.
    pub momentum: f32,
    /// Whether gradients were multiplied by the learning rate before they were accumulated.
    pub rate_in_residual: bool,
    /// When workers exchanged, and what they saw of each other.
    pub synchrony: String,
    /// What entries were selected from: each group, or the whole gradient, for which groups compete.
    pub select_over: &'static str,
    /// The share of a gradient's entries asked for in a step.
    pub density: f64,
    /// Steps of the whole run.
    pub steps: u64,
    /// The step this process began with: 0, or that of a checkpoint.
    pub first_step: u64,
    /// The loss on held-out data before the first step, in nats per character or image.
    pub held_out_loss_first: f64,
    /// The loss on held-out data after the last step.
    pub held_out_loss: f64,
    /// The share of held-out images classified correctly after the last step.
    pub held_out_accuracy: Option<f64>,
    /// The mean loss of all workers' batches since the last evaluation but one, or since this process began.
    pub training_loss: Option<f64>,
    /// Step and held-out loss of every evaluation.
    pub loss_curve: Vec<(u64, f64)>,
    /// Every evaluation of this process, in order.
    pub evaluations: Vec<Evaluated>,
    /// The time from this process's first step to the end of its last, evaluations included.
    pub seconds_run: f64,
    /// What counts over all workers.
    #[serde(flatten)]
    pub together: Together,
    /// The result of the exchange.
    #[serde(flatten)]
    pub account: Account,
    pub servers: usize,
    /// The mean over the workers in whose processes servers live, where they do.
    pub seconds_batch_computation_colocated: Option<f64>,
    /// The mean over the other workers, where there are any beside servers.
    pub seconds_batch_computation_apart: Option<f64>,
    /// The share of a gradient's entries that were exchanged during the next pass, the mean over the steps.
    pub background_share: f64,
    /// The most that the passes leave time for, U_max, as a share of a gradient's entries: as it was in the last step on worker 0, under OSP.
    pub background_bound: Option<f64>,
    /// Of each worker, by rank, how long it waited for each other one, in seconds.
    pub seconds_waited: Vec<Vec<f64>>,
    /// The held-out loss of the best evaluation of this process: the one with the highest accuracy, or with the lowest loss for text.
    pub best_held_out_loss: f64,
    /// The accuracy of that evaluation.
    pub best_held_out_accuracy: Option<f64>,
    /// The steps before that evaluation.
    pub best_step: u64,
    /// The lowest held-out loss of all evaluations of this process: what early stopping by the loss would have kept.
    pub lowest_held_out_loss: f64,
    /// The steps before that evaluation.
    pub lowest_held_out_loss_step: u64,
    /// When a target was reached, if there was one.
    #[serde(flatten)]
    pub reached: Reached,
    /// How many entries an update has, in the mean over the steps: more than asked for, where a method adds up selections.
    pub entries_per_step: f64,
    /// `bytes_received` per step.
    pub bytes_per_step: f64,
    /// What a ring all-reduce of dense gradients would have received per step: 2(P−1)/P · 4n.
    pub dense_bytes_per_step: f64,
    /// SHA-256 of the final parameters, the same on every worker.
    pub parameters_digest: String,
    /// At rank 0, what each worker did when, if it was recorded: a trace in the trace-event format.
    #[serde(skip)]
    pub timeline: Option<String>,
}

/// The result of an exchange, as far as it is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// The strategy that decides which layers are exchanged together.
    pub merge: &'static str,
    /// In how many groups they were exchanged in the last step.
    pub groups: usize,
    /// With `--norm-share`, the mean share that was asked for, over the steps of the whole run.
    pub mean_density: Option<f64>,
    /// With it, the share of the squared norm that a step delivered when it was looked at last.
    pub delivered_norm_share: Option<f64>,
    /// How many steps were skipped on all workers, since a gradient was not finite.
    pub steps_skipped: u64,
    /// `seconds_iteration` by the plan of the merging strategy, if it needed one.
    pub seconds_expected_iteration: Option<f64>,
    /// `hidden_share` by that plan.
    pub expected_hidden_share: Option<f64>,
    /// The iteration as it was expected when the groups were taken, before any step with them.
    pub seconds_planned_iteration: Option<f64>,
    /// The share of the exchange that was to be hidden then.
    pub planned_hidden_share: Option<f64>,
    /// How many steps a value of rank 0 waited until it was delivered, in the last steps that were looked at.
    pub steps_waiting: Option<f64>,
    /// What rank 0 found in this process to stand in the way of the training.
    pub findings: Vec<Found>,
    /// What the passes of each layer took on this rank.
    #[serde(skip)]
    pub pass_times: Option<PassTimes>,
}

/// What all workers together have measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Together {
    /// An iteration, from the beginning of the forward pass until the update is there, in seconds: the median over the second half of
    /// the steps, or the last 128, of the worker where it was longest. The four that follow are medians over the same steps, of the
    /// worker that waited least: all others wait for its passes, too.
    pub seconds_iteration: f64,
    pub seconds_forward: f64,
    /// The backward pass, in which gradients are handed over, in seconds.
    pub seconds_backward: f64,
    /// Choosing entries on compute threads, in seconds.
    pub seconds_select: f64,
    /// From the end of the backward pass until the update is there, in seconds.
    pub seconds_exposed: f64,
    /// The share of the steps' time in which the trainer waited for gradients, on the worker that waited longest.
    pub waiting_share: f64,
    /// The share of the time in which at least one group was under way that lies within the passes: 1 − `seconds_exposed` / that
    /// time.
    pub hidden_share: f64,
    /// How long the backward pass waited because compute threads could take no more groups, on the worker where it waited longest,
    /// in seconds.
    pub seconds_blocked: f64,
    /// Samples that all workers together processed in a second of their steps' time, without evaluations and checkpoints.
    pub throughput: f64,
    /// The same over the steps in which as many entries as the passes leave time for were to be exchanged in the background, if there were any.
    pub throughput_at_bound: Option<f64>,
    /// From the end of a pass until the next could begin, in seconds: batch synchronisation time, the mean over steps and workers.
    pub seconds_batch_synchronisation: f64,
    /// What a pass takes, in seconds: batch computation time, the mean over steps and workers.
    pub seconds_batch_computation: f64,
    /// The same for each worker, by rank.
    pub seconds_batch_computation_by_rank: Vec<f64>,
    /// How long the exchange during a pass took, in seconds, the mean over steps and workers.
    pub seconds_background: f64,
    /// What the worker that received most received for gradients since this process's first step.
    pub bytes_received: u64,
}

impl Summary {
    /// Refuses a training that has diverged.
    pub fn converged(&self) -> TrainResult<()> {
        expect_learnt((self.held_out_loss_first, self.held_out_loss), self.training_loss)
    }
}

/// Refuses losses that are higher than before the first step. Where those of training are not, the model knows its training data by heart, or
/// its batch norms have seen few batches, and only a held-out loss of more than twice the first and 1 is refused.
fn expect_learnt((first, last): (f64, f64), training: Option<f64>) -> TrainResult<()> {
    let has_learnt = training.is_some_and(|training| !report::has_grown(first, training));
    if has_learnt && last <= 2.0 * first + 1.0 {
        return Ok(());
    }
    report::expect_learnt("held-out loss", (first, last), "lower --lr, or clip gradients with --clip")
}

/// What slows a training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// A word for it.
    pub finding: &'static str,
    /// The step after which it was found.
    pub step: u64,
    /// What it is, and what helps.
    pub sentence: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evaluated {
    /// Steps that were done before it.
    pub step: u64,
    /// What this process's steps had taken by then on worker 0, in seconds: without evaluations and checkpoints.
    pub seconds: f64,
    /// The entries of all updates of this process by then.
    pub entries: u64,
    /// The loss on held-out data, in nats per character or image.
    pub held_out_loss: f64,
    /// The share of held-out images classified correctly.
    pub held_out_accuracy: Option<f64>,
    /// The mean loss of all workers' batches since the evaluation before, or since this process began.
    pub training_loss: Option<f64>,
    /// What the worker that received most had received for gradients since this process's first step.
    pub bytes_received: u64,
}

/// The accuracy or loss to reach.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Target {
    /// Report after how many steps and seconds held-out data are classified with this accuracy, such as 0.9 or 90%
    #[arg(long, value_name = "SHARE", value_parser = units::share, conflicts_with = "target_loss")]
    pub target_accuracy: Option<f64>,
    /// The same for a loss on held-out data
    #[arg(long, value_name = "LOSS", value_parser = units::number::<f64>, allow_negative_numbers = true)]
    pub target_loss: Option<f64>,
}

/// When the target was reached, if it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reached {
    #[serde(flatten)]
    target: Target,
    /// The steps before the first evaluation that was as good.
    pub steps_to_target: Option<u64>,
    /// What they had taken, in seconds: without evaluations and checkpoints.
    pub seconds_to_target: Option<f64>,
}

impl Target {
    /// The first evaluation that is as good, if there is one.
    pub fn reached(self, evaluations: &[Evaluated]) -> Reached {
        let Target { target_accuracy, target_loss } = self;
        let is_there = |evaluated: &&Evaluated| {
            let accuracy = target_accuracy.zip(evaluated.held_out_accuracy);
            accuracy.is_some_and(|(target, is)| is >= target)
                || target_loss.is_some_and(|target| evaluated.held_out_loss <= target)
        };
        let first = evaluations.iter().find(is_there);
        let (steps_to_target, seconds_to_target) = first.map(|first| (first.step, first.seconds)).unzip();
        Reached { target: self, steps_to_target, seconds_to_target }
    }
}

impl Reached {
    /// In words, if anything was aimed at.
    pub fn words(&self) -> Option<String> {
        let accuracy = self.target.target_accuracy.map(|target| format!("accuracy {:.1}%", 100.0 * target));
        let aim = accuracy.or(self.target.target_loss.map(|target| format!("held-out loss {target}")))?;
        Some(match self.steps_to_target.zip(self.seconds_to_target) {
            Some((steps, seconds)) => {
                format!("{aim} after {}, {seconds:.2} s of training", counted(steps as usize, "step"))
            }
            None => format!("{aim} was not reached"),
        })
    }
}

/// What each worker receives in a ring all-reduce of n numbers of four bytes: 2(P−1)/P · 4n.
pub fn dense_bytes_per_step(workers: usize, parameters: usize) -> f64 {
    2.0 * (workers - 1) as f64 / workers as f64 * 4.0 * parameters as f64
}

/// The share of entries that a method is asked for.
pub fn density(method: &Method, parameters: usize) -> f64 {
    match method.sparsity() {
        _ if !method.collective().is_sparse() => 1.0,
        Sparsity::Density(density) => density,
        Sparsity::K(k) => (k as f64 / parameters as f64).min(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_are_clearly_higher_than_at_first_are_refused() {
        let refused = |last, training| expect_learnt((2.3, last), training).err().map(|e| e.to_string());
        let said = refused(4.5, Some(3.6)).unwrap();
        assert!(said.starts_with("the training diverged: the held-out loss was 2.3000 before"), "{said}");
        assert!(said.contains("and is 4.5000 now; lower --lr"), "{said}");
        assert!([f64::NAN, 1e6].iter().all(|last| refused(*last, Some(1.0)).is_some()));
        assert!(refused(1e9, None).unwrap().contains("1.0e9"));
        // It has learnt little; it knows its data by heart; nothing was trained.
        for (last, training) in [(3.3, Some(3.4)), (3.5, Some(0.1)), (2.3, None)] {
            assert_eq!(refused(last, training), None, "{last}");
        }
    }

    #[test]
    fn the_first_evaluation_that_is_as_good_counts() {
        let evaluated = |step, held_out_loss, accuracy| Evaluated {
            step,
            seconds: step as f64 / 2.0,
            held_out_loss,
            held_out_accuracy: Some(accuracy),
            ..Evaluated::default()
        };
        let all = [
            evaluated(0, 3.0, 0.1),
            evaluated(10, 1.0, 0.8),
            evaluated(20, 1.5, 0.7),
            evaluated(30, 0.5, 0.9),
        ];
        let accuracy = |target| Target { target_accuracy: Some(target), target_loss: None }.reached(&all);
        let steps = |reached: Reached| reached.steps_to_target;
        assert_eq!([0.8, 0.81, 0.95].map(|target| steps(accuracy(target))), [Some(10), Some(30), None]);
        assert_eq!(accuracy(0.8).words().unwrap(), "accuracy 80.0% after 10 steps, 5.00 s of training");
        assert_eq!(accuracy(0.95).words().unwrap(), "accuracy 95.0% was not reached");
        let loss = Target { target_accuracy: None, target_loss: Some(1.0) }.reached(&all);
        assert_eq!((steps(loss), loss.seconds_to_target), (Some(10), Some(5.0)));
        assert_eq!(Target::default().reached(&all).words(), None);
    }
}
