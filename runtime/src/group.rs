//! One gradient that travels by itself: its schedule, and its residual between steps and in them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::bag::wire::PIECE;
use gleaner_algorithms::collectives::{MethodError, Routine};
use gleaner_algorithms::residual::{Lent, NonFinite, OnNonFinite, Residual, VersionError};
use gleaner_algorithms::schedule::{Execution, ExecutionError, Finished, Program};
use gleaner_algorithms::{Element, Layers, Method, Partition, Rank, Reduction};

use gleaner_transport::Peer;

use crate::failure::Error;
use crate::inbox::OVERHEAD;
use crate::post::Post;
use crate::session::Inner;

/// See the module.
pub(crate) struct Group<T: Element = f32> {
    pub(crate) routine: Routine,
    pub(crate) residual: Residual<T>,
    reduction: Reduction<T>,
    /// What the gradient is made of, whatever method is taken up.
    layers: Layers,
    /// How many bytes each peer may have waiting here for this group.
    granted: BTreeMap<u32, u64>,
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
}

impl<T: Element> Group<T> {
    /// A gradient of these layers that is synchronised by this method, with a residual of zeros. `stream` tells it apart from
    /// others of the session. Its peers get credit for it.
    pub(crate) fn new(
        session: &Inner,
        method: Method,
        layers: Layers,
        stream: u64,
        reduction: Reduction<T>,
    ) -> Result<Self, Error> {
        let routine = Routine::new(method.clone(), session.post.membership(), layers.clone(), stream)?;
        let schedule = routine.prepared().program.schedule();
        let mut residual =
            Residual::new(schedule.partition.clone(), schedule.quotas()).corrected(method.correction());
        method.correction().fits(&reduction).map_err(MethodError::from)?;
        if method.nonfinite() == OnNonFinite::Skip {
            residual = residual.revertible();
        }
        let mut group = Self {
            layers,
            routine,
            residual,
            reduction,
            granted: BTreeMap::new(),
            accumulator: None,
            version: 0,
        };
        // Refused now rather than in the first step.
        let program = group.routine.prepared().program.clone();
        let nothing = Execution::new(program, Arc::new(Vec::<T>::new()), Vec::new());
        nothing.reducing(reduction)?;
        group.grant(&session.post);
        Ok(group)
    }

    /// The membership that the next step is for: its messages carry that in their tags.
    pub(crate) fn epoch(&self) -> u16 {
        self.routine.prepared().program.epoch()
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

    /// Begins a step with what was accumulated.
    pub(crate) fn begin(&mut self) -> Result<(Arc<Program>, Execution<T>), ExecutionError> {
        let Lent { version, accumulator, candidates } = self.residual.begin();
        (self.accumulator, self.version) = (Some(accumulator.clone()), version);
        let execution = self.routine.begin(accumulator, candidates).reducing(self.reduction)?;
        Ok((self.routine.prepared().program.clone(), execution))
    }

    /// What was accumulated, at some positions, while a step is under way.
    pub(crate) fn accumulated(&self, range: Range<usize>) -> Option<&[T]> {
        self.accumulator.as_ref().map(|accumulator| &accumulator[range])
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
    pub(crate) fn commit(&mut self, post: &Post, finished: Finished<T>) -> Result<Delivered<T>, Error> {
        // Whoever shares it makes the residual copy it.
        self.accumulator = None;
        let partition = self.residual.partition().clone();
        let changed = self.routine.learn(&finished)?;
        let committed = self.residual.commit(self.version, finished, self.routine.method().collection())?;
        if changed {
            self.change(post);
        }
        let lost = committed.lost.iter().flat_map(|l| &l.values).map(|v| v.to_f64().abs()).sum();
        Ok(Delivered { sums: (partition, committed.update), lost })
    }

    /// Goes over to another method, between two steps. What was not delivered stays.
    pub(crate) fn take_up(&mut self, session: &Inner, method: Method, stream: u64) -> Result<(), Error> {
        self.routine = Routine::new(method, session.post.membership(), self.layers.clone(), stream)?;
        self.change(&session.post);
        Ok(())
    }

    /// Goes over to another schedule, between two steps.
    pub(crate) fn change(&mut self, post: &Post) {
        let schedule = self.routine.prepared().program.schedule();
        self.residual.recut(schedule.partition.clone(), schedule.quotas());
        self.grant(post);
    }

    /// Takes the peers' credit for it back, once it has exchanged its last step.
    pub(crate) fn revoke(&self, post: &Post) {
        self.granted.iter().for_each(|(&peer, &bytes)| post.inbox.revoke(Peer(peer), bytes));
    }

    /// Lets the peers have waiting here what the present schedule lets them send. What was granted before stays: a peer may
    /// be one step ahead, or behind.
    fn grant(&mut self, post: &Post) {
        // A method that learns may go over to a schedule that this worker does not know yet: no bag is longer than an index
        // and a value for each entry.
        let memory = self.routine.memory();
        let learns = !(memory.agreed.is_empty() && memory.own.is_empty());
        let any = if learns { (4 + T::WIDTH as u64) * self.routine.shape().n as u64 } else { 0 };
        for (Rank(peer), bytes) in self.routine.prepared().program.most_bytes::<T>(credit) {
            let granted = self.granted.entry(peer).or_default();
            // A peer may be one step ahead.
            let more = (2 * bytes.max(any)).saturating_sub(*granted);
            *granted += more;
            post.inbox.grant(Peer(peer), more);
        }
    }
}

/// What so many bytes of one block take of a credit: it may lie in payloads of its own, and the cuts of two layers of
/// payloads in it.
fn credit(bytes: u64) -> u64 {
    bytes + OVERHEAD * (3 + 2 * bytes / PIECE as u64)
}
