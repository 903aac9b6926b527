//! One gradient that travels by itself: its schedule, and its residual between steps and in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::residual::{NonFinite, Residual};
use gleaner_algorithms::schedule::{self, Execution, Finished, RankProof, Schedule, Step};
use gleaner_algorithms::{Method, Partition};

use crate::failure::Error;
use crate::session::Inner;

/// See the module.
pub(crate) struct Group {
    schedule: Arc<Schedule>,
    proof: Arc<RankProof>,
    /// Latency rounds of one step.
    pub(crate) rounds: u64,
    pub(crate) residual: Residual,
    method: Method,
    /// While a step is under way: gradient plus old residual, as the step began.
    accumulator: Option<Arc<Vec<f32>>>,
}

/// What a committed step gave.
pub(crate) struct Delivered {
    /// The sums over all workers, with the blocks that they are cut into.
    pub(crate) sums: (Partition, Vec<Bag>),
    /// The sum of the magnitudes of what this worker dropped and did not collect.
    pub(crate) lost: f64,
}

impl Group {
    /// A gradient of n entries that is synchronised by this method, with a residual of zeros. Its peers get credit for it.
    pub(crate) fn new(session: &Inner, method: Method, n: usize) -> Result<Self, Error> {
        let rank = session.post.rank.index();
        let schedules = method.schedules(session.post.workers, n)?;
        let mut proof = schedule::check(&schedules)?;
        let schedule = schedules[rank].clone();
        let proof_of_rank = std::mem::take(&mut proof.ranks[rank]);
        for (peer, bytes) in largest_receives(&schedule, &proof_of_rank) {
            // A peer may be one step ahead.
            session.grant(peer, 2 * bytes);
        }
        Ok(Self {
            residual: Residual::new(schedule.partition.clone(), schedule.quotas()),
            schedule: Arc::new(schedule),
            proof: Arc::new(proof_of_rank),
            rounds: proof.cost.rounds,
            method,
            accumulator: None,
        })
    }

    /// Adds a part of the gradient to the residual, from position `offset` on. A sum that is not finite is refused in words
    /// that name the parameter and the entry.
    pub(crate) fn accumulate(&mut self, name: &str, offset: usize, gradient: &[f32]) -> Result<(), String> {
        self.residual.accumulate(offset, gradient).map_err(|NonFinite { entry }| {
            let index = entry - offset;
            let found = if gradient[index].is_finite() {
                "an infinite sum with its residual".into()
            } else {
                gradient[index].to_string()
            };
            format!(
                "the gradient of '{name}' has {found} at entry {index}: lower the learning rate, clip the gradients, or look for what \
                 makes them so"
            )
        })
    }

    /// Begins a step with what was accumulated.
    pub(crate) fn begin(&mut self) -> (Arc<Schedule>, Execution) {
        let (accumulator, candidates) = self.residual.begin();
        self.accumulator = Some(accumulator.clone());
        let execution = Execution::new(self.schedule.clone(), self.proof.clone(), accumulator, candidates);
        (self.schedule.clone(), execution)
    }

    /// Ends a step of which nothing was delivered: what was accumulated is the residual now.
    pub(crate) fn give_back(&mut self) {
        if let Some(accumulator) = self.accumulator.take() {
            self.residual.give_back(accumulator);
        }
    }

    /// Ends a step: what was delivered leaves the residual.
    pub(crate) fn commit(&mut self, finished: Finished) -> Delivered {
        // Whoever shares it makes the residual copy it.
        self.accumulator = None;
        let committed = self.residual.commit(finished, self.method.collection());
        let lost = committed.lost.iter().flat_map(|l| &l.values).map(|v| f64::from(v.abs())).sum();
        Delivered { sums: (self.schedule.partition.clone(), committed.update), lost }
    }
}

/// The most bytes that each peer may send in one step, by the bounds that the checker derived.
fn largest_receives(schedule: &Schedule, proof: &RankProof) -> BTreeMap<u32, u64> {
    let mut bytes = BTreeMap::new();
    for (i, step) in schedule.steps.iter().enumerate() {
        if let Step::Exchange { receives, .. } = step {
            for (receive, expected) in receives.iter().zip(proof.expected.get(&i).into_iter().flatten()) {
                let of_block = |e: &gleaner_algorithms::bag::wire::Expected| {
                    8 + (8 * u64::from(e.bound)).max(4 * u64::from(e.len))
                };
                // A payload costs a little more than its length; every block may begin one.
                *bytes.entry(receive.from.0).or_default() +=
                    expected.iter().map(|e| of_block(e) + 4096).sum::<u64>();
            }
        }
    }
    bytes
}
