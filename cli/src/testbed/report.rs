//! `gleaner testbed report`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use gleaner_runtime::report::say;
use gleaner_runtime::staged::Staged;
use gleaner_testbed::report::{figures, gallery, page, read, summary};

use crate::report::CommandError;

/// Make one HTML page of measurements
///
/// The page holds pictures, tables and the commands to measure again. It needs no network to be opened. Several
/// directories make one report.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gleaner testbed report runs/methods
  gleaner testbed report runs/monday runs/tuesday --out both.html
  gleaner testbed report runs/methods --pictures pictures
  gleaner testbed report runs/methods --json")]
pub struct Report {
    /// Directories that `gleaner testbed run` wrote
    #[arg(required = true, value_name = "RUN")]
    directories: Vec<PathBuf>,
    /// Where to write the page [default: report.html in the directory, for several in the present one; nowhere with --json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also write every picture as an SVG file into this directory, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Print the numbers as one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(report: &Report) -> Result<ExitCode, CommandError> {
    let runs = read(&report.directories)?;
    let figures = figures(&runs);
    let summary = summary(&runs, &figures);
    let mut staged = Staged::default();
    if let Some(directory) = &report.pictures {
        let cannot = |e| format!("{} cannot be made: {e}", directory.display());
        std::fs::create_dir_all(directory).map_err(cannot)?;
        for (name, svg) in gallery(&figures)? {
            let file = directory.join(format!("{name}.svg"));
            staged.write(&file, |file| file.write_all(svg.as_bytes()))?;
        }
    }
    let nowhere = report.json && report.out.is_none();
    let out = (!nowhere).then(|| match (&report.out, report.directories.as_slice()) {
        (Some(out), _) => out.clone(),
        (None, [directory]) => directory.join("report.html"),
        (None, _) => "report.html".into(),
    });
    if let Some(out) = &out {
        let page = page(&runs, &summary)?;
        staged.write(out, |file| file.write_all(page.as_bytes()))?;
    }
    staged.publish()?;
    if let Some(out) = out.filter(|_| !report.json) {
        for note in runs.iter().flat_map(|run| run.notes.iter().map(move |note| (run, note))) {
            say(format_args!("gleaner: {}: {}", note.0.name, note.1));
        }
        crate::report::print(&format!("{}\n", out.display()))?;
    }
    if report.json {
        crate::report::print(&crate::report::json(&summary))?;
    }
    Ok(ExitCode::SUCCESS)
}
