//! Ascending numbers as the positions of ones in a stream of bits.

use super::super::error::Wrong;

/// Sets the bits at ascending positions; `bytes` must have 8 more than those take.
pub(super) fn write(bytes: &mut [u8], positions: impl Iterator<Item = u64>) {
    let mut open = (0, 0);
    for position in positions {
        let at = position / 64;
        if at != open.0 {
            put(bytes, open);
            open = (at, 0);
        }
        open.1 |= 1 << (position % 64);
    }
    put(bytes, open);
}

fn put(bytes: &mut [u8], (at, bits): (u64, u64)) {
    let at = 8 * at as usize;
    for (byte, bits) in bytes[at..at + 8].iter_mut().zip(bits.to_le_bytes()) {
        *byte |= bits;
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
