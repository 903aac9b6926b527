//! All values of one block, in the pieces in which they came.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::is_entry;
use crate::element::{self, Element};

/// The values of a whole block as consecutive pieces of little-endian bytes: lent by a vector, or as they came from the
/// wire, so that a block which is passed on is never copied.
#[derive(Clone, Debug, Default)]
pub struct Dense<T = f32> {
    pieces: Vec<Bytes>,
    len: usize,
    values: PhantomData<T>,
}

struct Owner<T> {
    values: Arc<Vec<T>>,
    range: Range<usize>,
}

impl<T: Element> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.values[self.range.clone()])
    }
}

impl<T: Element> Dense<T> {
    /// A range of a shared vector, without a copy (on a big-endian machine: with one).
    pub fn lent(values: Arc<Vec<T>>, range: Range<usize>) -> Self {
        let len = range.len();
        let piece = if cfg!(target_endian = "little") {
            Bytes::from_owner(Owner { values, range })
        } else {
            values[range].iter().flat_map(|v| v.to_le()).collect::<Vec<u8>>().into()
        };
        Self { pieces: vec![piece], len, values: PhantomData }
    }

    /// Appends values: little-endian, and a multiple of [`Element::WIDTH`] bytes.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len() / T::WIDTH;
        self.pieces.push(piece);
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The values, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.pieces.iter().flat_map(|piece| element::values(piece))
    }

    /// Those that are entries, with their indices, ascending.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, T)> + '_ {
        (0..).zip(self.iter()).filter(|&(_, value)| is_entry(value))
    }

    /// The consecutive stretches of bytes that hold the values in a range.
    pub fn stretches(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> + '_ {
        let mut start = 0;
        self.pieces.iter().filter_map(move |piece| {
            let here = start..start + piece.len() / T::WIDTH;
            start = here.end;
            let (from, to) = (range.start.max(here.start), range.end.min(here.end));
            (from < to).then(|| &piece[T::WIDTH * (from - here.start)..T::WIDTH * (to - here.start)])
        })
    }

    /// The values as one piece to write to: in its own memory, if it is one piece that has no other holder.
    pub fn into_bytes(mut self) -> BytesMut {
        let last = self.pieces.pop().unwrap_or_default();
        if self.pieces.is_empty() {
            return last.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        }
        let mut values = BytesMut::with_capacity(self.len * T::WIDTH);
        self.pieces.iter().chain([&last]).for_each(|piece| values.extend_from_slice(piece));
        values
    }

    /// The values as one vector.
    pub fn to_vec(&self) -> Vec<T> {
        let mut values = Vec::with_capacity(self.len);
        self.pieces.iter().for_each(|piece| values.extend(element::values::<T>(piece)));
        values
    }
}

impl<T: Element> From<Vec<T>> for Dense<T> {
    fn from(values: Vec<T>) -> Self {
        let len = values.len();
        Self::lent(Arc::new(values), 0..len)
    }
}

/// Equal values, however they are cut.
impl<T: Element> PartialEq for Dense<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

/// [`element::values`] of the type that is most used.
pub fn floats(bytes: &[u8]) -> impl ExactSizeIterator<Item = f32> + '_ {
    element::values(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_it_is_cut_it_is_the_same() {
        let values: Vec<f32> = (0..100).map(|i| i as f32 / 7.0).collect();
        let whole = Dense::from(values.clone());
        let mut cut = Dense::default();
        for piece in [0..10, 10..10, 10..73, 73..100] {
            cut.push(whole.pieces()[0].slice(4 * piece.start..4 * piece.end));
        }
        assert_eq!(whole, cut);
        assert_eq!(cut.to_vec(), values);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(cut.clone().into_bytes(), bytes);
        assert_eq!(whole.into_bytes(), bytes);
        assert!(Dense::<f32>::default().into_bytes().is_empty());
        for range in [0..100, 5..6, 9..11, 50..50, 72..100] {
            let found: Vec<f32> = cut.stretches(range.clone()).flat_map(floats).collect();
            assert_eq!(found, values[range]);
        }
    }
}
