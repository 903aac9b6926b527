//! From bags to payloads.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::super::{Coding, Dense, Entries, Rounded, is_entry, qsgd};
use super::indices::{self, Packing};
use super::{Form, Header, PIECE, PIECES, SHORT, values};
use crate::Element;

/// Dense bodies of at least this many exact values travel in payloads of their own, lent to the network and not copied.
const LEND: u32 = 4 << 10;

/// What is sent of one block.
#[derive(Clone, Debug)]
pub enum Body<T: Element = f32> {
    /// Some entries.
    Sparse {
        /// Their indices and values.
        entries: Entries<T>,
        /// How many entries the block has; all indices are below.
        len: usize,
        /// What the values were rounded to. Others than such values lose what the coding cannot say.
        rounded: Rounded,
    },
    /// All values of the block.
    Dense {
        /// The values.
        values: Dense<T>,
        /// What they were rounded to, as for sparse ones.
        rounded: Rounded,
    },
    /// Indices alone.
    Proposal {
        /// They, ascending.
        indices: Arc<[u32]>,
        /// How many entries the block has; all indices are below.
        len: usize,
    },
    /// Values alone, for a receiver that has their indices.
    Aligned {
        /// The indices that the receiver has.
        indices: Arc<[u32]>,
        /// A value for each; some may be zero.
        values: Vec<T>,
        /// How many entries the block has.
        len: usize,
        /// What they were rounded to, as for sparse ones.
        rounded: Rounded,
    },
    /// Any of these but exact dense values, as it was encoded before.
    Encoded(Encoded),
}

/// One block as it travels: what came is passed on as these bytes. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    pub(super) header: Header,
    /// How many entries the block has.
    pub(super) len: usize,
    pub(super) body: Bytes,
}

/// The payloads that carry the bodies of a slot, in order.
///
/// # Panics
/// If an index is not below the length of its block.
pub fn encode<T: Element>(bodies: &[Body<T>]) -> Vec<Bytes> {
    encode_keeping(bodies).0
}

/// [`encode`](encode()), with each body that was encoded now, without a copy: all but exact dense values and what was encoded before.
pub(crate) fn encode_keeping<T: Element>(bodies: &[Body<T>]) -> (Vec<Bytes>, Vec<Option<Encoded>>) {
    let plans: Vec<(Header, Packing)> = bodies.iter().map(plan).collect();
    let copied =
        |(header, _): &(Header, Packing)| 12 + if is_lent(header) { 0 } else { 4 * header.words as usize };
    let mut stream = Stream { encoded: vec![None; bodies.len()], ..Stream::default() };
    stream.open.reserve(plans.iter().map(copied).sum::<usize>() + indices::SLACK);
    for ((header, _), body) in plans.iter().zip(bodies) {
        header.write::<T>(body.len() as u64, &mut stream.open);
    }
    for (block, (plan, body)) in plans.iter().zip(bodies).enumerate() {
        let (start, (header, choice)) = (stream.open.len(), plan);
        match body {
            Body::Sparse { entries, len, rounded } => {
                write_entries(*plan, entries, *len, *rounded, &mut stream.open);
            }
            Body::Proposal { indices, .. } => indices::write(*choice, indices, &mut stream.open),
            Body::Aligned { indices, values, rounded, .. } => {
                values::write_sparse(*rounded, indices, values, &mut stream.open);
            }
            Body::Dense { values, .. } if is_lent(header) => {
                stream.flush();
                let most = passed_on(4 * header.words as usize);
                stream.payloads.extend(values.pieces().iter().flat_map(|piece| cut(piece, most)));
            }
            Body::Dense { values, rounded } if rounded.coding() != Coding::Exact => {
                values::write_dense(*rounded, &values.to_vec(), &mut stream.open);
            }
            Body::Dense { values, .. } => {
                values.pieces().iter().for_each(|piece| stream.open.extend_from_slice(piece));
            }
            Body::Encoded(encoded) => stream.open.extend_from_slice(&encoded.body),
        }
        let exact = matches!(body, Body::Dense { rounded: Rounded::EXACT, .. });
        if !exact && !matches!(body, Body::Encoded(_)) {
            let encoded = Encoded { header: *header, len: body.len(), body: Bytes::new() };
            stream.bodies.push((block, start..stream.open.len(), encoded));
        }
    }
    stream.flush();
    (stream.payloads, stream.encoded)
}

/// Payloads that together are these bytes, lent.
pub(crate) fn pieces(bytes: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    cut(bytes, PIECE)
}

/// How long the payloads of a dense block of this many bytes are: as others pass it on piece by piece, a short block is cut,
/// too.
pub fn passed_on(bytes: usize) -> usize {
    (bytes / PIECES).next_multiple_of(8).clamp(SHORT, PIECE)
}

fn cut(bytes: &Bytes, most: usize) -> impl Iterator<Item = Bytes> + '_ {
    (0..bytes.len()).step_by(most).map(move |from| bytes.slice(from..(from + most).min(bytes.len())))
}

/// The payload that announces one dense block, for a sender that has not all of its values yet; None for a block so
/// short that [`encode`] would not send its values apart.
pub(crate) fn announce_dense<T: Element>(len: usize) -> Option<Bytes> {
    let header = Header::dense::<T>(len, Rounded::EXACT);
    let mut bytes = Vec::with_capacity(Header::BYTES);
    header.write::<T>(len as u64, &mut bytes);
    is_lent(&header).then(|| bytes.into())
}

/// The smallest body, and within it how the indices are written.
fn plan<T: Element>(body: &Body<T>) -> (Header, Packing) {
    let none = Packing { form: Form::Dense, parameter: 0, words: 0 };
    match body {
        Body::Sparse { entries, len, rounded } => plan_entries(entries, *len, *rounded),
        Body::Dense { values, rounded } => (Header::dense::<T>(values.len(), *rounded), none),
        Body::Encoded(encoded) => (encoded.header, none),
        Body::Proposal { indices, len } => {
            let choice = indices::choose(indices, *len as u64);
            let Packing { form, parameter, words } = choice;
            (Header { form, parameter, rounded: None, count: indices.len() as u32, words }, choice)
        }
        Body::Aligned { indices, rounded, .. } => {
            let choice = Packing { form: Form::Aligned, parameter: 0, words: 0 };
            let words = values_words::<T>(*rounded, indices);
            let (form, rounded, count) = (choice.form, Some(*rounded), indices.len() as u32);
            (Header { form, parameter: 0, rounded, count, words }, choice)
        }
    }
}

/// The same for entries of a block of `len`.
fn plan_entries<T: Element>(entries: &Entries<T>, len: usize, rounded: Rounded) -> (Header, Packing) {
    let (count, len) = (entries.len() as u64, len as u64);
    let mut choice = indices::choose(&entries.indices, len);
    let mut words = choice.words + values_words::<T>(rounded, &entries.indices);
    let full = values::dense_words::<T>(rounded, len);
    // Among all values −0 could not be distinguished from what is absent; only reductions other than the sum have it as an entry.
    if full < words && entries.values.iter().copied().all(is_entry) {
        choice = Packing { form: Form::Full, parameter: 0, words: 0 };
        words = full;
    }
    let Packing { form, parameter, .. } = choice;
    (Header { form, parameter, rounded: Some(rounded), count: count as u32, words }, choice)
}

/// Writes entries of a block of `len` as it was planned.
fn write_entries<T: Element>(
    (header, choice): (Header, Packing),
    entries: &Entries<T>,
    len: usize,
    rounded: Rounded,
    out: &mut Vec<u8>,
) {
    if header.form == Form::Full {
        return values::write_dense(rounded, &entries.to_dense_with(len, -T::ZERO), out);
    }
    indices::write(choice, &entries.indices, out);
    values::write_sparse(rounded, &entries.indices, &entries.values, out);
}

/// The words that the values at some indices take.
pub(super) fn values_words<T: Element>(rounded: Rounded, indices: &[u32]) -> u64 {
    let buckets = match rounded.coding().has_buckets() {
        true => qsgd::runs(indices, rounded.shift()).count() as u64,
        false => 0,
    };
    values::sparse_words::<T>(rounded, indices.len() as u64, buckets)
}

/// Whether a body travels in payloads of its own.
fn is_lent(header: &Header) -> bool {
    header.form == Form::Dense && header.rounded == Some(Rounded::EXACT) && header.count >= LEND
}

impl Encoded {
    /// How entries of a block of `len` travel: what [`encode`](encode()) makes of them.
    ///
    /// # Panics
    /// If an index is not below `len`.
    pub fn of<T: Element>(entries: &Entries<T>, len: usize, rounded: Rounded) -> Self {
        let plan = plan_entries(entries, len, rounded);
        let mut body = Vec::with_capacity(4 * plan.0.words as usize + indices::SLACK);
        write_entries(plan, entries, len, rounded, &mut body);
        Self { header: plan.0, len, body: body.into() }
    }
}

impl<T: Element> Body<T> {
    /// How many entries the block has.
    fn len(&self) -> usize {
        match self {
            Body::Sparse { len, .. } | Body::Proposal { len, .. } | Body::Aligned { len, .. } => *len,
            Body::Dense { values, .. } => values.len(),
            Body::Encoded(encoded) => encoded.len,
        }
    }
}

#[derive(Default)]
struct Stream {
    payloads: Vec<Bytes>,
    open: Vec<u8>,
    /// Which bodies were encoded into the open part, and where they lie in it.
    bodies: Vec<(usize, Range<usize>, Encoded)>,
    encoded: Vec<Option<Encoded>>,
}

impl Stream {
    fn flush(&mut self) {
        let open = Bytes::from(std::mem::take(&mut self.open));
        self.payloads.extend(pieces(&open));
        for (block, range, encoded) in self.bodies.drain(..) {
            self.encoded[block] = Some(Encoded { body: open.slice(range), ..encoded });
        }
    }
}
