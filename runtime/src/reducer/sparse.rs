//! All-reduces of values that are sparse already.

use std::fmt;
use std::sync::Arc;

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::{Element, Method, Reduction};

use super::{Handle, Reducer};
use crate::failure::Error;
use crate::group::Home;
use crate::layout::LayoutError;
use crate::session::Inner;

/// An all-reduce of vectors of n values of which each rank has few that are not zero: it takes them as entries, sorted indices
/// and values. Memory and time of a step grow with the entries, and not with n.
///
/// A method without a [density](Method::density) delivers all entries, and nothing waits. With a density, k of n entries are
/// delivered in each step, and the others wait for the next one, as entries too.
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
pub struct SparseReducer<T: Element = f32>(Reducer<T>);

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
        let method = method.for_sparse(session.workers, n)?;
        Reducer::with(session, stream, (name, n), method, Reduction::Sum, || Home::Sparse).map(Self)
    }

    /// Adds the entries to the residual, so that they are free when this returns, and starts the all-reduce of what is there.
    /// While the step before is under way, this waits until it is committed. The step goes on and is committed by itself,
    /// whether or not anybody waits for its handle; [`Update::sparse`](crate::Update::sparse) gives what it delivers.
    ///
    /// # Errors
    /// Indices that do not ascend or are not below n, and other than one value for each: the reducer is then as it was. NaN or
    /// infinite values (the job then fails on all ranks, unless the method [skips](Method::on_nonfinite) such steps), or a job
    /// that has failed.
    pub fn start(&mut self, entries: &Entries<T>) -> Result<Handle<T>, Error> {
        self.0.layout.parameters[0].expect_entries(entries)?;
        self.0.rest()?;
        let clipped = self.0.shortening(&entries.values).map(|factor| Entries {
            indices: entries.indices.clone(),
            values: entries.values.iter().map(|&value| factor * value).collect(),
        });
        self.0.begin(|group, name| group.accumulate_entries(name, clipped.as_ref().unwrap_or(entries)))
    }

    /// As [`Reducer::method`].
    pub fn method(&self) -> Method {
        self.0.method()
    }

    /// As [`Reducer::step`].
    pub fn step(&self) -> u64 {
        self.0.step()
    }

    /// What waits here for a later step, once the step under way is committed: nothing, unless a density was asked for.
    ///
    /// # Errors
    /// A job that has failed.
    pub fn residual(&mut self) -> Result<Entries<T>, Error> {
        self.0.rest()?;
        Ok(self.0.exchange.group(0).residual.entries()?)
    }
}

impl<T: Element> fmt::Debug for SparseReducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseReducer").field("step", &self.step()).finish_non_exhaustive()
    }
}
