//! From bytes to indices.

use super::super::error::Wrong;
use super::super::header::Form;
use super::{fields, implied_words, ones};

/// Reads `count` indices, strictly ascending and below `len`, and gives the bytes behind them.
pub(in super::super) fn read(
    form: Form,
    parameter: u8,
    count: usize,
    len: u32,
    bytes: &[u8],
) -> Result<(Vec<u32>, &[u8]), Wrong> {
    if count == 0 {
        return Ok((Vec::new(), bytes));
    }
    let words = implied_words(form, parameter, count as u64, len.into());
    let section = match words {
        Some(words) => bytes.get(..4 * words as usize).ok_or(Wrong::End)?,
        None => bytes,
    };
    let mut indices = vec![0; count];
    let read = IndexReader { section, width: parameter.into(), len, indices: &mut indices };
    let end = match form {
        Form::Raw | Form::Dense | Form::Full | Form::Aligned => read.raw()?,
        Form::Packed => read.packed()?,
        Form::Bitmap => read.bitmap()?,
        Form::EliasFano => read.elias_fano()?,
        Form::Rice => read.rice()?,
    };
    let words = words.unwrap_or(end.div_ceil(32)) as usize;
    let (section, rest) = bytes.split_at_checked(4 * words).ok_or(Wrong::End)?;
    ones::none(section, end)?;
    Ok((indices, rest))
}

/// Each way of reading gives the position of the first bit behind the indices.
struct IndexReader<'a> {
    section: &'a [u8],
    width: u32,
    len: u32,
    /// At least one slot.
    indices: &'a mut [u32],
}

impl IndexReader<'_> {
    fn raw(self) -> Result<u64, Wrong> {
        for (index, word) in self.indices.iter_mut().zip(self.section.as_chunks().0) {
            *index = u32::from_le_bytes(*word);
        }
        self.ascending()?;
        Ok(32 * self.indices.len() as u64)
    }

    fn packed(self) -> Result<u64, Wrong> {
        let mut next = 0u64;
        fields::read(self.section, self.width, self.indices, |slot, gap| {
            *slot = gap.wrapping_add(next as u32);
            next += u64::from(gap) + 1;
        });
        self.below(next - 1)?;
        Ok(u64::from(self.width) * self.indices.len() as u64)
    }

    fn bitmap(self) -> Result<u64, Wrong> {
        let end = ones::read(self.section, 0, self.indices, |position| position as u32)?;
        self.below(end - 1)?;
        Ok(end)
    }

    fn elias_fano(mut self) -> Result<u64, Wrong> {
        let (end, _) = self.highs()?;
        let width = self.width;
        fields::read(self.section, width, self.indices, |slot, low| *slot = *slot << width | low);
        self.ascending()?;
        Ok(end)
    }

    fn rice(mut self) -> Result<u64, Wrong> {
        let (end, zeros) = self.highs()?;
        // The sum of all higher parts stands in the slot. The lower ones are added, and a one for each entry before.
        let mut next = 0u64;
        let width = self.width;
        fields::read(self.section, width, self.indices, |slot, low| {
            *slot = (*slot << width).wrapping_add(low).wrapping_add(next as u32);
            next += u64::from(low) + 1;
        });
        // The last index, in 64 bits; if it is below the block's length, then no sum before it has wrapped.
        self.below((zeros << width) + next - 1)?;
        Ok(end)
    }

    /// Sets each slot to the number of zeros before its one, behind the fields. Gives the end and the number of all zeros.
    fn highs(&mut self) -> Result<(u64, u64), Wrong> {
        let first = u64::from(self.width) * self.indices.len() as u64;
        let mut order = 0;
        let end = ones::read(self.section, first, self.indices, |position| {
            order += 1;
            (position + 1 - order) as u32
        })?;
        // As zeros only become more, none is above the last, and if that fits, all do.
        let zeros = end - first - self.indices.len() as u64;
        self.below(zeros.saturating_mul(1 << self.width))?;
        Ok((end, zeros))
    }

    /// Refuses an index beyond the block.
    fn below(&self, index: u64) -> Result<(), Wrong> {
        if index < self.len.into() { Ok(()) } else { Err(Wrong::Index(index)) }
    }

    fn ascending(&self) -> Result<(), Wrong> {
        let pairs = || self.indices.iter().zip(&self.indices[1..]);
        if pairs().fold(true, |all, (a, b)| all & (a < b)) {
            return self.below(self.indices[self.indices.len() - 1].into());
        }
        let found = pairs().find(|(a, b)| a >= b).map_or(0, |(_, b)| *b);
        Err(Wrong::Index(found.into()))
    }
}
