//! The sum of all workers' sparse vectors.

use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;
use gleaner_runtime::{AutoChoice, Handle, Session, SparseReducer};

use crate::error::RegressError;

/// Sums up vectors of n entries, step by step, in the time and memory that their entries take.
pub(crate) struct Exchange {
    /// Each with its name; they take turns, so that as many sums as there are can be under way. None where there is one worker,
    /// which has nothing to exchange.
    reducers: Vec<(String, SparseReducer)>,
    started: usize,
    /// How long this worker has been in here.
    spent: Duration,
}

/// A sum under way.
pub(crate) enum Pending {
    /// Of one worker.
    Own(Entries<f32>),
    /// Of the reducer with that number.
    Together(usize, Handle),
}

impl Exchange {
    /// For vectors of n entries, of which this many sums may be under way.
    pub(crate) fn new(
        session: &Session,
        n: usize,
        method: &Method,
        under_way: usize,
    ) -> Result<Self, RegressError> {
        let count = if session.world_size() == 1 { 0 } else { under_way.max(1) };
        let reducer = |number| {
            let name = format!("sum {number}");
            let reducer = session.sparse_reducer(&name, n, method.clone())?;
            Ok::<_, RegressError>((name, reducer))
        };
        let reducers = (0..count).map(reducer).collect::<Result<_, RegressError>>()?;
        Ok(Self { reducers, started: 0, spent: Duration::ZERO })
    }

    /// Hands this worker's vector over.
    pub(crate) fn start(&mut self, own: Entries<f32>) -> Result<Pending, RegressError> {
        if self.reducers.is_empty() {
            return Ok(Pending::Own(own));
        }
        let began = Instant::now();
        let number = self.started % self.reducers.len();
        self.started += 1;
        let handle = self.reducers[number].1.start(&own)?;
        self.spent += began.elapsed();
        Ok(Pending::Together(number, handle))
    }

    /// Waits for the sum of all workers' vectors.
    pub(crate) fn finish(&mut self, pending: Pending) -> Result<Entries<f32>, RegressError> {
        let (number, handle) = match pending {
            Pending::Own(own) => return Ok(own),
            Pending::Together(number, handle) => (number, handle),
        };
        let began = Instant::now();
        let sum = handle.wait()?.sparse_sums(&self.reducers[number].0)?;
        self.spent += began.elapsed();
        Ok(sum)
    }

    /// What the method `auto` has chosen, if it is that and there is something to exchange.
    pub(crate) fn chosen(&self) -> Option<AutoChoice> {
        self.reducers.first().and_then(|(_, reducer)| reducer.chosen())
    }

    /// How long this worker has been here since it was asked last.
    pub(crate) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}
