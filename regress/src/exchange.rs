//! The sum of all workers' sparse vectors.

use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;
use gleaner_runtime::{Handle, Reducer, Session};

use crate::error::RegressError;

/// The name of the vectors that are summed up.
const NAME: &str = "sum";

/// Sums up vectors of n entries, step by step.
pub(crate) struct Exchange {
    /// None where there is one worker, which has nothing to exchange.
    reducer: Option<Reducer>,
    n: usize,
    workers: f32,
    /// How long this worker has been in here.
    spent: Duration,
}

/// A sum under way.
pub(crate) enum Pending {
    Own(Entries<f32>),
    Together(Handle),
}

impl Exchange {
    pub(crate) fn new(session: &Session, n: usize, method: &Method) -> Result<Self, RegressError> {
        let is_alone = session.world_size() == 1;
        let reducer =
            (!is_alone).then(|| session.reducer(NAME, n, method.clone().density(1.0))).transpose()?;
        Ok(Self { reducer, n, workers: session.world_size() as f32, spent: Duration::ZERO })
    }

    /// Hands this worker's vector over.
    pub(crate) fn start(&mut self, own: Entries<f32>) -> Result<Pending, RegressError> {
        let Some(reducer) = &mut self.reducer else { return Ok(Pending::Own(own)) };
        let began = Instant::now();
        let handle = reducer.start(&own.to_dense(self.n))?;
        self.spent += began.elapsed();
        Ok(Pending::Together(handle))
    }

    /// Waits for the sum of all workers' vectors.
    pub(crate) fn finish(&mut self, pending: Pending) -> Result<Entries<f32>, RegressError> {
        let handle = match pending {
            Pending::Own(own) => return Ok(own),
            Pending::Together(handle) => handle,
        };
        let began = Instant::now();
        let update = handle.wait()?;
        let mut sum = vec![0.0; self.n];
        update.add_to(NAME, &mut sum, self.workers)?;
        let sum = Entries::from_dense(&sum);
        self.spent += began.elapsed();
        Ok(sum)
    }

    /// How long this worker has been here since it was asked last.
    pub(crate) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}
