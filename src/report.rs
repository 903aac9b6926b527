//! What a command prints when it is done.

use std::io::{self, ErrorKind, Write};

/// Writes a report to the standard output. A reader that has seen enough, such as `head`, is no error.
pub fn print(report: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(report.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}
