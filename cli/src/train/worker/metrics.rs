//! The result of each step, as lines of a file: CSV, or JSON where its name says so.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::clock::Times;
use crate::train::error::{TrainResult, unwritten};
use crate::train::exchange::Passed;
use crate::train::settings::Settings;

/// The fields of a line, in their order.
const FIELDS: &str = "step,training_loss,learning_rate,seconds,seconds_forward,seconds_backward,seconds_select,seconds_exposed,entries_per_step,\
                      rank0_bytes_per_step";

/// Whether lines of a file with this name can be written.
pub fn is_known(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "csv" || extension == "jsonl")
}

/// The file, open for more lines.
pub struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes received by the end of the step before.
    received: u64,
}

impl Metrics {
    /// Opens the file of a run at rank 0, if it is to have one. Where a run goes on, lines follow those that are there.
    pub fn of(settings: &Settings, rank: usize) -> TrainResult<Option<Self>> {
        let path = settings.options.metrics.as_deref().filter(|_| rank == 0);
        path.map(|path| Self::open(path, settings.options.resume)).transpose()
    }

    /// Sees whether the file can be opened. One that is there is left as it is, and of one that is missing nothing is left.
    pub fn probe(path: &Path) -> TrainResult<()> {
        // The reader of a pipe would take it for the end that it is closed again.
        if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Ok(());
        }
        let is_there = path.exists();
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let removed = opened.and_then(|_| if is_there { Ok(()) } else { fs::remove_file(path) });
        removed.map_err(unwritten(path))
    }

    fn open(path: &Path, appends: bool) -> TrainResult<Self> {
        let refuse = unwritten(path);
        // A file that is opened to append cannot be cut off as well.
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(appends).truncate(!appends);
        let file = options.open(path).map_err(&refuse)?;
        let is_empty = file.metadata().map_err(&refuse)?.len() == 0;
        let mut metrics = Self { path: path.into(), file, received: 0 };
        if is_empty && !metrics.is_json() {
            metrics.line(FIELDS)?;
        }
        Ok(metrics)
    }

    /// Counts bytes from here on: what was received to measure the network is of no step.
    pub fn begin(&mut self, received: u64) {
        self.received = received;
    }

    /// Writes the line of a step that is done, at once, so that others can follow it: its pass, what all of it took, loading the batch
    /// included, and its parts; the entries of the update, and the bytes received for gradients by the end of the step.
    pub fn write(
        &mut self,
        Passed { step, rate, loss }: Passed,
        (seconds, times): (Duration, Times),
        entries: u64,
        received: u64,
    ) -> TrainResult<()> {
        let bytes = received - std::mem::replace(&mut self.received, received);
        let numbers = [
            step as f64,
            f64::from(loss),
            f64::from(rate),
            seconds.as_secs_f64(),
            times.forward,
            times.backward,
            times.select,
            times.exposed,
            entries as f64,
            bytes as f64,
        ];
        // CSV and JSON have no word for what is not finite that all readers take.
        let text =
            |number: f64, none: &str| if number.is_finite() { number.to_string() } else { none.to_owned() };
        if self.is_json() {
            let field = |(name, number)| format!("\"{name}\":{}", text(number, "null"));
            let fields: Vec<String> = FIELDS.split(',').zip(numbers).map(field).collect();
            self.line(&format!("{{{}}}", fields.join(",")))
        } else {
            self.line(&numbers.map(|number| text(number, "")).join(","))
        }
    }

    fn is_json(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "jsonl")
    }

    fn line(&mut self, line: &str) -> TrainResult<()> {
        self.file.write_all(format!("{line}\n").as_bytes()).map_err(unwritten(&self.path))
    }
}
