//! All-reduces of values that are sparse already.

use std::fmt;
use std::sync::Arc;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::{Element, Method, Reduction};

use super::{Handle, Reducer};
use crate::auto;
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
/// how many entries all ranks bring to it.
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
        let mut made = Self { session, stream, parameter, choice: method.clone(), running: None };
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

    /// What runs the method that is cheapest for so many entries.
    fn choose(&self, entries: usize) -> Result<Reducer<T>, Error> {
        let Self { session, parameter: Parameter { name, len, .. }, choice, .. } = self;
        auto::cheapest_sparse(session, name, choice, (*len, entries), |method| self.run(method))
    }

    /// Adds the entries to the residual, so that they are free when this returns, and starts the all-reduce of what is there.
    /// While the step before is under way, this waits until it is committed. The step goes on and is committed by itself,
    /// whether or not anybody waits for its handle; [`Update::sparse`](crate::Update::sparse) gives what it delivers. With the
    /// method `auto`, all ranks make the first of these calls together, and it waits for them.
    ///
    /// # Errors
    /// Indices that do not ascend or are not below n, and other than one value for each: the reducer is then as it was. NaN or
    /// infinite values (the job then fails on all ranks, unless the method [skips](Method::on_nonfinite) such steps), or a job
    /// that has failed.
    pub fn start(&mut self, entries: &Entries<T>) -> Result<Handle<T>, Error> {
        self.parameter.expect_entries(entries)?;
        let running = match self.running.take() {
            Some(running) => running,
            None => self.choose(entries.len())?,
        };
        let reducer = self.running.insert(running);
        reducer.rest()?;
        let clipped = reducer.shortening(&entries.values).map(|factor| Entries {
            indices: entries.indices.clone(),
            values: entries.values.iter().map(|&value| factor * value).collect(),
        });
        reducer.begin(|group, name| group.accumulate_entries(name, clipped.as_ref().unwrap_or(entries)))
    }

    /// The method that it runs. Of the method `auto` this is the one that was chosen, from the first step on.
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
        let Some(reducer) = &mut self.running else { return Ok(Entries::default()) };
        reducer.rest()?;
        Ok(reducer.exchange.group(0).residual.entries()?)
    }
}

impl<T: Element> fmt::Debug for SparseReducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseReducer").field("step", &self.step()).finish_non_exhaustive()
    }
}
