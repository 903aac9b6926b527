//! `gleaner testbed pages`: tables and pictures of pages, from stored measurements.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use gleaner_runtime::staged::Staged;
use gleaner_testbed::report::results::{Asked, MEASUREMENTS, PICTURES, Picture, Stored, asked, filled};
use gleaner_testbed::report::{Run, figures, gallery, read};

use crate::report::CommandError;

/// Fill the tables and pictures of pages from stored measurements
///
/// A block of a page says in a comment what it shows, and of which experiment. With --from, the numbers that the pages show are taken from
/// a run, and stored beside the pages.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  gleaner testbed pages docs/src/results --from runs/sparcml-table2
  gleaner testbed pages docs/src/results
  gleaner testbed pages docs/src/results --check")]
pub struct Pages {
    /// The directory of the pages; measurements are stored in measurements/ in it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Store the measurements of this run, which gleaner testbed run wrote; may be given several times
    #[arg(long, value_name = "RUN")]
    from: Vec<PathBuf>,
    /// Write nothing; end with exit code 1 if a page differs from what is stored
    #[arg(long, conflicts_with = "from")]
    check: bool,
}

pub fn run(pages: &Pages) -> Result<ExitCode, CommandError> {
    let texts = texts(&pages.directory)?;
    let measurements = pages.directory.join(MEASUREMENTS);
    let mut wanted = BTreeMap::new();
    for (file, text) in &texts {
        asked(&file.display().to_string(), text, &mut wanted)?;
    }
    store(pages, &measurements, &wanted)?;
    let mut staged = Staged::default();
    let mut differ = Vec::new();
    for (file, text) in &texts {
        let filled = filled(&file.display().to_string(), text, &measurements)?;
        if filled != *text {
            staged.write(file, |out| out.write_all(filled.as_bytes()))?;
            differ.push(file.display().to_string());
        }
    }
    if pages.check && !differ.is_empty() {
        return Err(format!(
            "{} differs from what its measurements give; run gleaner testbed pages {}",
            differ.join(", "),
            pages.directory.display()
        )
        .into());
    }
    if !pages.check {
        staged.publish()?;
        let lines: String = differ.iter().map(|file| format!("{file}\n")).collect();
        crate::report::print(&lines)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The pages of a directory, in the order of their names.
fn texts(directory: &Path) -> Result<BTreeMap<PathBuf, String>, CommandError> {
    let cannot = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path} cannot be read: {e}; expected a directory of Markdown pages")
    };
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(cannot(directory))? {
        let path = entry.map_err(cannot(directory))?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path).map_err(cannot(&path))?;
            texts.insert(path, text);
        }
    }
    Ok(texts)
}

/// Stores what the pages show of each run, and draws its pictures.
fn store(pages: &Pages, measurements: &Path, wanted: &BTreeMap<String, Asked>) -> Result<(), CommandError> {
    if pages.from.is_empty() {
        return Ok(());
    }
    let make = |directory: &Path| {
        fs::create_dir_all(directory).map_err(|e| format!("{} cannot be made: {e}", directory.display()))
    };
    make(measurements)?;
    let pictures = pages.directory.join(PICTURES);
    let mut staged = Staged::default();
    for run in read(&pages.from)? {
        let experiment = run.records.first().map(|record| record.experiment.clone()).unwrap_or_default();
        let asked = wanted.get(&experiment).ok_or_else(|| {
            let known: Vec<&str> = wanted.keys().map(String::as_str).collect();
            format!(
                "{} is of the experiment {experiment}, which no page in {} shows; expected one of {}",
                run.directory.display(),
                pages.directory.display(),
                known.join(", ")
            )
        })?;
        let stored = Stored::of(&run, &asked.numbers)?;
        let text = stored.text()?;
        let mut write = |file: &Path, text: &str| staged.write(file, |out| out.write_all(text.as_bytes()));
        write(&measurements.join(format!("{experiment}.jsonl")), &text)?;
        for (file, svg) in drawn(run, asked)? {
            make(&pictures)?;
            write(&pictures.join(format!("{file}.svg")), &svg)?;
        }
    }
    Ok(staged.publish()?)
}

/// The pictures that pages show of a run, by the names of their files.
fn drawn(run: Run, asked: &Asked) -> Result<Vec<(String, String)>, CommandError> {
    if asked.pictures.is_empty() {
        return Ok(Vec::new());
    }
    let all: BTreeMap<String, String> = gallery(&figures(&[run]))?.into_iter().collect();
    let one = |picture: &Picture| {
        let svg = all.get(&picture.picture).ok_or_else(|| {
            let names: Vec<&str> = all.keys().map(String::as_str).collect();
            format!("'picture' is {}; expected one of {}", picture.picture, names.join(", "))
        })?;
        Ok((picture.file.clone(), svg.clone()))
    };
    asked.pictures.iter().map(one).collect()
}
