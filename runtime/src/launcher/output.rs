//! Shows what the workers print: whole lines, each behind its rank.
//!
//! Two threads write, one to each stream, so that a reader who is slow (a pager, a full disk) holds back the workers
//! but never the launcher: it still hears Ctrl-C. When a stream is closed, what would go there is dropped: a training
//! job does not end because its log does.

use std::io::{self, IsTerminal, Write};

use tokio::sync::{mpsc, oneshot};

use super::worker::News;
use super::{Output, STANDARD_ERROR, STANDARD_OUTPUT};

/// How many chunks may wait for a slow reader before the workers do.
const WAITING: usize = 256;

/// Writes to the launcher's own standard output and standard error.
pub(super) struct Screen {
    out: Pen,
    err: Pen,
    finished: [oneshot::Receiver<()>; 2],
}

struct Pen {
    queue: mpsc::Sender<Vec<u8>>,
    colour: bool,
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
    /// To a thread that writes, behind a prefix.
    Stream(mpsc::Sender<Vec<u8>>, Vec<u8>),
    /// To the supervisor, as an event of that kind.
    Supervisor(mpsc::Sender<(u32, News)>, u32, &'static str),
}

impl Screen {
    /// Starts the two threads.
    pub fn new() -> io::Result<Screen> {
        let (out, out_finished) = pen("out", io::stdout().is_terminal(), || Box::new(io::stdout()))?;
        let (err, err_finished) = pen("err", io::stderr().is_terminal(), || Box::new(io::stderr()))?;
        Ok(Screen { out, err, finished: [out_finished, err_finished] })
    }

    /// The share of one of `world` workers.
    pub fn sheet(&self, output: Output, rank: u32, world: u32, news: &mpsc::Sender<(u32, News)>) -> Sheet {
        let behind = |pen: &Pen| To::Stream(pen.queue.clone(), prefix(rank, world, pen.colour));
        let plain = |pen: &Pen| To::Stream(pen.queue.clone(), Vec::new());
        let told = |kind| To::Supervisor(news.clone(), rank, kind);
        let lines = |to| Style { to, raw: false };
        match (output, rank) {
            (Output::Prefixed, _) => Sheet { out: lines(behind(&self.out)), err: lines(behind(&self.err)) },
            (Output::RankZero, 0) => {
                Sheet { out: Style { to: plain(&self.out), raw: true }, err: lines(plain(&self.err)) }
            }
            (Output::RankZero, _) => Sheet { out: lines(To::Nowhere), err: lines(behind(&self.err)) },
            (Output::Told, _) => {
                Sheet { out: lines(told(STANDARD_OUTPUT)), err: lines(told(STANDARD_ERROR)) }
            }
        }
    }

    /// Waits until everything is written.
    pub async fn finish(self) {
        let Screen { out, err, finished } = self;
        drop((out, err));
        for stream in finished {
            // An error means that the thread is gone, which is as finished as it gets.
            let _ = stream.await;
        }
    }
}

impl Style {
    /// Shows a line, given without its end.
    pub async fn line(&self, line: &[u8]) {
        match &self.to {
            To::Nowhere => {}
            // A writing thread outlives every queue; if it was lost all the same, there is nowhere to write.
            To::Stream(queue, prefix) => drop(queue.send([prefix, line, b"\n"].concat()).await),
            To::Supervisor(news, rank, kind) => {
                let text = String::from_utf8_lossy(line).into_owned();
                drop(news.send((*rank, News::Told((*kind).to_owned(), text.into()))).await);
            }
        }
    }

    /// Shows bytes as they are.
    pub async fn bytes(&self, bytes: &[u8]) {
        if let To::Stream(queue, _) = &self.to {
            drop(queue.send(bytes.to_vec()).await);
        }
    }
}

fn pen(
    name: &str,
    terminal: bool,
    stream: impl FnOnce() -> Box<dyn Write> + Send + 'static,
) -> io::Result<(Pen, oneshot::Receiver<()>)> {
    let (queue, mut waiting) = mpsc::channel::<Vec<u8>>(WAITING);
    let (finish, finished) = oneshot::channel();
    std::thread::Builder::new().name(format!("launch-{name}")).spawn(move || {
        let mut stream = stream();
        let mut open = true;
        while let Some(bytes) = waiting.blocking_recv() {
            open = open && stream.write_all(&bytes).and_then(|()| stream.flush()).is_ok();
        }
        let _ = finish.send(());
    })?;
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    Ok((Pen { queue, colour: terminal && !plain }, finished))
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
