//! All-reduces that run in the background.

mod sparse;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::density::NormShareError;
use gleaner_algorithms::residual::norm;
use gleaner_algorithms::{Element, Method, Reduction};

use crate::algorithm::Outcome;
use crate::auto;
use crate::exchange::{Exchange, Outcomes};
use crate::failure::{Cancelled, Error, Failure};
use crate::group::{Group, Home, Refused};
use crate::layout::{Layout, LayoutError};
use crate::mailbox::Command;
use crate::notes::Purpose;
use crate::session::{Inner, Job, block_on};
use crate::steps::Cause;
use crate::tag::StepId;
use crate::update::{Skipped, Update};

pub use sparse::SparseReducer;

/// An all-reduce of a fixed number of entries, with a residual of its own. Starting a step returns a [`Handle`];
/// steps of different reducers may be under way at once.
///
/// ```
/// use gleaner_runtime::Session;
/// use gleaner_algorithms::{Element, Method, Reduction};
///
/// let session = Session::join()?;
/// let mut embedding = session.reducer("embedding", 4, Method::spardl().density(0.5))?;
/// let mut output = session.reducer("output", 2, Method::ring())?;
/// let first = embedding.start(&[4.0, 0.2, 0.0, 0.3])?;
/// let second = output.start(&[1.0, -1.0])?;
/// assert_eq!(second.wait()?.values("output")?, [1.0, -1.0]);
/// assert_eq!(first.wait()?.values("embedding")?, [4.0, 0.0, 0.0, 0.3]);
/// assert_eq!(embedding.residual()?, [0.0, 0.2, 0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reducer<T: Element = f32> {
    session: Arc<Inner>,
    layout: Arc<Layout>,
    by_name: Arc<HashMap<String, usize>>,
    method: Method,
    exchange: Exchange<T>,
    reduction: Reduction<T>,
}

impl<T: Element> Reducer<T> {
    pub(crate) fn new(
        session: Arc<Inner>,
        stream: u64,
        name: &str,
        n: usize,
        method: Method,
        reduction: Reduction<T>,
    ) -> Result<Self, Error> {
        Self::with(session, stream, (name, n), method, reduction, || Home::Host)
    }

    fn with(
        session: Arc<Inner>,
        stream: u64,
        (name, n): (&str, usize),
        method: Method,
        reduction: Reduction<T>,
        home: fn() -> Home<T>,
    ) -> Result<Self, Error> {
        let layout = Layout::new().parameter(name, n);
        let by_name = Arc::new(layout.by_name()?);
        if method.follows_norm_share().is_some() {
            let reducer = "a reducer, whose steps are not looked at; use gradients, or leave the share out";
            return Err(MethodError::from(NormShareError::Beside(reducer)).into());
        }
        // The default coding is for sums of 32-bit gradients.
        let method =
            if T::NAME == f32::NAME && reduction.has_residual() { method } else { method.or_exact() };
        // Whichever method is chosen.
        if T::NAME != f32::NAME && method.values() != Coding::Exact {
            return Err(MethodError::NotFloat32 { element: T::NAME, coding: method.values() }.into());
        }
        let reduced = format!("{} of {}", reduction.name(), T::NAME);
        let nonfinite = format!("on values that are not finite: {}", method.nonfinite().name());
        let kind = if matches!(home(), Home::Sparse) { "sparse reducer" } else { "reducer" };
        let lines = format!("{kind} '{name}' with {n} entries\nmethod {method}\n{reduced}\n{nonfinite}\n");
        let agree = || session.agree(Purpose::Reducer, &lines);
        let group = |method| Group::new(session.membership(), method, n.into(), stream, reduction, home());
        let group = if method.is_auto() {
            // Before anything is measured for it.
            agree()?;
            auto::cheapest(&session, name, &method, n, group)?
        } else {
            group(method)?
        };
        let method = group.routine.method().clone();
        let exchange = Exchange::new(session.clone(), vec![group], 0, true)?;
        agree()?;
        Ok(Self { session, layout: Arc::new(layout), by_name, method, exchange, reduction })
    }

    /// Adds the values to the residual, so that they are free when this returns, and starts the all-reduce of the sum.
    /// While the step before is under way, this waits until it is committed: an entry belongs to one unfinished step at a
    /// time.
    ///
    /// The step is completed and committed whether or not its handle is waited for.
    ///
    /// # Errors
    /// Another number of values, NaN or infinite values (the job then fails on all ranks, unless the method
    /// [skips](Method::on_nonfinite) such steps), or a job that has failed.
    pub fn start(&mut self, values: &[T]) -> Result<Handle<T>, Error> {
        let layout = self.layout.clone();
        let parameter = &layout.parameters[0];
        if values.len() != parameter.len {
            let (name, expected, found) = (parameter.name.clone(), parameter.len, values.len());
            return Err(LayoutError::Length { name, expected, found }.into());
        }
        self.rest()?;
        let factor = self.shortening(values);
        let clipped = factor.map(|factor| values.iter().map(|&value| factor * value).collect::<Vec<T>>());
        let values = clipped.as_deref().unwrap_or(values);
        self.begin(|group, name| group.accumulate(name, 0, values))
    }

    /// By what values are to be multiplied where they are clipped.
    fn shortening(&self, values: &[T]) -> Option<T> {
        let correction = self.method.correction();
        correction.clip?;
        correction.shortening(norm(values), self.session.workers).map(T::from_f64)
    }

    /// Starts a step with what `accumulate` adds to the residual; no step is under way.
    fn begin(
        &mut self,
        accumulate: impl FnOnce(&mut Group<T>, &str) -> Result<(), Refused>,
    ) -> Result<Handle<T>, Error> {
        let (rank, step) = (self.session.rank.0, self.exchange.step);
        let accumulated = accumulate(&mut self.exchange.group(0), &self.layout.parameters[0].name);
        let own = match accumulated.map_err(|refused| refused.skipped(self.method.nonfinite())) {
            Ok(()) => {
                // In main memory sums are checked while they are added.
                self.exchange.begin(0, false, |found| found.to_string())?;
                None
            }
            Err(Ok(reason)) => {
                self.exchange.leave_out(0);
                Some(reason)
            }
            Err(Err(reason)) => {
                return Err(self.session.fail(Failure { rank, step: Some(step), reason }));
            }
        };
        let id = self.exchange.id(0);
        Ok(Handle {
            job: self.session.job.clone(),
            outcome: self.exchange.outcome(),
            layout: self.layout.clone(),
            by_name: self.by_name.clone(),
            reduction: self.reduction,
            own,
            id,
            step,
        })
    }

    /// The method that it runs: the one that was chosen, if the method was a choice.
    pub fn method(&self) -> Method {
        self.method.clone()
    }

    /// The number of the next step, from 0.
    pub fn step(&self) -> u64 {
        self.exchange.step
    }

    /// The residual, entry by entry, once the step under way is committed. A caller that goes on in another
    /// process adds it to the first values there.
    ///
    /// # Errors
    /// A job that has failed.
    pub fn residual(&mut self) -> Result<Vec<T>, Error> {
        self.rest()?;
        Ok(self.exchange.group(0).residual.read(0..self.layout.entries())?)
    }

    /// Waits until the step under way is over. If it was delivered, this gives how long it took, once.
    fn rest(&mut self) -> Result<Option<Duration>, Error> {
        let took = self.exchange.rest();
        self.session.failure().map_or(Ok(took), |failure| Err(failure.into()))
    }

    /// Goes over to another method, between two steps. All ranks do. What was not delivered stays.
    fn take_up(&mut self, method: Method, stream: u64) -> Result<(), Error> {
        self.exchange.group(0).take_up(self.session.membership(), method.clone(), stream)?;
        self.exchange.widen();
        self.method = method;
        Ok(())
    }
}

/// One step of a [`Reducer`]: a future of its update, for any executor, or [`wait`](Self::wait).
///
/// Dropping it, at any time, abandons the result only: the step is completed and committed here as on all other ranks.
#[must_use = "dropping the handle abandons the update, which the other ranks may apply"]
pub struct Handle<T: Element = f32> {
    job: Job,
    outcome: Option<Outcomes<T>>,
    layout: Arc<Layout>,
    by_name: Arc<HashMap<String, usize>>,
    reduction: Reduction<T>,
    /// What was not finite in this rank's values.
    own: Option<String>,
    id: StepId,
    step: u64,
}

impl<T: Element> Handle<T> {
    /// The number of its step, from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Asks all ranks to cancel this step, and returns at once. The handle returns the result, on this as on every other
    /// rank:
    ///
    /// - [`Error::Cancelled`], which names the rank that asked: nothing was delivered, and what was accumulated waits in the
    ///   residuals for the next step;
    /// - the update, if a rank had finished the step already and may have used it: the request came too late. The step is
    ///   completed everywhere.
    ///
    /// A rank that has not started this step yet learns of it from the handle that it gets when it does.
    pub fn cancel(&self) {
        self.job.mailbox.send(Command::Ask(self.id, Cause::Wish));
    }

    /// Waits for the update: the same on every rank.
    ///
    /// # Errors
    /// A step that was cancelled, or a job that has failed.
    pub fn wait(self) -> Result<Update<T>, Error> {
        let _blocked = self.job.mailbox.block();
        block_on(self)
    }
}

// It is moved about freely: nothing in it points into it.
impl<T: Element> Unpin for Handle<T> {}

impl<T: Element> Future for Handle<T> {
    type Output = Result<Update<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = Error::Failed(self.job.ended(Some(self.step)));
        let Some(outcome) = &mut self.outcome else { return Poll::Ready(Err(ended)) };
        let outcome = match ready!(Pin::new(outcome).poll(context)) {
            Ok(outcome) => outcome?,
            Err(_) => return Poll::Ready(Err(ended)),
        };
        let (groups, skipped) = match outcome {
            Outcome::Delivered { sums, .. } => (sums, None),
            Outcome::LeftOut { by, sums } => (sums, Some(Skipped { rank: by, own: self.own.take() })),
            // A reducer's values are in main memory: no rank says that a device lacks any.
            Outcome::Cancelled { by } | Outcome::Undone { by } => {
                let reducer = self.layout.parameters[0].name.clone();
                return Poll::Ready(Err(Cancelled { rank: by, step: self.step, reducer }.into()));
            }
        };
        let (layout, by_name) = (self.layout.clone(), self.by_name.clone());
        let (workers, step, reduction) = (self.job.workers, self.step, self.reduction);
        let device = None;
        Poll::Ready(Ok(Update { layout, by_name, groups, workers, step, reduction, skipped, device }))
    }
}

impl<T: Element> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("step", &self.step).finish_non_exhaustive()
    }
}
