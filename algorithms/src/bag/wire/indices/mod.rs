//! Indices as bytes and back, in the form that is smallest for them.
//!
//! A gap is how many positions lie between an index and the one before; the first gap is the first index. The forms:
//!
//! | form | parameter | bits for n indices below len |
//! |---|---|---|
//! | raw | | 32 n |
//! | packed: all gaps in fields as wide as the largest needs | width w | w n |
//! | bitmap: a bit for each position | | len |
//! | Elias–Fano (Elias 1974, Fano 1971): the low l bits of each index, then the others as so many zeros more than for the index before, and a one | l | (l + 1) n + ⌊(len − 1) / 2^l⌋ |
//! | Rice (Rice and Plaunt 1971): the low k bits of each gap, then the others as so many zeros, and a one | k | (k + 1) n + Σ ⌊gap / 2^k⌋ |
//!
//! The low bits of all indices come first, so that fields of equal width are written and read together; the zeros and ones
//! follow without padding between.
//!
//! Two facts follow from the formulas. Rice never takes more bits than Elias–Fano with the same parameter, since the sum
//! of the gaps' higher parts is at most the higher part of the last index. And with k = 0 it is the bitmap, cut after its
//! last one. So these two are taken only where their size in whole words is the same.

mod choice;
mod fields;
mod ones;
mod read;
mod write;

use super::header::Form;

pub(super) use choice::{Choice, choose};
pub(super) use fields::SLACK;
pub(super) use read::read;
pub(super) use write::write;

/// Whether the parameter is one that a form can have.
pub(super) fn has_parameter(form: Form, parameter: u8) -> bool {
    match form {
        Form::Packed => parameter <= 32,
        Form::EliasFano | Form::Rice => parameter < 32,
        Form::Dense | Form::Raw | Form::Bitmap | Form::Full => parameter == 0,
    }
}

/// The words that `count` indices below `len` take, count > 0, where that follows from the form and its parameter.
pub(super) fn implied_words(form: Form, parameter: u8, count: u64, len: u64) -> Option<u64> {
    let parameter = u64::from(parameter);
    let bits = match form {
        Form::Raw => 32 * count,
        Form::Packed => parameter * count,
        Form::Bitmap => len,
        Form::EliasFano => (parameter + 1) * count + (len.saturating_sub(1) >> parameter),
        Form::Rice | Form::Dense | Form::Full => return None,
    };
    Some(bits.div_ceil(32))
}
#[cfg(test)]
pub(super) fn timing(idx: &[u32], choice: Choice, out: &[u8], time: fn(&str, usize, &mut dyn FnMut())) {
    let n = idx.len();
    let w = choice.parameter as u32;
    let mut buf = vec![0u8; out.len() + 64];
    time("  write gaps", n, &mut || write::write_fields(std::hint::black_box(&mut buf), w, idx, write::gap));
    time("  write ends", n, &mut || {
        write::write_ones(std::hint::black_box(&mut buf), w, idx, |i, b| write::gap(i, b) >> w)
    });
    let mut slots = vec![0u32; n];
    time("  read ones", n, &mut || {
        let mut j = 0;
        ones::read(std::hint::black_box(out), (w as u64) * n as u64, &mut slots, |p| {
            j += 1;
            (p + 1 - j) as u32
        })
        .unwrap();
    });
    time("  read fields", n, &mut || {
        let mut j = 0u64;
        fields::read(std::hint::black_box(out), w, &mut slots, |s, v| {
            *s = (((*s as u64) << w) + v as u64 + j) as u32;
            j += 1 + v as u64;
        });
    });
}
