//! What is said on standard error: sentences for people, and events for the launcher that started this worker.
//!
//! One thread writes. A caller that has something to say hands over a line, and waits a moment for it to be written; a standard
//! error that is not read, or that cannot be written to, delays nothing and is no reason to fail.
//!
//! An event is a line that begins with a record separator, `\x1egleaner {"kind":KIND,"body":BODY}\n`. The launcher takes such
//! lines out of the worker's standard error and never shows them. Without a launcher nothing is written, so that no user sees
//! them by accident.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io, panic, thread};

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

mod writer;

use writer::Writer;

/// Set in the environment of every worker that a launcher started, and therefore listens to.
pub const LAUNCHER: &str = "GLEANER_LAUNCHER";

/// What every event line begins with. JSON escapes control characters, so that no body contains it.
pub(crate) const MARK: &[u8] = b"\x1egleaner ";

/// The kind of event that [`failed`] writes.
pub(crate) const FAILED: &str = "failed";

#[derive(Serialize)]
struct Line<'a, Body> {
    kind: &'a str,
    body: &'a Body,
}

/// The one that writes to this process's standard error.
static STDERR: Writer = Writer::new();

/// Whether a bar may stand on the terminal's last line, in whose place lines are written.
static HAS_BAR: AtomicBool = AtomicBool::new(false);

/// From now on a progress bar may stand where the cursor is: lines clear it before they are written.
pub fn share_with_bar() {
    HAS_BAR.store(true, Ordering::Relaxed);
}

/// Reports something to the launcher. Returns whether there is one that listens; otherwise the caller may print what it has to
/// say. Kinds that begin with `launcher.` are the launcher's own.
pub fn event(kind: &str, body: &impl Serialize) -> bool {
    if std::env::var_os(LAUNCHER).is_none() {
        return false;
    }
    let line = line(kind, body);
    let is_said = line.is_some();
    line.into_iter().for_each(hand);
    is_said
}

/// Says a sentence on standard error: at once, or behind the caller's back where that takes longer than a tenth of a second, or
/// not at all. Neither blocks nor panics. What is lost is counted, and the count is said when standard error takes something again.
pub fn say(sentence: impl fmt::Display) {
    hand(format!("{sentence}\n").into_bytes());
}

/// Lets panics be said as [`say`] does, in place of the hook that is set: the standard one waits for as long as standard error is not read.
pub fn say_panics() {
    panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => say(format_args!("thread '{name}' {panic}\n{backtrace}")),
            _ => say(format_args!("thread '{name}' {panic}")),
        }
    }));
}

/// Waits until all is said that was to be said, or nothing reads it: a second at most. For the end of a program.
pub fn finish() {
    STDERR.finish();
}

fn hand(line: Vec<u8>) {
    STDERR.start(io::stderr);
    STDERR.hand(behind_bar(line));
}

/// A line that clears what stands on the terminal's last line first.
fn behind_bar(line: Vec<u8>) -> Vec<u8> {
    const CLEAR: &[u8] = b"\r\x1b[2K";
    if HAS_BAR.load(Ordering::Relaxed) && !line.starts_with(CLEAR) { [CLEAR, &line].concat() } else { line }
}

/// Hands a line over without waiting. It comes back when there is no room for it; once nothing was written for a second, it
/// is lost instead.
pub(crate) fn offer(line: Vec<u8>) -> Result<(), Vec<u8>> {
    STDERR.start(io::stderr);
    STDERR.offer(behind_bar(line))
}

/// Whether all is written, or nothing was read for a second.
pub(crate) fn is_done() -> bool {
    STDERR.is_done()
}

/// Reports to the launcher that the job cannot go on: which rank is to blame, in which step, and why.
/// Every worker that notices reports it; the launcher's last line names the rank that most of them blame.
pub fn failed(failure: &Failure) -> bool {
    event(FAILED, failure)
}

/// An event as bytes; none when the body is not representable as JSON.
fn line(kind: &str, body: &impl Serialize) -> Option<Vec<u8>> {
    let mut line = MARK.to_vec();
    serde_json::to_writer(&mut line, &Line { kind, body }).ok()?;
    line.push(b'\n');
    Some(line)
}

/// The kind and the body of an event line without its mark; none if it is not one.
pub(crate) fn parse(text: &[u8]) -> Option<(String, serde_json::Value)> {
    #[derive(Deserialize)]
    struct Parsed {
        kind: String,
        body: serde_json::Value,
    }
    serde_json::from_slice(text).ok().map(|Parsed { kind, body }| (kind, body))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_line_is_one_line_and_reads_back() {
        let reason = "two\nlines and a \x1e mark";
        let failure = Failure { rank: 3, step: Some(17), reason: reason.to_owned() };
        let line = line(FAILED, &failure).unwrap();
        assert!(line.starts_with(MARK) && line.ends_with(b"\n"));
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n' || byte == 0x1e).count(), 2);
        let (kind, body) = parse(&line[MARK.len()..]).unwrap();
        assert_eq!(kind, "failed");
        assert_eq!(serde_json::from_value::<Failure>(body).unwrap(), failure);
    }

    #[test]
    fn what_is_no_event_is_not_parsed() {
        assert_eq!(parse(b"{\"kind\":\"a\"}"), None);
        assert_eq!(parse(b"hello"), None);
    }

    const PANICS: &str = "REPORT_TEST_PANICS";

    /// Not a test of its own: as a process of its own, it panics.
    #[test]
    #[ignore = "run by another test, as a process of its own"]
    fn panicking_process() {
        if std::env::var_os(PANICS).is_some() {
            say_panics();
            panic!("on purpose");
        }
    }

    #[test]
    fn a_panic_is_said_and_not_held_up_by_a_pipe_that_is_not_read() {
        let panicking = |err: io::PipeWriter| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "report::tests::panicking_process", "--ignored", "--nocapture"]);
            command.env(PANICS, "1").env("RUST_BACKTRACE", "0").stdout(Stdio::null()).stderr(err);
            command.spawn().unwrap()
        };
        let (mut read, write) = io::pipe().unwrap();
        assert!(!panicking(write).wait().unwrap().success());
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert!(said.contains("thread 'report::tests::panicking_process' panicked at "), "{said}");
        assert!(said.contains("on purpose\n"), "{said}");

        let (_unread, mut write) = io::pipe().unwrap();
        write.write_all(&[b'x'; 1 << 16]).unwrap();
        let (mut child, start) = (panicking(write), Instant::now());
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
                panic!("it is held up");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
