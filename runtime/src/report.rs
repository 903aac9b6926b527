//! What a worker tells the launcher that started it: lines on standard error that begin with a record separator.
//!
//! A line is `\x1egleaner {"kind":KIND,"body":BODY}\n`. The launcher takes such lines out of the worker's standard
//! error and never shows them. Without a launcher nothing is written, so that nobody sees them by accident.

use std::io::Write;

use serde::{Deserialize, Serialize};

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

/// The body of a [`failed`] event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub culprit: u32,
    pub step: Option<u64>,
    pub reason: String,
}

/// Tells the launcher something. Returns whether it was written, that is, whether a launcher listens;
/// otherwise the caller may print what it has to say. Kinds that begin with `launcher.` are the launcher's own.
pub fn event(kind: &str, body: &impl Serialize) -> bool {
    if std::env::var_os(LAUNCHER).is_none() {
        return false;
    }
    // One write, under the lock: neither another thread nor a short line of a child gets in between.
    line(kind, body).is_some_and(|line| std::io::stderr().lock().write_all(&line).is_ok())
}

/// Tells the launcher that the job cannot go on: which rank is to blame, in which step, and why.
/// Every worker that notices reports it; the launcher's last line names the rank that most of them blame.
pub fn failed(culprit_rank: u32, step: Option<u64>, reason: &str) -> bool {
    event(FAILED, &Failed { culprit: culprit_rank, step, reason: reason.to_owned() })
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
    use super::*;

    #[test]
    fn a_line_is_one_line_and_reads_back() {
        let reason = "two\nlines and a \x1e mark";
        let line = line(FAILED, &Failed { culprit: 3, step: Some(17), reason: reason.to_owned() }).unwrap();
        assert!(line.starts_with(MARK) && line.ends_with(b"\n"));
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n' || byte == 0x1e).count(), 2);
        let (kind, body) = parse(&line[MARK.len()..]).unwrap();
        assert_eq!(kind, "failed");
        let failed: Failed = serde_json::from_value(body).unwrap();
        assert_eq!((failed.culprit, failed.step, failed.reason.as_str()), (3, Some(17), reason));
    }

    #[test]
    fn what_is_no_event_is_not_parsed() {
        assert_eq!(parse(b"{\"kind\":\"a\"}"), None);
        assert_eq!(parse(b"hello"), None);
    }
}
