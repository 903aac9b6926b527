//! The streams of a device.

use crate::backend::Stream;

/// The streams of a device. None waits for another but by events, so that what an event does not name goes on.
///
/// Gradients are added in a stream in which nothing is selected: a backward pass, which goes on when its gradient is read, waits for no
/// selection but an earlier one of the same values. So all that writes values is in `writes`: one writer is behind another by itself.
/// All that reads values is in two other pairs of streams, and an accumulator orders them by events of its own, see
/// [`Turns`](crate::values::Turns). The program enqueues faster than the device computes, so a selection is put into `ahead` long before its
/// gradient is there, and behind those of gradients that come earlier. What the host asks for once a gradient is there must not be behind
/// the selections of later ones: it is in `asked`. Copies to the device wait for none of this, and have a stream besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    /// Adds gradients, commits, and applies updates to what is the program's.
    pub(crate) writes: Stream,
    /// Selects from values whose gradient may be still to come.
    pub(crate) ahead: Readers,
    /// Does what the host asks for of values that are complete, and waits for.
    pub(crate) asked: Readers,
    /// Copies to the device, into buffers that nothing uses: it waits for nothing.
    pub(crate) uploads: Stream,
}

/// Two streams that read values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readers {
    /// Selects, gathers, encodes and merges.
    pub(crate) selections: Stream,
    /// Copies to the host what was selected, and values.
    pub(crate) downloads: Stream,
}

impl Streams {
    /// All of them.
    pub(crate) fn all(self) -> [Stream; 6] {
        let Self { writes, ahead, asked, uploads } = self;
        [writes, ahead.selections, ahead.downloads, asked.selections, asked.downloads, uploads]
    }
}
