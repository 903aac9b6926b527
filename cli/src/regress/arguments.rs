//! The options of `gleaner regress`, and the settings that follow from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use gleaner_regress::RegressError;
use gleaner_regress::data::{Shape, Source};
use gleaner_regress::objective::{Loss, Penalty};
use gleaner_regress::settings::{Algorithm, Descent, Schedule, Settings};
use gleaner_units as units;

use crate::choice;
use crate::crew;
use crate::report::CommandError;

const EXAMPLES: &str = "\
Examples:
  gleaner regress --data url --samples 100_000 --workers 4
          logistic regression on synthetic data of the shape of URL, by four workers on this machine
  gleaner regress --data train.svm.gz --held-out test.svm --loss-function squared-hinge --l2 1e-6 --model spam.model
          a support vector machine on a LIBSVM file, and its loss, accuracy and AUC on another
  gleaner regress --data train.svm --loss-function squares --l1 0.01 --algorithm scd --epochs 50
          the Lasso, by coordinate descent
  gleaner regress --predict spam.model --data new.svm --out predictions
          a model applied to other data
  gleaner launch --hostfile hosts -- gleaner regress --data train.svm
          a worker on each host, each of which reads its part of the file
  gleaner regress --data webspam --samples 10_000 --generate webspam.svm
          synthetic data of the shape of Webspam's trigrams, as a file";

/// Train a linear model on sparse data: logistic regression, support vector machines or least squares
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Regress {
    /// What to train on: a LIBSVM file, plain, gzip or zstd (with {rank} in its path, one for each worker), or synthetic data in the
    /// shape of url or webspam
    #[arg(long, value_name = "DATA")]
    pub data: String,
    /// Samples of synthetic data [default: as many as the real data have]
    #[arg(long, value_name = "SAMPLES", value_parser = units::count)]
    samples: Option<usize>,
    /// A LIBSVM file that is not trained on: loss, accuracy and AUC are printed after every epoch
    #[arg(long, value_name = "FILE")]
    held_out: Option<PathBuf>,
    /// The number of features, n [default: the highest index of the data, and of synthetic data that of the real ones]
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub features: Option<usize>,
    /// A constant entry for every sample, whose weight is a bias; it is regularised like the others
    #[arg(long, value_name = "VALUE", value_parser = units::number::<f32>, allow_negative_numbers = true)]
    bias: Option<f32>,
    /// What a wrong prediction costs: logistic (logistic regression), hinge or squared-hinge (support vector machines), or
    /// squares (least squares, where labels are numbers)
    #[arg(long = "loss-function", value_name = "FUNCTION", default_value = "logistic", value_parser = loss)]
    loss: Loss,
    /// The factor of the sum of the weights' magnitudes in the objective
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = units::number::<f64>, allow_negative_numbers = true)]
    l1: f64,
    /// The factor of half the sum of the weights' squares in the objective
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = units::number::<f64>, allow_negative_numbers = true)]
    l2: f64,
    /// How the objective is minimised: sgd, by batches of samples, or scd, by coordinates, for which every worker holds all samples
    #[arg(long, default_value = "sgd", value_parser = ["sgd", "scd"])]
    algorithm: String,
    /// Samples of each worker in a step of SGD
    #[arg(long, value_name = "SAMPLES", default_value = "1000", value_parser = units::count)]
    batch: usize,
    /// The learning rate of SGD at first [default: the inverse of the most that the second derivatives can be, by the mean length of
    /// the samples]
    #[arg(long, value_name = "LR", value_parser = units::number::<f64>, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// How the learning rate falls over t epochs: constant, inverse (1/(1 + decay·t)) or root (1/√(1 + decay·t))
    #[arg(long, default_value = "constant", value_parser = ["constant", "inverse", "root"])]
    schedule: String,
    /// How fast the learning rate falls
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = units::number::<f64>, allow_negative_numbers = true)]
    decay: f64,
    /// Steps that may be under way while a gradient is computed: its weights lack so many at most
    #[arg(long, value_name = "STEPS", default_value_t = 0, value_parser = units::within::<usize>(..))]
    staleness: usize,
    /// Threads with which each worker computes a gradient
    #[arg(long, value_name = "THREADS", default_value_t = 1, value_parser = units::within::<usize>(..))]
    threads: usize,
    /// The order of the samples: shuffled, another one in every epoch, or that of the file
    #[arg(long, default_value = "shuffled", value_parser = ["shuffled", "file"])]
    order: String,
    /// Coordinates that each worker changes in an iteration of scd
    #[arg(long, value_name = "COORDINATES", default_value = "100", value_parser = units::count)]
    coordinates: usize,
    /// Passes over the data, or over the coordinates
    #[arg(long, value_name = "EPOCHS", default_value_t = 10, value_parser = units::within::<u64>(1..))]
    epochs: u64,
    /// How workers sum up sparse vectors: ssar-split-all-gather, ssar-recursive-double, dsar-split-all-gather, topka, topkdsa, gtopk,
    /// spardl, one of the dense methods, or auto: the cheapest by measured costs
    #[arg(long, value_name = "METHOD", default_value = "ssar-split-all-gather")]
    method: String,
    /// Random seed
    #[arg(long, default_value_t = 1, value_parser = units::within::<u64>(..))]
    seed: u64,
    /// Write the model to this file, which --predict reads
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Write the model to this file as LIBLINEAR's text
    #[arg(long, value_name = "FILE")]
    pub liblinear: Option<PathBuf>,
    /// Apply the model of this file to the data, instead of training one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "liblinear", "held_out", "generate"])]
    pub predict: Option<PathBuf>,
    /// Write predictions to this file: for each sample a line with its class and its margin, or of least squares its value
    #[arg(long, value_name = "FILE", requires = "predict")]
    pub out: Option<PathBuf>,
    /// Write synthetic data to this file and end
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "liblinear", "held_out"])]
    pub generate: Option<PathBuf>,
    /// How many workers to start on this machine; ignored under gleaner launch, mpirun, srun and torchrun
    #[arg(long, value_name = "P", default_value_t = 1, value_parser = units::within::<u32>(1..=1024))]
    pub workers: u32,
    /// How long a silent worker counts as alive [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = crew::timeout)]
    pub timeout: Option<Duration>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

fn loss(name: &str) -> Result<Loss, String> {
    Loss::named(name).ok_or_else(|| {
        let names: Vec<&str> = Loss::ALL.iter().map(|loss| loss.name()).collect();
        format!("expected {}", names.join(", "))
    })
}

impl Regress {
    /// Where the samples come from.
    pub fn source(&self) -> Result<Source, RegressError> {
        match (Shape::named(&self.data), self.samples) {
            (Some(shape), samples) => {
                let samples = samples.map_or(shape.samples(), |samples| samples as u64);
                Ok(Source::Generated { shape, samples })
            }
            (None, None) => Ok(Source::File(self.data.clone().into())),
            (None, Some(_)) => {
                let expected = "it beside --data url or --data webspam only";
                Err(RegressError::setting("--samples", expected, format!("--data {}", self.data)))
            }
        }
    }

    /// What a run is to do.
    pub fn settings(&self) -> Result<Settings, CommandError> {
        let algorithm = match self.algorithm.as_str() {
            "scd" => Algorithm::Scd { coordinates: self.coordinates },
            _ => Algorithm::Sgd(Descent {
                batch: self.batch,
                rate: self.lr,
                schedule: match self.schedule.as_str() {
                    "inverse" => Schedule::Inverse,
                    "root" => Schedule::Root,
                    _ => Schedule::Constant,
                },
                decay: self.decay,
                staleness: self.staleness,
                threads: self.threads,
                shuffles: self.order == "shuffled",
            }),
        };
        let settings = Settings {
            data: self.source()?,
            held_out: self.held_out.clone(),
            features: self.features,
            bias: self.bias,
            loss: self.loss,
            penalty: Penalty { l1: self.l1, l2: self.l2 },
            algorithm,
            epochs: self.epochs,
            seed: self.seed,
            method: choice::named(&self.method)?,
        };
        settings.check()?;
        Ok(settings)
    }
}
