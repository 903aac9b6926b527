//! Ascending numbers as the positions of ones in a stream of bits.

use super::super::error::Wrong;
use super::write::GROUP;

/// Writes zeros and ones behind what stands in `bytes` before.
pub(super) struct UnaryWriter<'a> {
    bytes: &'a mut [u8],
    /// The byte that the next bit belongs to, its bits so far, and how many these are.
    at: usize,
    open: u64,
    fill: u32,
}

impl<'a> UnaryWriter<'a> {
    /// Starts at a bit. `bytes` must have 8 more than all bits take, and the bits must be zero.
    pub(super) fn new(bytes: &'a mut [u8], first: u64) -> Self {
        let at = (first / 8) as usize;
        let open = bytes[at].into();
        Self { bytes, at, open, fill: (first % 8) as u32 }
    }

    /// For each count this many zeros and a one.
    #[inline(always)]
    pub(super) fn push(&mut self, zeros: [u32; GROUP]) {
        // At most seven bits are open, and so all of these fit beside them, with one to spare.
        if zeros.iter().sum::<u32>() > 56 - GROUP as u32 {
            zeros.into_iter().for_each(|zeros| self.push_one(zeros));
            return;
        }
        let (mut bits, mut end) = (self.open, self.fill);
        for zeros in zeros {
            end += zeros;
            bits |= 1 << end;
            end += 1;
        }
        self.put(bits, end);
    }

    /// This many zeros and a one.
    pub(super) fn push_one(&mut self, zeros: u32) {
        let end = u64::from(self.fill) + u64::from(zeros);
        if end < 63 {
            return self.put(self.open | 1 << end, end as u32 + 1);
        }
        self.put(self.open, self.fill);
        self.at += (end / 8) as usize;
        self.put(1 << (end % 8), (end % 8) as u32 + 1);
    }

    /// Writes the open bits, fewer than 64; whole bytes of them are done.
    #[inline(always)]
    fn put(&mut self, bits: u64, fill: u32) {
        self.bytes[self.at..self.at + 8].copy_from_slice(&bits.to_le_bytes());
        self.at += (fill / 8) as usize;
        self.open = bits >> (fill & !7);
        self.fill = fill % 8;
    }
}

/// Finds a one for each slot, from bit `first` on, and sets the slot to `place` of its position, counted from `first`.
/// Gives the position behind the last, counted from the start.
pub(super) fn read(
    bytes: &[u8],
    first: u64,
    slots: &mut [u32],
    mut place: impl FnMut(u64) -> u32,
) -> Result<u64, Wrong> {
    let mut at = (first / 8) as usize;
    // The lowest bit of the first word may stand before `first`, and its position is then below zero.
    let mut base = (first % 8).wrapping_neg();
    let mut word = load(bytes, at)? & (u64::MAX << (first % 8));
    let (mut rest, mut last) = (slots, 0);
    loop {
        let ones = (word.count_ones() as usize).min(rest.len());
        let (here, after) = rest.split_at_mut(ones);
        for slot in here {
            last = base.wrapping_add(word.trailing_zeros().into());
            *slot = place(last);
            word &= word.wrapping_sub(1);
        }
        if after.is_empty() {
            return Ok(first + last + 1);
        }
        rest = after;
        at += 8;
        base = base.wrapping_add(64);
        word = load(bytes, at)?;
    }
}

/// The next 64 bits; beyond the end of `bytes` all are zero, but some must be left.
fn load(bytes: &[u8], at: usize) -> Result<u64, Wrong> {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(chunk) => Ok(u64::from_le_bytes(*chunk)),
        None if rest.is_empty() => Err(Wrong::End),
        None => {
            let mut padded = [0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            Ok(u64::from_le_bytes(padded))
        }
    }
}

/// Refuses bits that are set from position `from` on.
pub(super) fn none(bytes: &[u8], from: u64) -> Result<(), Wrong> {
    let rest = bytes.get((from / 8) as usize..).unwrap_or_default();
    let low = (1u8 << (from % 8)) - 1;
    let first = rest.first().is_some_and(|byte| byte & !low != 0);
    if first || rest.iter().skip(1).any(|&byte| byte != 0) { Err(Wrong::Padding) } else { Ok(()) }
}
