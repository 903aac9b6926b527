//! What a run reports at its end.

use std::fmt::Write as _;

use gleaner_regress::evaluation::Evaluation;
use gleaner_regress::model::Model;
use gleaner_regress::settings::{Algorithm, Settings};
use gleaner_regress::{Epoch, Trained};
use gleaner_units::{bytes, grouped};
use serde::{Serialize, Serializer};

use crate::bench::AutoReport;
use crate::report::{CommandError, counted, expect_learnt, table};

/// The summary of a training run. The field names are documented in `docs/` and stay as they are.
#[derive(Serialize)]
pub struct Summary {
    data: String,
    loss_function: &'static str,
    l1: f64,
    l2: f64,
    algorithm: &'static str,
    method: &'static str,
    workers: usize,
    samples: u64,
    features: usize,
    nonzeros: u64,
    seconds_loading: f64,
    steps_per_epoch: u64,
    learning_rate: Option<f64>,
    #[serde(serialize_with = "each")]
    epochs: Vec<Epoch>,
    seconds_run: f64,
    seconds_communication: f64,
    bytes_received: u64,
    objective: f64,
    #[serde(skip)]
    objective_first: f64,
    #[serde(flatten)]
    held_out: HeldOut,
    nonzero_weights: usize,
    #[serde(skip)]
    weights: usize,
    weights_digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<AutoReport>,
}

/// Of data that were not trained on; null where there are none.
#[derive(Default, Serialize)]
struct HeldOut {
    held_out_loss: Option<f64>,
    held_out_accuracy: Option<f64>,
    held_out_auc: Option<f64>,
}

impl HeldOut {
    fn of(evaluation: Option<Evaluation>) -> Self {
        evaluation.map_or_else(Self::default, |Evaluation { loss, accuracy, auc, .. }| Self {
            held_out_loss: Some(loss),
            held_out_accuracy: accuracy,
            held_out_auc: auc,
        })
    }
}

/// An epoch; the names are those of the JSON object.
#[derive(Serialize)]
struct OfEpoch {
    epoch: u64,
    seconds: f64,
    seconds_communication: f64,
    bytes_received: u64,
    training_loss: Option<f64>,
    objective: Option<f64>,
    #[serde(flatten)]
    held_out: HeldOut,
}

fn each<S: Serializer>(epochs: &[Epoch], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(epochs.iter().map(|epoch| OfEpoch {
        epoch: epoch.epoch,
        seconds: epoch.seconds,
        seconds_communication: epoch.communication_seconds,
        bytes_received: epoch.bytes_received,
        training_loss: epoch.training_loss,
        objective: epoch.objective,
        held_out: HeldOut::of(epoch.held_out),
    }))
}

impl Summary {
    pub fn of(settings: &Settings, workers: usize, trained: Trained) -> Self {
        let epochs = &trained.epochs;
        Self {
            data: settings.data.to_string(),
            loss_function: settings.loss.name(),
            l1: settings.penalty.l1,
            l2: settings.penalty.l2,
            algorithm: match settings.algorithm {
                Algorithm::Sgd(_) => "sgd",
                Algorithm::Scd { .. } => "scd",
            },
            method: settings.method.collective().name(),
            workers,
            samples: trained.samples,
            features: trained.model.features,
            nonzeros: trained.nonzeros,
            seconds_loading: trained.loading_seconds,
            steps_per_epoch: trained.steps,
            learning_rate: trained.rate,
            seconds_run: epochs.iter().map(|epoch| epoch.seconds).sum(),
            seconds_communication: epochs.iter().map(|epoch| epoch.communication_seconds).sum(),
            bytes_received: epochs.iter().map(|epoch| epoch.bytes_received).sum(),
            objective: trained.objective,
            objective_first: trained.objective_first,
            held_out: HeldOut::of(trained.epochs.last().and_then(|epoch| epoch.held_out)),
            nonzero_weights: trained.model.weights.len(),
            weights: trained.model.features + usize::from(trained.model.bias.is_some()),
            weights_digest: trained.digest,
            auto: trained.auto.as_ref().map(AutoReport::from),
            epochs: trained.epochs,
        }
    }

    /// Refuses a training that has diverged.
    pub fn converged(&self) -> Result<(), CommandError> {
        let advice = if self.algorithm == "sgd" { "lower --lr" } else { "lower --coordinates" };
        expect_learnt("objective", (self.objective_first, self.objective), advice)
    }

    /// A row for each epoch, and what there is to say of all.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}, {} by {}: {} samples of {} features, {} non-zero entries, loaded in {:.2} s\n\n",
            self.data,
            self.loss_function,
            counted(self.workers, "worker"),
            grouped(self.samples),
            grouped(self.features as u64),
            grouped(self.nonzeros),
            self.seconds_loading,
        );
        let head = ["epoch", "seconds", "exchanging", "received", "loss", "held-out loss", "accuracy", "AUC"];
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.6}"));
        let rows = self.epochs.iter().map(|epoch| {
            let HeldOut { held_out_loss, held_out_accuracy, held_out_auc } = HeldOut::of(epoch.held_out);
            vec![
                epoch.epoch.to_string(),
                format!("{:.3}", epoch.seconds),
                format!("{:.3}", epoch.communication_seconds),
                bytes(epoch.bytes_received as f64),
                number(epoch.objective.or(epoch.training_loss)),
                number(held_out_loss),
                number(held_out_accuracy),
                number(held_out_auc),
            ]
        });
        text += &table(head, rows);
        let _ = writeln!(
            text,
            "\nobjective {:.9}, {} of {} weights are not zero",
            self.objective,
            grouped(self.nonzero_weights as u64),
            grouped(self.weights as u64),
        );
        text
    }
}

/// The summary of a prediction run. The field names are documented in `docs/` and stay as they are.
#[derive(Serialize)]
pub struct PredictionSummary {
    loss_function: &'static str,
    features: usize,
    samples: usize,
    seconds_run: f64,
    #[serde(flatten)]
    held_out: HeldOut,
}

impl PredictionSummary {
    pub fn new(model: &Model, samples: usize, evaluation: Option<Evaluation>, seconds_run: f64) -> Self {
        Self {
            loss_function: model.loss.name(),
            features: model.features,
            samples,
            seconds_run,
            held_out: HeldOut::of(evaluation),
        }
    }

    pub fn table(&self) -> String {
        let number = |name: &str, value: Option<f64>| {
            value.map_or(String::new(), |value| format!(", {name} {value:.6}"))
        };
        format!(
            "{} samples in {:.2} s{}{}{}\n",
            grouped(self.samples as u64),
            self.seconds_run,
            number("loss", self.held_out.held_out_loss),
            number("accuracy", self.held_out.held_out_accuracy),
            number("AUC", self.held_out.held_out_auc),
        )
    }
}
