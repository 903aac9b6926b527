//! What a command prints when it is done.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use gleaner_algorithms::collectives::MethodError;
use gleaner_runtime::Failure;
use gleaner_runtime::launcher::LaunchError;
use gleaner_runtime::staged::{Staged, StagedError};
use serde::Serialize;

use crate::choice::ChoiceError;

/// Why a command has no result: a sentence that says what was expected, what was found, and what to do.
pub type CommandError = Box<dyn std::error::Error + Send + Sync>;

/// Arguments that cannot be, for what they say and not for what a file, a machine or a job has.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// An error of the arguments, which ends the command with the exit code of those that the parser refuses.
pub fn refused(reason: impl ToString) -> CommandError {
    Refused(reason.to_string()).into()
}

/// What a command ends with where its arguments are refused; the parser of arguments has the same.
pub const OF_ARGUMENTS: u8 = 2;

/// The commands whose processes are workers, where a launcher starts them.
const OF_JOBS: [&str; 4] = ["train", "bench", "regress", "calibrate"];

/// Tells the launcher that started this worker, if one did, that its arguments are refused. All its workers have the same, and the launcher says
/// once why they end.
pub fn is_left_to_launcher(reason: &str) -> bool {
    let command = std::env::args_os().nth(1).unwrap_or_default();
    let rank = std::env::var("GLEANER_RANK").ok().and_then(|rank| rank.trim().parse::<u32>().ok());
    let tells = |rank| {
        let failure = Failure { rank, step: None, reason: reason.to_owned() };
        gleaner_runtime::report::failed(&failure)
    };
    OF_JOBS.iter().any(|job| command == *job) && rank.is_some_and(tells)
}

/// What the parser of arguments says and proposes, without its advice on usage.
pub fn sentence(refusal: &clap::Error) -> String {
    let text = refusal.to_string();
    let said =
        text.split("\n\n").take_while(|part| !part.starts_with("Usage") && !part.starts_with("For more"));
    let words = said.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    words.trim_start_matches("error: ").to_owned()
}

/// The exit code of a command that ends with this error.
pub fn exit_code(error: &CommandError) -> u8 {
    if let Some(error) = error.downcast_ref() {
        return launch_code(error);
    }
    let is_refused = error.is::<Refused>() || error.is::<ChoiceError>() || error.is::<MethodError>();
    if is_refused { OF_ARGUMENTS } else { 1 }
}

/// The exit code where a job is not started.
pub fn launch_code(error: &LaunchError) -> u8 {
    use LaunchError::{NoAgent, NoWorkers, Program, Rendezvous, Servers, Variable};
    match error {
        Program { .. }
        | NoWorkers
        | NoAgent { .. }
        | Servers { .. }
        | Variable { .. }
        | Rendezvous { .. } => OF_ARGUMENTS,
        _ => 1,
    }
}

/// Writes a report to the standard output. A reader that has seen enough, such as `head`, is no error.
pub fn print(report: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(format!("the report cannot be printed: {e}").into())
        }
        _ => Ok(()),
    }
}

/// A report as one JSON object on a line. Numbers and names, which reports are made of, always serialise.
pub fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).unwrap_or_default() + "\n"
}

/// Sees now whether a file can be written at the end: what is staged and never published leaves nothing behind.
///
/// # Errors
/// A folder that is missing or closed, or a name that is none of a file.
pub fn probe(path: &Path) -> Result<(), StagedError> {
    Staged::default().write(path, |_| Ok(()))
}

/// Writes a file whole, or not at all.
///
/// # Errors
/// A folder that is missing or closed, a name that is none of a file, or a full disk.
pub fn write(
    path: &Path,
    contents: impl FnOnce(&mut io::BufWriter<File>) -> io::Result<()>,
) -> Result<(), StagedError> {
    let mut staged = Staged::default();
    staged.write(path, contents)?;
    staged.publish()
}

/// The same with a text.
pub fn save(path: &Path, text: &str) -> Result<(), StagedError> {
    write(path, |file| file.write_all(text.as_bytes()))
}

/// Whether a loss is more than half above what it was before the first step, or is no number. A model that has learnt little is not.
pub fn has_grown(first: f64, last: f64) -> bool {
    !last.is_finite() || last > 1.5 * first
}

/// Refuses the result of a training whose loss has grown.
pub fn expect_learnt(loss: &str, (first, last): (f64, f64), advice: &str) -> Result<(), CommandError> {
    if !has_grown(first, last) {
        return Ok(());
    }
    let [first, last] =
        [first, last].map(|loss| if loss < 1e6 { format!("{loss:.4}") } else { format!("{loss:.1e}") });
    Err(format!(
        "the training diverged: the {loss} was {first} before the first step and is {last} now; {advice}"
    )
    .into())
}

/// A row of headings and other rows, in columns of which the first is left-aligned.
pub fn table(
    headings: impl IntoIterator<Item = impl Into<String>>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let headings: Vec<String> = headings.into_iter().map(Into::into).collect();
    let cells: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
    let count = cells.first().map_or(0, Vec::len);
    let width = |c: usize| cells.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let cell = |(c, (cell, width)): (usize, (&String, &usize))| match c {
        0 => format!("{cell:<width$}"),
        _ => format!("  {cell:>width$}"),
    };
    let line = |row: &Vec<String>| row.iter().zip(&widths).enumerate().map(cell).collect::<String>();
    cells.iter().map(|row| line(row).trim_end().to_owned() + "\n").collect()
}

pub fn ms(seconds: f64) -> String {
    format!("{:.2}", seconds * 1e3)
}

/// So many of something: `1 worker`, `2 workers`.
pub fn counted(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}
