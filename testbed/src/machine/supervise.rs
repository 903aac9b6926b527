//! What goes on while the machine runs: its output is passed on, its console remembered, and signals are handled.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use gleaner_runtime::report::say;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::boot::PORTS;
use super::{Ended, MachineError};
use crate::experiment::signals;

/// How long the machine may take to start, in all its starts: many times what it takes on two busy cores.
const START: Duration = Duration::from_secs(300);
/// How long a machine that starts may print nothing: many times the longest pause on two busy cores.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// How often it is started, since emulated processors have been seen to hang.
const STARTS: u32 = 3;
/// How many of the last lines of the console are shown when something went wrong.
const SHOWN: usize = 15;
/// How many are remembered, since a panic says why before it says where.
const REMEMBERED: usize = 200;

/// Starts qemu, and ends it when the command has ended or something else happens. A machine that prints nothing for `silence` before the
/// command runs hangs, and is started again.
///
/// `place` is where the sockets are to be; it is removed as soon as the machine has started. `end` are the bytes that end
/// each output.
pub(super) async fn supervise(
    mut qemu: Command,
    limit: Option<Duration>,
    verbose: bool,
    silence: Duration,
    place: TempDir,
    end: &str,
    progress: &dyn Fn(Option<&str>),
) -> Result<Ended, MachineError> {
    let bind = |port| {
        let path = place.path().join(port);
        UnixListener::bind(&path).map_err(|e| MachineError::file(&path, e))
    };
    let [out, err, status] = PORTS.map(bind);
    let ports = [out?, err?, status?];
    let mut next_signal = signals().map_err(MachineError::talk)?;
    let mut interrupted = pin!(next_signal());
    let mut place = Some(place);
    let called = Instant::now();
    let mut starts = 0;
    loop {
        starts += 1;
        let mut child = qemu.spawn().map_err(|error| MachineError::program("qemu-system-x86_64", error))?;
        let console = Console::new(verbose);
        let conversation = async {
            let (out, err, status) = console.start(&ports, silence, called + START).await?;
            drop(place.take());
            progress(None);
            let ready = Instant::now();
            let exit_code = converse(out, err, status, limit, end).await?;
            Ok(Ended { exit_code, started_in: ready - called, ran_for: ready.elapsed() })
        };
        let ended = tokio::select! {
            ended = conversation => ended,
            exit_code = &mut interrupted => Err(MachineError::Interrupted(exit_code)),
            () = console.listen(&mut child) => Err(MachineError::Other(format!(
                "the machine ended before the command did; try other --memory and --cpus, or --verbose. The last lines of its console:\n{}",
                console.tail()
            ))),
        };
        // An error here means that it has ended already.
        let _ = child.kill().await;
        match ended {
            Err(MachineError::Stuck { console: tail, .. }) if starts < STARTS && called.elapsed() < START => {
                say(format_args!(
                    "gleaner testbed vm: the machine printed nothing for {silence:?} as it started, and is started again. The last lines of its console:\n{tail}"
                ))
            }
            ended => return ended,
        }
    }
}

/// Passes on the output until the command has ended, and gives its exit code.
async fn converse(
    out: UnixStream,
    err: UnixStream,
    mut status: BufReader<UnixStream>,
    limit: Option<Duration>,
    end: &str,
) -> Result<u8, MachineError> {
    let all = async {
        let code = async { next_line(&mut status).await.map_err(MachineError::talk) };
        let (out, err) = (pass(out, tokio::io::stdout(), end), pass(err, tokio::io::stderr(), end));
        tokio::try_join!(code, out, err)
    };
    let (code, ..) = match limit {
        Some(limit) => timeout(limit, all).await.map_err(|_| MachineError::TimedOut(limit))??,
        None => all.await?,
    };
    let unclear = || MachineError::talk(io::Error::other(format!("expected an exit code, found '{code}'")));
    code.parse().map_err(|_| unclear())
}

/// The next line of the status. A machine that is gone says nothing more; then its death is noticed elsewhere.
async fn next_line(status: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    match status.read_line(&mut line).await? {
        0 => pending().await,
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Passes on what comes, at once, up to the bytes that end it.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    end: &str,
) -> Result<(), MachineError> {
    let end = end.as_bytes();
    let mut held = Vec::new();
    loop {
        if from.read_buf(&mut held).await.map_err(MachineError::talk)? == 0 {
            return pending().await;
        }
        let kept = overlap(&held, end);
        let passed = held.len() - kept;
        to.write_all(&held[..passed]).await.map_err(MachineError::Output)?;
        to.flush().await.map_err(MachineError::Output)?;
        held.drain(..passed);
        if kept == end.len() {
            return Ok(());
        }
    }
}

/// How many of the last bytes may be the beginning of `end`.
fn overlap(bytes: &[u8], end: &[u8]) -> usize {
    (0..=end.len().min(bytes.len())).rev().find(|&length| bytes.ends_with(&end[..length])).unwrap_or(0)
}

/// What the kernel and qemu say.
struct Console {
    /// The kernel's lines, and qemu's own: which of two streams is read first says nothing.
    lines: RefCell<VecDeque<String>>,
    errors: RefCell<VecDeque<String>>,
    /// When the last line came.
    heard: Cell<Instant>,
    verbose: bool,
}

impl Console {
    fn new(verbose: bool) -> Self {
        Self {
            lines: RefCell::default(),
            errors: RefCell::default(),
            heard: Cell::new(Instant::now()),
            verbose,
        }
    }

    /// Waits until the command runs, and gives its output, its errors and its status. It waits no longer than until `end`: what hangs may go on
    /// printing that it does.
    async fn start(
        &self,
        ports: &[UnixListener; 3],
        silence: Duration,
        end: Instant,
    ) -> Result<(UnixStream, UnixStream, BufReader<UnixStream>), MachineError> {
        let begun = Instant::now();
        let start = async {
            let [out, err, status] = ports;
            let (out, err, status) = tokio::try_join!(out.accept(), err.accept(), status.accept())?;
            let mut status = BufReader::new(status.0);
            next_line(&mut status).await?;
            Ok((out.0, err.0, status))
        };
        let silent = async {
            loop {
                let rest = end.min(self.heard.get() + silence).saturating_duration_since(Instant::now());
                if rest.is_zero() {
                    return;
                }
                sleep(rest).await;
            }
        };
        tokio::select! {
            started = start => started.map_err(MachineError::talk),
            () = silent => Err(MachineError::Stuck { after: begun.elapsed(), console: self.tail() }),
        }
    }

    /// Reads until qemu has ended.
    async fn listen(&self, qemu: &mut Child) {
        let (out, err) = (qemu.stdout.take(), qemu.stderr.take());
        tokio::join!(self.read(out, &self.lines), self.read(err, &self.errors));
        // Without a status nothing more is known than that it ended.
        let _ = qemu.wait().await;
    }

    async fn read(&self, from: Option<impl AsyncRead + Unpin>, into: &RefCell<VecDeque<String>>) {
        let Some(from) = from else { return };
        let mut lines = BufReader::new(from).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if self.verbose {
                say(&line);
            }
            self.heard.set(Instant::now());
            let mut lines = into.borrow_mut();
            lines.push_back(line);
            if lines.len() > REMEMBERED {
                lines.pop_front();
            }
        }
    }

    /// The last lines, behind the reason of a panic if there was one, and qemu's own behind the kernel's.
    fn tail(&self) -> String {
        let (lines, errors) = (self.lines.borrow(), self.errors.borrow());
        let errors = errors.iter().skip(errors.len().saturating_sub(SHOWN));
        let last = lines.len().saturating_sub(SHOWN - errors.len());
        let reason = lines.iter().take(last).find(|line| line.contains("Kernel panic"));
        let shown = reason.into_iter().chain(lines.iter().skip(last)).chain(errors);
        let shown: Vec<&str> = shown.map(String::as_str).collect();
        if shown.is_empty() { "(none)".into() } else { shown.join("\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "0123456789abcdef";

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// Runs a shell in place of qemu, and a thread in place of the machine: it sends the status and the ends of both
    /// outputs.
    fn supervised(
        script: &str,
        status: &'static str,
        limit: Option<Duration>,
    ) -> Result<Ended, MachineError> {
        started(&format!("touch \"$PLACE/up\"; {script}"), status, limit, SILENCE)
    }

    /// The same, but the machine is there once the shell has made the file `up`, if it ever does.
    fn started(
        script: &str,
        status: &'static str,
        limit: Option<Duration>,
        silence: Duration,
    ) -> Result<Ended, MachineError> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().to_owned();
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).env("PLACE", &path);
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let machine = std::thread::spawn(move || {
            while !path.join("up").exists() {
                if !path.exists() {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let connect = |port| {
                let asked = Instant::now();
                loop {
                    match std::os::unix::net::UnixStream::connect(path.join(port)) {
                        Ok(socket) => return socket,
                        Err(_) if asked.elapsed() < Duration::from_secs(20) => std::thread::yield_now(),
                        Err(e) => panic!("{port}: {e}"),
                    }
                }
            };
            let mut sockets = PORTS.map(connect);
            for (socket, bytes) in sockets.iter_mut().zip([END, END, status]) {
                std::io::Write::write_all(socket, bytes.as_bytes()).unwrap();
            }
            Some(sockets)
        });
        let ended = block_on(supervise(shell, limit, false, silence, place, END, &|_| ()));
        drop(machine.join().unwrap());
        ended
    }

    #[test]
    fn the_exit_code_is_the_one_reported() {
        for (status, exit_code) in [("ready\n0\n", 0), ("ready\n7\n", 7), ("ready\n255\n", 255)] {
            assert_eq!(supervised("exec sleep 60", status, None).unwrap().exit_code, exit_code);
        }
        let error = supervised("exec sleep 60", "ready\nseven\n", None).unwrap_err();
        let words = "cannot talk with the machine: expected an exit code, found 'seven'";
        assert_eq!(error.to_string(), words);
    }

    #[test]
    fn a_machine_that_hangs_as_it_starts_is_started_again() {
        let silence = Duration::from_secs(1);
        let third = "echo >>$PLACE/starts; [ $(wc -l <$PLACE/starts) = 3 ] && touch $PLACE/up; exec sleep 60";
        assert_eq!(started(third, "ready\n7\n", None, silence).unwrap().exit_code, 7);
        let error = started("echo 'at CPU 1'; exec sleep 60", "", None, silence).unwrap_err();
        assert!(
            matches!(&error, MachineError::Stuck { after, console } if *after >= silence && console == "at CPU 1"),
            "{error}"
        );
    }

    /// Waits for a machine that does not start. A line comes while it is waited for, and is taken for one of this moment: of the future, so that
    /// it does not matter when this thread has a processor.
    fn wait_for_nothing(console: &Console, heard: Instant, silence: Duration, end: Instant) {
        let place = tempfile::tempdir().unwrap();
        let error = block_on(async {
            let ports = PORTS.map(|port| UnixListener::bind(place.path().join(port)).unwrap());
            let hears = async {
                console.heard.set(heard);
                pending::<()>().await
            };
            console.heard.set(Instant::now());
            tokio::select! {
                biased;
                error = console.start(&ports, silence, end) => error.err().unwrap(),
                () = hears => unreachable!(),
            }
        });
        assert!(matches!(error, MachineError::Stuck { .. }), "{error}");
    }

    #[test]
    fn what_a_machine_prints_puts_off_the_end_of_the_silence() {
        let console = Console::new(false);
        let before = console.heard.get();
        std::thread::sleep(Duration::from_millis(1));
        block_on(console.read(Some(&b"1\n"[..]), &console.lines));
        assert!(console.heard.get() > before);
        let silence = Duration::from_millis(200);
        let heard = Instant::now() + Duration::from_millis(300);
        wait_for_nothing(&console, heard, silence, heard + SILENCE);
        assert!(Instant::now() >= heard + silence);
    }

    #[test]
    fn a_machine_that_hangs_and_goes_on_printing_is_not_waited_for() {
        let begun = Instant::now();
        let (end, heard) = (begun + Duration::from_millis(300), begun + SILENCE);
        wait_for_nothing(&Console::new(false), heard, Duration::from_millis(200), end);
        assert!((end..heard).contains(&Instant::now()));
    }

    #[test]
    fn a_machine_that_dies_leaves_its_last_lines() {
        let script = "seq 2000; echo 'Kernel panic'; seq 100; echo 'qemu: gone' >&2; exit 1";
        let error = supervised(script, "ready\n", None).unwrap_err().to_string();
        let (said, tail) = error.split_once(":\n").unwrap();
        assert!(said.starts_with("the machine ended before the command did"), "{error}");
        assert!(tail.contains("Kernel panic") && tail.contains("qemu: gone"), "{tail}");
        assert!(
            tail.lines().count() == SHOWN + 1 && tail.contains("\n100") && !tail.contains("\n50\n"),
            "{tail}"
        );
    }

    #[test]
    fn a_command_that_takes_too_long_is_ended() {
        let limit = Duration::from_millis(50);
        let error = supervised("exec sleep 60", "ready\n", Some(limit)).unwrap_err();
        assert!(matches!(error, MachineError::TimedOut(after) if after == limit), "{error}");
        assert_eq!(error.exit_code(), 124);
    }

    /// Feeds the pieces and gives what was passed on, once after all but the end and once after all.
    fn passed(pieces: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        block_on(async {
            let (mut feed, from) = tokio::io::duplex(4096);
            let (to, mut result) = tokio::io::duplex(1 << 20);
            let pass = tokio::spawn(async move { pass(from, to, END).await });
            for piece in pieces {
                feed.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            let mut before = vec![0; 1 << 20];
            let at_once = timeout(Duration::from_millis(10), result.read(&mut before)).await;
            before.truncate(at_once.map_or(0, Result::unwrap));
            feed.write_all(END.as_bytes()).await.unwrap();
            pass.await.unwrap().unwrap();
            let mut all = before.clone();
            result.read_to_end(&mut all).await.unwrap();
            (before, all)
        })
    }

    #[test]
    fn every_byte_is_passed_on_and_the_end_is_not() {
        let binary: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let cases: &[&[&[u8]]] = &[
            &[],
            &[b"no newline"],
            &[&binary, b"0", b"123", &binary],
            // What looks like the end and is not.
            &[b"0123456789abcde", b"0123456789abcd", b"ef?"],
            &[b"00", b"001"],
        ];
        for pieces in cases {
            assert_eq!(passed(pieces).1, pieces.concat());
        }
    }

    /// A prompt may be waited for.
    #[test]
    fn nothing_is_held_that_cannot_be_the_end() {
        assert_eq!(passed(&[b"name: "]).0, b"name: ");
        assert_eq!(passed(&[b"name: 01"]).0, b"name: ");
    }
}
