//! Where the SIMD kernels write candidates: whole vectors, of which only the chosen lanes count.

use super::Entries;

/// The memory behind the entries of a [`Entries`]. A kernel stores a whole vector at `count` and advances `count` by
/// the lanes chosen, so that the next store overwrites the surplus.
pub(super) struct Packer<'a> {
    out: &'a mut Entries,
    /// Where the first new index goes.
    pub(super) indices: *mut u32,
    /// Where the first new value goes.
    pub(super) values: *mut f32,
    /// How many entries have been written.
    pub(super) count: usize,
}

impl<'a> Packer<'a> {
    /// Makes room for `room` entries.
    pub(super) fn new(out: &'a mut Entries, room: usize) -> Packer<'a> {
        out.reserve(room);
        let indices = out.indices.spare_capacity_mut().as_mut_ptr().cast();
        let values = out.values.spare_capacity_mut().as_mut_ptr().cast();
        Packer { out, indices, values, count: 0 }
    }

    /// Counts the entries in.
    ///
    /// # Safety
    /// `count` entries must have been written, within the room made.
    pub(super) unsafe fn finish(self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.out.indices.set_len(self.out.indices.len() + self.count);
            self.out.values.set_len(self.out.values.len() + self.count);
        }
    }
}
