//! Values as bytes and back, in every coding.
//!
//! Exact values and those of 16 bits stand one after the other. QSGD has codes of a few bits, the first in the lowest
//! bits of a byte, and a scale for each bucket. Sparse bodies have first the scales of all buckets that have entries,
//! and then all codes. Dense ones have bucket by bucket a scale and then its codes, so that each can be read when it
//! has come.

use half::{bf16, f16};

use super::super::coding::{bf16_from, f16_from};
use super::super::{Coding, Rounded, floats, is_entry, qsgd};
use super::error::Wrong;
use super::words;
use crate::element::{self, Element};

/// The bits that a value takes, scales apart.
pub(super) fn bits<T: Element>(coding: Coding) -> u32 {
    if coding == Coding::Exact { 8 * T::WIDTH as u32 } else { coding.bits() }
}

/// The words that the values of a sparse block take, of which this many buckets have entries.
pub(super) fn sparse_words<T: Element>(rounded: Rounded, count: u64, buckets: u64) -> u64 {
    buckets + words((count * u64::from(bits::<T>(rounded.coding()))).div_ceil(8))
}

/// The words that all values of a block of `len` entries take.
pub(super) fn dense_words<T: Element>(rounded: Rounded, len: u64) -> u64 {
    if !rounded.coding().has_buckets() {
        return sparse_words::<T>(rounded, len, 0);
    }
    let (whole, rest) = (len >> rounded.shift(), len & ((1 << rounded.shift()) - 1));
    let of = sparse_words::<T>;
    whole * of(rounded, 1 << rounded.shift(), 1) + of(rounded, rest, u64::from(rest > 0))
}

/// How many buckets a block of `len` entries has.
pub(super) fn buckets(rounded: Rounded, len: u64) -> u64 {
    if rounded.coding().has_buckets() { len.div_ceil(1 << rounded.shift()) } else { 0 }
}

/// Appends the values at some indices, which must be rounded as said.
pub(super) fn write_sparse<T: Element>(rounded: Rounded, indices: &[u32], values: &[T], out: &mut Vec<u8>) {
    let coding = rounded.coding();
    let Some(values) = floats_of(values).filter(|_| coding.has_buckets()) else {
        return write_plain(coding, values, out);
    };
    let mut codes = Vec::with_capacity(values.len() + 8);
    for run in qsgd::runs(indices, rounded.shift()) {
        let bucket = &values[run];
        let scale = qsgd::scale(bucket);
        out.extend_from_slice(&scale.to_le_bytes());
        append_codes(coding, bucket, scale, &mut codes);
    }
    write_codes(coding, &mut codes, out);
}

/// Appends all values of a block, or whole buckets of it and the end.
pub(super) fn write_dense<T: Element>(rounded: Rounded, values: &[T], out: &mut Vec<u8>) {
    let coding = rounded.coding();
    let Some(values) = floats_of(values).filter(|_| coding.has_buckets()) else {
        return write_plain(coding, values, out);
    };
    let mut codes = Vec::new();
    for bucket in values.chunks(1 << rounded.shift()) {
        let scale = qsgd::scale(bucket);
        out.extend_from_slice(&scale.to_le_bytes());
        codes.clear();
        append_codes(coding, bucket, scale, &mut codes);
        write_codes(coding, &mut codes, out);
    }
}

/// Appends the codes of a bucket. One of scale 0 has nothing but zeros, which are so beside any scale.
fn append_codes(coding: Coding, bucket: &[f32], scale: f32, codes: &mut Vec<u8>) {
    let scale = if scale == 0.0 { f32::MAX } else { scale };
    codes.extend(bucket.iter().map(|&v| qsgd::code(coding, v, scale)));
}

/// Reads the values at some indices from bytes that end where they do.
pub(super) fn read_sparse<T: Element>(
    rounded: Rounded,
    indices: &[u32],
    bytes: &[u8],
    negative_zeros: bool,
) -> Result<Vec<T>, Wrong> {
    let coding = rounded.coding();
    let values = if coding.has_buckets() {
        of_floats(read_buckets(rounded, indices, bytes)?)
    } else {
        read_plain(rounded, indices.len(), bytes)?
    };
    check(values, negative_zeros)
}

/// Reads `count` consecutive values of a dense block: whole buckets, or the end of the block.
pub(super) fn read_dense<T: Element>(rounded: Rounded, count: usize, bytes: &[u8]) -> Result<Vec<T>, Wrong> {
    let coding = rounded.coding();
    if !coding.has_buckets() {
        return check(read_plain(rounded, count, bytes)?, true);
    }
    let mut values = Vec::with_capacity(count);
    let mut rest = bytes;
    while values.len() < count {
        let here = (count - values.len()).min(1 << rounded.shift());
        let (scale, after) = rest.split_first_chunk().ok_or(Wrong::End)?;
        let scale = f32::from_le_bytes(*scale);
        let bytes = 4 * sparse_words::<f32>(rounded, here as u64, 0) as usize;
        let (codes, after) = after.split_at_checked(bytes).ok_or(Wrong::End)?;
        let codes = read_codes(coding, here, codes)?;
        read_bucket(coding, &codes, scale, true, &mut values)?;
        rest = after;
    }
    if rest.is_empty() { Ok(of_floats(values)) } else { Err(Wrong::End) }
}

fn read_buckets(rounded: Rounded, indices: &[u32], bytes: &[u8]) -> Result<Vec<f32>, Wrong> {
    let coding = rounded.coding();
    let buckets = qsgd::runs(indices, rounded.shift()).count();
    let (scales, codes) = bytes.split_at_checked(4 * buckets).ok_or(Wrong::End)?;
    let codes = read_codes(coding, indices.len(), codes)?;
    let mut values = Vec::with_capacity(indices.len());
    for (run, scale) in qsgd::runs(indices, rounded.shift()).zip(floats(scales)) {
        read_bucket(coding, &codes[run], scale, false, &mut values)?;
    }
    Ok(values)
}

/// Appends the values of a bucket whose largest level must be the highest; the scale of nothing but zeros is 0.
fn read_bucket(
    coding: Coding,
    codes: &[u8],
    scale: f32,
    negative_zeros: bool,
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
    if !negative_zeros && codes.contains(&sign) {
        return Err(Wrong::Value(-0.0));
    }
    values.extend(codes.iter().map(|&code| qsgd::value(coding, code, scale)));
    Ok(())
}

/// Values as what they are, if they are floats of 32 bits: the only ones that are ever rounded to a coding.
fn floats_of<T: Element>(values: &[T]) -> Option<&[f32]> {
    (T::NAME == f32::NAME).then(|| bytemuck::cast_slice(values))
}

/// The other way; values of other types are never asked for.
fn of_floats<T: Element>(values: Vec<f32>) -> Vec<T> {
    if T::NAME == f32::NAME {
        bytemuck::cast_slice(&values).to_vec()
    } else {
        values.into_iter().map(|v| T::from_f64(v.into())).collect()
    }
}

fn write_plain<T: Element>(coding: Coding, values: &[T], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + 4 * words(values.len() as u64 * u64::from(bits::<T>(coding)) / 8) as usize, 0);
    let (pairs, _) = out[start..].as_chunks_mut();
    match (coding, floats_of(values)) {
        (Coding::Bf16, Some(values)) => {
            pairs.iter_mut().zip(values).for_each(|(pair, &v)| *pair = bf16_from(v).to_le_bytes());
        }
        (Coding::F16, Some(values)) => {
            pairs.iter_mut().zip(values).for_each(|(pair, &v)| *pair = f16_from(v).to_le_bytes());
        }
        _ => {
            let places = out[start..].chunks_exact_mut(T::WIDTH);
            places.zip(values).for_each(|(place, v)| place.copy_from_slice(v.to_le().as_ref()));
        }
    }
}

fn read_plain<T: Element>(rounded: Rounded, count: usize, bytes: &[u8]) -> Result<Vec<T>, Wrong> {
    let coding = rounded.coding();
    if bytes.len() as u64 != 4 * sparse_words::<T>(rounded, count as u64, 0) {
        return Err(Wrong::End);
    }
    let (bytes, padding) = bytes.split_at(count * bits::<T>(coding) as usize / 8);
    if padding.iter().any(|&byte| byte != 0) {
        return Err(Wrong::Padding);
    }
    let pairs = bytes.as_chunks().0.iter();
    Ok(match coding {
        Coding::Bf16 => of_floats(pairs.map(|&pair| bf16::from_le_bytes(pair).to_f32()).collect()),
        Coding::F16 => of_floats(pairs.map(|&pair| f16::from_le_bytes(pair).to_f32()).collect()),
        _ => element::values(bytes).collect(),
    })
}

/// Refuses values that are not finite, and −0 unless it is allowed.
fn check<T: Element>(values: Vec<T>, negative_zeros: bool) -> Result<Vec<T>, Wrong> {
    let right = |value: T| value.is_finite() & (negative_zeros | is_entry(value));
    // No branch, one pass.
    if values.iter().fold(true, |all, &value| all & right(value)) {
        return Ok(values);
    }
    let wrong = values.into_iter().find(|&value| !right(value));
    Err(Wrong::Value(wrong.map_or(f64::NAN, |v| v.to_f64())))
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
