//! Ctrl-C, SIGTERM and a terminal that was closed, caught from the beginning of a run to its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};

/// Whether a signal asks for the end. Jobs get the signals by themselves; this is for what is between them.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Listens from now on, for as long as this process lives.
    pub fn listen() -> io::Result<Self> {
        let code = Arc::new(AtomicU8::new(0));
        let heard = code.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let mut next = signals()?;
        drop(inside);
        std::thread::Builder::new().name("interrupts".into()).spawn(move || {
            runtime.block_on(async {
                loop {
                    heard.store(next().await, Ordering::Relaxed);
                }
            });
        })?;
        Ok(Self(code))
    }

    /// The exit code that was asked for.
    pub fn code(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Relaxed)).filter(|code| *code != 0)
    }
}

/// What waits for the next signal that asks this process to end, and gives the exit code; made and used within a runtime.
pub(crate) fn signals() -> io::Result<impl AsyncFnMut() -> u8 + Send> {
    let hears_hangup = !is_hangup_ignored();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move || {
        tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
            _ = hangup.recv(), if hears_hangup => 129,
        }
    })
}

/// Whether this process was started to outlive its terminal, as by `nohup`.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The lowest bit is that of signal 1.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
