//! What the trainer's thread and compute threads hand to an algorithm actor, and what it answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::device::DeviceError;
use gleaner_algorithms::residual::NonFinite;
use gleaner_algorithms::schedule::{Execution, ExecutionError, Outgoing};
use gleaner_algorithms::{Element, Partition, Rank};
use tokio::sync::oneshot;

use crate::failure::Error;
use crate::group::{Group, Unfit};
use crate::mailbox::{Command, Mailbox};
use crate::steps::Cause;
use crate::tag::StepId;
use crate::timeline::{Recorder, What};

/// Groups are shared between the trainer, which accumulates between steps, and the step that commits.
pub(crate) type Shared<T> = Arc<Mutex<Group<T>>>;

/// Looks into a group. A task that panicked with it has failed the job.
pub(crate) fn look<T: Element>(group: &Shared<T>) -> MutexGuard<'_, Group<T>> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a step.
pub(crate) enum Outcome<T: Element> {
    /// All groups are committed.
    Delivered { sums: Sums<T>, lost: f64, times: Vec<Times> },
    /// All ranks left the step out, as this one has asked: nothing is in the sums.
    LeftOut { by: u32, sums: Sums<T> },
    /// A rank cancelled it: what was accumulated waits in the residuals.
    Cancelled { by: u32 },
    /// The same, because that rank had not enough memory on its device.
    Undone { by: u32 },
}

/// The sums over all workers by group, with the blocks that they are cut into.
pub(crate) type Sums<T> = Vec<(Partition, Vec<Bag<T>>)>;

/// Where the outcome of a step goes. When it is dropped, the groups are at rest; `resting` gets how long a step took that was delivered.
pub(crate) struct Reply<T: Element> {
    pub(crate) outcome: oneshot::Sender<Result<Outcome<T>, Error>>,
    pub(crate) resting: mpsc::Sender<Duration>,
    pub(crate) open: Open,
}

impl<T: Element> Reply<T> {
    /// Returns the result of the step, once its groups are at rest and `over` was called.
    pub(crate) fn give(self, concluded: Result<Outcome<T>, Error>, over: impl FnOnce()) {
        let Self { outcome, resting, open } = self;
        if let Ok(Outcome::Delivered { times, .. }) = &concluded {
            let _ = resting.send(times.iter().map(|times| times.total).max().unwrap_or_default());
        }
        // A trainer that has the outcome can begin the next step at once.
        drop((resting, open));
        over();
        // Nothing waits if the handle was dropped.
        let _ = outcome.send(concluded);
    }
}

/// Counts a step as under way while it lives.
pub(crate) struct Open(Arc<AtomicUsize>);

impl Open {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Where the time of a group's step went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// Choosing entries and preparing messages.
    pub(crate) select: Duration,
    /// Taking received entries in, putting the result together, and committing.
    pub(crate) merge: Duration,
    /// From the beginning of the exchange to its end, and committing.
    pub(crate) total: Duration,
}

/// A group's step whose times and events are noted.
#[derive(Clone)]
pub(crate) struct Noted {
    pub(crate) id: StepId,
    /// Its number, from 0.
    pub(crate) step: u64,
    pub(crate) times: Times,
    pub(crate) recorder: Arc<Recorder>,
}

impl Noted {
    pub(crate) fn new(id: StepId, step: u64, recorder: &Arc<Recorder>) -> Self {
        Self { id, step, times: Times::default(), recorder: Arc::clone(recorder) }
    }

    /// It did this from `began` until now.
    pub(crate) fn note(&mut self, what: What, began: Instant) {
        match what {
            What::Select => self.times.select += began.elapsed(),
            What::Merge | What::Commit { .. } => self.times.merge += began.elapsed(),
            _ => {}
        }
        self.recorder.group(self.id, self.step, what, began);
    }
}

/// The messages of an algorithm actor.
pub(crate) enum Message<T: Element> {
    /// A group's step begins.
    Begin(Begin<T>),
    /// A compute thread is done with an execution.
    Worked { group: usize, id: StepId, worked: Worked<T> },
    /// A step has ended for all groups and is committed, or not.
    Over,
}

/// A step of a group.
pub(crate) struct Begin<T: Element> {
    pub(crate) group: usize,
    pub(crate) id: StepId,
    /// Its number, from 0.
    pub(crate) step: u64,
    pub(crate) shared: Shared<T>,
    /// Or why this rank wants the step left out.
    pub(crate) worked: Result<Worked<T>, Cause>,
    /// With the first group of a step.
    pub(crate) reply: Option<Reply<T>>,
}

/// An execution, and how far it was brought.
pub(crate) struct Worked<T: Element> {
    pub(crate) execution: Box<Execution<T>>,
    pub(crate) outbox: Vec<Outgoing>,
    /// Whose message it needs; none if it has exchanged all. Without it, nothing was done yet.
    pub(crate) waits: Option<Result<Option<Rank>, ExecutionError>>,
    pub(crate) noted: Noted,
    pub(crate) began: Instant,
}

impl<T: Element> Worked<T> {
    /// Brings it to the first message. Of sums that are not finite, which a device has `found`, nothing is exchanged, nor where memory is
    /// missing to select: then the step is left out, if it may be.
    pub(crate) fn checked(
        mut self,
        found: Result<Option<NonFinite>, DeviceError>,
        skips: bool,
        refuse: impl FnOnce(Unfit) -> String,
    ) -> Result<Self, Cause> {
        match found {
            Ok(None) => self = self.go_on(),
            Ok(Some(found)) => {
                let sentence = refuse(Unfit::NonFinite(found));
                if skips {
                    return Err(Cause::NonFinite);
                }
                self.waits = Some(Err(ExecutionError::Own(sentence)));
                return Ok(self);
            }
            Err(error) => self.waits = Some(Err(error.into())),
        }
        match self.waits {
            // Nothing was sent, and nothing was taken out of the accumulator.
            Some(Err(ExecutionError::Device(DeviceError::Memory(said)))) => {
                refuse(Unfit::Memory(said));
                Err(Cause::Memory)
            }
            _ => Ok(self),
        }
    }

    /// Brings it to the next message.
    pub(crate) fn go_on(mut self) -> Self {
        let clock = Instant::now();
        self.waits = Some(self.execution.go_on(&mut self.outbox));
        self.noted.note(What::Select, clock);
        self
    }
}

/// Sends a message to an algorithm actor.
pub(crate) fn tell<T: Element>(mailbox: &Mailbox, first: u32, message: Message<T>) {
    mailbox.send(Command::To(first, Box::new(message)));
}
