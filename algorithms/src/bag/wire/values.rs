//! Values as bytes and back, in every coding.
//!
//! Exact values and those of 16 bits stand one after the other. QSGD has codes of a few bits, the first in the lowest
//! bits of a byte, and a scale for each bucket. Sparse bodies have first the scales of all buckets that have entries,
//! and then all codes. Dense ones have bucket by bucket a scale and then its codes, so that each can be read when it
//! has come.

use half::{bf16, f16};

use super::super::coding::{bf16_from, f16_from};
use super::super::{Coding, Rounded, floats, qsgd};
use super::error::Wrong;
use super::words;

/// The words that the values of a sparse block take, of which so many buckets have entries.
pub(super) fn sparse_words(rounded: Rounded, count: u64, buckets: u64) -> u64 {
    buckets + words((count * u64::from(rounded.coding().bits())).div_ceil(8))
}

/// The words that all values of a block of `len` entries take.
pub(super) fn dense_words(rounded: Rounded, len: u64) -> u64 {
    if !rounded.coding().has_buckets() {
        return sparse_words(rounded, len, 0);
    }
    let (whole, rest) = (len >> rounded.shift(), len & ((1 << rounded.shift()) - 1));
    whole * sparse_words(rounded, 1 << rounded.shift(), 1) + sparse_words(rounded, rest, u64::from(rest > 0))
}

/// How many buckets a block of `len` entries has.
pub(super) fn buckets(rounded: Rounded, len: u64) -> u64 {
    if rounded.coding().has_buckets() { len.div_ceil(1 << rounded.shift()) } else { 0 }
}

/// Appends the values of sparse entries, which must be rounded as said.
pub(super) fn write_sparse(rounded: Rounded, indices: &[u32], values: &[f32], out: &mut Vec<u8>) {
    let coding = rounded.coding();
    if !coding.has_buckets() {
        return write_plain(coding, values, out);
    }
    let mut codes = Vec::with_capacity(values.len() + 8);
    for run in qsgd::runs(indices, rounded.shift()) {
        let bucket = &values[run];
        let scale = qsgd::scale(bucket);
        out.extend_from_slice(&scale.to_le_bytes());
        codes.extend(bucket.iter().map(|&v| qsgd::code(coding, v, scale)));
    }
    write_codes(coding, &mut codes, out);
}

/// Appends all values of a block, or whole buckets of it and the end.
pub(super) fn write_dense(rounded: Rounded, values: &[f32], out: &mut Vec<u8>) {
    let coding = rounded.coding();
    if !coding.has_buckets() {
        return write_plain(coding, values, out);
    }
    let mut codes = Vec::new();
    for bucket in values.chunks(1 << rounded.shift()) {
        let scale = qsgd::scale(bucket);
        out.extend_from_slice(&scale.to_le_bytes());
        codes.clear();
        match scale {
            0.0 => codes.resize(bucket.len(), 0),
            scale => codes.extend(bucket.iter().map(|&v| qsgd::code(coding, v, scale))),
        }
        write_codes(coding, &mut codes, out);
    }
}

/// Reads the values of sparse entries from bytes that end where they do.
pub(super) fn read_sparse(rounded: Rounded, indices: &[u32], bytes: &[u8]) -> Result<Vec<f32>, Wrong> {
    match rounded.coding().has_buckets() {
        true => read_buckets(rounded, indices, bytes),
        false => read_plain(rounded, indices.len(), bytes, Zeros::Refused),
    }
}

/// Reads `count` consecutive values of a dense block: whole buckets, or the end of the block.
pub(super) fn read_dense(rounded: Rounded, count: usize, bytes: &[u8]) -> Result<Vec<f32>, Wrong> {
    let coding = rounded.coding();
    if !coding.has_buckets() {
        return read_plain(rounded, count, bytes, Zeros::Welcome);
    }
    let mut values = Vec::with_capacity(count);
    let mut rest = bytes;
    while values.len() < count {
        let here = (count - values.len()).min(1 << rounded.shift());
        let (scale, after) = rest.split_first_chunk().ok_or(Wrong::End)?;
        let scale = f32::from_le_bytes(*scale);
        let bytes = 4 * sparse_words(rounded, here as u64, 0) as usize;
        let (codes, after) = after.split_at_checked(bytes).ok_or(Wrong::End)?;
        let codes = read_codes(coding, here, codes)?;
        read_bucket(coding, &codes, scale, Zeros::Welcome, &mut values)?;
        rest = after;
    }
    if rest.is_empty() { Ok(values) } else { Err(Wrong::End) }
}

/// Whether values may be zero.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    /// Among all values of a block.
    Welcome,
    /// Among those of sparse entries.
    Refused,
}

fn read_buckets(rounded: Rounded, indices: &[u32], bytes: &[u8]) -> Result<Vec<f32>, Wrong> {
    let coding = rounded.coding();
    let buckets = qsgd::runs(indices, rounded.shift()).count();
    let (scales, codes) = bytes.split_at_checked(4 * buckets).ok_or(Wrong::End)?;
    let codes = read_codes(coding, indices.len(), codes)?;
    let mut values = Vec::with_capacity(indices.len());
    for (run, scale) in qsgd::runs(indices, rounded.shift()).zip(floats(scales)) {
        read_bucket(coding, &codes[run], scale, Zeros::Refused, &mut values)?;
    }
    Ok(values)
}

/// Appends the values of a bucket whose largest level must be the highest; the scale of nothing but zeros is 0.
fn read_bucket(
    coding: Coding,
    codes: &[u8],
    scale: f32,
    zeros: Zeros,
    values: &mut Vec<f32>,
) -> Result<(), Wrong> {
    let sign = 1u8 << (coding.bits() - 1);
    let largest = codes.iter().fold(0, |largest, code| largest.max(code & (sign - 1)));
    let fits = match largest {
        0 => scale.to_bits() == 0,
        largest => largest == sign - 1 && qsgd::is_scale(scale),
    };
    if !fits {
        return Err(Wrong::Scale(scale));
    }
    if codes.contains(&sign) {
        return Err(Wrong::Value(-0.0));
    }
    if zeros == Zeros::Refused && codes.contains(&0) {
        return Err(Wrong::Value(0.0));
    }
    values.extend(codes.iter().map(|&code| qsgd::value(coding, code, scale)));
    Ok(())
}

fn write_plain(coding: Coding, values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 4 * words(values.len() as u64 * u64::from(coding.bits()) / 8) as usize, 0);
    let (pairs, _) = out[start..].as_chunks_mut();
    match coding {
        Coding::Bf16 => {
            pairs.iter_mut().zip(values).for_each(|(pair, &v)| *pair = bf16_from(v).to_le_bytes())
        }
        Coding::F16 => pairs.iter_mut().zip(values).for_each(|(pair, &v)| *pair = f16_from(v).to_le_bytes()),
        _ => {
            let (quads, _) = out[start..].as_chunks_mut();
            quads.iter_mut().zip(values).for_each(|(quad, v)| *quad = v.to_le_bytes());
        }
    }
}

fn read_plain(rounded: Rounded, count: usize, bytes: &[u8], zeros: Zeros) -> Result<Vec<f32>, Wrong> {
    let coding = rounded.coding();
    if bytes.len() as u64 != 4 * sparse_words(rounded, count as u64, 0) {
        return Err(Wrong::End);
    }
    let (bytes, padding) = bytes.split_at(count * coding.bits() as usize / 8);
    if padding.iter().any(|&byte| byte != 0) {
        return Err(Wrong::Padding);
    }
    match coding {
        Coding::Bf16 => read_each(bytes.as_chunks().0, zeros, |&pair| bf16::from_le_bytes(pair).to_f32()),
        Coding::F16 => read_each(bytes.as_chunks().0, zeros, |&pair| f16::from_le_bytes(pair).to_f32()),
        _ => read_each(bytes.as_chunks().0, zeros, |&quad| f32::from_le_bytes(quad)),
    }
}

/// Reads values one by one; refuses those that are not finite, and zeros unless they are welcome.
fn read_each<T>(raw: &[T], zeros: Zeros, read: impl Fn(&T) -> f32) -> Result<Vec<f32>, Wrong> {
    let magnitude = |v: f32| v.to_bits() & 0x7fff_ffff;
    // Adding one to an exponent of all ones carries into the sign's place, which was cleared, and taking one off a
    // magnitude of zero borrows from there.
    let borrow = u32::from(zeros == Zeros::Refused);
    let signs = |v| (magnitude(v) + 0x0080_0000) | magnitude(v).wrapping_sub(borrow);
    let mut values = Vec::with_capacity(raw.len());
    // In parts that are still in the nearest cache when they are checked.
    for part in raw.chunks(1024) {
        let start = values.len();
        values.extend(part.iter().map(&read));
        if values[start..].iter().fold(0, |any, &v| any | signs(v)) >> 31 > 0 {
            let found = values[start..].iter().find(|&&v| signs(v) >> 31 > 0);
            return Err(Wrong::Value(found.copied().unwrap_or(f32::NAN)));
        }
    }
    Ok(values)
}

/// Appends codes, a few bits each, and zeros up to a whole word.
fn write_codes(coding: Coding, codes: &mut Vec<u8>, out: &mut Vec<u8>) {
    let bits = coding.bits() as usize;
    codes.resize(codes.len().next_multiple_of(32 / bits), 0);
    match bits {
        2 => out.extend(codes.as_chunks().0.iter().map(|[a, b, c, d]| a | b << 2 | c << 4 | d << 6)),
        4 => out.extend(codes.as_chunks().0.iter().map(|[a, b]| a | b << 4)),
        _ => out.extend_from_slice(codes),
    }
}

/// Reads codes from bytes that end where they do.
fn read_codes(coding: Coding, count: usize, bytes: &[u8]) -> Result<Vec<u8>, Wrong> {
    let mut codes: Vec<u8> = match coding.bits() {
        2 => bytes.iter().flat_map(|b| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6]).collect(),
        4 => bytes.iter().flat_map(|b| [b & 15, b >> 4]).collect(),
        _ => bytes.to_vec(),
    };
    let padded = count.next_multiple_of(32 / coding.bits() as usize);
    if codes.len() != padded {
        return Err(Wrong::End);
    }
    if codes[count..].iter().any(|&code| code != 0) {
        return Err(Wrong::Padding);
    }
    codes.truncate(count);
    Ok(codes)
}
