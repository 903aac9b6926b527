//! `gleaner simulate`.

mod against;
mod fit;
mod iteration;
mod picture;
mod synchronies;
mod table;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::Model;
use gleaner_testbed::simulation::{
    self, Link, Machine, Network, Overlap, Steps, Workload, executed, profiled,
};
use gleaner_testbed::topology::{Loss, Shape, Topology};
use gleaner_units::{self as units, Rate};

use crate::bench::gradient::Gradient;
use crate::calibrate::file::Calibration;
use crate::choice::{self, Choice, Refusal};
use crate::crew;
use crate::merge_plan::layers::{self, Layers};
use crate::plan::compare::has_forecast;
use crate::report::{self, CommandError};

/// Predict what a step takes on a network that is described
///
/// Runs the schedules of all workers on simulated hosts and links: a discrete-event simulation with the cores, the rates and
/// the latencies that are given. Small cases are executed, large ones use the expected lengths of messages.
#[derive(Debug, Args)]
#[command(
    mut_arg("method", |method| choice::without_auto(method).value_name("METHODS")),
    after_help = "Examples:\n  \
    gleaner simulate --method all --workers 6 --params 14_728_266 --bandwidth 1gbit --cores 2 --shared\n  \
    gleaner simulate --method spardl --workers 1024 --params 10_000_000_000 --density 0.001 --bandwidth 10gbit --link-latency 50us\n  \
    gleaner simulate --method spardl --workers 8 --params 1_000_000 --slow 3=2 --svg steps.svg\n  \
    gleaner simulate --model resnet50 --compute 180ms --method all --workers 16\n  \
    gleaner simulate --model resnet50 --compute 180ms --workers 8 --bandwidth 10gbit --synchrony all\n  \
    gleaner simulate --fit-machine machine.json --against measurements.jsonl\n  \
    gleaner simulate --machine machine.json --against other/measurements.jsonl --predicted predicted/other"
)]
pub struct Simulate {
    #[command(flatten)]
    choice: Choice,
    /// The number of workers, P
    #[arg(long, value_name = "P", value_parser = units::within::<u32>(1..=MOST_WORKERS), required_unless_present_any = ["against", "fit_machine", "fit"])]
    workers: Option<u32>,
    /// Entries of the gradient, n, such as 14_728_266
    #[arg(long, value_name = "N", value_parser = units::count, required_unless_present_any = ["against", "fit_machine", "fit", "model", "layers"])]
    params: Option<usize>,
    /// Predict an iteration of this model, with its layers merged as is best; vgg16 is that for CIFAR, with 14_728_266 entries
    #[arg(long, value_name = "MODEL", value_parser = layers::known(), conflicts_with_all = ["params", "against", "fit_machine", "fit", "svg"])]
    model: Option<String>,
    /// The same for layers of a file, as gleaner merge-plan takes them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["params", "against", "fit_machine", "fit", "svg"])]
    layers: Option<PathBuf>,
    /// With --model or --layers: what both passes take, a third of it the forward pass, where no times of layers are given
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with_all = ["params", "against", "fit_machine", "fit"])]
    compute: Option<Duration>,
    /// Predict steps over parameter servers instead of an all-reduce, for the layers of --model or --layers: synchronies with commas
    /// between them, or all
    #[arg(long, value_name = "SYNCHRONIES", requires = "compute", conflicts_with_all = ["svg", "against"])]
    synchrony: Option<String>,
    /// How many servers there are, each on a host of its own, with --synchrony
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = units::within::<u32>(1..=MOST_WORKERS))]
    servers: u32,
    /// Samples of a pass, with --synchrony: for samples per second
    #[arg(long, value_name = "SAMPLES", value_parser = units::within::<u32>(..), requires = "synchrony")]
    batch: Option<u32>,
    /// Bandwidth of a host's link in each direction
    #[arg(long, value_name = "RATE", default_value = "1gbit", value_parser = units::rate)]
    bandwidth: Rate,
    /// What each link adds in each direction. A message crosses two links, besides what the hosts themselves take
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = units::duration)]
    link_latency: Duration,
    /// Take both from what gleaner calibrate measured over the links of a job, whatever carried them; a link has half of a message's latency
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bandwidth", "link_latency", "topology", "against"])]
    calibration: Option<PathBuf>,
    /// A link lets through at once, after a pause, what it carries in this time
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = units::duration)]
    burst: Duration,
    /// Of a link: the share of packets that each loses in each direction, such as 0.1% or 0.001. A path has two links
    #[arg(long, value_name = "SHARE", default_value = "0")]
    loss: Loss,
    /// Groups of hosts with their own links and a core, from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bandwidth", "link_latency", "loss", "against"])]
    topology: Option<PathBuf>,
    /// Random seed, of packet losses and of the order in which workers begin
    #[arg(long, default_value_t = 1, value_parser = units::within::<u64>(..))]
    seed: u64,
    /// Cores of a host
    #[arg(long, value_name = "CORES", default_value_t = 2.0, value_parser = cores)]
    cores: f64,
    /// All hosts are emulated on one machine and share its cores
    #[arg(long)]
    shared: bool,
    /// Make the processors of this host FACTOR times slower; may be repeated
    #[arg(long, value_name = "RANK=FACTOR", value_parser = slow)]
    slow: Vec<(u32, f64)>,
    /// The speeds of the machine, from --fit-machine; a fitted Intel Xeon without
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Where the messages of a step come from: the method is executed, executed and profiled, or only its expected lengths are used
    #[arg(long, value_name = "HOW", default_value = "auto")]
    workload: Way,
    /// Time every case this many times, one after the other, and take each piece's shortest time: for --workload profiled with --against
    #[arg(long, value_name = "TURNS", default_value_t = 1, value_parser = units::within::<u32>(1..=100), requires = "against")]
    turns: u32,
    /// Keep what was timed in this folder, and take from it what is there
    #[arg(long, value_name = "DIR", requires = "against")]
    times: Option<PathBuf>,
    /// How far workers choose the same entries, with expected lengths, from --fit [default: as bench's gradients do]
    #[arg(long, value_name = "SHARED,SUPPORT", value_parser = overlap)]
    overlap: Option<Overlap>,
    /// Compare with steps that were measured: what gleaner testbed run stored, or gleaner bench --json printed
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = from_measurements())]
    against: Vec<PathBuf>,
    /// Find the speeds of the machine on which the steps of --against were measured, and write them into this file
    #[arg(long, value_name = "FILE", requires = "against")]
    fit_machine: Option<PathBuf>,
    /// Write what was measured, each with its prediction, into this folder: a run of one experiment, as gleaner testbed pages takes it
    #[arg(long, value_name = "DIR", requires = "against")]
    predicted: Option<PathBuf>,
    /// Fit the model of overlap to recorded gradients, one float32 .npy file for every worker
    #[arg(long, value_name = "GRADIENT", num_args = 2.., conflicts_with_all = ["against", "fit_machine"])]
    fit: Vec<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Draw who computes and who waits when into this file, for one method and at most 64 workers
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "fit_machine", "fit"])]
    svg: Option<PathBuf>,
}

/// What measurements say themselves, and what hosts that share a machine have in common.
fn from_measurements() -> impl Iterator<Item = &'static str> {
    let said =
        ["workers", "params", "method", "density", "k", "values", "selector", "shared", "slow", "seed"];
    said.into_iter().chain(choice::options())
}

/// A connection that loses more is given up by any kernel.
const MOST_LOSS: f64 = 0.5;

const MOST_WORKERS: u64 = 4096;

/// Where lengths come from.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// Executed as long as it fits in memory, expected lengths beyond
    Auto,
    /// The method runs on gradients, of a long gradient on a sample
    Executed,
    /// The method runs on whole gradients, and its work is timed on this machine, which must have nothing else to do
    Profiled,
    /// Lengths alone
    Expected,
}

fn cores(text: &str) -> Result<f64, String> {
    let cores = units::number(text).ok().filter(|cores: &f64| *cores > 0.0 && !cores.is_nan());
    cores.ok_or_else(|| format!("'{text}' is no number of cores; expected a number above 0, such as 2"))
}

/// A rank and by how many times it is slower, such as 3=2.
pub(crate) fn slow(text: &str) -> Result<(u32, f64), String> {
    let expected = || format!("'{text}' is no slow host; expected a rank and a factor, such as 3=2");
    let (rank, factor) = text.split_once('=').ok_or_else(expected)?;
    let factor =
        units::number(factor).ok().filter(|f: &f64| f.is_finite() && *f > 0.0).ok_or_else(expected)?;
    let rank = units::within::<u32>(..)(rank).map_err(|_| expected())?;
    Ok((rank, factor))
}

/// Refuses a rank that is to be slow and is not among so many workers.
pub(crate) fn expect_ranks(slow: &[(u32, f64)], workers: usize) -> Result<(), String> {
    match slow.iter().find(|(rank, _)| *rank as usize >= workers) {
        Some((rank, _)) => {
            Err(format!("there is no rank {rank} to be slow; choose one from 0 to {}", workers.max(1) - 1))
        }
        None => Ok(()),
    }
}

fn overlap(text: &str) -> Result<Overlap, String> {
    let expected = || {
        format!(
            "'{text}' is no overlap; expected the share that all choose and the support of the rest, such as 0.05,0.8"
        )
    };
    let (shared, support) = text.split_once(',').ok_or_else(expected)?;
    let number = |text: &str| units::share(text.trim()).map_err(|_| expected());
    let (shared, support) = (number(shared)?, number(support)?);
    let fits = (0.0..=1.0).contains(&shared) && support > 0.0 && support <= 1.0;
    if fits { Ok(Overlap { shared, support }) } else { Err(expected()) }
}

pub fn run(mut simulate: Simulate) -> Result<ExitCode, CommandError> {
    if let Some(path) = &simulate.calibration {
        let (latency, bandwidth) = Calibration::read(path)?.network();
        (simulate.link_latency, simulate.bandwidth) = (latency / 2, bandwidth);
    }
    let simulate = &simulate;
    let text = if !simulate.fit.is_empty() {
        fit::run(simulate)?
    } else if simulate.synchrony.is_some() {
        synchronies::run(simulate)?
    } else if simulate.model.is_some() || simulate.layers.is_some() {
        iteration::run(simulate)?
    } else if simulate.against.is_empty() {
        predict(simulate)?
    } else {
        against::run(simulate)?
    };
    report::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The gradients of `gleaner bench`.
fn bench_gradient(rank: u32, step: u64, entries: &mut [f32]) {
    Gradient::of(1, u64::from(rank), step).fill(entries);
}

fn machine(path: Option<&Path>) -> Result<Machine, CommandError> {
    let Some(path) = path else { return Ok(Machine::default()) };
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!("the speeds of a machine cannot be read from {}: {error}", path.display())
    })?;
    let machine: Machine = serde_json::from_str(&text).map_err(|error| {
        format!("{} has no speeds of a machine: {error}; expected what --fit-machine wrote", path.display())
    })?;
    if machine.numbers().iter().any(|number| !number.is_finite() || *number < 0.0) || machine.goodput == 0.0 {
        return Err(format!("{} has speeds below zero, or a goodput of zero", path.display()).into());
    }
    Ok(machine)
}

impl Simulate {
    /// What `predict` makes of each of the methods that were chosen, behind a bar.
    fn each<R>(
        &self,
        mut predict: impl FnMut(Method) -> Result<R, CommandError>,
    ) -> Result<(Vec<R>, Vec<Refusal>), CommandError> {
        let bar = crew::bar(self.choice.methods().len() as u64);
        let found = self.choice.each(|name, method| {
            bar.set_message(name.to_owned());
            let predicted = predict(method);
            bar.inc(1);
            predicted
        });
        bar.finish_and_clear();
        found
    }

    /// The layers of --model or --layers, with what --compute says of their passes.
    fn given_layers(&self) -> Result<Layers, CommandError> {
        let times = (self.compute.map(|compute| compute / 3), self.compute.map(|compute| compute * 2 / 3));
        Layers::find(self.model.as_deref(), self.layers.as_deref(), times)
    }

    /// The latency of a message, which crosses two links.
    fn latency(&self) -> Duration {
        self.link_latency * 2
    }

    /// One direction of a host's link.
    fn link(&self) -> Link {
        let shape = Shape {
            rate: Some(self.bandwidth),
            delay: self.link_latency,
            loss: self.loss,
            ..Shape::default()
        };
        Link::of_shape(&shape, self.burst)
    }

    /// Cores and links in words.
    fn links(&self) -> String {
        let cores = match self.shared {
            true => format!("{} cores for all", self.cores),
            false => format!("{} cores each", self.cores),
        };
        match &self.topology {
            Some(path) => format!("{cores}, links of {}", path.display()),
            None => format!("{cores}, links of {} and {:?}", self.bandwidth, self.link_latency),
        }
    }

    fn network(&self, workers: u32) -> Result<Network, CommandError> {
        let mut network = match &self.topology {
            None => Network::star(workers, self.link(), self.cores, self.shared),
            Some(path) => {
                let topology = Topology::read(path)?;
                let network = Network::of_topology(&topology, self.burst, self.cores, self.shared);
                let (hosts, path) = (network.hosts.len(), path.display());
                if hosts != workers as usize {
                    return Err(format!(
                        "{path} has {hosts} hosts, and {workers} workers were asked for; expected as many"
                    )
                    .into());
                }
                network
            }
        };
        let lossy = network.links.iter().map(|link| link.loss).fold(0.0, f64::max);
        if lossy > MOST_LOSS {
            return Err(report::refused(format!(
                "a link that loses {lossy} of its packets carries no job; expected at most {MOST_LOSS}"
            )));
        }
        network.seed = self.seed;
        expect_ranks(&self.slow, network.hosts.len()).map_err(report::refused)?;
        for &(rank, factor) in &self.slow {
            network.hosts[rank as usize].slow = factor;
        }
        Ok(network)
    }

    /// The closed form of the same machine and links, where it applies: all hosts are equal, have their own cores, and lose nothing.
    fn model(&self, machine: &Machine, method: &Method, workers: u32, n: usize) -> Option<Model> {
        let knows =
            self.topology.is_none() && !self.shared && self.slow.is_empty() && self.loss.share() == 0.0;
        if !knows || !has_forecast(method, workers, n) {
            return None;
        }
        let network = machine.forecast(self.bandwidth.bytes_per_second(), self.latency());
        Model::new(network, machine.speed(), method, n).ok()
    }

    /// Where the messages of a job of these steps come from.
    fn workload(
        &self,
        method: &Method,
        network: &Network,
        n: usize,
        steps: Steps,
    ) -> Result<Workload, CommandError> {
        let workers = network.hosts.len() as u32;
        let k = choice::k(method, workers, n)?;
        let lengths = || {
            let density = k as f64 / n as f64;
            Workload::Expected(self.overlap.unwrap_or_else(|| Overlap::of_source(density, &bench_gradient)))
        };
        match (self.workload, executed::scale(workers, n)) {
            (Way::Expected, _) => Ok(lengths()),
            (Way::Profiled, _) => match n.saturating_mul(workers as usize) {
                ..=profiled::MOST_ENTRIES if workers <= profiled::MOST_WORKERS => {
                    // As many as this machine can, or they would wait for each other while they are timed.
                    let here = thread::available_parallelism().map_or(1, NonZero::get) as u32;
                    Ok(Workload::Profiled { steps, at_once: network.at_once().min(here) })
                }
                entries => Err(report::refused(format!(
                    "{workers} workers with {n} entries have {entries} together; expected at most {} workers and {} entries with \
                     --workload profiled",
                    profiled::MOST_WORKERS,
                    profiled::MOST_ENTRIES
                ))),
            },
            (_, Some(scale)) => Ok(Workload::Executed { scale, steps }),
            (Way::Auto, None) => Ok(lengths()),
            (Way::Executed, None) => Err(report::refused(format!(
                "{workers} workers with {n} entries are too many to execute; expected at most {} workers, or {} whose {n} \
                 entries are fewer than {} together: leave --workload out",
                executed::MOST_SAMPLED,
                executed::MOST_WORKERS,
                executed::MOST_ENTRIES
            ))),
        }
    }
}

fn predict(simulate: &Simulate) -> Result<String, CommandError> {
    let (Some(workers), Some(n)) = (simulate.workers, simulate.params) else {
        return Err("expected --workers and --params".into());
    };
    if n == 0 {
        return Err(report::refused("there are 0 parameters; expected at least one"));
    }
    let machine = machine(simulate.machine.as_deref())?;
    let network = simulate.network(workers)?;
    let methods = simulate.choice.methods().len();
    if simulate.svg.is_some() && (methods > 1 || workers > picture::MOST_WORKERS) {
        return Err(report::refused(format!(
            "{methods} methods and {workers} workers cannot be drawn legibly; expected one method and at most {} workers with --svg",
            picture::MOST_WORKERS
        )));
    }
    let (mut rows, refused) = simulate.each(|method| {
        let workload = simulate.workload(&method, &network, n, Steps::default())?;
        let (traces, network) =
            simulation::traces_on(&network, &method, (workers, n), workload, &bench_gradient)
                .map_err(report::refused)?;
        let replayed = simulation::calibration::median(&traces, &machine, &network, simulate.svg.is_some());
        if let Some(path) = &simulate.svg {
            report::save(path, &picture::svg(&method.label(), &replayed, &network)?)?;
        }
        let model = simulate.model(&machine, &method, workers, n);
        let forecast = model.and_then(|model| model.forecast(method.clone(), workers, n).ok());
        let forecast = forecast.map(|forecast| forecast.seconds);
        Ok(table::Row::new(method.label(), workers, workload, &traces, (&replayed, forecast)))
    })?;
    rows.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let prediction =
        table::Prediction { workers, params: n, machine_speeds: machine, methods: rows, refused };
    Ok(if simulate.json { report::json(&prediction) } else { prediction.table(simulate) })
}
