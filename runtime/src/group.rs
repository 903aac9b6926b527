//! One gradient that travels by itself: its schedule, and its residual between steps and in them.

mod refusal;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use gleaner_algorithms::bag::wire::{PIECE, PIECES};
use gleaner_algorithms::bag::{Bag, Entries};
use gleaner_algorithms::collectives::{MethodError, Routine, Shape};
use gleaner_algorithms::device::{Device, DeviceError, DeviceSlice};
use gleaner_algorithms::residual::{AccumulateError, Lent, OnNonFinite, Residual, VersionError};
use gleaner_algorithms::schedule::{Execution, ExecutionError, Finished, Volume};
use gleaner_algorithms::{Accumulator, Element, Layers, Membership, Method, Partition, Rank, Reduction};
use gleaner_transport::Peer;

use crate::failure::Error;
use crate::health::Watch;
use crate::link::OVERHEAD;
use crate::mailbox::Window;
use crate::squares;
pub(crate) use refusal::{Refused, Unfit, refusal_there};
use refusal::{refused, sentence};

/// See the module.
pub(crate) struct Group<T: Element = f32> {
    pub(crate) routine: Routine,
    pub(crate) residual: Residual<T>,
    reduction: Reduction<T>,
    /// What the gradient is made of, whatever method is taken up.
    layers: Layers,
    /// Its number in the session.
    pub(crate) number: u32,
    /// What each peer may send at most in a step of this shape.
    volumes: (Shape, BTreeMap<Rank, Volume>),
    /// While a step is under way: gradient plus old residual, as the step began.
    accumulator: Option<Accumulator<T>>,
    /// For the same in main memory, as long as somebody keeps it.
    kept: Weak<OnceLock<Arc<Vec<T>>>>,
    /// The last step's version of the residual.
    version: u64,
    /// What is looked at now and then, of gradients that are asked for their health.
    pub(crate) watch: Option<Watch>,
    /// The squared L2 norms of what was selected from in the last step that they were looked at in, and of what was left, until they are taken.
    pub(crate) squares: Option<(f64, f64)>,
}

/// What a step selects from, in main memory, once it was asked for or the step has ended here.
pub(crate) type Kept<T> = Arc<OnceLock<Arc<Vec<T>>>>;

/// Where a residual lies, and what of it.
pub(crate) enum Home<T: Element = f32> {
    /// All values, in main memory.
    Host,
    /// Entries alone, of gradients that are sparse already.
    Sparse,
    /// All values, on a device.
    Device(Arc<dyn Device<T>>),
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
    /// A gradient of these layers that is synchronised by this method, with a residual of zeros. `stream` distinguishes it from
    /// others of the session.
    pub(crate) fn new(
        membership: Membership,
        method: Method,
        layers: Layers,
        stream: u64,
        reduction: Reduction<T>,
        home: Home<T>,
    ) -> Result<Self, Error> {
        let routine = Routine::new(method.clone(), membership, layers.clone(), stream)?;
        let schedule = routine.prepared().program.schedule();
        let (partition, quotas) = (schedule.partition.clone(), schedule.quotas());
        let mut residual = match home {
            Home::Host => Residual::new(partition, quotas).corrected(method.correction()),
            Home::Sparse => Residual::sparse(partition, quotas),
            Home::Device(device) if method.correction().needs_main_memory() => {
                return Err(corrected_on(&*device).into());
            }
            Home::Device(device) => Residual::on(device, partition, quotas)?,
        };
        method.correction().fits(&reduction).map_err(MethodError::from)?;
        if method.nonfinite() == OnNonFinite::Skip {
            residual = residual.revertible()?;
        }
        let volumes = (routine.shape().clone(), routine.volumes::<T>()?);
        let (number, accumulator, kept, version, watch, squares) = (0, None, Weak::new(), 0, None, None);
        let group = Self {
            layers,
            routine,
            residual,
            reduction,
            number,
            volumes,
            accumulator,
            kept,
            version,
            watch,
            squares,
        };
        // Refused now rather than in the first step.
        let program = group.routine.prepared().program.clone();
        let nothing = Execution::new(program, Arc::new(Vec::<T>::new()), Vec::new());
        nothing.reducing(reduction)?;
        Ok(group)
    }

    /// Looks now and then at what waits; nothing waits of gradients that are sparse already.
    #[must_use]
    pub(crate) fn watched(self) -> Self {
        let watch = (!self.residual.is_sparse()).then(|| Watch::new(self.entries()));
        Self { watch, ..self }
    }

    /// Latency rounds of the next step.
    pub(crate) fn rounds(&self) -> u64 {
        self.routine.rounds()
    }

    /// Adds a part of the gradient to the residual, from position `offset` on. Sums that are not finite are refused in words
    /// that name the parameter, count them, and show the first.
    pub(crate) fn accumulate(&mut self, name: &str, offset: usize, gradient: &[T]) -> Result<(), Refused> {
        self.residual.accumulate(offset, gradient).map_err(|error| refused(name, offset, gradient, error))
    }

    /// Adds entries of the gradient, which is one parameter's and has zeros elsewhere. Refuses as
    /// [`accumulate`](Self::accumulate) does.
    pub(crate) fn accumulate_entries(&mut self, name: &str, gradient: &Entries<T>) -> Result<(), Refused> {
        self.residual.accumulate_entries(gradient).map_err(|error| match error {
            AccumulateError::NonFinite(found) => {
                let value =
                    gradient.indices.binary_search(&(found.entry as u32)).map(|at| gradient.values[at]);
                Refused::NonFinite(sentence(name, found, found.entry, value.unwrap_or(T::ZERO)))
            }
            AccumulateError::Device(error) => Refused::Device(error),
        })
    }

    /// Adds a part that lies on the device of the residual. What is not finite is found when the step has begun.
    pub(crate) fn accumulate_there(&mut self, offset: usize, gradient: &DeviceSlice) -> Result<(), Refused> {
        self.residual.accumulate(offset, *gradient).map_err(|error| match error {
            AccumulateError::NonFinite(found) => Refused::NonFinite(found.to_string()),
            AccumulateError::Device(error) => Refused::Device(error),
        })
    }

    /// Adds all of the gradient, which is one parameter's, in memory that is exchanged for other where nothing is to be added or
    /// selected. Refuses as [`accumulate`](Self::accumulate) does.
    pub(crate) fn accumulate_whole(&mut self, name: &str, gradient: &mut Vec<T>) -> Result<(), Refused> {
        self.residual.accumulate_whole(gradient).map_err(|error| refused(name, 0, gradient, error))
    }

    /// How many entries it has.
    pub(crate) fn entries(&self) -> usize {
        self.layers.entries()
    }

    /// How many entries are looked at when a run that has ended is committed.
    pub(crate) fn commits(&self, execution: &Execution<T>) -> usize {
        // What is kept is copied.
        if self.kept.strong_count() > 0 { self.entries() } else { execution.commits() }
    }

    /// Begins a step with what was accumulated.
    pub(crate) fn begin(&mut self) -> Result<Execution<T>, ExecutionError> {
        let Lent { version, accumulator, candidates } = self.residual.begin()?;
        (self.accumulator, self.version) = (Some(accumulator.clone()), version);
        self.routine.begin(accumulator, candidates).reducing(self.reduction)
    }

    /// Where what was accumulated is kept until the step after this one begins.
    pub(crate) fn kept(&mut self) -> Kept<T> {
        let kept = Kept::default();
        self.kept = Arc::downgrade(&kept);
        kept
    }

    /// Copies what was accumulated to where somebody keeps it, while a step is under way.
    pub(crate) fn keep(&self) -> Result<(), DeviceError> {
        if let (Some(kept), Some(accumulator)) = (self.kept.upgrade(), &self.accumulator)
            && kept.get().is_none()
        {
            let values = accumulator.host()?;
            kept.get_or_init(|| Arc::clone(values));
        }
        Ok(())
    }

    /// Ends a step of which nothing was delivered: what was accumulated is the residual now.
    pub(crate) fn give_back(&mut self) -> Result<(), VersionError> {
        self.keep()?;
        let lent = self.accumulator.take();
        lent.map_or(Ok(()), |accumulator| self.residual.give_back(self.version, accumulator))
    }

    /// Ends a step that all ranks left out, whether or not it began here: the residual is what it was before. Its update has
    /// nothing in it. What was accumulated is kept if this rank `has_values`.
    pub(crate) fn leave_out(&mut self, has_values: bool) -> Result<(Partition, Vec<Bag<T>>), VersionError> {
        if has_values {
            self.keep()?;
        }
        (self.accumulator, self.kept) = (None, Weak::new());
        self.residual.revert()?;
        let partition = self.residual.partition().clone();
        let nothing = (0..partition.blocks()).map(|_| Bag::empty()).collect();
        Ok((partition, nothing))
    }

    /// Ends a step: what was delivered leaves the residual, and the method learns from it.
    pub(crate) fn commit(&mut self, finished: Finished<T>) -> Result<Delivered<T>, Error> {
        let before = self.looked_at();
        let squared = self.squared();
        // Of what is kept in main memory, the residual makes a copy.
        self.keep()?;
        self.accumulator = None;
        let partition = self.residual.partition().clone();
        let changed = self.routine.learn(&finished)?;
        let committed = self.residual.commit(self.version, finished, self.routine.method().collection())?;
        if let Some(watch) = &mut self.watch {
            let left = |range| self.residual.read(range).unwrap_or_default();
            let looked = before.map(|before| (before, watch.amount::<T, _>(left)));
            watch.end_step(self.routine.shape().k, looked);
        }
        if let Some(before) = squared {
            self.squares = Some((before, squares::waiting(&self.residual)?));
        }
        if changed {
            self.change()?;
        }
        let lost = committed.lost.iter().flat_map(|l| &l.values).map(|v| v.to_f64().abs()).sum();
        Ok(Delivered { sums: (partition, committed.update), lost, changed })
    }

    /// How much there is of what a step selects from, if the step is looked at and main memory holds it.
    fn looked_at(&self) -> Option<f64> {
        let watch = self.watch.as_ref().filter(|watch| watch.is_due())?;
        let Some(Accumulator::Host(values)) = &self.accumulator else { return None };
        Some(watch.amount::<T, _>(|range| &values[range]))
    }

    /// The squared norm of what a step selects from, if it is looked at in this step.
    fn squared(&self) -> Option<f64> {
        let looks = self.routine.method().looks_at_norm_in(self.routine.memory().steps);
        let Some(Accumulator::Host(values)) = self.accumulator.as_ref().filter(|_| looks) else {
            return None;
        };
        Some(squares::of(values))
    }

    /// Goes over to another method, between two steps. What was not delivered stays.
    pub(crate) fn take_up(
        &mut self,
        membership: Membership,
        method: Method,
        stream: u64,
    ) -> Result<(), Error> {
        self.routine = Routine::new(method, membership, self.layers.clone(), stream)?;
        self.change()
    }

    /// Goes over to another schedule, between two steps.
    pub(crate) fn change(&mut self) -> Result<(), Error> {
        // What may come in whatever blocks does not depend on those of the next step.
        let (method, shape) = (self.routine.method(), self.routine.shape());
        if method.collective().kinds(shape).is_empty() || *shape != self.volumes.0 {
            self.volumes = (shape.clone(), self.routine.volumes::<T>()?);
        }
        let program = &self.routine.prepared().program;
        for (rank, volume) in program.volumes::<T>() {
            let most = self.volumes.1.entry(rank).or_default();
            *most = most.max(volume);
        }
        let schedule = program.schedule();
        Ok(self.residual.recut(schedule.partition.clone(), schedule.quotas())?)
    }

    /// What each peer may have waiting here, in bytes: two steps, since a peer may be one step ahead, and this many steps as have a
    /// megabyte, so that small steps need no message of their own for each credit.
    pub(crate) fn windows(&self) -> Vec<Window> {
        let window = |(&Rank(peer), &volume): (&Rank, &Volume)| (Peer(peer), self.number, window(volume));
        self.volumes.1.iter().map(window).collect()
    }
}

/// A window for steps in which so much may come at most.
fn window(volume: Volume) -> u64 {
    let bytes = credit(volume);
    (2 * bytes).max((16 * bytes).min(SMALL))
}

/// Corrections look at gradients in main memory.
fn corrected_on<T: Element>(device: &dyn Device<T>) -> DeviceError {
    DeviceError::Other(format!(
        "momentum correction, local clipping and a decay of the residual are done in main memory, and the gradients are to stay on {}: leave the correction \
         out, or hand the gradients over in main memory",
        device.name()
    ))
}

/// A window that is small enough to hold many steps.
const SMALL: u64 = 1 << 20;

/// What so much takes of a credit: each block may lie in payloads of its own, and the cuts of two layers of payloads in it.
pub(crate) fn credit(Volume { blocks, bytes }: Volume) -> u64 {
    bytes + OVERHEAD * (blocks * (3 + 2 * PIECES as u64) + 2 * bytes / PIECE as u64)
}

#[cfg(test)]
mod tests {
    use gleaner_algorithms::bag::wire::{Content, Expected};

    use super::*;

    /// What is kept is there when the step has ended, and costs nothing once nobody keeps it.
    #[test]
    fn what_is_selected_from_is_kept_for_who_asks() {
        let (membership, layers, gradient) = (Membership::first(Rank(0), 1), Layers::from(1000), [2.0; 1000]);
        let mut group =
            Group::new(membership, Method::spardl().k(10), layers, 0, Reduction::Sum, Home::Host).unwrap();
        for (step, asks, holds) in [(0, true, true), (1, false, true), (2, false, false)] {
            group.accumulate("a", 0, &gradient).map_err(drop).unwrap();
            let mut execution = group.begin().unwrap();
            let kept = Some(group.kept()).filter(|_| holds);
            assert_eq!(execution.go_on(&mut Vec::new()), Ok(None));
            if asks {
                group.keep().unwrap();
            }
            assert_eq!(kept.as_ref().is_some_and(|kept| kept.get().is_some()), asks);
            assert_eq!(group.commits(&execution) == 1000, holds, "step {step}");
            group.commit(execution.finish().unwrap()).unwrap();
            let first = kept.map(|kept| kept.get().unwrap()[999]);
            assert_eq!(first, holds.then_some(2.0 * (step + 1) as f32));
        }
    }

    #[test]
    fn it_is_kept_of_a_step_that_others_leave_out() {
        for has_values in [true, false] {
            let method = Method::spardl().k(10).on_nonfinite(OnNonFinite::Skip);
            let (membership, layers) = (Membership::first(Rank(0), 1), Layers::from(100));
            let mut group =
                Group::<f32>::new(membership, method, layers, 0, Reduction::Sum, Home::Host).unwrap();
            group.accumulate("a", 0, &[2.0; 100]).map_err(drop).unwrap();
            group.begin().unwrap();
            let kept = group.kept();
            group.leave_out(has_values).unwrap();
            assert_eq!(kept.get().is_some(), has_values);
            assert_eq!(group.residual.read(0..1), Ok(vec![0.0]));
        }
    }

    /// Rank 2 of six workers with a million entries, of which each selects so many.
    fn selecting(method: Method, k: usize) -> Group {
        let (membership, layers) = (Membership::first(Rank(2), 6), Layers::from(1_000_000));
        Group::new(membership, method.k(k), layers, 0, Reduction::Sum, Home::Host).unwrap()
    }

    /// A thousand.
    fn group(method: Method) -> Group {
        selecting(method, 1000)
    }

    /// Also of methods that learn whose turn it is, how many entries to select, or a selector's numbers: only other cuts and
    /// other programs need more.
    #[test]
    fn windows_are_what_schedules_say() {
        let bruck = Method::spardl().with("teams", "3").and_then(|m| m.with("sag", "bruck")).unwrap();
        let sidco = Method::named("topka").unwrap().selector("sidco-exp".parse().unwrap());
        let fixed =
            |method: &Method| !["oktopk", "exdyna", "exdyna-printed"].contains(&method.collective().name());
        for method in Method::all().filter(fixed).chain([bruck.clone(), sidco]) {
            let group = group(method);
            let said = group.routine.prepared().program.volumes::<f32>();
            for ((Peer(peer), _, found), (from, volume)) in group.windows().into_iter().zip(said) {
                assert_eq!((peer, found), (from.0, window(volume)), "{}", group.routine.method());
            }
        }
        // Bags of 500 entries at most.
        let most = |method| group(method).windows().into_iter().map(|(.., window)| window).max();
        assert!(most(bruck) < Some(1 << 20));
    }

    /// Where cuts and programs follow what is learnt, a window is what the rules of any program allow in blocks of any length:
    /// worked out for rank 2 of six workers, a million entries and k = 20,000.
    #[test]
    fn windows_hold_for_whatever_is_learnt() {
        const K: u64 = 20_000;
        let most = |content, bound| Expected { len: 1_000_000, bound, content }.most_bytes::<f32>();
        let bags = |count: u64, bound: u64| (count, count * most(Content::Bag, bound as u32));
        let sum = |parts: &[(u64, u64)]| Volume {
            blocks: parts.iter().map(|(blocks, _)| blocks).sum(),
            bytes: parts.iter().map(|(_, bytes)| bytes).sum(),
        };
        let found = |method: Method| -> BTreeMap<u32, u64> {
            let windows = selecting(method, K as usize).windows().into_iter();
            windows.map(|(Peer(peer), _, window)| (peer, window)).collect()
        };
        // Ok-Topk: a region of every other worker's selection, and in Bruck's all-gather the sums of one, two and two regions of
        // the ranks 3, 4 and 0. With exact thresholds a selection has k entries and a sum 6k, with learnt ones both have 2k;
        // in the exact step 8 bytes of a note come with each.
        let bytes = |gathered: u64| {
            let exact = [bags(1, K), bags(gathered, 6 * K), (0, 8 * (1 + gathered))];
            let learnt = [bags(1, 2 * K), bags(gathered, 2 * K)];
            let balanced_lanes = [0, 6, 12][gathered as usize];
            let balanced = [bags(1, 2 * K), bags(1 + balanced_lanes, (2 * K).div_ceil(6))];
            window(sum(&exact).max(sum(&learnt)).max(sum(&balanced)))
        };
        let expected = [(0, bytes(2)), (1, bytes(0)), (3, bytes(1)), (4, bytes(2)), (5, bytes(0))];
        assert_eq!(found(Method::named("oktopk").unwrap()), expected.into());
        // ExDyna: one, two and two proposals of the ranks 3, 4 and 0 of at most 4k indices, and as many sums of aligned values from
        // them; before that two blocks from 4 and 0 and one from 1, to be summed up.
        let bytes = |gathered: u64, reduced: u64| {
            let (proposal, aligned) =
                (most(Content::Proposal, 4 * K as u32), most(Content::Aligned, 4 * K as u32));
            let aligned = (gathered + reduced, (gathered + reduced) * aligned);
            window(sum(&[(gathered, gathered * proposal), aligned]))
        };
        let expected = [(0, bytes(2, 2)), (1, bytes(0, 1)), (3, bytes(1, 0)), (4, bytes(2, 2))];
        assert_eq!(found(Method::named("exdyna").unwrap()), expected.into());
        // Where a proposal may have all entries, no lane has more than that.
        let printed = found(Method::named("exdyna-printed").unwrap());
        let all = Volume { blocks: 6, bytes: 3 * 4_000_000 + 6 * 16 };
        assert_eq!(printed[&0], window(all));
    }
}
