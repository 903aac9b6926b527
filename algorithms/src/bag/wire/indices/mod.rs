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

mod fields;
mod ones;
mod packing;
mod read;
mod write;

#[cfg(test)]
mod tests;

use super::header::Form;

pub(super) use fields::SLACK;
pub(super) use packing::{Packing, Survey, TRIED, choose, elias_fano, smallest};
pub(super) use read::read;
pub(super) use write::write;

/// Whether the parameter is one that a form can have.
pub(super) fn has_parameter(form: Form, parameter: u8) -> bool {
    match form {
        Form::Packed => parameter <= 32,
        Form::EliasFano | Form::Rice => parameter < 32,
        Form::Dense | Form::Raw | Form::Bitmap | Form::Full | Form::Aligned => parameter == 0,
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
        Form::Aligned => 0,
        Form::Rice | Form::Dense | Form::Full => return None,
    };
    Some(bits.div_ceil(32))
}
