//! What is sent of a slot, and what is retained.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

use super::super::{After, Place, Send, Store};
use super::{Aligned, Carried, Held, Values};
use crate::Element;
use crate::bag::wire::{Body, Encoded};
use crate::bag::{Bag, Dense, Entries, Rounded};
use crate::device::DeviceError;

impl<T: Element> Values<T> {
    /// What is sent of some slots, and the notes tied to them.
    pub(super) fn bodies(
        &mut self,
        store: &mut Store<Held<T>>,
        send: &Send,
    ) -> Result<(Vec<Body<T>>, Vec<u64>), DeviceError> {
        let mut notes = Vec::new();
        let mut bodies = Vec::new();
        for place in store.places(send.slots) {
            let mut held = store.at(place).take();
            if let Some(Held::Bag(Carried { note: Some(note), .. })) = &held {
                notes.extend_from_slice(note);
            }
            let encoded = held.as_mut().and_then(Held::encoded).and_then(|encoded| encoded.clone());
            let (body, held) = match (held, encoded) {
                (Some(held), Some(encoded)) => (Body::Encoded(encoded), held),
                (held, _) => self.body(place, held)?,
            };
            match send.after {
                After::Retain => *store.at(place) = Some(held),
                After::Drop => self.intact[place.block.index()] &= place.lane != self.run.lane(),
            }
            bodies.push(body);
        }
        Ok((bodies, notes))
    }

    /// What is sent of a slot that is to be encoded, and what to retain.
    fn body(&mut self, place: Place, held: Option<Held<T>>) -> Result<(Body<T>, Held<T>), DeviceError> {
        let (len, residual) = (self.run.block_len(place.block), self.run.reduction.has_residual());
        let (body, held) = match held {
            Some(Held::Own(overlay)) if overlay.is_empty() => {
                let range = self.run.program.schedule.partition.range(place.block);
                let values = match self.run.contribution(place.block, 0..len)? {
                    Cow::Borrowed(_) => Dense::lent(self.run.accumulator.host()?.clone(), range),
                    Cow::Owned(values) => values.into(),
                };
                (Body::Dense { values, rounded: Rounded::EXACT }, Held::Own(overlay))
            }
            Some(Held::Own(overlay)) => {
                self.tally.dense += len as f64;
                encoded(self.run.materialise(place.block, &overlay)?.into(), len, residual)
            }
            Some(Held::Bag(carried)) => match self.by_device(place, &carried)? {
                Some(bag) => (Body::Encoded(bag), Held::Bag(carried)),
                None => encoded(carried, len, residual),
            },
            Some(Held::Aligned(aligned)) => {
                let Aligned { indices, values, rounded, .. } = aligned.clone();
                (Body::Aligned { indices, values, len, rounded }, Held::Aligned(aligned))
            }
            Some(Held::Proposal(indices, _)) => {
                (Body::Proposal { indices: indices.clone(), len }, Held::Proposal(indices, None))
            }
            None => encoded(Bag::empty().into(), len, residual),
        };
        match &body {
            Body::Sparse { entries, .. } => {
                self.tally.encoded += entries.len() as f64;
                if let Held::Bag(Carried { bag: Bag::Dense(_), .. }) = &held {
                    self.tally.dense += len as f64;
                }
            }
            Body::Proposal { indices, .. } | Body::Aligned { indices, .. } => {
                self.tally.encoded += indices.len() as f64;
            }
            Body::Dense { .. } | Body::Encoded(_) => {}
        }
        Ok((body, held))
    }

    /// How a sparse bag travels, where a device encodes its indices.
    fn by_device(&self, place: Place, carried: &Carried<T>) -> Result<Option<Encoded>, DeviceError> {
        let Carried { bag: Bag::Sparse(entries), by_device, rounded, .. } = carried else {
            return Ok(None);
        };
        // What rounding made zero is missing in what a device has chosen.
        self.run.own(place.block).encode(entries, *rounded, *by_device)
    }
}

/// Remembers how what a slot holds travels, if that is new.
pub(super) fn keep_encoded<T: Element>(store: &mut Store<Held<T>>, place: Place, encoded: Option<Encoded>) {
    let kept = store.at(place).as_mut().and_then(Held::encoded);
    if let (Some(kept), Some(encoded)) = (kept, encoded) {
        *kept = Some(encoded);
    }
}

/// What is sent of a bag, and the bag to retain: one copy for both. With absent entries as a `residual` has them, a bag that
/// only became dense is encoded as its entries where enough are absent for a bit each to pay.
fn encoded<T: Element>(carried: Carried<T>, len: usize, residual: bool) -> (Body<T>, Held<T>) {
    let rounded = carried.rounded;
    let body = match &carried.bag {
        Bag::Sparse(entries) => Body::Sparse { entries: entries.clone(), len, rounded },
        Bag::Dense(values) => {
            let few = (residual && carried.switched).then(|| some_of(values)).flatten();
            match few {
                Some(entries) => Body::Sparse { entries, len, rounded },
                None => Body::Dense { values: values.clone(), rounded },
            }
        }
    };
    (body, Held::Bag(carried))
}

/// The entries of a dense block of which at least one in 32 is absent. Only what comes back as it was: not where entries
/// are so few that the receiver keeps them sparse.
fn some_of<T: Element>(values: &Dense<T>) -> Option<Entries<T>> {
    let len = values.len();
    let present = values.entries().count();
    let few = len - present >= len.div_ceil(32) && Bag::<T>::is_dense_with(present, len);
    few.then(|| values.entries().collect())
}

/// Payloads with notes before the first of them.
pub(super) fn with_notes(
    mut payloads: impl Iterator<Item = Bytes>,
    notes: &[u64],
) -> impl Iterator<Item = Bytes> {
    let first = payloads.next().map(|payload| {
        if notes.is_empty() {
            return payload;
        }
        let mut first = BytesMut::with_capacity(8 * notes.len() + payload.len());
        notes.iter().for_each(|&number| first.put_u64_le(number));
        first.extend_from_slice(&payload);
        first.freeze()
    });
    first.into_iter().chain(payloads)
}
