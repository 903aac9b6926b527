//! `gleaner calibrate`: what selecting and exchanging take in a job, and lines fitted to it (OMGS-SGD, §V-B and Fig. 2).

pub mod file;
mod measure;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use gleaner_runtime::{Config, Roles};
use gleaner_units as units;

use crate::choice::{self, Choice};
use crate::crew;
use crate::report::{self, CommandError};

/// Measure what selecting and exchanging take in a job, and fit the cost model's lines to it
///
/// All ranks synchronise synthetic gradients of several sizes, by a method and by a dense ring, for some seconds. What gleaner
/// merge-plan computes with instead of a forecast.
#[derive(clap::Args, Debug)]
#[command(
    mut_arg("method", choice::without_auto),
    after_help = "Examples:\n  \
    gleaner launch -n 4 -- gleaner calibrate --method spardl --out calibration.json\n  \
    gleaner calibrate --workers 4 --method topka --density 0.001 --svg fits.svg"
)]
pub struct Calibrate {
    /// How many workers to start on this machine; ignored under gleaner launch, mpirun, srun and torchrun
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = units::within::<u32>(1..=1024))]
    workers: u32,
    #[command(flatten)]
    choice: Choice,
    /// Store the fits in this file, for gleaner merge-plan --calibration
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draw what was measured and fitted into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the fits as one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// How long a silent worker counts as alive [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = crew::timeout)]
    timeout: Option<Duration>,
}

/// What is said where nothing is exchanged.
const ALONE: &str = "a job of one worker exchanges nothing that could be measured; start at least two";

/// Runs it, as a worker or as the launcher of workers; gives the exit code.
pub fn run(calibrate: &Calibrate) -> Result<ExitCode, CommandError> {
    let method = calibrate.choice.method()?;
    if method.is_auto() {
        return Err(report::refused(
            "a calibration is of one method, and auto would choose one for each size; name a method by --method",
        ));
    }
    let files = || calibrate.out.iter().chain(&calibrate.svg);
    if !Config::is_worker() {
        if calibrate.workers < 2 {
            return Err(report::refused(ALONE));
        }
        // Before it takes long to find out.
        measure::check(&method, calibrate.workers)?;
        files().try_for_each(|path| report::probe(path))?;
    }
    let (workers, timeout) = (calibrate.workers, calibrate.timeout);
    if let Some(code) = crew::assemble(workers, Roles::default(), "calibrate", timeout)? {
        return Ok(code);
    }
    let Some(calibration) = measure::measure(&method, timeout, files())? else {
        return Ok(ExitCode::SUCCESS);
    };
    let json = || serde_json::to_string_pretty(&calibration).unwrap_or_default() + "\n";
    // Before the files: what took long to measure is not lost with one of them.
    report::print(&if calibrate.json { json() } else { table::table(&calibration) })?;
    if let Some(path) = &calibrate.out {
        report::save(path, &json())?;
    }
    if let Some(path) = &calibrate.svg {
        report::save(path, &table::svg(&calibration)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
