//! Fields of equal width, the first in the lowest bits: eight of them are as many bytes as each has bits.

use super::write::GROUP;

/// How many bytes beyond the last field may be written.
pub(in super::super) const SLACK: usize = 32;

/// Writes fields of a width from 0 to 32 from the start of `bytes` on.
pub(super) struct FieldWriter<'a> {
    bytes: &'a mut [u8],
    width: u32,
    at: usize,
}

impl<'a> FieldWriter<'a> {
    /// `bytes` must have [`SLACK`] more than all fields take.
    pub(super) fn new(bytes: &'a mut [u8], width: u32) -> Self {
        Self { bytes, width, at: 0 }
    }

    /// Writes the low bits of eight values.
    pub(super) fn push(&mut self, values: [u32; GROUP]) {
        let width = self.width;
        let mask = mask(width);
        let [a, b, c, d, e, f, g, h] = values.map(|v| u64::from(v) & mask);
        let at = self.at;
        if width <= 16 {
            let low = a | b << width | c << (2 * width) | d << (3 * width);
            let high = e | f << width | g << (2 * width) | h << (3 * width);
            self.put(at, u128::from(low) | u128::from(high) << (4 * width));
        } else {
            let pair = |low, high| u128::from(low) | u128::from(high) << width;
            let low = pair(a, b) | pair(c, d) << (2 * width);
            let high = pair(e, f) | pair(g, h) << (2 * width);
            // Four fields of odd width end within a byte, which the next four then share.
            let shared = 4 * width % 8;
            self.put(at, low);
            let top = if shared == 0 { 0 } else { low >> (4 * width - shared) };
            self.put(at + (4 * width / 8) as usize, high << shared | top);
        }
        self.at += width as usize;
    }

    fn put(&mut self, at: usize, bits: u128) {
        self.bytes[at..at + 16].copy_from_slice(&bits.to_le_bytes());
    }
}

/// Reads a field for each slot and calls `place` with both, in order. Beyond the end of `bytes` all bits are zero.
pub(super) fn read(bytes: &[u8], width: u32, slots: &mut [u32], mut place: impl FnMut(&mut u32, u32)) {
    let (groups, rest) = slots.as_chunks_mut::<GROUP>();
    let behind = groups.len() * width as usize;
    if width <= 16 {
        for (group, slots) in groups.iter_mut().enumerate() {
            let values = narrow(bytes, group * width as usize, width);
            slots.iter_mut().zip(values).for_each(|(slot, value)| place(slot, value));
        }
        rest.iter_mut().zip(narrow(bytes, behind, width)).for_each(|(slot, value)| place(slot, value));
    } else {
        for (group, slots) in groups.iter_mut().enumerate() {
            let values = wide(bytes, group * width as usize, width);
            slots.iter_mut().zip(values).for_each(|(slot, value)| place(slot, value));
        }
        rest.iter_mut().zip(wide(bytes, behind, width)).for_each(|(slot, value)| place(slot, value));
    }
}

/// Eight fields of at most 16 bits.
#[inline(always)]
fn narrow(bytes: &[u8], at: usize, width: u32) -> [u32; GROUP] {
    let bits = get(bytes, at);
    let mask = mask(width);
    let four = |bits: u64| [0, 1, 2, 3].map(|i| (bits >> (i * width) & mask) as u32);
    let ([a, b, c, d], [e, f, g, h]) = (four(bits as u64), four((bits >> (4 * width)) as u64));
    [a, b, c, d, e, f, g, h]
}

/// Eight fields of at most 32 bits.
#[inline(always)]
fn wide(bytes: &[u8], at: usize, width: u32) -> [u32; GROUP] {
    let mask = u128::from(mask(width));
    let four = |bits: u128| [0, 1, 2, 3].map(|i| (bits >> (i * width) & mask) as u32);
    let high = get(bytes, at + (4 * width / 8) as usize) >> (4 * width % 8);
    let ([a, b, c, d], [e, f, g, h]) = (four(get(bytes, at)), four(high));
    [a, b, c, d, e, f, g, h]
}

fn get(bytes: &[u8], at: usize) -> u128 {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(chunk) => u128::from_le_bytes(*chunk),
        None => {
            let mut padded = [0; 16];
            padded[..rest.len()].copy_from_slice(rest);
            u128::from_le_bytes(padded)
        }
    }
}

/// As many ones.
fn mask(width: u32) -> u64 {
    (1 << width) - 1
}
