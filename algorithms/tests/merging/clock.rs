//! A clock that other processes do not move.

use std::time::{Duration, Instant};

/// Runs while this thread has a processor; on other systems than Linux, always.
pub struct Clock {
    began: Instant,
    had: Option<Duration>,
}

impl Clock {
    pub fn start() -> Self {
        Self { began: Instant::now(), had: had() }
    }

    pub fn elapsed(&self) -> Duration {
        let between = had().zip(self.had).map(|(now, then)| now.saturating_sub(then));
        between.unwrap_or_else(|| self.began.elapsed())
    }
}

/// What Linux says that this thread has had.
fn had() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
