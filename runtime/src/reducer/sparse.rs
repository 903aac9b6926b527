//! All-reduces of values that are sparse already.

use std::fmt;
use std::sync::Arc;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::{Element, Method, Reduction};

use super::{Handle, Reducer};
use crate::auto::{Auto, AutoChoice};
use crate::failure::Error;
use crate::group::Home;
use crate::layout::{LayoutError, Parameter};
use crate::notes::Purpose;
use crate::session::Inner;

/// An all-reduce of vectors of n values of which each rank has few that are not zero: it takes them as entries, sorted indices
/// and values. Memory and time of a step grow with the entries, and not with n.
///
/// A method without a [density](Method::density) delivers all entries, and nothing waits. With a density, k of n entries are
/// delivered in each step, and the others wait for the next one, as entries too. `Method::auto()` is resolved in the first step, by
/// how many entries all ranks bring to it, and revised by what steps really take.
///
/// ```
/// use gleaner_algorithms::Method;
/// use gleaner_algorithms::bag::Entries;
/// use gleaner_runtime::Session;
///
/// let session = Session::join()?;
/// let method = Method::named("ssar-recursive-double")?;
/// let mut weights = session.sparse_reducer("weights", 1_000_000_000, method)?;
/// let gradient = Entries { indices: vec![7, 999_999_999], values: vec![0.5, -2.0] };
/// let update = weights.start(&gradient)?.wait()?;
/// assert_eq!(update.sparse("weights")?, gradient);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SparseReducer<T: Element = f32> {
    session: Arc<Inner>,
    stream: u64,
    parameter: Parameter,
    choice: Method,
    /// None before the first step, where the choice is made in that.
    running: Option<Reducer<T>>,
    /// The choice, once it is made.
    auto: Option<Auto>,
}

impl<T: Element> SparseReducer<T> {
    pub(crate) fn new(
        session: Arc<Inner>,
        stream: u64,
        name: &str,
        n: usize,
        method: &Method,
    ) -> Result<Self, Error> {
        if u32::try_from(n).is_err() {
            return Err(LayoutError::LongForSparse { name: name.into(), n }.into());
        }
        let mut candidates = method.sparse_candidates(session.workers, n)?;
        let parameter =
            Parameter { name: name.into(), len: n, group: 0, offset: 0, is_sparse: true, is_whole: false };
        let mut made = Self { session, stream, parameter, choice: method.clone(), running: None, auto: None };
        if method.is_auto() {
            let lines = format!("sparse reducer '{name}' with {n} entries of {}\nmethod {method}\n", T::NAME);
            made.session.agree(Purpose::Reducer, &lines)?;
        } else if let Some(method) = candidates.pop() {
            made.running = Some(made.run(method)?);
        }
        Ok(made)
    }

    fn run(&self, method: Method) -> Result<Reducer<T>, Error> {
        let parameter = (&*self.parameter.name, self.parameter.len);
        Reducer::with(self.session.clone(), self.stream, parameter, method, Reduction::Sum, || Home::Sparse)
    }

    /// What runs the method that is expected to be cheapest for this many entries.
    fn choose(&mut self, entries: usize) -> Result<Reducer<T>, Error> {
        let mut auto = Auto::sparse(&self.session, &self.choice, (self.parameter.len, entries))?;
        auto.announce(false, None);
        let reducer = self.run(auto.method(0))?;
        self.auto = Some(auto);
        Ok(reducer)
    }

    /// Waits until the step under way is over, and takes note of how long it took.
    fn rest(&mut self, reducer: &mut Reducer<T>) -> Result<(), Error> {
        let took = reducer.rest()?;
        if let (Some(auto), Some(took)) = (&mut self.auto, took) {
            auto.record(0, took);
        }
        Ok(())
    }

    /// Between two steps: goes over to another method where the choice is revised.
    fn revise(&mut self, reducer: &mut Reducer<T>) -> Result<(), Error> {
        let Some(auto) = &mut self.auto else { return Ok(()) };
        if !auto.revise(&self.session)?.is_empty() {
            reducer.take_up(auto.method(0), self.stream)?;
        }
        Ok(())
    }

    /// Adds the entries to the residual, so that they are free when this returns, and starts the all-reduce of what is there.
    /// While the step before is under way, this waits until it is committed. The step goes on and is committed by itself,
    /// whether or not its handle is waited for; [`Update::sparse`](crate::Update::sparse) gives what it delivers. With the
    /// method `auto`, the first of these calls waits for that of all ranks, and so does each by which its choice is revised.
    ///
    /// # Errors
    /// Indices that do not ascend or are not below n, and other than one value for each: the reducer is then as it was. NaN or
    /// infinite values (the job then fails on all ranks, unless the method [skips](Method::on_nonfinite) such steps), or a job
    /// that has failed.
    pub fn start(&mut self, entries: &Entries<T>) -> Result<Handle<T>, Error> {
        self.parameter.expect_entries(entries)?;
        let running = match self.running.take() {
            Some(mut running) => {
                self.rest(&mut running)?;
                self.revise(&mut running)?;
                running
            }
            None => self.choose(entries.len())?,
        };
        let reducer = self.running.insert(running);
        let clipped = reducer.shortening(&entries.values).map(|factor| Entries {
            indices: entries.indices.clone(),
            values: entries.values.iter().map(|&value| factor * value).collect(),
        });
        reducer.begin(|group, name| group.accumulate_entries(name, clipped.as_ref().unwrap_or(entries)))
    }

    /// What the method `auto` has chosen so far; none before the first step, and of any other method.
    pub fn chosen(&self) -> Option<AutoChoice> {
        self.auto.as_ref().and_then(|auto| auto.chosen().pop())
    }

    /// The method that it runs. Of the method `auto` this is the one that runs now, from the first step on.
    pub fn method(&self) -> Method {
        self.running.as_ref().map_or_else(|| self.choice.clone(), Reducer::method)
    }

    /// The number of the next step, from 0.
    pub fn step(&self) -> u64 {
        self.running.as_ref().map_or(0, Reducer::step)
    }

    /// What waits here for a later step, once the step under way is committed: nothing, unless a density was asked for.
    ///
    /// # Errors
    /// A job that has failed.
    pub fn residual(&mut self) -> Result<Entries<T>, Error> {
        let Some(mut reducer) = self.running.take() else { return Ok(Entries::default()) };
        self.rest(&mut reducer)?;
        Ok(self.running.insert(reducer).exchange.group(0).residual.entries()?)
    }
}

impl<T: Element> fmt::Debug for SparseReducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseReducer").field("step", &self.step()).finish_non_exhaustive()
    }
}
