//! All-reduces that a trainer starts and does not wait for.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll};

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::residual::{OnNonFinite, norm};
use gleaner_algorithms::{Element, Method, Reduction};
use tokio::sync::oneshot;

use crate::algorithm::{Run, Stopped, at_length};
use crate::auto;
use crate::failure::{Cancelled, Error, Failure};
use crate::group::Group;
use crate::layout::{Layout, LayoutError};
use crate::notes::Purpose;
use crate::post::Post;
use crate::session::Inner;
use crate::steps::Cause;
use crate::tag::{REDUCERS, StepId};
use crate::update::{Skipped, Update};

/// An all-reduce of a fixed number of entries, with a residual of its own. Each step is started, and gives a [`Handle`];
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
    number: u16,
    layout: Arc<Layout>,
    by_name: Arc<HashMap<String, usize>>,
    step: u64,
    method: Method,
    /// Where the group comes back to when the step that it is in has been committed.
    idle: mpsc::Receiver<Group<T>>,
    reduction: Reduction<T>,
}

impl<T: Element> Reducer<T> {
    pub(crate) fn new(
        session: Arc<Inner>,
        number: u16,
        name: &str,
        n: usize,
        method: Method,
        reduction: Reduction<T>,
    ) -> Result<Self, Error> {
        let layout = Layout::new().parameter(name, n);
        let by_name = Arc::new(layout.by_name()?);
        let stream = u64::from(REDUCERS) << 16 | u64::from(number);
        // Whichever method a choice comes to.
        if T::NAME != f32::NAME && method.values() != Coding::Exact {
            return Err(MethodError::NotFloat32 { element: T::NAME, coding: method.values() }.into());
        }
        let reduced = format!("{} of {}", reduction.name(), T::NAME);
        let nonfinite = format!("on values that are not finite: {}", method.nonfinite().name());
        let lines = format!("reducer '{name}' with {n} entries\nmethod {method}\n{reduced}\n{nonfinite}\n");
        let agree = || session.agree(Purpose::Reducer, &lines);
        let group = |method| Group::new(&session, method, n.into(), stream, reduction);
        let group = if method.is_auto() {
            // Before anything is measured for it.
            agree()?;
            auto::cheapest(&session, name, &method, n, group)?
        } else {
            group(method)?
        };
        agree()?;
        Ok(Self {
            session,
            number,
            layout: Arc::new(layout),
            by_name,
            step: 0,
            method: group.routine.method().clone(),
            idle: resting(group),
            reduction,
        })
    }

    /// Adds the values to the residual, so that they are free when this returns, and starts the all-reduce of what is there.
    /// While the step before is under way, this waits until it is committed: an entry belongs to one unfinished step at a
    /// time.
    ///
    /// The step goes on and is committed by itself, whether or not anybody waits for its handle.
    ///
    /// # Errors
    /// Another number of values, NaN or infinite values (the job then fails on all ranks, unless the method
    /// [skips](Method::on_nonfinite) such steps), or a job that has failed.
    pub fn start(&mut self, values: &[T]) -> Result<Handle<T>, Error> {
        let parameter = &self.layout.parameters[0];
        if values.len() != parameter.len {
            let (name, expected, found) = (parameter.name.clone(), parameter.len, values.len());
            return Err(LayoutError::Length { name, expected, found }.into());
        }
        let mut group = self.wait_idle()?;
        let (rank, step) = (self.session.post.rank.0, self.step);
        let correction = self.method.correction();
        let clipped: Option<Vec<T>> = correction.clip.and_then(|_| {
            let factor = T::from_f64(correction.shortening(norm(values), self.session.post.workers)?);
            Some(values.iter().map(|&value| factor * value).collect())
        });
        let values = clipped.as_deref().unwrap_or(values);
        let own = group.accumulate(&parameter.name, 0, values).err();
        let id = StepId::new(group.epoch(), REDUCERS, self.number, step);
        let running = match &own {
            None => {
                let (program, execution) = group.begin()?;
                let (done, running) = oneshot::channel();
                self.session.run(Run { id, step, program, execution, done });
                running
            }
            Some(_) if self.method.nonfinite() == OnNonFinite::Skip => self.session.leave_out(id, step),
            Some(reason) => {
                let reason = reason.clone();
                return Err(self.session.fail(Failure { rank, step: Some(step), reason }));
            }
        };
        self.step += 1;
        let (result, handle) = oneshot::channel();
        let (back, idle) = mpsc::sync_channel(1);
        self.idle = idle;
        let (layout, by_name) = (self.layout.clone(), self.by_name.clone());
        let post = self.session.post.clone();
        let (workers, desk) = (post.workers, post.clone());
        let reducer = parameter.name.clone();
        let reduction = self.reduction;
        self.session.spawn(async move {
            let outcome = match running.await {
                Ok(Ok((finished, _))) => {
                    let committed = at_length(layout.entries(), || group.commit(&post, finished));
                    // Before the result, so that whoever has the result can start the next step at once.
                    let _ = back.send(group);
                    committed.map(|delivered| {
                        let groups = vec![delivered.sums];
                        Update { layout, by_name, groups, workers, step, reduction, skipped: None }
                    })
                }
                Ok(Err(Stopped::Cancelled { by, cause: Cause::NonFinite })) => {
                    let left_out = group.leave_out();
                    let _ = back.send(group);
                    let skipped = Some(Skipped { rank: by, own });
                    left_out.map_err(Error::from).map(|nothing| {
                        let groups = vec![nothing];
                        Update { layout, by_name, groups, workers, step, reduction, skipped }
                    })
                }
                Ok(Err(Stopped::Cancelled { by, cause: Cause::Wish })) => {
                    let ended = match own {
                        None => group.give_back(),
                        // Values that are not finite cannot wait for the next step.
                        Some(_) => group.leave_out().map(drop),
                    };
                    let _ = back.send(group);
                    Err(ended.map_or_else(Error::from, |()| Cancelled { rank: by, step, reducer }.into()))
                }
                Ok(Err(Stopped::Failed(failure))) => Err(Error::Failed(post.first_failure(failure).await)),
                Err(_) => Err(Error::Failed(post.first_failure(ended(rank, step)).await)),
            };
            // Whoever dropped the handle does not want to know.
            let _ = result.send(outcome);
        });
        Ok(Handle { result: handle, post: desk, id, step })
    }

    /// The method that it runs: the one that was chosen, if the method was a choice.
    pub fn method(&self) -> Method {
        self.method.clone()
    }

    /// The number of the next step, from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// What waits here for a later step, entry by entry, once the step under way is committed. Whoever goes on in another
    /// process adds it to the first values there.
    ///
    /// # Errors
    /// A job that has failed.
    pub fn residual(&mut self) -> Result<Vec<T>, Error> {
        let group = self.wait_idle()?;
        let residual = group.residual.read(0..self.layout.entries());
        self.idle = resting(group);
        Ok(residual)
    }

    fn wait_idle(&self) -> Result<Group<T>, Error> {
        if let Some(failure) = self.session.post.failure() {
            return Err(failure.into());
        }
        self.idle.recv().map_err(|_| {
            let failure = ended(self.session.post.rank.0, self.step);
            self.session.post.failure().unwrap_or(failure).into()
        })
    }
}

/// A channel that holds the group.
fn resting<T: Element>(group: Group<T>) -> mpsc::Receiver<Group<T>> {
    let (back, idle) = mpsc::sync_channel(1);
    let _ = back.send(group);
    idle
}

fn ended(rank: u32, step: u64) -> Failure {
    let reason = "its session ended before the step did".into();
    Failure { rank, step: Some(step), reason }
}

/// One step of a [`Reducer`]: a future of its update, for any executor, or [`wait`](Self::wait).
///
/// Dropping it, at any time, abandons the result only: the step is completed and committed here as on all other ranks.
#[must_use = "dropping the handle abandons the update, which the other ranks may apply"]
pub struct Handle<T: Element = f32> {
    result: oneshot::Receiver<Result<Update<T>, Error>>,
    post: Arc<Post>,
    id: StepId,
    step: u64,
}

impl<T: Element> Handle<T> {
    /// The number of its step, from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Asks all ranks to give this step up, and returns at once. The handle says what came of it, here as on every other
    /// rank:
    ///
    /// - [`Error::Cancelled`], which names the rank that asked: nothing was delivered, and what was accumulated waits in the
    ///   residuals for the next step;
    /// - the update, if a rank had finished the step already and may have used it: the request came too late. The step is
    ///   completed everywhere.
    ///
    /// A rank that has not started this step yet learns of it from the handle that it gets when it does.
    pub fn cancel(&self) {
        self.post.about_steps(|steps| steps.ask(self.id, Cause::Wish));
    }

    /// Waits for the update: the same on every rank.
    ///
    /// # Errors
    /// A step that was cancelled, or a job that has failed.
    ///
    /// # Panics
    /// Within a task of a tokio runtime, whose thread must not be blocked. Await the handle there.
    pub fn wait(self) -> Result<Update<T>, Error> {
        let Self { result, post, step, .. } = self;
        result.blocking_recv().unwrap_or_else(|_| Err(ended(post.rank.0, step).into()))
    }
}

impl<T: Element> Future for Handle<T> {
    type Output = Result<Update<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = Pin::new(&mut self.result).poll(context);
        result.map(|result| result.unwrap_or_else(|_| Err(ended(self.post.rank.0, self.step).into())))
    }
}

impl<T: Element> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("step", &self.step).finish_non_exhaustive()
    }
}
