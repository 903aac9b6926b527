//! One gradient that travels by itself: its schedule, and its residual between steps and in them.

use std::sync::Arc;

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::bag::wire::{PIECE, PIECES};
use gleaner_algorithms::collectives::{MethodError, Routine};
use gleaner_algorithms::residual::{Lent, NonFinite, OnNonFinite, Residual, VersionError};
use gleaner_algorithms::schedule::{Execution, ExecutionError, Finished};
use gleaner_algorithms::{Element, Layers, Membership, Method, Partition, Rank, Reduction};
use gleaner_transport::Peer;

use crate::failure::Error;
use crate::link::OVERHEAD;
use crate::mailbox::Window;

/// See the module.
pub(crate) struct Group<T: Element = f32> {
    pub(crate) routine: Routine,
    pub(crate) residual: Residual<T>,
    reduction: Reduction<T>,
    /// What the gradient is made of, whatever method is taken up.
    layers: Layers,
    /// Its number in the session.
    pub(crate) number: u32,
    /// While a step is under way: gradient plus old residual, as the step began.
    accumulator: Option<Arc<Vec<T>>>,
    /// The last step's version of the residual.
    version: u64,
}

/// What a committed step gave.
pub(crate) struct Delivered<T: Element = f32> {
    /// The sums over all workers, with the blocks that they are cut into.
    pub(crate) sums: (Partition, Vec<Bag<T>>),
    /// The sum of the magnitudes of what this worker dropped and did not collect.
    pub(crate) lost: f64,
    /// Whether the next step has another schedule.
    pub(crate) changed: bool,
}

impl<T: Element> Group<T> {
    /// A gradient of these layers that is synchronised by this method, with a residual of zeros. `stream` tells it apart from
    /// others of the session.
    pub(crate) fn new(
        membership: Membership,
        method: Method,
        layers: Layers,
        stream: u64,
        reduction: Reduction<T>,
    ) -> Result<Self, Error> {
        let routine = Routine::new(method.clone(), membership, layers.clone(), stream)?;
        let schedule = routine.prepared().program.schedule();
        let mut residual =
            Residual::new(schedule.partition.clone(), schedule.quotas()).corrected(method.correction());
        method.correction().fits(&reduction).map_err(MethodError::from)?;
        if method.nonfinite() == OnNonFinite::Skip {
            residual = residual.revertible();
        }
        let group = Self { layers, routine, residual, reduction, number: 0, accumulator: None, version: 0 };
        // Refused now rather than in the first step.
        let program = group.routine.prepared().program.clone();
        let nothing = Execution::new(program, Arc::new(Vec::<T>::new()), Vec::new());
        nothing.reducing(reduction)?;
        Ok(group)
    }

    /// Latency rounds of the next step.
    pub(crate) fn rounds(&self) -> u64 {
        self.routine.prepared().cost.rounds
    }

    /// Adds a part of the gradient to the residual, from position `offset` on. Sums that are not finite are refused in words
    /// that name the parameter, count them, and show the first.
    pub(crate) fn accumulate(&mut self, name: &str, offset: usize, gradient: &[T]) -> Result<(), String> {
        self.residual.accumulate(offset, gradient).map_err(|NonFinite { entry, count }| {
            let index = entry - offset;
            let found = if gradient[index].is_finite() {
                "an infinite sum with its residual".into()
            } else {
                gradient[index].to_string()
            };
            let others = match count {
                1 => "the only entry that is not finite".to_owned(),
                _ => format!("the first of {count} entries that are not finite"),
            };
            format!(
                "the gradient of '{name}' has {found} at entry {index}, {others}: lower the learning rate, clip the gradients, \
                 or look for what makes them so"
            )
        })
    }

    /// How many entries it has.
    pub(crate) fn entries(&self) -> usize {
        self.layers.entries()
    }

    /// Begins a step with what was accumulated.
    pub(crate) fn begin(&mut self) -> Result<Execution<T>, ExecutionError> {
        let Lent { version, accumulator, candidates } = self.residual.begin();
        (self.accumulator, self.version) = (Some(accumulator.clone()), version);
        self.routine.begin(accumulator, candidates).reducing(self.reduction)
    }

    /// What was accumulated, while a step is under way. A caller that keeps it makes the residual copy it.
    pub(crate) fn accumulated(&self) -> Option<Arc<Vec<T>>> {
        self.accumulator.clone()
    }

    /// Ends a step of which nothing was delivered: what was accumulated is the residual now.
    pub(crate) fn give_back(&mut self) -> Result<(), VersionError> {
        let lent = self.accumulator.take();
        lent.map_or(Ok(()), |accumulator| self.residual.give_back(self.version, accumulator))
    }

    /// Ends a step that all ranks left out, whether or not it began here: the residual is what it was before. Its update has
    /// nothing in it.
    pub(crate) fn leave_out(&mut self) -> Result<(Partition, Vec<Bag<T>>), VersionError> {
        self.accumulator = None;
        self.residual.revert()?;
        let partition = self.residual.partition().clone();
        let nothing = (0..partition.blocks()).map(|_| Bag::empty()).collect();
        Ok((partition, nothing))
    }

    /// Ends a step: what was delivered leaves the residual, and the method learns from it.
    pub(crate) fn commit(&mut self, finished: Finished<T>) -> Result<Delivered<T>, Error> {
        // If it is shared, the residual copies it.
        self.accumulator = None;
        let partition = self.residual.partition().clone();
        let changed = self.routine.learn(&finished)?;
        let committed = self.residual.commit(self.version, finished, self.routine.method().collection())?;
        if changed {
            self.change();
        }
        let lost = committed.lost.iter().flat_map(|l| &l.values).map(|v| v.to_f64().abs()).sum();
        Ok(Delivered { sums: (partition, committed.update), lost, changed })
    }

    /// Goes over to another method, between two steps. What was not delivered stays.
    pub(crate) fn take_up(
        &mut self,
        membership: Membership,
        method: Method,
        stream: u64,
    ) -> Result<(), Error> {
        self.routine = Routine::new(method, membership, self.layers.clone(), stream)?;
        self.change();
        Ok(())
    }

    /// Goes over to another schedule, between two steps.
    pub(crate) fn change(&mut self) {
        let schedule = self.routine.prepared().program.schedule();
        self.residual.recut(schedule.partition.clone(), schedule.quotas());
    }

    /// What each peer may have waiting here, in bytes: two steps of the present schedule, since a peer may be one step ahead,
    /// and so many steps as have a megabyte, so that small steps need no message of their own for each credit.
    pub(crate) fn windows(&self) -> Vec<Window> {
        // What a method learns may lead to a schedule that this worker does not know yet: no bag is longer than an index and a
        // value for each entry.
        let varies = self.routine.method().collective().varies();
        let any = if varies { (4 + T::WIDTH as u64) * self.routine.shape().n as u64 } else { 0 };
        let steps = self.routine.prepared().program.most_bytes::<T>(credit);
        let window = |(Rank(peer), bytes): (Rank, u64)| {
            let bytes = bytes.max(any);
            (Peer(peer), self.number, (2 * bytes).max((16 * bytes).min(SMALL)))
        };
        steps.into_iter().map(window).collect()
    }
}

/// A window that is small enough to hold many steps.
const SMALL: u64 = 1 << 20;

/// What so many bytes of one block take of a credit: it may lie in payloads of its own, and the cuts of two layers of
/// payloads in it.
pub(crate) fn credit(bytes: u64) -> u64 {
    bytes + OVERHEAD * (3 + 2 * PIECES as u64 + 2 * bytes / PIECE as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Among six workers with a million entries, of which each has a thousand.
    fn group(method: Method) -> Group {
        let (membership, layers) = (Membership::first(Rank(2), 6), Layers::from(1_000_000));
        Group::new(membership, method.k(1000), layers, 0, Reduction::Sum).unwrap()
    }

    /// Also of methods that learn whose turn it is, how many entries to select, or a selector's numbers: only other cuts and
    /// other programs need more.
    #[test]
    fn windows_are_what_schedules_say_where_these_do_not_vary() {
        let bruck = Method::spardl().with("teams", "3").and_then(|m| m.with("sag", "bruck")).unwrap();
        let sidco = Method::named("topka").unwrap().selector("sidco-exp".parse().unwrap());
        for method in Method::all().chain([bruck.clone(), sidco]) {
            let group = group(method);
            let said = group.routine.prepared().program.most_bytes::<f32>(credit);
            for ((Peer(peer), _, window), (from, bytes)) in group.windows().into_iter().zip(said) {
                let learnt = group.routine.method().collective().varies();
                let expected = if learnt { 16_000_000 } else { (2 * bytes).max((16 * bytes).min(1 << 20)) };
                assert_eq!((peer, window), (from.0, expected), "{}", group.routine.method());
            }
        }
        let most = |method| group(method).windows().into_iter().map(|(.., window)| window).max();
        // Bags of 500 entries at most.
        assert!(most(bruck) < Some(1 << 20));
        assert_eq!(most(Method::named("oktopk").unwrap()), Some(16_000_000));
    }
}
