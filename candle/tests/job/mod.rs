//! Jobs within a process.

use std::time::Duration;

use gleaner_runtime::Session;
use gleaner_transport::memory;

/// How long a silent rank counts as alive.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `worker` on every rank of a new job, and gives what each returned.
pub fn job<T: Send>(workers: u32, worker: impl Fn(Session) -> T + Sync) -> Vec<T> {
    let worker = &worker;
    std::thread::scope(|scope| {
        let start =
            |network| scope.spawn(move || worker(Session::over(async { Ok(network) }, TIMEOUT).unwrap()));
        let ranks: Vec<_> = memory::networks(workers).into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
