//! `gleaner testbed report`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use gleaner_runtime::staged::Staged;
use gleaner_testbed::report::{figures, page, read, summary};

/// Make one HTML page of measurements
///
/// The page holds pictures, tables and the commands to measure again. It needs no network to be opened. Several
/// directories make one report.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gleaner testbed report runs/methods
  gleaner testbed report runs/monday runs/tuesday --out both.html
  gleaner testbed report runs/methods --json")]
pub struct Report {
    /// Directories that `gleaner testbed run` wrote
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Where to write the page [default: report.html, or nowhere with --json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the numbers as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(report: &Report) -> Result<ExitCode, String> {
    let runs = read(&report.directories).map_err(|e| e.to_string())?;
    let figures = figures(&runs);
    let summary = summary(&runs, &figures);
    let nowhere = report.json && report.out.is_none();
    if !nowhere {
        let out = report.out.clone().unwrap_or_else(|| "report.html".into());
        let page = page(&runs, &summary).map_err(|e| e.to_string())?;
        let mut staged = Staged::default();
        staged.write(&out, |file| file.write_all(page.as_bytes())).map_err(|e| e.to_string())?;
        staged.publish().map_err(|e| e.to_string())?;
        if !report.json {
            for note in runs.iter().flat_map(|run| run.notes.iter().map(move |note| (run, note))) {
                eprintln!("gleaner: {}: {}", note.0.name, note.1);
            }
            println!("{}", out.display());
        }
    }
    if report.json {
        println!("{}", serde_json::to_string(&summary).map_err(|e| e.to_string())?);
    }
    Ok(ExitCode::SUCCESS)
}
