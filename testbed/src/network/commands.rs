//! Running `ip` and `tc`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::NetworkError;

/// Runs a command of its words, with the open file as its standard input, and gives what it printed.
pub(super) fn run(words: &[&str], input: Option<&File>) -> Result<String, NetworkError> {
    let input = match input {
        Some(file) => file.try_clone().map_err(|error| failed(words, &error.to_string()))?.into(),
        None => Stdio::null(),
    };
    let child = command(words).stdin(input).spawn();
    let output = child.and_then(|child| child.wait_with_output());
    let output = output.map_err(|error| failed(words, &error.to_string()))?;
    if !output.status.success() {
        return Err(failed(words, &String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The interfaces that `ip -json`, run with these words, says are there.
pub(super) fn interfaces(words: &[&str]) -> Result<Vec<Value>, NetworkError> {
    let shown = run(words, None)?;
    serde_json::from_str(&shown).map_err(|error| failed(words, &error.to_string()))
}

/// Runs `ip` or `tc` inside a namespace with these lines as its commands. It stops at the first that fails.
pub(super) fn batch(program: &'static str, namespace: &str, lines: &[String]) -> Result<(), NetworkError> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::start(program, namespace, lines.to_vec())?;
    batch.send();
    batch.end()
}

/// `ip` or `tc` inside a namespace, which waits for its commands.
#[derive(Debug)]
pub(super) struct Batch {
    program: &'static str,
    namespace: String,
    lines: Vec<String>,
    child: Child,
}

impl Batch {
    pub(super) fn start(
        program: &'static str,
        namespace: &str,
        lines: Vec<String>,
    ) -> Result<Self, NetworkError> {
        let words = [program, "-n", namespace, "-batch", "-"];
        let child = command(&words).stdin(Stdio::piped()).spawn();
        let child = child.map_err(|error| failed(&words, &error.to_string()))?;
        Ok(Self { program, namespace: namespace.to_owned(), lines, child })
    }

    pub(super) fn send(&mut self) {
        let script = self.lines.join("\n") + "\n";
        // Where it stops early, its complaint says more than the broken pipe.
        let _ = self.child.stdin.take().map(|mut input| input.write_all(script.as_bytes()));
    }

    /// Waits until it has followed them.
    pub(super) fn end(mut self) -> Result<(), NetworkError> {
        let mut said = String::new();
        let complaint = self.child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_string(&mut said));
        let failed = |line: &str, said: &str| failed(&[self.program, "-n", &self.namespace, line], said);
        match complaint.and_then(|_| self.child.wait()) {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => {
                let number = said.rsplit(':').next().and_then(|end| end.trim().parse::<usize>().ok());
                let line = number.and_then(|number| self.lines.get(number.wrapping_sub(1)));
                Err(failed(line.map_or("-batch -", String::as_str), &said))
            }
            Err(error) => Err(failed("-batch -", &error.to_string())),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Nothing is left of one that was sent nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    // In a group of its own, so that a Ctrl-C does not end it half-way through a change.
    command.args(&words[1..]).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What is said of a command that failed, or that printed what cannot be read.
fn failed(words: &[&str], said: &str) -> NetworkError {
    NetworkError::Command(words.join(" "), said.trim().replace('\n', "; "))
}
