//! From indices to bytes.

use super::super::header::Form;
use super::{Packing, fields, ones};

/// How many indices are written at a time.
pub(super) const GROUP: usize = 8;

/// Appends ascending indices in the form that was chosen for them.
pub(in super::super) fn write(choice: Packing, indices: &[u32], out: &mut Vec<u8>) {
    let (start, bytes) = (out.len(), 4 * choice.words as usize);
    out.resize(start + bytes + fields::SLACK, 0);
    let section = &mut out[start..];
    let width = u32::from(choice.parameter);
    match choice.form {
        Form::Raw | Form::Dense | Form::Full | Form::Aligned => {
            for (word, index) in section.as_chunks_mut().0.iter_mut().zip(indices) {
                *word = index.to_le_bytes();
            }
        }
        Form::Packed => write_fields(section, width, indices, gap),
        // The bits of a bitmap are so many zeros before each one as its gap says.
        Form::Bitmap => write_ones(section, 0, indices, gap),
        Form::EliasFano => {
            write_fields(section, width, indices, |index, _| index);
            let high = |index: u32| index >> width;
            write_ones(section, width, indices, |i, before| match before {
                BEFORE => high(i),
                before => high(i) - high(before),
            });
        }
        Form::Rice => {
            write_fields(section, width, indices, gap);
            write_ones(section, width, indices, |i, before| gap(i, before) >> width);
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

/// Writes the low bits of `of` each index and the one before.
pub(super) fn write_fields(section: &mut [u8], width: u32, indices: &[u32], of: impl Fn(u32, u32) -> u32) {
    let mut writer = fields::FieldWriter::new(section, width);
    let mut before = BEFORE;
    let (groups, rest) = indices.as_chunks();
    for &group in groups {
        writer.push(each(group, before, &of));
        before = group[GROUP - 1];
    }
    let mut last = [0; GROUP];
    for (field, &index) in last.iter_mut().zip(rest) {
        *field = of(index, before);
        before = index;
    }
    writer.push(last);
}

/// Writes as many zeros as is `of` each index and the one before, and a one; behind fields of a width.
pub(super) fn write_ones(section: &mut [u8], width: u32, indices: &[u32], of: impl Fn(u32, u32) -> u32) {
    let mut writer = ones::UnaryWriter::new(section, u64::from(width) * indices.len() as u64);
    let mut before = BEFORE;
    let (groups, rest) = indices.as_chunks();
    for &group in groups {
        writer.push(each(group, before, &of));
        before = group[GROUP - 1];
    }
    for &index in rest {
        writer.push_one(of(index, before));
        before = index;
    }
}

#[inline(always)]
fn each(group: [u32; GROUP], before: u32, of: impl Fn(u32, u32) -> u32) -> [u32; GROUP] {
    let [a, b, c, d, e, f, g, h] = group;
    [of(a, before), of(b, a), of(c, b), of(d, c), of(e, d), of(f, e), of(g, f), of(h, g)]
}
