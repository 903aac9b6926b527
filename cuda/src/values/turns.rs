//! The order between the stream in which an accumulator is written and those in which it is read.

use std::sync::Arc;

use gleaner_algorithms::device::DeviceError;

use crate::backend::{Kind, Stream};
use crate::context::Context;
use crate::fence::Fence;

/// Two events of an accumulator: its last write, and its last selection.
///
/// Gradients, commits and resets are put into the stream of writes, and so are in order among themselves. Selections and gathers are in one
/// of two streams: those that are begun ahead of the gradient, and those that the host asks for. Between these:
///
/// - What selects waits for the last selection, in whichever stream: the next use of histograms, counts and cuts, which selections alone
///   have.
/// - What selects reads values, candidates, the number of candidates and what was not finite, all of which writes change: it waits for
///   the last write.
/// - Encoding, and merging where no values are read, have memory of their own and take no turn: the host waits for each, and what they read of
///   a selection has been received.
/// - What writes waits for the last selection, which may still read them. A commit also reads the indices that the selection before
///   has chosen, in its output: so the next selection, which overwrites them, waits for the commit as for any write.
/// - Copies to the host read values and what was not finite once the last write is done, and an output once its selection is. A copy of values
///   is waited for where it is made. Of the other two, the next write or selection waits for the copy by the fence of that copy.
/// - Another accumulator, which is added or copied, is read in the stream of writes. Nothing else writes it.
/// - Memory is freed, and pinned memory goes back to its pool, when nothing is under way in any stream.
///
/// So a gradient waits for a selection of its own values alone. That is one of a step before, whose entries the host has got before the
/// step could end; only where they were not asked for, as in a block that became dense, the stream of writes waits on the device.
#[derive(Debug)]
pub(super) struct Turns {
    context: Arc<Context>,
    written: Fence,
    selected: Fence,
}

impl Turns {
    /// Of values that nothing uses yet. The context is entered.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let (written, selected) = (Fence::new(context, Kind::Order)?, Fence::new(context, Kind::Order)?);
        Ok(Self { context: Arc::clone(context), written, selected })
    }

    /// Puts what writes values, or what is collected of them, into the stream of writes.
    pub(super) fn write<R>(&self, work: impl FnOnce() -> Result<R, DeviceError>) -> Result<R, DeviceError> {
        let writes = self.context.streams().writes;
        self.selected.before(writes)?;
        let done = work();
        // Also if not all was started.
        self.written.record(writes)?;
        done
    }

    /// Puts what selects from values into a stream of selections.
    pub(super) fn select<R>(
        &self,
        selections: Stream,
        work: impl FnOnce() -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        self.written.before(selections)?;
        self.selected.before(selections)?;
        let done = work();
        self.selected.record(selections)?;
        done
    }

    /// What is copied to the host in a stream from now on waits for the last write.
    pub(super) fn before_downloads(&self, downloads: Stream) -> Result<(), DeviceError> {
        self.written.before(downloads)
    }
}
