//! Running `ip` and `tc`.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

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

/// Runs `ip` or `tc` inside a namespace with these lines as its commands. It stops at the first that fails.
pub(super) fn batch(program: &str, namespace: &str, lines: &[String]) -> Result<(), NetworkError> {
    if lines.is_empty() {
        return Ok(());
    }
    let words = [program, "-n", namespace, "-batch", "-"];
    let io = |error: std::io::Error| failed(&words, &error.to_string());
    let mut child = command(&words).stdin(Stdio::piped()).spawn().map_err(io)?;
    let mut input = child.stdin.take().ok_or_else(|| failed(&words, "it has no standard input"))?;
    let script = lines.join("\n") + "\n";
    // Where it stops early, its complaint says more than the broken pipe.
    let _ = input.write_all(script.as_bytes());
    drop(input);
    let output = child.wait_with_output().map_err(io)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let number = said.rsplit(':').next().and_then(|end| end.trim().parse::<usize>().ok());
    let line = number.and_then(|number| lines.get(number.wrapping_sub(1)));
    Err(failed(&[program, "-n", namespace, line.map_or("-batch -", String::as_str)], &said))
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    // In a group of its own, so that a Ctrl-C does not end it half-way through a change.
    command.args(&words[1..]).process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn failed(words: &[&str], said: &str) -> NetworkError {
    NetworkError::Command { command: words.join(" "), said: said.trim().replace('\n', "; ") }
}
