//! One worker, seen from the launcher: its shell, its output, its lifeline.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use zeroize::Zeroizing;

use super::LaunchError;
use super::lines::{Lines, Piece};
use super::output::{Sheet, Style};
use super::plan::Seat;
use crate::failure::Failure;
use crate::report;

/// How long a shell may take to end a worker: it waits up to four seconds before it kills it, and two after that.
const ENDING: Duration = Duration::from_secs(8);

/// How long an agent that never reached its host may take to end.
const HANGING_UP: Duration = Duration::from_secs(1);

/// How long an ended worker's output is read on when a process that left the worker's session holds it open.
const QUIET: Duration = Duration::from_millis(500);

/// Whether workers go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// They do.
    Run,
    /// They end; what they printed is still shown.
    Stop,
    /// They end, and a slow reader of their output is not waited for.
    StopNow,
}

/// What a worker's task reports to the supervisor.
pub(super) enum News {
    /// The worker said something.
    Event(String, Value),
    /// The worker said who is to blame.
    Blamed(Failure),
    /// Whether one of its processes is stopped, and how much processor time all of them have used, in ticks.
    Looked { stopped: bool, time: u64 },
    /// The program ended, with this exit code and this last line on standard error.
    Exited { code: u8, said: String },
    /// Nothing is left to wait for.
    Gone(Gone),
}

/// How it ended.
pub(super) enum Gone {
    /// The program ended, as reported before.
    Ended,
    /// The job was stopped before the program started.
    Stopped,
    /// The program could not be started.
    Refused(LaunchError),
    /// The shell or the connection ended before the program did.
    Lost { code: u8, reason: String },
}

/// What the shell has reported so far.
#[derive(Clone, Default)]
struct Seen {
    started: bool,
    exited: bool,
    /// What it lacks to start the program.
    refused: Option<String>,
    /// The last line on standard error: the agent's, and once the program was started, the program's.
    said: String,
}

/// What one worker's task works with.
pub(super) struct Worker {
    pub seat: Seat,
    pub sheet: Sheet,
    /// Limits how many connections to one host are being made at the same time.
    pub connecting: Arc<Semaphore>,
    pub stage: watch::Receiver<Stage>,
    /// Changes when the launcher wants to know how the worker is.
    pub looks: watch::Receiver<()>,
    pub news: mpsc::Sender<(u32, News)>,
}

impl Worker {
    /// Starts the worker and stays with it to the end.
    pub async fn tend(self) {
        let (rank, news) = (self.seat.rank, self.news.clone());
        let gone = self.run().await;
        // The supervisor receives the news of every worker to the end; if it does not, the job is over anyway.
        let _ = news.send((rank, News::Gone(gone))).await;
    }

    async fn run(mut self) -> Gone {
        let connecting = self.connecting.clone();
        let mut permit = tokio::select! {
            permit = connecting.acquire() => permit.ok(),
            _ = self.stage.wait_for(|stage| *stage > Stage::Run) => return Gone::Stopped,
        };
        let mut child = match self.spawn() {
            Ok(child) => child,
            Err(error) => return Gone::Refused(error),
        };
        let script = std::mem::take(&mut self.seat.script);
        let lifeline = hold_lifeline(&mut child, script, self.looks.clone());
        let (tell_ended, ended) = watch::channel(false);
        let (tell_seen, mut seen) = watch::channel(Seen::default());
        let readers = self.read(&mut child, ended, tell_seen);

        let mut stopping = false;
        let mut deadline = None;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                Ok(()) = self.stage.changed(), if !stopping => {
                    stopping = true;
                    lifeline.abort();
                    let patience = if seen.borrow().started { ENDING } else { HANGING_UP };
                    deadline = Some(Instant::now() + patience);
                }
                Ok(()) = seen.changed() => {
                    permit = permit.filter(|_| !seen.borrow().started);
                    if seen.borrow().exited && deadline.is_none() {
                        deadline = Some(Instant::now() + ENDING);
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    // Only the agent or shell: what it leaves behind ends by its lifeline.
                    let _ = child.start_kill();
                    deadline = Some(Instant::now() + ENDING);
                }
            }
        };
        lifeline.abort();
        tell_ended.send_replace(true);
        self.finish_reading(readers).await;
        let seen = seen.borrow().clone();
        self.end(status.ok(), seen, stopping)
    }

    fn spawn(&mut self) -> Result<Child, LaunchError> {
        let command = &self.seat.command;
        let mut shell = Command::new(&command[0]);
        shell.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the launcher alone.
        shell.process_group(0);
        let child = match self.seat.listener.take() {
            Some(listener) => listener.hand_on(|| shell.spawn()),
            None => shell.spawn(),
        };
        child.map_err(|source| LaunchError::Agent { command: command.join(" "), source })
    }

    /// Reads both streams, each in a task of its own.
    fn read(
        &mut self,
        child: &mut Child,
        ended: watch::Receiver<bool>,
        seen: watch::Sender<Seen>,
    ) -> Vec<JoinHandle<()>> {
        let mut readers = Vec::new();
        let Sheet { out, err } = self.sheet.clone();
        if let Some(pipe) = child.stdout.take() {
            readers.push(tokio::spawn(show(pipe, out, ended.clone())));
        }
        if let Some(pipe) = child.stderr.take() {
            let listener = Listener { rank: self.seat.rank, style: err, news: self.news.clone(), seen };
            readers.push(tokio::spawn(listener.listen(pipe, ended)));
        }
        readers
    }

    async fn finish_reading(&mut self, readers: Vec<JoinHandle<()>>) {
        let aborts: Vec<_> = readers.iter().map(JoinHandle::abort_handle).collect();
        let all = async {
            for reader in readers {
                let _ = reader.await;
            }
        };
        let enough = async {
            if self.stage.wait_for(|stage| *stage == Stage::StopNow).await.is_ok() {
                sleep(2 * QUIET).await;
            }
        };
        tokio::select! {
            () = all => {}
            () = enough => aborts.iter().for_each(|reader| reader.abort()),
        }
    }

    fn end(self, status: Option<ExitStatus>, seen: Seen, stopping: bool) -> Gone {
        let Seat { host, command, .. } = self.seat;
        let command = command.join(" ");
        let ended = status.map_or_else(|| "ended".to_owned(), in_words);
        let said = if seen.said.is_empty() {
            "and said nothing".to_owned()
        } else {
            format!("and said: {}", seen.said)
        };
        if seen.exited {
            Gone::Ended
        } else if seen.refused.as_deref() == Some("directory") {
            Gone::Refused(LaunchError::Directory { host, directory: self.seat.directory })
        } else if seen.refused.is_some() {
            Gone::Refused(LaunchError::Sessions { host })
        } else if stopping && !seen.started {
            Gone::Stopped
        } else if !seen.started {
            Gone::Refused(LaunchError::Host { host, command, ended, said })
        } else {
            let code = status.map_or(255, code).max(1);
            Gone::Lost { code, reason: format!("lost on {host}: `{command}` {ended} {said}") }
        }
    }
}

/// Sends the script and forgets it, and keeps standard input open until the task is aborted. A line there asks how the worker
/// is.
fn hold_lifeline(
    child: &mut Child,
    script: [Zeroizing<Vec<u8>>; 2],
    mut looks: watch::Receiver<()>,
) -> JoinHandle<()> {
    let stdin = child.stdin.take();
    tokio::spawn(async move {
        if let Some(mut stdin) = stdin {
            // A shell that does not read its script has ended already, or ends without having started anything.
            for part in &script {
                let _ = stdin.write_all(part).await;
            }
            drop(script);
            while looks.changed().await.is_ok() {
                let _ = stdin.write_all(b"look\n").await;
            }
            std::future::pending::<()>().await;
        }
    })
}

/// The next bytes; none at the end, and none when the worker has ended and its output is quiet.
async fn next<'a>(
    pipe: &mut (impl AsyncRead + Unpin),
    buffer: &'a mut [u8],
    ended: &mut watch::Receiver<bool>,
) -> &'a [u8] {
    let quiet = async {
        // An error means that the worker's task is gone: the same as its end.
        let _ = ended.wait_for(|ended| *ended).await;
        sleep(QUIET).await;
    };
    let length = tokio::select! {
        biased;
        length = pipe.read(buffer) => length.unwrap_or(0),
        () = quiet => 0,
    };
    &buffer[..length]
}

/// Shows standard output.
async fn show(mut pipe: impl AsyncRead + Unpin, style: Style, mut ended: watch::Receiver<bool>) {
    let mut lines = Lines::new(false);
    let mut buffer = vec![0; 16 << 10];
    loop {
        let bytes = next(&mut pipe, &mut buffer, &mut ended).await;
        let mut pieces = Vec::new();
        if bytes.is_empty() {
            lines.finish(|piece| pieces.push(piece));
        } else if style.raw {
            style.bytes(bytes).await;
        } else {
            lines.push(bytes, |piece| pieces.push(piece));
        }
        for piece in pieces {
            if let Piece::Text(line) = piece {
                style.line(&line).await;
            }
        }
        if bytes.is_empty() {
            return;
        }
    }
}

/// Shows standard error, and reads the events in it.
struct Listener {
    rank: u32,
    style: Style,
    news: mpsc::Sender<(u32, News)>,
    seen: watch::Sender<Seen>,
}

impl Listener {
    async fn listen(self, mut pipe: impl AsyncRead + Unpin, mut ended: watch::Receiver<bool>) {
        let mut lines = Lines::new(true);
        let mut buffer = vec![0; 16 << 10];
        loop {
            let bytes = next(&mut pipe, &mut buffer, &mut ended).await;
            let mut pieces = Vec::new();
            if bytes.is_empty() {
                lines.finish(|piece| pieces.push(piece));
            } else {
                lines.push(bytes, |piece| pieces.push(piece));
            }
            for piece in pieces {
                match piece {
                    Piece::Text(line) => self.text(&line).await,
                    Piece::Event(kind, body) => self.event(kind, body).await,
                }
            }
            if bytes.is_empty() {
                return;
            }
        }
    }

    async fn text(&self, line: &[u8]) {
        let text: String = String::from_utf8_lossy(line).trim().chars().take(300).collect();
        // Rules and brackets explain nothing.
        if text.contains(char::is_alphanumeric) {
            self.seen.send_if_modified(|seen| {
                seen.said = text;
                false
            });
        }
        self.style.line(line).await;
    }

    async fn event(&self, kind: String, body: Value) {
        let news = match kind.as_str() {
            "launcher.started" => {
                return self.seen.send_modify(|seen| {
                    seen.started = true;
                    seen.said.clear();
                });
            }
            "launcher.refused" => {
                return self.seen.send_modify(|seen| seen.refused = body.as_str().map(str::to_owned));
            }
            "launcher.looked" => match serde_json::from_value(body) {
                Ok((stopped, time)) => News::Looked { stopped, time },
                Err(_) => return,
            },
            "launcher.exited" => {
                self.seen.send_modify(|seen| seen.exited = true);
                let code = body.as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
                News::Exited { code, said: self.seen.borrow().said.clone() }
            }
            report::FAILED => match serde_json::from_value(body) {
                Ok(failed) => News::Blamed(failed),
                Err(_) => return,
            },
            _ => News::Event(kind, body),
        };
        // Without a supervisor it goes nowhere.
        let _ = self.news.send((self.rank, news)).await;
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The exit code as a shell reports it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
