//! Running a command as several workers of this machine: the command starts itself once for each of them.

use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use gleaner_runtime::launcher::{self, Event, Job, LaunchError, Outcome, Output};
use gleaner_runtime::report::{self, say};
use gleaner_runtime::{Config, Error, OnFailure, Roles, Session, TIMEOUTS};
use gleaner_units as units;
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Steps that are done, as the worker of rank 0 reports them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Progress {
    pub done: u64,
    pub of: u64,
    /// What else there is to say, for the end of the bar.
    pub note: String,
}

/// What each rank has to say, in their order. A worker without which the others go on says nothing.
///
/// # Errors
/// The job has failed.
pub fn gather<T: Serialize + DeserializeOwned>(session: &Session, own: &T) -> Result<Vec<T>, Error> {
    let note = serde_json::to_vec(own).unwrap_or_default();
    Ok(session.all_gather(&note)?.iter().filter_map(|note| serde_json::from_slice(note).ok()).collect())
}

/// The kind of event that carries [`Progress`].
const PROGRESS: &str = "progress";

/// A bar on standard error, if that is a terminal. What is said at its end is cut where the line ends.
pub fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:16} {pos}/{len} {elapsed} {wide_msg}");
    let bar = ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    if !bar.is_hidden() {
        report::share_with_bar();
    }
    bar
}

/// Where rank 0 shows how far it is: at the launcher that started it, or by itself: in a bar, which is cleared once this is dropped, or where
/// standard error is no terminal, in a line every few seconds.
pub struct Display {
    bar: ProgressBar,
    /// When the last line was said.
    line: Mutex<Instant>,
}

impl Display {
    pub fn new() -> Self {
        Self { bar: bar(0), line: Mutex::new(Instant::now()) }
    }

    pub fn show(&self, progress: &Progress) {
        if !report::event(PROGRESS, progress) {
            self.draw(progress);
        }
    }

    fn draw(&self, Progress { done, of, note }: &Progress) {
        if self.bar.is_hidden() {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            if line.elapsed() >= BETWEEN_LINES {
                *line = Instant::now();
                let colon = if note.is_empty() { "" } else { ": " };
                say(format_args!("step {done} of {of}{colon}{note}"));
            }
            return;
        }
        self.bar.set_length(*of);
        self.bar.set_position(*done);
        self.bar.set_message(note.clone());
        if done >= of {
            // What follows on standard output shall not share a line with it.
            self.bar.finish_and_clear();
        }
    }
}

/// How long work goes on before it is shown that something does.
const PATIENCE: Duration = Duration::from_secs(1);

/// Does work that does not report how far it is, and shows what it is once it takes longer than a second; where standard error is no terminal,
/// than [`BETWEEN_LINES`].
pub fn meanwhile<R>(shown: &Progress, work: impl FnOnce() -> R) -> R {
    let display = Display::new();
    let patience = if display.bar.is_hidden() { BETWEEN_LINES } else { PATIENCE };
    after(patience, || display.show(shown), work)
}

/// Does the work, and calls `show` from another thread if it takes longer than that.
fn after<R>(patience: Duration, show: impl FnOnce() + Send, work: impl FnOnce() -> R) -> R {
    thread::scope(|scope| {
        let (done, waits) = mpsc::channel::<()>();
        scope.spawn(move || {
            if waits.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                show();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// How often a line says how far a job is, where standard error is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Runs a job and shows how far it is, as its workers report it.
pub fn follow(job: Job) -> Result<Outcome, LaunchError> {
    let display = Display::new();
    let outcome = launcher::run(job, |Event { kind, body, .. }| {
        let progress: Option<Progress> =
            (kind == PROGRESS).then(|| serde_json::from_value(body).ok()).flatten();
        progress.iter().for_each(|progress| display.draw(progress));
    });
    display.bar.finish_and_clear();
    outcome
}

/// Reads the option `--timeout`: a time that a job may have as its timeout.
pub fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = units::duration(text).map_err(|error| error.to_string())?;
    let (least, most) = (TIMEOUTS.start(), TIMEOUTS.end());
    let is_possible = TIMEOUTS.contains(&timeout).then_some(timeout);
    is_possible.ok_or_else(|| format!("'{text}' is no timeout; expected a time from {least:?} to {most:?}"))
}

/// The variable of a worker that sets its timeout.
pub fn timeout_variable(timeout: Duration) -> (String, String) {
    ("GLEANER_TIMEOUT".into(), format!("{}ms", timeout.as_millis()))
}

/// How many servers a job has beside its workers, and what a failed worker means for it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Servers {
    /// How many parameter servers to start besides the workers, as processes of their own, which have the last ranks [default: 0]
    #[arg(long, value_name = "S", value_parser = units::within::<u32>(0..=1024))]
    pub servers: Option<u32>,

    /// Let the servers live in the processes of the first workers instead of their own
    #[arg(long, requires = "servers")]
    pub colocate: bool,

    /// What a failed worker means for the job: `stop` ends it, `continue` lets the others go on as far as parameter servers have
    /// all that they need. Without rank 0 or a server the job ends
    #[arg(long, value_name = "WHAT", env = "GLEANER_ON_FAILURE", default_value = "stop", value_parser = failing())]
    pub on_failure: OnFailure,
}

impl Servers {
    /// The same for a session.
    pub fn roles(&self) -> Roles {
        Roles { servers: self.servers.unwrap_or(0), colocated: self.colocate, on_failure: self.on_failure }
    }

    /// How many processes there are for so many workers.
    pub fn processes(&self, workers: u32) -> u32 {
        workers + if self.colocate { 0 } else { self.servers.unwrap_or(0) }
    }
}

fn failing() -> impl TypedValueParser<Value = OnFailure> {
    let words = PossibleValuesParser::new(["stop", "continue"]);
    words.map(|word| if word == "stop" { OnFailure::Stop } else { OnFailure::Continue })
}

/// Starts this very command line as so many processes, of which some may be parameter servers, unless this process is one of them already;
/// gives the exit code once they have ended.
pub fn assemble(
    processes: u32,
    roles: Roles,
    name: &str,
    timeout: Option<Duration>,
) -> Result<Option<ExitCode>, LaunchError> {
    if Config::is_worker() {
        return Ok(None);
    }
    let program = std::env::current_exe().map(Into::into).unwrap_or_else(|_| "gleaner".into());
    let mut job = Job::local(processes, std::iter::once(program).chain(std::env::args_os().skip(1)));
    job.output = Output::RankZero;
    job.roles = roles;
    job.env.extend(timeout.map(timeout_variable));
    let outcome = follow(job)?;
    if let Some(failure) = outcome.failure {
        say(format_args!("gleaner {name}: {failure}"));
    }
    Ok(Some(outcome.exit_code.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn only_long_work_is_shown() {
        let shown = AtomicBool::new(false);
        let show = || shown.store(true, Relaxed);
        assert_eq!(after(Duration::from_secs(600), show, || 5), 5);
        assert!(!shown.load(Relaxed));
        // Shown while the work goes on, and not after it.
        let wait = || {
            while !shown.load(Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        };
        after(Duration::from_millis(5), show, wait);
    }
}
