//! `gleaner select`: what each selector would choose from recorded gradients, and what that costs.

mod judge;
mod measure;
mod picture;
mod table;

use std::io;
use std::path::PathBuf;

use gleaner_algorithms::selectors::{Selector, SelectorError};
use gleaner_algorithms::{Layers, Sparsity, SparsityError, select};
use gleaner_runtime::staged::StagedError;

use crate::bench::picture::probe;
use crate::reduce::npy::Vector;
use crate::reduce::{ReduceError, open_gradients};
use crate::report;
use gleaner_charts::DrawError;
use gleaner_units as units;
use measure::Entrant;

/// Compare selectors on recorded gradients
///
/// Lets each selector choose from gradients that were recorded, one float32 .npy file of any shape for every worker, and
/// prints what it costs, how many entries it chooses, how much of the gradients they hold, and how far the workers agree.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: all of them, as a table and as a picture\n  \
    gleaner select --density 0.01 --svg selectors.svg step100/rank*.npy")]
pub struct Select {
    #[arg(long, value_name = "NAME[=NUMBER],...", default_value = "all", help = names())]
    selector: String,
    /// The share of all entries that are asked for, above 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, allow_negative_numbers = true, value_parser = units::share)]
    density: f64,
    /// The lengths of the layers that the gradients are made of, in entries, for the selector layers
    #[arg(long, value_name = "ENTRIES,...", value_delimiter = ',', value_parser = units::count)]
    layers: Vec<usize>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Draws the table into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The gradients, one file for every worker
    #[arg(required = true, value_name = "GRADIENT")]
    gradients: Vec<PathBuf>,
}

fn names() -> String {
    let names = Selector::names().join(", ");
    format!("Which, with commas between them, or all: {names}, exdyna, clt-k")
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// Gradients that cannot be read, or are not of one model.
    #[error(transparent)]
    Gradients(#[from] ReduceError),
    /// A selector that there is not.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// No such share.
    #[error(transparent)]
    Sparsity(#[from] SparsityError),
    /// A share of nothing.
    #[error("the density is {0}; expected a number above 0 and at most 1, such as 0.01 or 1%")]
    Density(f64),
    /// Layers of another model.
    #[error(
        "--layers has {layers} entries, but the gradients have {n}; expected the lengths of all their layers"
    )]
    Layers {
        /// Their sum.
        layers: usize,
        /// The length of a gradient.
        n: usize,
    },
    /// Layers that nobody knows.
    #[error(
        "the selector layers needs to know them; give the lengths of the layers with --layers, such as --layers 432,16"
    )]
    NoLayers,
    /// Indices are 32 bits wide.
    #[error("the gradients have {0} entries; expected at most {most}: give a part of them", most = u32::MAX - 1)]
    Long(usize),
    /// A picture that cannot be written.
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// A picture that cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// Nobody reads the report.
    #[error("the report cannot be printed: {0}")]
    Print(io::Error),
}

/// What is reported; the names are those of the JSON object.
#[derive(serde::Serialize)]
pub struct Report {
    workers: usize,
    params: usize,
    k: usize,
    /// One plain read of a gradient.
    seconds_read: f64,
    selectors: Vec<judge::Row>,
}

/// Runs the command.
pub fn run(arguments: &Select) -> Result<(), SelectError> {
    if !(arguments.density > 0.0 && arguments.density <= 1.0) {
        return Err(SelectError::Density(arguments.density));
    }
    if let Some(path) = &arguments.svg {
        probe(path)?;
    }
    // Before the gradients are read, which takes longer.
    let named = named(arguments)?;
    let files = open_gradients(&arguments.gradients)?;
    let n = files[0].len();
    if n >= u32::MAX as usize {
        return Err(SelectError::Long(n));
    }
    let layers = match &arguments.layers[..] {
        [] => Layers::from(n),
        lengths => Layers::of(lengths.iter().copied()),
    };
    if layers.entries() != n {
        return Err(SelectError::Layers { layers: layers.entries(), n });
    }
    let gradients = (0..).zip(&files).map(|(rank, file)| read(rank, file)).collect::<Result<Vec<_>, _>>()?;
    let k = Sparsity::Density(arguments.density).k(n)?;
    let exact: Vec<f64> = gradients.iter().map(|gradient| smallest_of_top(gradient, k)).collect();
    let entrants = named.unwrap_or_else(|| all(&arguments.layers, exact[0]));
    let measured = measure::measure(&entrants, &gradients, &layers, k);
    let rows = entrants.iter().zip(&measured.selectors);
    let report = Report {
        workers: gradients.len(),
        params: n,
        k,
        seconds_read: measured.read,
        selectors: rows
            .map(|(entrant, one)| judge::judge(entrant, one, &measured, &gradients, &exact, k))
            .collect(),
    };
    if let Some(path) = &arguments.svg {
        report::save(path, &picture::svg(&report)?)?;
    }
    let text = match arguments.json {
        // Numbers and names always serialise.
        true => serde_json::to_string(&report).unwrap_or_default() + "\n",
        false => table::text(&report),
    };
    report::print(&text).map_err(SelectError::Print)
}

/// The selectors that were named; None for all.
fn named(arguments: &Select) -> Result<Option<Vec<Entrant>>, SelectError> {
    if arguments.selector == "all" {
        return Ok(None);
    }
    let entrants = arguments.selector.split(',').map(|name| match name.trim() {
        "exdyna" => Ok(Entrant::ExDyna),
        "clt-k" => Ok(Entrant::CltK),
        name => match name.parse()? {
            Selector::Layers if arguments.layers.is_empty() => Err(SelectError::NoLayers),
            selector => Ok(Entrant::Own(selector)),
        },
    });
    entrants.collect::<Result<_, _>>().map(Some)
}

/// All there are. A hard threshold is set to what is right for rank 0.
fn all(layers: &[usize], right: f64) -> Vec<Entrant> {
    let known = |selector: &Selector| *selector != Selector::Layers || !layers.is_empty();
    let own = Selector::NAMED.into_iter().filter(known);
    // In the few digits that tell a float of 32 bits from others.
    let right = (right as f32).to_string().parse().unwrap_or(right);
    let threshold = (right > 0.0).then_some(Selector::Threshold(right));
    own.chain(threshold).map(Entrant::Own).chain([Entrant::ExDyna, Entrant::CltK]).collect()
}

/// All values of a file.
fn read(rank: u32, file: &Vector) -> Result<Vec<f32>, SelectError> {
    let mut values = Vec::with_capacity(file.len());
    let read = file.pieces(|_, piece| {
        values.extend_from_slice(piece);
        Ok(())
    });
    let rank = gleaner_algorithms::Rank(rank);
    read.map(|()| values).map_err(|source| ReduceError::File { rank, source }.into())
}

/// The k-th largest magnitude, or the smallest that is not zero if there are fewer; 0 if there are none.
fn smallest_of_top(gradient: &[f32], k: usize) -> f64 {
    let top = select::top_k_dense(gradient, k);
    let smallest = top.values.iter().map(|v| v.abs()).reduce(f32::min);
    smallest.map_or(0.0, f64::from)
}
