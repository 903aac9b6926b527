//! Time to accuracy: when a run reached its target.

use clap::Args;
use gleaner_units as units;
use serde::Serialize;

use super::summary::Evaluated;
use crate::report::counted;

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

#[cfg(test)]
mod tests {
    use super::*;

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
