//! `gleaner testbed peers`: dense all-reduces of other libraries beside ours.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gleaner_runtime::report::say;
use gleaner_testbed::experiment::{Options, Store};
use gleaner_testbed::peers::{Iteration, Kit, Missing, NAMES, Pairs, Request, Row, rows};
use gleaner_testbed::record::{Outcome, Record};
use gleaner_units as units;
use serde_json::json;

use super::run::measure;
use crate::merge_plan::layers::Layers;
use crate::report;

const EXAMPLES: &str = "\
Examples:
  gleaner testbed peers --hosts 6 --bandwidth 1gbit --params 14728266
  gleaner testbed peers --hosts 3 --bandwidth 100mbit --params 269722 --turns 5 --json
  gleaner testbed peers --hosts 4 --layers times.json --train data=synthetic,model=vgg16,batch=8 --steps 15
  gleaner testbed report runs/peers

Measured are SparDL and our dense ring, and of Open MPI, MPICH and Gloo (through PyTorch) what is installed. Everybody has
the same emulated hosts, one after the other, in turns. With --layers it is an iteration of a model: ours trains, and beside it
PyTorch's DDP on Gloo has layers of the same sizes, and keeps its cores busy for as long as they take. Needs root.";

/// Measure dense all-reduces of other libraries beside ours
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Peers {
    /// How many emulated hosts, with a worker on each
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = units::within::<u32>(2..=250))]
    hosts: u32,
    /// What their links carry in each direction
    #[arg(long, default_value = "1gbit")]
    bandwidth: String,
    /// Entries of the gradient, float32
    #[arg(long, value_name = "N", value_parser = units::count, required_unless_present = "layers", conflicts_with = "layers")]
    params: Option<usize>,
    /// Compare iterations of a model whose passes take what this file says, which gleaner train --layer-times wrote
    #[arg(long, value_name = "FILE", requires = "train")]
    layers: Option<PathBuf>,
    /// The options of gleaner train under which these layers were measured, as experiments spell them
    #[arg(long, value_name = "NAME=VALUE,…", value_delimiter = ',', value_parser = option, requires = "layers")]
    train: Vec<(String, String)>,
    /// The share of the entries that SparDL delivers
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    density: f64,
    /// Steps that are measured in a turn
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = units::within::<u32>(1..))]
    steps: u32,
    /// Steps before them that are not
    #[arg(long, value_name = "S", default_value_t = 3)]
    warmup: u32,
    /// How often everybody has a turn
    #[arg(long, value_name = "T", default_value_t = 3, value_parser = units::within::<u32>(1..))]
    turns: u32,
    /// Measure these only, such as ring,gloo [default: all that are installed]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = NAMES)]
    only: Vec<String>,
    /// How long a turn of one of them may take, such as 90s or 10m; one that takes longer is ended, and has failed
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = units::limit)]
    limit: Duration,
    /// A Python that has PyTorch with Gloo
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/python3")]
    python: PathBuf,
    /// Where measurements go
    #[arg(long, value_name = "DIR", default_value = "runs/peers")]
    out: PathBuf,
    /// Go on with what is in that directory
    #[arg(long)]
    resume: bool,
    /// Take down an emulated network of that name first, left behind by a run that was killed
    #[arg(long)]
    replace: bool,
    /// What the emulated network is called; runs at the same time need different names
    #[arg(long, default_value = "peers")]
    name: String,
    /// One JSON object on standard output instead of a table
    #[arg(long)]
    json: bool,
}

fn option(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    let (name, value) =
        pair.ok_or_else(|| format!("'{text}' is no option with its value; expected such as model=vgg16"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The entries that are compared, and the file of layers from the root.
fn entries(peers: &Peers) -> Result<(usize, Option<PathBuf>), String> {
    let Some(file) = &peers.layers else { return Ok((peers.params.unwrap_or(0), None)) };
    let layers = Layers::find(None, Some(file), (None, None)).map_err(|e| e.to_string())?;
    // Before anything starts; the script reads nothing but JSON.
    if file.extension().is_none_or(|extension| extension != "json") {
        return Err(format!(
            "{} is no JSON file; expected what gleaner train --layer-times FILE.json wrote",
            file.display()
        ));
    }
    let path = file.canonicalize().map_err(|e| format!("{} cannot be found: {e}", file.display()))?;
    Ok((layers.entries(), Some(path)))
}

/// Runs it.
pub fn run(peers: &Peers) -> Result<ExitCode, String> {
    let (params, layers) = entries(peers)?;
    let iteration = layers.map(|layers| Iteration { layers, train: peers.train.clone() });
    let request = Request {
        hosts: peers.hosts,
        bandwidth: peers.bandwidth.clone(),
        params,
        density: peers.density,
        steps: peers.steps,
        warmup: peers.warmup,
        turns: peers.turns,
        limit: peers.limit,
        iteration,
        only: peers.only.clone(),
    };
    request.check().map_err(|e| e.to_string())?;
    let kit = Kit::make(&peers.python, peers.layers.is_some()).map_err(|e| e.to_string())?;
    for Missing { name, reason } in kit.missing() {
        say(format_args!("gleaner testbed: {name} is not measured: {reason}"));
    }
    let program =
        std::env::current_exe().map_err(|e| format!("the path of this program is not known: {e}"))?;
    let plan = request.plan(&program, &kit);
    if plan.jobs.is_empty() {
        let may = if peers.layers.is_some() { "with --layers" } else { "without --layers" };
        return Err(format!(
            "of {} none is installed and measured {may}, so there is nothing to measure; expected spardl or ring among --only, {}",
            peers.only.join(", "),
            if peers.layers.is_some() { "or ddp" } else { "or open-mpi, mpich or gloo" },
        ));
    }
    let options = Options {
        out: peers.out.clone(),
        resume: peers.resume,
        replace: peers.replace,
        network: peers.name.clone(),
    };
    let code = measure(&plan, &options, false)?;
    let records = Store::read(&peers.out).map_err(|e| e.to_string())?;
    let rows = rows(&records);
    let text = if peers.json { in_json(peers, params, &kit, &rows) } else { table(peers, params, &rows) };
    report::print(&text).map_err(|e| e.to_string())?;
    if let Some(found) = trained(&records).find(|found| *found != params) {
        return Err(format!(
            "--train trains {found} parameters, and the layers have {params}; expected the layer times of that model"
        ));
    }
    let around = rows.iter().find(|row| row.method != "spardl" && row.went_around(params));
    match around {
        None => Ok(code),
        Some(row) => Err(format!(
            "{}: its hosts received fewer bytes than a dense all-reduce needs, so it went around the emulated links; its figures mean nothing",
            row.method
        )),
    }
}

/// How many parameters trainings had.
fn trained(records: &[Record]) -> impl Iterator<Item = usize> {
    let parameters = |record: &Record| match &record.outcome {
        Outcome::Done(report) => report.get("parameters")?.as_u64(),
        _ => None,
    };
    records.iter().filter_map(parameters).map(|parameters| parameters as usize)
}

fn in_json(peers: &Peers, params: usize, kit: &Kit, rows: &[Row]) -> String {
    let missing =
        kit.missing().iter().map(|Missing { name, reason }| json!({"method": name, "reason": reason}));
    let object = json!({
        "hosts": peers.hosts,
        "bandwidth": peers.bandwidth,
        "params": params,
        "layers": peers.layers,
        "density": peers.density,
        "methods": rows,
        "missing": missing.collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn table(peers: &Peers, params: usize, rows: &[Row]) -> String {
    let mut text = format!(
        "{}{} hosts at {}, {} entries, SparDL at density {}; medians of {} turns, and the fastest and slowest of them\n\n{:10}{:>12}{:>22}{:>10}{:>8}{:>14}{:>10}{:>8}  library\n",
        if peers.layers.is_some() { "Iterations: ours train; DDP's compute is emulated. " } else { "" },
        peers.hosts,
        peers.bandwidth,
        units::grouped(params as u64),
        peers.density,
        peers.turns,
        "",
        "step",
        "least to most",
        "/ spardl",
        "/ ring",
        "received",
        "/ spardl",
        "/ ring",
    );
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    for row in rows {
        let ms = |seconds: f64| format!("{:.1}", seconds * 1e3);
        let range = format!("{} to {}", ms(row.seconds_least), ms(row.seconds_most));
        text += &format!(
            "{:10}{:>9} ms{:>22}{:>10}{:>8}{:>14}{:>10}{:>8}  {}\n",
            row.method,
            ms(row.seconds),
            range,
            ratio(row.seconds_to_spardl),
            ratio(row.seconds_to_ring),
            units::bytes(row.bytes_received),
            ratio(row.bytes_to_spardl),
            ratio(row.bytes_to_ring),
            row.library.as_deref().unwrap_or("gleaner"),
        );
    }
    for row in rows {
        if let Some(Pairs { count, mean, low, high }) = row.pairs_to_ring {
            text += &format!(
                "\n{} / ring, turn by turn: {mean:.3}, with 95% confidence {low:.3} to {high:.3} ({count} pairs)",
                row.method
            );
        }
    }
    text + "\n"
}
