//! `gleaner merge-plan`: which layers of a model are exchanged together on a network, and what that takes.

mod draw;
pub mod layers;
mod paper;
pub mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::{Model, Network, Speed};
use gleaner_algorithms::merging::{Costs, Optimal, Placement, Predicted, Problem, evaluate, named};
use gleaner_units::{self as units, Rate};
use serde::Serialize;

use crate::calibrate::file::Calibration;
use crate::choice::{self, Choice};
use crate::plan::compare;
use crate::report::{self, CommandError};
use layers::Layers;
use table::{Plan, Row};

/// Show which layers of a model should be exchanged together, and what an iteration then takes
///
/// Compares all merging strategies on one evaluator: OMGS-SGD's, with layer times that are given, and with costs that are forecast
/// for a network or were measured by gleaner calibrate. Needs no gradients and no network.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    gleaner merge-plan --model resnet50 --backward 120ms --workers 16 --density 0.001\n  \
    gleaner merge-plan --layers times.csv --calibration calibration.json --svg pipelines.svg\n  \
    gleaner merge-plan --paper")]
pub struct MergePlan {
    /// A model whose layers are known, vgg16 as for CIFAR, with 14_728_266 entries; with --layers, the model that these have to be of
    #[arg(long, value_name = "MODEL", value_parser = layers::known(), required_unless_present_any = ["layers", "paper"])]
    model: Option<String>,
    /// Layers in the order in which backpropagation finishes them, as CSV with the header name,entries,seconds, or as JSON
    #[arg(long, value_name = "FILE")]
    layers: Option<PathBuf>,
    /// The backward pass, shared out to all layers alike, where no times of layers are given
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    backward: Option<Duration>,
    /// The forward pass [default: what the file of layers says, or half of the backward pass]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    forward: Option<Duration>,
    #[command(flatten)]
    choice: Choice,
    /// Where selection runs
    #[arg(long, value_name = "WHERE", default_value = "beside")]
    select_in: SelectIn,
    /// The number of workers, P
    #[arg(long, value_name = "P", value_parser = units::within::<u32>(1..), required_unless_present_any = ["calibration", "paper"])]
    workers: Option<u32>,
    /// Latency of a message, α [default: 50us]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    latency: Option<Duration>,
    /// Bandwidth of a link in each direction [default: 1gbit]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    bandwidth: Option<Rate>,
    /// What a worker takes: nanoseconds per entry selected from, encoded, merged and (dense) added, and per message
    #[arg(long, value_name = "NAME=NS,…", default_value_t = compare::SPEED, value_parser = compare::speed, conflicts_with = "calibration")]
    speed: Speed,
    /// Costs that gleaner calibrate measured, instead of a forecast
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Draw the pipelines of OMGS-SGD's Fig. 1 for this model into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Print OMGS-SGD's Tables V and VI and what its Fig. 4 shows, beside what the evaluator makes of its models
    #[arg(long, conflicts_with_all = ["model", "layers", "backward", "forward", "select_in", "workers", "latency", "bandwidth", "speed", "calibration", "svg", "json", "method", "density", "k"])]
    paper: bool,
}

/// Where selection runs: [`Placement`] on the command line.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SelectIn {
    /// In the thread of the backward pass, which waits for it: OMGS-SGD, equation 6
    Backward,
    /// Beside the backward pass, as here
    Beside,
}

impl SelectIn {
    fn place(self) -> Placement {
        match self {
            SelectIn::Backward => Placement::InBackward,
            SelectIn::Beside => Placement::Beside,
        }
    }
}

pub fn run(arguments: &MergePlan) -> Result<ExitCode, CommandError> {
    report::print(&if arguments.paper { paper::report()? } else { plan(arguments)? })?;
    Ok(ExitCode::SUCCESS)
}

fn plan(arguments: &MergePlan) -> Result<String, CommandError> {
    let times = (arguments.forward, arguments.backward);
    let layers = Layers::find(arguments.model.as_deref(), arguments.layers.as_deref(), times)?;
    let choice = arguments.choice.method()?;
    let n = layers.entries();
    if let Some(path) = &arguments.calibration {
        if choice.is_auto() {
            return Err(report::refused(
                "a calibration is of one method, and auto would choose one; name the method that was calibrated by --method",
            ));
        }
        let calibration = Calibration::read(path)?;
        let network = (arguments.bandwidth, arguments.latency);
        calibration.check(path, &choice, arguments.workers, network)?;
        let costs = (&calibration.costs() as &dyn Costs, &calibration.dense() as &dyn Costs);
        let from = format!("costs of {}", path.display());
        return compared(arguments, &layers, (&choice, calibration.workers), costs, &from);
    }
    // Not missing without a calibration.
    let workers = arguments.workers.unwrap_or(1);
    let latency = arguments.latency.unwrap_or(LATENCY);
    let rate = arguments.bandwidth.map_or_else(|| units::rate(RATE), Ok)?;
    choice::k(&choice, workers, n)?;
    let network = Network { latency, bytes_per_second: rate.bytes_per_second() };
    let model = Model::new(network, arguments.speed, &choice, n).map_err(report::refused)?;
    let candidates = match choice.is_auto() {
        true => choice.candidates(workers, n)?,
        false => vec![choice],
    };
    let place = arguments.select_in.place();
    let mut best: Option<(f64, &Method)> = None;
    for method in &candidates {
        let costs = Predicted { model: &model, method, workers };
        let iteration = Optimal::solve(&Problem { pass: &layers.pass, costs: &costs, place })?.iteration;
        if best.is_none_or(|(least, _)| iteration < least) {
            best = Some((iteration, method));
        }
    }
    let ring = Method::ring();
    let method = best.map_or(&ring, |(_, method)| method);
    let costs = Predicted { model: &model, method, workers };
    let dense = Predicted { model: &model, method: &ring, workers };
    let from = format!("links of {rate} and {latency:?} a message");
    compared(arguments, &layers, (method, workers), (&costs, &dense), &from)
}

/// α, unless it is given.
const LATENCY: Duration = Duration::from_micros(50);

/// What links carry, unless it is given.
const RATE: &str = "1gbit";

/// All strategies for one method's costs, and what layer-wise dense exchange takes: the report, and the picture.
fn compared(
    arguments: &MergePlan,
    layers: &Layers,
    (method, workers): (&Method, u32),
    (costs, dense): (&dyn Costs, &dyn Costs),
    from: &str,
) -> Result<String, CommandError> {
    let place = arguments.select_in.place();
    let problem = Problem { pass: &layers.pass, costs, place };
    let solution = Optimal::solve(&problem)?;
    let rows = Row::all(&problem)?;
    let dense = Problem { pass: &layers.pass, costs: dense, place };
    let dense_layers = evaluate(&dense, &named("layer-wise")?.group(&dense)?)?;
    let plan = Plan {
        model: &layers.model,
        layers: &layers.list,
        times: layers.share,
        seconds_forward: layers.pass.forward(),
        seconds_backward: layers.pass.backward(),
        method: method.to_string(),
        label: method.label(),
        workers,
        select_in: arguments.select_in,
        costs: from,
        largest_frontier: solution.largest_frontier,
        strategies: rows,
        dense: Row::of("P-SGD", &dense_layers, solution.iteration),
    };
    if let Some(path) = &arguments.svg {
        let picture = draw::svg(&plan, &layers.pass, (&problem, &dense_layers))?;
        report::save(path, &picture)?;
    }
    Ok(if arguments.json { report::json(&plan) } else { plan.table(arguments.svg.as_deref()) })
}
