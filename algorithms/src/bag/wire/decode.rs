//! From payloads to bags.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::super::{Bag, Coding, Entries, Rounded, is_entry};
use super::error::Wrong;
use super::{Content, DecodeError, Encoded, Expected, Form, Header, PIECE, indices, values};
use crate::element::{self, Element};

/// A part of a slot, as the decoder hands it on.
#[derive(Debug, PartialEq)]
pub enum Part<T: Element = f32> {
    /// All entries of a block.
    Sparse {
        /// Indices and values.
        entries: Entries<T>,
        /// What the values were rounded to.
        rounded: Rounded,
        /// The block as it came.
        encoded: Encoded,
    },
    /// All entries of a block that is left to a device to decode, see [`with_encoded_from`](Decoder::with_encoded_from). They may be
    /// malformed.
    Encoded {
        /// How many entries.
        count: usize,
        /// What the values were rounded to.
        rounded: Rounded,
        /// The block as it came.
        encoded: Encoded,
    },
    /// Consecutive values of a dense block, as many as have arrived.
    Dense {
        /// The index of the first of them.
        first: usize,
        /// Little-endian values.
        values: Bytes,
        /// What they were rounded to.
        rounded: Rounded,
        /// The block as it came, with the last values of one that was rounded.
        encoded: Option<Encoded>,
    },
    /// All indices of a proposal.
    Proposal {
        /// They, ascending.
        indices: Vec<u32>,
        /// The block as it came.
        encoded: Encoded,
    },
    /// The values at the indices that the receiver has.
    Aligned {
        /// As many as the indices; some may be zero.
        values: Vec<T>,
        /// What they were rounded to.
        rounded: Rounded,
        /// The block as it came.
        encoded: Encoded,
    },
}

impl<T: Element> Part<T> {
    /// The block as it came, once it is whole; nothing of exact dense values.
    pub(crate) fn encoded(&self) -> Option<&Encoded> {
        match self {
            Part::Sparse { encoded, .. }
            | Part::Encoded { encoded, .. }
            | Part::Proposal { encoded, .. }
            | Part::Aligned { encoded, .. } => Some(encoded),
            Part::Dense { encoded, .. } => encoded.as_ref(),
        }
    }
}

/// Puts a slot together from payloads, a part at a time.
///
/// It takes memory for one block at a time. Of a sparse block it gathers the body, unless that comes in one payload: at
/// most 12 bytes for each entry within the [bound](Expected::bound). Of a dense block of quantised values it gathers a
/// bucket. What it hands on takes 8 bytes for each sparse entry, and the block as it came. Dense values are lent from the payload if they are exact,
/// and otherwise take [`PIECE`] bytes or a bucket at a time. A sparse block may also come with all of its values, if that
/// is no longer than indices would be; these then take 5 bytes for each entry of the block's length.
#[derive(Debug)]
pub struct Decoder<T: Element = f32> {
    expected: Vec<Expected>,
    headers: Vec<Header>,
    /// A header whose body's length is still to come.
    open: Option<Header>,
    /// The block whose body is being read, and how many values of it were handed on.
    block: usize,
    read: usize,
    /// How many of these were entries, where fewer than all may be.
    entries: u32,
    gathered: Gathered,
    /// The bytes received so far of a dense block of rounded values.
    came: Vec<u8>,
    /// Whether an entry may be −0.
    negative_zeros: bool,
    /// From how many entries on a bag that a device can read is handed on as it came.
    encoded_from: usize,
    /// The indices of blocks that come aligned, by block.
    sets: Vec<Option<Arc<[u32]>>>,
    values: PhantomData<T>,
}

impl<T: Element> Decoder<T> {
    /// Expects these blocks.
    pub fn new(expected: Vec<Expected>) -> Self {
        Self {
            headers: Vec::with_capacity(expected.len()),
            expected,
            open: None,
            block: 0,
            read: 0,
            entries: 0,
            gathered: Gathered::default(),
            came: Vec::new(),
            negative_zeros: false,
            encoded_from: usize::MAX,
            sets: Vec::new(),
            values: PhantomData,
        }
    }

    /// Takes −0 among sparse values too, as reductions other than the sum have it.
    #[must_use]
    pub fn with_negative_zeros(self) -> Self {
        Self { negative_zeros: true, ..self }
    }

    /// Hands bags of at least so many entries on as they came where [a device can read them](Encoded::rice), except those that turn dense.
    #[must_use]
    pub fn with_encoded_from(self, count: usize) -> Self {
        Self { encoded_from: count, ..self }
    }

    /// With the indices that this side has, by block: of those that come aligned to them.
    #[must_use]
    pub fn with_sets(self, sets: Vec<Option<Arc<[u32]>>>) -> Self {
        Self { sets, ..self }
    }

    /// The indices of an aligned block. Whose were not given has none.
    fn set(&self, block: usize) -> &[u32] {
        self.sets.get(block).and_then(Option::as_deref).unwrap_or_default()
    }

    /// Whether the whole slot has been read.
    pub fn is_complete(&self) -> bool {
        self.block == self.expected.len()
    }

    /// The memory that incomplete blocks take, in bytes.
    #[cfg(test)]
    pub(super) fn gathered(&self) -> usize {
        self.gathered.0.capacity()
    }

    /// Reads one payload and hands on what it completes, as (position of the block in the slot, part).
    ///
    /// # Errors
    /// Bytes that are no slot as declared; the decoder cannot be used afterwards.
    pub fn feed(&mut self, payload: Bytes, mut part: impl FnMut(usize, Part<T>)) -> Result<(), DecodeError> {
        if !payload.len().is_multiple_of(T::WIDTH.min(4)) {
            return Err(DecodeError::Torn(payload.len()));
        }
        let mut rest = payload;
        while self.headers.len() < self.expected.len() {
            if !self.header(&mut rest)? {
                return Ok(());
            }
        }
        while let Some(&header) = self.headers.get(self.block) {
            let whole = match header {
                Header { form: Form::Dense, rounded: Some(rounded), .. } => match rounded.coding() {
                    Coding::Exact => self.lent(header, &mut rest, &mut part)?,
                    _ => self.dense(header, rounded, &mut rest, &mut part)?,
                },
                _ => self.sparse(header, &mut rest, &mut part)?,
            };
            if !whole {
                return Ok(());
            }
            self.block += 1;
            (self.read, self.entries) = (0, 0);
        }
        if rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(rest.len())) }
    }

    /// Reads a header; says whether there was one.
    fn header(&mut self, rest: &mut Bytes) -> Result<bool, DecodeError> {
        let block = self.headers.len();
        let expected = self.expected[block];
        let header = match self.open.take() {
            Some(mut header) => {
                let Some(mut bytes) = self.gathered.take(rest, 4) else {
                    self.open = Some(header);
                    return Ok(false);
                };
                header.set_words::<T>(bytes.get_u32_le().into(), block, expected.len)?;
                header
            }
            None => {
                let Some(mut bytes) = self.gathered.take(rest, Header::BYTES) else { return Ok(false) };
                let mut read = [0; Header::BYTES];
                bytes.copy_to_slice(&mut read);
                let header = Header::read::<T>(read, block, expected)?;
                if expected.content == Content::Aligned && header.count as usize != self.set(block).len() {
                    let (count, allowed) = (header.count, self.set(block).len() as u32);
                    return Err(DecodeError::Count { block, count, allowed });
                }
                if header.implied_words::<T>(expected.len.into()).is_none() {
                    self.open = Some(header);
                    return Ok(true);
                }
                header
            }
        };
        self.headers.push(header);
        Ok(true)
    }

    /// Hands on the values of a dense exact block that have arrived; returns whether the block is complete.
    fn lent(
        &mut self,
        header: Header,
        rest: &mut Bytes,
        part: &mut impl FnMut(usize, Part<T>),
    ) -> Result<bool, DecodeError> {
        let block = self.block;
        let len = header.count as usize;
        loop {
            let left = len - self.read;
            let whole = left.min(rest.len() / T::WIDTH);
            let values = if self.gathered.is_empty() && (whole > 0 || left == 0) {
                rest.split_to(T::WIDTH * whole)
            } else if rest.is_empty() {
                return Ok(false);
            } else {
                // A value of 64 bits may lie across two payloads.
                let Some(value) = self.gathered.take(rest, T::WIDTH) else { return Ok(false) };
                value
            };
            if let Some(position) = element::first_non_finite::<T>(&values) {
                let value = element::values::<T>(&values).nth(position).map_or(f64::NAN, |v| v.to_f64());
                return Err(DecodeError::Value { block, value: value.to_string() });
            }
            self.count(element::values(&values))?;
            let first = self.read;
            self.read += values.len() / T::WIDTH;
            part(block, Part::Dense { first, values, rounded: Rounded::EXACT, encoded: None });
            if self.read == len {
                return Ok(true);
            }
        }
    }

    /// Hands on the complete units of a dense block of shorter values; returns whether the block is complete.
    fn dense(
        &mut self,
        header: Header,
        rounded: Rounded,
        rest: &mut Bytes,
        part: &mut impl FnMut(usize, Part<T>),
    ) -> Result<bool, DecodeError> {
        let block = self.block;
        let (count, len) = (header.count, header.count as usize);
        if len == 0 {
            let encoded = Some(Encoded { header, len, body: Bytes::new() });
            part(block, Part::Dense { first: 0, values: Bytes::new(), rounded, encoded });
        }
        // What can be read at all: a bucket, or two values that share a word.
        let unit = if rounded.coding().has_buckets() { 1 << rounded.shift() } else { 2 };
        while self.read < len {
            let left = len - self.read;
            let one = 4 * values::dense_words::<T>(rounded, unit.min(left) as u64) as usize;
            let units = (rest.len() / one).clamp(1, (PIECE / 4 / unit).max(1));
            let here = (units * unit).min(left);
            let bytes = 4 * values::dense_words::<T>(rounded, here as u64) as usize;
            // The last unit is shorter than the others, so more than the whole ones may have arrived.
            let (here, bytes) = if self.gathered.is_empty() { (here, bytes) } else { (unit.min(left), one) };
            let Some(bytes) = self.gathered.take(rest, bytes) else { return Ok(false) };
            let values = values::read_dense::<T>(rounded, here, &bytes)
                .map_err(|wrong| wrong.at(block, count, count))?;
            self.count(values.iter().copied())?;
            let mut exact = Vec::with_capacity(T::WIDTH * here);
            values.iter().for_each(|v| exact.extend_from_slice(v.to_le().as_ref()));
            self.came.extend_from_slice(&bytes);
            let first = self.read;
            self.read += here;
            let whole = |came: &mut Vec<u8>| Encoded { header, len, body: std::mem::take(came).into() };
            let encoded = (self.read == len).then(|| whole(&mut self.came));
            part(block, Part::Dense { first, values: exact.into(), rounded, encoded });
        }
        Ok(true)
    }

    /// Counts the entries of a dense block, and refuses more than the bound. In reductions other than the sum, an absent entry is encoded
    /// by another value than −0.
    fn count(&mut self, values: impl Iterator<Item = T>) -> Result<(), DecodeError> {
        let (block, Expected { len, bound, .. }) = (self.block, self.expected[self.block]);
        if bound < len && !self.negative_zeros {
            self.entries += values.filter(|&value| is_entry(value)).count() as u32;
            if self.entries > bound {
                return Err(DecodeError::Count { block, count: self.entries, allowed: bound });
            }
        }
        Ok(())
    }

    /// Hands on a sparse block, a proposal or an aligned bag once it is complete; returns whether it is.
    fn sparse(
        &mut self,
        header: Header,
        rest: &mut Bytes,
        part: &mut impl FnMut(usize, Part<T>),
    ) -> Result<bool, DecodeError> {
        let block = self.block;
        let Some(body) = self.gathered.take(rest, 4 * header.words as usize) else { return Ok(false) };
        let len = self.expected[block].len;
        let count = header.count as usize;
        let encoded = Encoded { header, len: len as usize, body: body.clone() };
        let wrong = |wrong: Wrong| wrong.at(block, header.count, len);
        let is_left = || {
            let few = !Bag::<T>::is_dense_with(count, encoded.len);
            count >= self.encoded_from && few && encoded.rice().is_some()
        };
        let read = match (header.form, header.rounded) {
            (_, None) => {
                let indices = indices_alone(header, len, &body).map_err(wrong)?;
                Part::Proposal { indices, encoded }
            }
            (Form::Aligned, Some(rounded)) => {
                let values = values::read_sparse(rounded, self.set(block), &body, true).map_err(wrong)?;
                Part::Aligned { values, rounded, encoded }
            }
            (_, Some(rounded)) if is_left() => Part::Encoded { count, rounded, encoded },
            (_, Some(rounded)) => {
                let entries = encoded.entries(block, self.negative_zeros)?;
                Part::Sparse { entries, rounded, encoded }
            }
        };
        part(block, read);
        Ok(true)
    }
}

impl Encoded {
    /// The entries of a bag that is sparse on the wire. Errors name it block number `block` of its slot.
    ///
    /// # Errors
    /// What is wrong with it, or that it is no such bag.
    pub fn entries<T: Element>(&self, block: usize, negative_zeros: bool) -> Result<Entries<T>, DecodeError> {
        let Header { form, parameter, rounded, count, .. } = self.header;
        let len = self.len as u32;
        let Some(rounded) = rounded.filter(|_| !matches!(form, Form::Dense | Form::Aligned)) else {
            return Err(DecodeError::Form { block, form: form as u8, parameter });
        };
        entries(self.header, rounded, len, &self.body, negative_zeros)
            .map_err(|wrong| wrong.at(block, count, len))
    }
}

/// The entries of a sparse body.
fn entries<T: Element>(
    header: Header,
    rounded: Rounded,
    len: u32,
    body: &[u8],
    negative_zeros: bool,
) -> Result<Entries<T>, Wrong> {
    let count = header.count as usize;
    if header.form == Form::Full {
        let values = values::read_dense::<T>(rounded, len as usize, body)?;
        let entries: Entries<T> = (0..).zip(values).filter(|&(_, value)| is_entry(value)).collect();
        let found = entries.len();
        return if found == count { Ok(entries) } else { Err(Wrong::Entries(found)) };
    }
    let (indices, rest) = indices::read(header.form, header.parameter, count, len, body)?;
    let values = values::read_sparse(rounded, &indices, rest, negative_zeros)?;
    Ok(Entries { indices, values })
}

/// The indices of a body that has nothing else.
fn indices_alone(header: Header, len: u32, body: &[u8]) -> Result<Vec<u32>, Wrong> {
    let (indices, rest) = indices::read(header.form, header.parameter, header.count as usize, len, body)?;
    if rest.is_empty() { Ok(indices) } else { Err(Wrong::End) }
}

/// Bytes that are read together and may come apart.
#[derive(Debug, Default)]
struct Gathered(Vec<u8>);

impl Gathered {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `count` bytes if all of them have come, without a copy if they came in one payload. If not, keeps what has
    /// come; the next call must be for as many.
    fn take(&mut self, rest: &mut Bytes, count: usize) -> Option<Bytes> {
        if self.0.is_empty() && rest.len() >= count {
            return Some(rest.split_to(count));
        }
        self.0.reserve_exact(count - self.0.len());
        let more = rest.split_to(rest.len().min(count - self.0.len()));
        self.0.extend_from_slice(&more);
        (self.0.len() == count).then(|| std::mem::take(&mut self.0).into())
    }
}
