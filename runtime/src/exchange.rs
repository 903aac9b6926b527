//! The trainer's side of an [`Algorithm`](crate::algorithm::Algorithm): groups that are accumulated into between steps, and
//! the result of each step. Gradients and reducers are made of one.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use gleaner_algorithms::Element;
use gleaner_algorithms::residual::OnNonFinite;
use tokio::sync::oneshot;

use crate::algorithm::{
    Algorithm, Begin, INLINE, Message, Noted, Open, Outcome, Reply, Shared, Worked, look, tell,
};
use crate::failure::Error;
use crate::group::{Group, Kept, Unfit};
use crate::layout::LayoutError;
use crate::mailbox::Command;
use crate::session::Inner;
use crate::steps::Cause;
use crate::tag::StepId;

/// See the module.
pub(crate) struct Exchange<T: Element> {
    session: Arc<Inner>,
    /// The number of the first group.
    first: u32,
    groups: Vec<Shared<T>>,
    is_cancellable: bool,
    /// The number of the next step, or of the one whose gradients are becoming ready.
    pub(crate) step: u64,
    /// The outcome of the step that has begun, until it is waited for.
    outcome: Option<Outcomes<T>>,
    /// Ends when the last step that has begun is over.
    resting: Option<mpsc::Receiver<Duration>>,
    /// How many steps are under way.
    open: Arc<AtomicUsize>,
}

/// A group's step that has begun.
pub(crate) struct Begun<T: Element> {
    /// Where what was accumulated is kept, if it is.
    pub(crate) kept: Option<Kept<T>>,
    /// How long it waited because compute threads could take no more.
    pub(crate) blocked: Duration,
}

/// The result of a step.
pub(crate) type Outcomes<T> = oneshot::Receiver<Result<Outcome<T>, Error>>;

impl<T: Element> Exchange<T> {
    /// Gives the groups numbers, and their peers credit. All ranks come together before any of them begins a step.
    pub(crate) fn new(
        session: Arc<Inner>,
        groups: Vec<Group<T>>,
        step: u64,
        is_cancellable: bool,
    ) -> Result<Self, Error> {
        let groups = groups.into_iter().map(|group| Arc::new(Mutex::new(group))).collect();
        let open = Arc::default();
        let mut exchange =
            Self { session, first: 0, groups, is_cancellable, step, outcome: None, resting: None, open };
        exchange.add(step)?;
        Ok(exchange)
    }

    /// Goes on from another step, with other numbers, so that nothing of the steps before is taken for a part of it. All
    /// ranks do.
    pub(crate) fn resume(&mut self, step: u64) -> Result<(), Error> {
        self.session.mailbox.send(Command::Retire(self.first));
        self.add(step)
    }

    fn add(&mut self, step: u64) -> Result<(), Error> {
        let count = self.groups.len() as u32;
        self.first = self.session.number(count).ok_or(LayoutError::TooManyGradients)?;
        self.step = step;
        for (number, group) in (self.first..).zip(&self.groups) {
            look(group).number = number;
        }
        let next =
            (self.first..self.first + count).map(|number| StepId::new(self.session.epoch, number, step));
        let actor =
            Algorithm::<T>::new(self.first, next.collect(), self.is_cancellable, Arc::clone(&self.open));
        self.session.mailbox.send(Command::Add(self.first, Box::new(actor)));
        self.widen();
        Ok(())
    }

    /// Gives peers the credit that the present schedules need.
    pub(crate) fn widen(&self) {
        let windows = self.groups.iter().flat_map(|group| look(group).windows()).collect();
        self.session.mailbox.send(Command::Widen(windows));
    }

    /// Looks into a group; at rest while no step is under way.
    pub(crate) fn group(&self, group: usize) -> MutexGuard<'_, Group<T>> {
        look(&self.groups[group])
    }

    /// All groups.
    pub(crate) fn groups(&self) -> impl ExactSizeIterator<Item = MutexGuard<'_, Group<T>>> {
        self.groups.iter().map(look)
    }

    /// Which step a group is in or begins next.
    pub(crate) fn id(&self, group: usize) -> StepId {
        StepId::new(self.session.epoch, self.first + group as u32, self.step)
    }

    /// Begins a group's step with what was accumulated. Sums on a device that are not finite are found then, or that it lacks memory, and
    /// reported by `refuse`, which gives the sentence.
    ///
    /// # Errors
    /// A reduction that its schedule cannot do, and what has failed on a device.
    pub(crate) fn begin(
        &mut self,
        group: usize,
        keeps: bool,
        refuse: impl FnOnce(Unfit) -> String + Send + 'static,
    ) -> Result<Begun<T>, Error> {
        let (execution, kept) = {
            let mut group = self.group(group);
            (Box::new(group.begin()?), keeps.then(|| group.kept()))
        };
        let mut begin = self.beginning(group);
        let noted = Noted::new(begin.id, begin.step, &self.session.recorder);
        let mut worked = Worked { execution, outbox: Vec::new(), waits: None, noted, began: Instant::now() };
        let (mailbox, first) = (self.session.mailbox.clone(), self.first);
        let skips = self.group(group).routine.method().nonfinite() == OnNonFinite::Skip;
        if worked.execution.chooses_from() <= INLINE && !worked.execution.is_on_device() {
            begin.worked = Ok(worked);
            tell(&mailbox, first, Message::Begin(begin));
            return Ok(Begun { kept, blocked: Duration::ZERO });
        }
        let compute = &self.session.compute;
        let is_on_device = worked.execution.is_on_device();
        let go_on = move |worked: Worked<T>, found| {
            begin.worked = worked.checked(found, skips, refuse);
            tell(&mailbox, first, Message::Begin(begin));
        };
        let blocked = if is_on_device {
            let works = compute.clone();
            compute.submit_wait(Box::new(move || {
                let found = worked.execution.check();
                // The exchange begins when the gradient is there.
                worked.began = Instant::now();
                works.submit(Box::new(move || go_on(worked, found)));
            }))
        } else {
            compute.submit(Box::new(move || go_on(worked, Ok(None))))
        };
        Ok(Begun { kept, blocked })
    }

    /// Begins a group's step in which this rank takes no part, so that all leave it out.
    pub(crate) fn leave_out(&mut self, group: usize) {
        let begin = self.beginning(group);
        tell(&self.session.mailbox, self.first, Message::Begin(begin));
    }

    fn beginning(&mut self, group: usize) -> Begin<T> {
        let reply = self.outcome.is_none().then(|| {
            let (outcome, outcomes) = oneshot::channel();
            let (resting, rests) = mpsc::channel();
            (self.outcome, self.resting) = (Some(outcomes), Some(rests));
            Reply { outcome, resting, open: Open::new(&self.open) }
        });
        let (id, step, shared) = (self.id(group), self.step, Arc::clone(&self.groups[group]));
        Begin { group, id, step, shared, worked: Err(Cause::NonFinite), reply }
    }

    /// The result of the step that has begun: the next one may begin.
    pub(crate) fn outcome(&mut self) -> Option<Outcomes<T>> {
        self.step += 1;
        self.outcome.take()
    }

    /// Waits until the last step that has begun is over. If it was delivered, this gives how long it took, once.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        let resting = self.resting.take()?;
        let took = resting.recv().ok();
        // It ends when the groups are at rest.
        let _ = resting.recv();
        took
    }
}

impl<T: Element> Drop for Exchange<T> {
    fn drop(&mut self) {
        self.session.mailbox.send(Command::Retire(self.first));
    }
}
