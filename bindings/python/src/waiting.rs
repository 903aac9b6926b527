//! Waiting without the interpreter's lock, until there is a result or Ctrl-C.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;

/// How often a call that waits looks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Lets Python's handlers of signals run, such as that of Ctrl-C. On another thread than the main one there is nothing to do.
///
/// # Errors
/// What a handler raised.
fn look() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Waits for a future on a thread that does not hold the interpreter's lock.
///
/// # Errors
/// What a handler of a signal raised; the future is dropped then.
pub fn block_on<F: Future>(future: F) -> PyResult<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    let mut looked = Instant::now();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        thread::park_timeout(LOOK);
        if looked.elapsed() >= LOOK {
            look()?;
            looked = Instant::now();
        }
    }
}

/// Makes a call that blocks on a thread of its own, so that this one can look for signals meanwhile.
///
/// # Errors
/// What a handler of a signal raised: the call goes on then, and its result is dropped. A system that refuses threads.
pub fn call<T: Send + 'static>(py: Python<'_>, blocks: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    py.detach(|| {
        let (done, result) = mpsc::channel();
        let run = move || drop(done.send(blocks()));
        let refused = |error| PyOSError::new_err(format!("no thread for a call that waits: {error}"));
        thread::Builder::new().name("gleaner-call".into()).spawn(run).map_err(refused)?;
        loop {
            match result.recv_timeout(LOOK) {
                Ok(output) => return Ok(output),
                Err(mpsc::RecvTimeoutError::Timeout) => look()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err(
                        "a call of Gleaner panicked; standard error says how",
                    ));
                }
            }
        }
    })
}
