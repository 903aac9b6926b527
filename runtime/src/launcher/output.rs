//! Shows what the workers print: whole lines, each behind its rank.
//!
//! Two threads write, one to each stream, so that a reader who is slow (a pager, a full disk) holds back the workers
//! but never the launcher: it still handles Ctrl-C. What workers say on standard error holds them back for a second at most,
//! and is then dropped, since events and the last line of a job are written there. When a stream is closed, what would go there
//! is dropped: a training job does not end because its log does.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::worker::News;
use super::{Output, STANDARD_ERROR, STANDARD_OUTPUT};
use crate::report;

/// How many chunks may wait for a slow reader before the workers do.
const WAITING: usize = 256;

/// How long to wait for room before looking again.
const PAUSE: Duration = Duration::from_millis(10);

/// Writes to the launcher's own standard output and standard error.
pub(super) struct Screen {
    out: mpsc::Sender<Vec<u8>>,
    out_finished: oneshot::Receiver<()>,
    /// Whether prefixes have colours, on standard output and on standard error.
    colours: [bool; 2],
}

/// One worker's share of the screen.
#[derive(Clone)]
pub(super) struct Sheet {
    /// Its standard output.
    pub out: Style,
    /// Its standard error.
    pub err: Style,
}

/// How one stream of one worker is shown.
#[derive(Clone)]
pub(super) struct Style {
    to: To,
    /// Bytes are passed on as they come, without waiting for the end of a line.
    pub raw: bool,
}

/// Where a line goes.
#[derive(Clone)]
enum To {
    Nowhere,
    /// To the thread that writes standard output, behind a prefix.
    Out(mpsc::Sender<Vec<u8>>, Vec<u8>),
    /// To the thread that writes standard error, behind a prefix.
    Err(Vec<u8>),
    /// To the supervisor, as an event of that kind.
    Supervisor(mpsc::Sender<(u32, News)>, u32, &'static str),
}

impl Screen {
    /// Starts the thread that writes standard output.
    pub fn new() -> io::Result<Screen> {
        let (out, waiting) = mpsc::channel(WAITING);
        let (finish, out_finished) = oneshot::channel();
        std::thread::Builder::new().name("launch-out".to_owned()).spawn(move || {
            write(io::stdout(), waiting);
            let _ = finish.send(());
        })?;
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colours = [io::stdout().is_terminal(), io::stderr().is_terminal()].map(|is| is && !plain);
        Ok(Screen { out, out_finished, colours })
    }

    /// The share of one of `world` workers.
    pub fn sheet(&self, output: Output, rank: u32, world: u32, news: &mpsc::Sender<(u32, News)>) -> Sheet {
        let out = |prefix| To::Out(self.out.clone(), prefix);
        let [out_prefix, err_prefix] = self.colours.map(|colour| prefix(rank, world, colour));
        let events = |kind| To::Supervisor(news.clone(), rank, kind);
        let lines = |to| Style { to, raw: false };
        match (output, rank) {
            (Output::Prefixed, _) => Sheet { out: lines(out(out_prefix)), err: lines(To::Err(err_prefix)) },
            (Output::RankZero, 0) => {
                Sheet { out: Style { to: out(Vec::new()), raw: true }, err: lines(To::Err(Vec::new())) }
            }
            (Output::RankZero, _) => Sheet { out: lines(To::Nowhere), err: lines(To::Err(err_prefix)) },
            (Output::Events, _) => {
                Sheet { out: lines(events(STANDARD_OUTPUT)), err: lines(events(STANDARD_ERROR)) }
            }
        }
    }

    /// Waits until everything is written; on standard error, for as long as it is read.
    pub async fn finish(self) {
        let Screen { out, out_finished, .. } = self;
        drop(out);
        // An error means that the thread is gone, which is as finished as it gets.
        let _ = out_finished.await;
        while !report::is_done() {
            sleep(PAUSE).await;
        }
    }
}

impl Style {
    /// Shows a line, given without its end.
    pub async fn line(&self, line: &[u8]) {
        match &self.to {
            To::Nowhere => {}
            // The writing thread outlives every queue; if it was lost all the same, there is nowhere to write.
            To::Out(queue, prefix) => drop(queue.send([prefix, line, b"\n"].concat()).await),
            To::Err(prefix) => {
                let mut line = [prefix, line, b"\n"].concat();
                while let Err(refused) = report::offer(line) {
                    sleep(PAUSE).await;
                    line = refused;
                }
            }
            To::Supervisor(news, rank, kind) => {
                let text = String::from_utf8_lossy(line).into_owned();
                drop(news.send((*rank, News::Event((*kind).to_owned(), text.into()))).await);
            }
        }
    }

    /// Shows bytes of standard output as they are.
    pub async fn bytes(&self, bytes: &[u8]) {
        if let To::Out(queue, _) = &self.to {
            drop(queue.send(bytes.to_vec()).await);
        }
    }
}

/// Writes what comes, until all are gone who could send more.
fn write(mut stream: impl Write, mut waiting: mpsc::Receiver<Vec<u8>>) {
    let mut open = true;
    while let Some(bytes) = waiting.blocking_recv() {
        open = open && stream.write_all(&bytes).and_then(|()| stream.flush()).is_ok();
    }
}

/// `[2] `, as wide for every rank, in one of six colours.
fn prefix(rank: u32, world: u32, colour: bool) -> Vec<u8> {
    let width = world.saturating_sub(1).to_string().len();
    let label = format!("[{rank:>width$}]");
    if colour { format!("\x1b[3{}m{label}\x1b[0m ", rank % 6 + 1) } else { format!("{label} ") }.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::prefix;

    #[test]
    fn prefixes_are_as_wide_as_the_highest_rank() {
        assert_eq!(prefix(2, 10, false), b"[2] ");
        assert_eq!(prefix(2, 11, false), b"[ 2] ");
        assert_eq!(prefix(7, 8, true), b"\x1b[32m[7]\x1b[0m ");
    }
}
