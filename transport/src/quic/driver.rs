//! The thread on which a worker's QUIC runs. It is apart from those of the program, which may end while what they sent is still on
//! its way: where TCP has the operating system to see to it, QUIC has this thread.

use std::future::Future;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quinn::Endpoint;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long the thread waits at its end for the last packets of connections that are closed. Peers are notified by TCP, too.
const CLOSING: Duration = Duration::from_millis(20);

/// The thread, which ends when this is dropped: by then all that was sent has arrived, or `linger` was over. The thread that drops it last,
/// the network or a link, waits for that.
#[derive(Debug)]
pub(super) struct Driver {
    /// How long what was sent is waited for.
    pub(super) linger: Duration,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    /// Each task that is waited for holds one.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    thread: Option<JoinHandle<()>>,
    /// Once there is one.
    pub(super) endpoint: std::sync::Arc<OnceLock<Endpoint>>,
}

impl Driver {
    pub(super) fn start(linger: Duration) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let (alive, mut others) = mpsc::channel::<()>(1);
        let endpoint = std::sync::Arc::new(OnceLock::<Endpoint>::new());
        let closing = std::sync::Arc::clone(&endpoint);
        let run = move || {
            runtime.block_on(async {
                let _ = stopped.await;
                // Each is bounded by itself.
                while others.recv().await.is_some() {}
                if let Some(endpoint) = closing.get() {
                    let _ = timeout(CLOSING, endpoint.wait_idle()).await;
                }
            });
        };
        let thread = thread::Builder::new().name("gleaner-quic".into()).spawn(run)?;
        let (stop, thread) = (Some(stop), Some(thread));
        Ok(Self { linger, handle, stop, alive: Mutex::new(Some(alive)), thread, endpoint })
    }

    /// Where tasks of the network run.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task that is waited for.
    pub(super) fn outlive(&self, task: impl Future<Output = ()> + Send + 'static) {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.handle.spawn(async move {
            task.await;
            drop(alive);
        });
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.stop.take());
        // What its own tasks drop cannot wait for it.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}
