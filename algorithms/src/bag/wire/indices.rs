//! Indices as bytes and back.

use super::error::Wrong;
use super::header::Form;

/// Whether the parameter is one that a form can have.
pub(super) fn has_parameter(_form: Form, parameter: u8) -> bool {
    parameter == 0
}

/// The words that `count` indices below `len` take, if the form and its parameter say so.
pub(super) fn implied_words(form: Form, _parameter: u8, count: u64, _len: u64) -> Option<u64> {
    (form == Form::Raw).then_some(count)
}

/// Appends the indices.
pub(super) fn write(indices: &[u32], out: &mut Vec<u8>) {
    out.extend(indices.iter().flat_map(|i| i.to_le_bytes()));
}

/// Reads as many indices, strictly ascending and below `len`, and gives the bytes behind them.
pub(super) fn read(count: usize, len: u32, bytes: &[u8]) -> Result<(Vec<u32>, &[u8]), Wrong> {
    let (words, rest) = bytes.split_at_checked(4 * count).ok_or(Wrong::End)?;
    let indices: Vec<u32> = words.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut least = 0;
    for &index in &indices {
        if index >= len || u64::from(index) < least {
            return Err(Wrong::Index(index.into()));
        }
        least = u64::from(index) + 1;
    }
    Ok((indices, rest))
}
