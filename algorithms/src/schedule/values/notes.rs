//! Notes: numbers that travel with bags (sparse vectors in messages).

use bytes::{Buf, Bytes};

use super::super::{Arrival, How, NOTE, Place, Store};
use super::{Carried, Fate, Held, Values};
use crate::bag::wire::DecodeError;
use crate::{Block, Element};

impl<T: Element> Values<T> {
    /// The notes before the first payload of a message whose bags carry some.
    pub(super) fn take_notes(
        &mut self,
        store: &Store<Held<T>>,
        at: Arrival<'_>,
        payload: &mut Bytes,
    ) -> Result<(), DecodeError> {
        let lengths = &self.run.program.facts[at.step].receipts[at.index].notes;
        if lengths.iter().all(|&len| len == 0) {
            return Ok(());
        }
        let numbers = lengths.iter().sum::<usize>();
        if payload.len() < 8 * numbers {
            return Err(DecodeError::Notes { expected: 8 * numbers, found: payload.len() });
        }
        self.words_received += NOTE * numbers as u64;
        let note = |&len: &usize| {
            let numbers = (0..len).map(|_| payload.get_u64_le()).collect();
            Some(numbers).filter(|_| len > 0)
        };
        self.notes = lengths.iter().map(note).collect();
        if at.receive.how == How::Add {
            // Where bags are added, so are their notes; numbers that no worker sends overflow nothing.
            for (came, place) in self.notes.iter_mut().zip(store.places(at.receive.slots)) {
                if let (Some(came), Some(Held::Bag(Carried { note: Some(here), .. }))) =
                    (came, store.get(place))
                {
                    *came = here.iter().zip(came.iter()).map(|(a, b)| a.saturating_add(*b)).collect();
                }
            }
        }
        Ok(())
    }

    /// Ties the notes of a message that is complete to its bags.
    pub(super) fn tie_notes(&mut self, store: &mut Store<Held<T>>, places: &[Place]) {
        for (&place, note) in places.iter().zip(std::mem::take(&mut self.notes)) {
            if let Some(Held::Bag(carried)) = store.at(place) {
                carried.note = note;
            }
        }
    }

    /// Where each of these parts of equal counts of this worker's own selection begins.
    pub(super) fn cuts(&self, parts: u32) -> Vec<u64> {
        let chosen = |fate: &Fate<T>| match fate {
            Fate::Selected { indices, .. } => indices.len(),
            Fate::Whole => 0,
        };
        let total: usize = self.fates.iter().map(chosen).sum();
        let n = self.run.program.schedule.partition.entries();
        let mut blocks = self.fates.iter().enumerate();
        let (mut before, mut present) = (0, blocks.next());
        // In 128 bits: n times the number of workers may be more than 64 hold.
        let share = |of: usize, part: u64| (of as u128 * u128::from(part) / u128::from(parts)) as u64;
        (0..u64::from(parts))
            .map(|part| {
                if total == 0 {
                    return share(n, part);
                }
                let ordinal = share(total, part) as usize;
                while let Some((block, fate)) = present {
                    if let Fate::Selected { indices, .. } = fate
                        && let Some(&index) = indices.get(ordinal - before)
                    {
                        let start = self.run.program.schedule.partition.range(Block(block as u32)).start;
                        return start as u64 + u64::from(index);
                    }
                    before += chosen(fate);
                    present = blocks.next();
                }
                n as u64
            })
            .collect()
    }
}
