//! Ending processes that this program did not start itself: asked first, killed then.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::Process;

/// How long processes may take to end when they are asked to, and how long when they are killed: large ones on busy processors
/// need a while to give their memory back.
const GRACE: [(Signal, Duration); 2] =
    [(Signal::TERM, Duration::from_secs(1)), (Signal::KILL, Duration::from_secs(30))];

/// Asks all that run to end, and kills those that do not. Gives one that is there all the same, if any.
pub fn end(running: impl Fn() -> Vec<Process>) -> Option<Process> {
    for (signal, grace) in GRACE {
        let since = Instant::now();
        // Again and again, since one that ends may have started another.
        let mut asked = HashSet::new();
        while since.elapsed() < grace {
            let still = running();
            if still.is_empty() {
                return None;
            }
            for process in still.into_iter().filter(|process| asked.insert(*process)) {
                // One that is gone by now is as wished; one that is stopped does not get the signal otherwise.
                let _ = kill_process(process.id(), signal);
                let _ = kill_process(process.id(), Signal::CONT);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    running().first().copied()
}
