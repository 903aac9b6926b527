//! From indices to bytes.

use super::super::header::Form;
use super::{Choice, fields, ones};

/// Appends ascending indices in the form that was chosen for them.
pub(in super::super) fn write(choice: Choice, indices: &[u32], out: &mut Vec<u8>) {
    let (start, bytes) = (out.len(), 4 * choice.words as usize);
    out.resize(start + bytes + fields::SLACK, 0);
    let section = &mut out[start..];
    let width = u32::from(choice.parameter);
    let first = u64::from(width) * indices.len() as u64;
    match choice.form {
        Form::Raw | Form::Dense | Form::Full => {
            for (word, index) in section.as_chunks_mut().0.iter_mut().zip(indices) {
                *word = index.to_le_bytes();
            }
        }
        Form::Packed => write_gaps(section, width, indices),
        Form::Bitmap => ones::write(section, indices.iter().map(|&index| index.into())),
        Form::EliasFano => {
            write_fields(section, width, indices);
            let order = first..;
            ones::write(section, indices.iter().zip(order).map(|(&i, order)| order + u64::from(i >> width)));
        }
        Form::Rice => {
            write_gaps(section, width, indices);
            let (mut next, mut before) = (first, BEFORE);
            let ends = indices.iter().map(|&index| {
                let end = next + u64::from(gap(index, before) >> width);
                (next, before) = (end + 1, index);
                end
            });
            ones::write(section, ends);
        }
    }
    out.truncate(start + bytes);
}

/// What stands before the first index: −1.
const BEFORE: u32 = u32::MAX;

/// How many positions lie between an index and the one before.
pub(super) fn gap(index: u32, before: u32) -> u32 {
    index.wrapping_sub(before).wrapping_sub(1)
}

/// Writes the low bits of indices.
fn write_fields(section: &mut [u8], width: u32, indices: &[u32]) {
    let mut writer = fields::Writer::new(section, width);
    let (groups, rest) = indices.as_chunks();
    groups.iter().for_each(|&group| writer.push(group));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    writer.push(last);
}

/// Writes the low bits of gaps.
fn write_gaps(section: &mut [u8], width: u32, indices: &[u32]) {
    let mut writer = fields::Writer::new(section, width);
    let (groups, rest) = indices.as_chunks::<8>();
    let mut before = BEFORE;
    for &[a, b, c, d, e, f, g, h] in groups {
        let pairs = [(a, before), (b, a), (c, b), (d, c), (e, d), (f, e), (g, f), (h, g)];
        writer.push(pairs.map(|(index, before)| gap(index, before)));
        before = h;
    }
    let mut last = [0; 8];
    for (field, &index) in last.iter_mut().zip(rest) {
        *field = gap(index, before);
        before = index;
    }
    writer.push(last);
}
