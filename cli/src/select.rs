//! `gleaner select`: what each selector would choose from recorded gradients, and what that costs.

mod evaluate;
mod measure;

use std::path::PathBuf;
use std::process::ExitCode;

use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Layers, Sparsity, select};
use gleaner_charts::{Axis, DrawError, Fill, Page, Row, Rows, width};

use crate::choice::ChoiceError;
use crate::reduce::npy::Vector;
use crate::reduce::open_gradients;
use crate::report::{self, CommandError, counted, ms, table};
use evaluate::Row as Evaluated;
use gleaner_units::{self as units, grouped};
use measure::Entrant;

/// Compare selectors on recorded gradients
///
/// Lets each selector choose from gradients that were recorded, one float32 .npy file of any shape for every worker, and
/// prints what it costs, how many entries it chooses, how much of the gradients they hold, and how far the workers agree.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: all of them, as a table and as a picture\n  \
    gleaner select --density 0.01 --svg selectors.svg step100/rank*.npy")]
pub struct Select {
    #[arg(long, value_name = "NAME[=NUMBER],…", default_value = "all", help = names())]
    selector: String,
    /// The share of all entries that are asked for, above 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, allow_negative_numbers = true, value_parser = units::share)]
    density: f64,
    /// The lengths of the layers that the gradients are made of, in entries, for the selector layers
    #[arg(long, value_name = "ENTRIES,…", value_delimiter = ',', value_parser = units::count)]
    lengths: Vec<usize>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Draw the table into this file
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

/// What is reported; the names are those of the JSON object.
#[derive(serde::Serialize)]
pub struct Report {
    workers: usize,
    params: usize,
    k: usize,
    /// One plain read of a gradient.
    seconds_read: f64,
    selectors: Vec<Evaluated>,
}

pub fn run(arguments: &Select) -> Result<ExitCode, CommandError> {
    if !(arguments.density > 0.0 && arguments.density <= 1.0) {
        return Err(ChoiceError::Density(arguments.density).into());
    }
    if let Some(path) = &arguments.svg {
        report::probe(path)?;
    }
    // Before the gradients are read, which takes longer.
    let named = named(arguments).map_err(report::refused)?;
    let files = open_gradients(&arguments.gradients)?;
    let n = files[0].len;
    if n >= u32::MAX as usize {
        let most = u32::MAX - 1;
        return Err(
            format!("the gradients have {n} entries; expected at most {most}: give a part of them").into()
        );
    }
    let layers = match &arguments.lengths[..] {
        [] => Layers::from(n),
        lengths => Layers::of(lengths.iter().copied()),
    };
    if layers.entries() != n {
        return Err(format!(
            "--lengths has {} entries, but the gradients have {n}; expected the lengths of all their layers",
            layers.entries()
        )
        .into());
    }
    let gradients = files.iter().map(Vector::values).collect::<Result<Vec<_>, _>>()?;
    let k = Sparsity::Density(arguments.density).k(n)?;
    // The k-th largest magnitude of each, or the smallest that is not zero if there are fewer; 0 if there are none.
    let exact: Vec<f64> = gradients.iter().map(|g| measure::smallest(&select::top_k_dense(g, k))).collect();
    let entrants = named.unwrap_or_else(|| all(&arguments.lengths, exact[0]));
    let (seconds_read, measured) = measure::measure(&entrants, &gradients, &layers, k);
    let rows = entrants.iter().zip(&measured);
    let report = Report {
        workers: gradients.len(),
        params: n,
        k,
        seconds_read,
        selectors: rows
            .map(|(entrant, one)| evaluate::evaluate(entrant, one, seconds_read, &gradients, &exact, k))
            .collect(),
    };
    if let Some(path) = &arguments.svg {
        report::save(path, &svg(&report)?)?;
    }
    report::print(&if arguments.json { report::json(&report) } else { text(&report) })?;
    Ok(ExitCode::SUCCESS)
}

const NO_LAYERS: &str = "the selector layers needs to know them; give the lengths of the layers with --lengths, such as --lengths 432,16";

/// The selectors that were named; None for all.
fn named(arguments: &Select) -> Result<Option<Vec<Entrant>>, CommandError> {
    if arguments.selector == "all" {
        return Ok(None);
    }
    let entrants = arguments.selector.split(',').map(|name| match name.trim() {
        "exdyna" => Ok(Entrant::ExDyna),
        "clt-k" => Ok(Entrant::CltK),
        name => match name.parse()? {
            Selector::Layers if arguments.lengths.is_empty() => Err(NO_LAYERS.into()),
            selector => Ok(Entrant::Own(selector)),
        },
    });
    entrants.collect::<Result<_, _>>().map(Some)
}

/// All there are. A hard threshold is set to what is right for rank 0.
fn all(layers: &[usize], right: f64) -> Vec<Entrant> {
    let known = |selector: &Selector| *selector != Selector::Layers || !layers.is_empty();
    let own = Selector::NAMED.into_iter().filter(known);
    // In the few digits that a float of 32 bits needs.
    let right = (right as f32).to_string().parse().unwrap_or(right);
    let threshold = (right > 0.0).then_some(Selector::Threshold(right));
    own.chain(threshold).map(Entrant::Own).chain([Entrant::ExDyna, Entrant::CltK]).collect()
}

const HEADINGS: &str = "selector|ms|x read|entries|of k|L2 share|overlap|build-up|padding|threshold|idling";

/// The report for readers.
fn text(report: &Report) -> String {
    let (n, k) = (grouped(report.params as u64), grouped(report.k as u64));
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
    let rows = report.selectors.iter().map(|row| {
        let mut cells = vec![row.selector.clone(), ms(row.seconds), format!("{:.1}", row.times_read)];
        cells.extend([grouped(row.entries.round() as u64), share(Some(row.times_k))]);
        let shares = [Some(row.l2_share), row.jaccard, Some(row.build_up), row.padding, row.threshold_error];
        cells.extend(shares.into_iter().chain([Some(row.idling)]).map(share));
        cells
    });
    format!(
        "{} of n = {n}, k = {k}; one read of a gradient takes {} ms\n\n{}",
        counted(report.workers, "gradient"),
        ms(report.seconds_read),
        table(HEADINGS.split('|'), rows)
    )
}

/// How wide a panel is without the names of its rows, and how high a row is.
const PANEL: i32 = 270;
const ROW: i32 = 28;

/// A measure of all selectors: its title, its value, and its unit.
type Measure = (&'static str, fn(&Evaluated) -> f64, &'static str);

const MEASURES: [Measure; 4] = [
    ("cost, reads of the gradient", |row| row.times_read, "×"),
    ("entries, multiples of k", |row| row.times_k, "×"),
    ("L2 share", |row| row.l2_share, ""),
    ("build-up, union / Pk", |row| row.build_up, ""),
];

/// The report as a picture: for each selector a bar for its cost, one for its count, and one for what it captures.
fn svg(report: &Report) -> Result<String, DrawError> {
    let rows = &report.selectors;
    let names = rows.iter().map(|row| width(&row.selector)).max().unwrap_or(0) + 20;
    let (n, k) = (grouped(report.params as u64), grouped(report.k as u64));
    let page = Page {
        width: names + MEASURES.len() as i32 * PANEL,
        heading: format!("Selectors on {}, n = {n}, k = {k}", counted(report.workers, "gradient")),
        notes: vec![format!(
            "Medians of interleaved runs on the slowest worker; a read takes {:.2} ms.",
            1e3 * report.seconds_read
        )],
        legend: Vec::new(),
    };
    let panels = MEASURES.map(|measure| panel(measure, rows));
    page.svg(panels[0].height(), |area| {
        // The names of the rows stand once, beside the first.
        let ends: Vec<i32> = (1..MEASURES.len() as i32).map(|panel| names + panel * PANEL).collect();
        let areas = area.split_by_breakpoints(&ends, &[] as &[i32]);
        panels[0].draw(&areas[0])?;
        for (mut panel, area) in panels.into_iter().zip(&areas).skip(1) {
            panel.rows.iter_mut().for_each(|row| row.name.clear());
            panel.draw(area)?;
        }
        Ok(())
    })
}

fn panel((title, value, unit): Measure, rows: &[Evaluated]) -> Rows {
    let most = rows.iter().map(value).fold(1.0, f64::max);
    let row = |row: &Evaluated| {
        let value = value(row);
        let digits = if value < 10.0 { 2 } else { 0 };
        Row {
            name: row.selector.clone(),
            bars: vec![(0.0, value, Fill::BEHIND)],
            value: format!("{value:.digits$}{unit}"),
            ..Row::default()
        }
    };
    Rows { axis: Axis::level(title, 0.0, most), rows: rows.iter().map(row).collect(), high: ROW }
}
