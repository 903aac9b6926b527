//! Adding up the lanes of a block, cutting a bag into pieces, and notes.

use std::sync::Arc;

use super::super::{Note, Place, Slots, Store};
use super::{Carried, ExecutionError, Fate, Held, Values, levels};
use crate::bag::{Bag, Entries};
use crate::{Block, Element};

impl<T: Element> Values<T> {
    /// Adds up the lanes of a block.
    pub(super) fn add_lanes(
        &mut self,
        store: &mut Store<Held<T>>,
        block: Block,
    ) -> Result<(), ExecutionError> {
        let len = self.run.block_len(block);
        let mut bags = Vec::new();
        let mut switched = true;
        for place in store.lanes_of(block) {
            match store.at(place).take_if(|held| !matches!(held, Held::Proposal(..))) {
                Some(Held::Own(overlay)) => {
                    switched = false;
                    bags.push(self.run.materialise(block, &overlay));
                }
                Some(Held::Bag(carried)) => {
                    switched &= carried.switched || matches!(carried.bag, Bag::Sparse(_));
                    bags.push(carried.bag);
                }
                Some(Held::Aligned(aligned)) => bags.push(aligned.into_bag(len)),
                Some(Held::Proposal(..)) | None => {}
            }
        }
        self.intact[block.index()] = false;
        for bag in &bags {
            match bag {
                // Each entry is merged once on every level of the tree.
                Bag::Sparse(entries) => self.tally.merged += entries.len() as f64 * levels(bags.len()),
                Bag::Dense(_) => self.tally.dense += len as f64,
            }
        }
        // As a balanced tree: what the checker proves about the order is about that one.
        let sum = Bag::reduce(bags, len, &self.run.reduction);
        if let Some(index) = sum.first_non_finite() {
            let entry = self.run.program.schedule.partition.range(block).start + index;
            return Err(ExecutionError::Sum { entry });
        }
        *store.at(Place { block, lane: 0 }) = Some(Held::Bag(Carried { switched, ..sum.into() }));
        Ok(())
    }

    /// Cuts a bag into as many pieces as there are lanes.
    pub(super) fn cut(&mut self, store: &mut Store<Held<T>>, block: Block) {
        let lanes = self.run.program.schedule.lanes as usize;
        let len = self.run.block_len(block);
        let entries = match store.at(Place { block, lane: 0 }).take() {
            Some(Held::Bag(carried)) => carried.bag.into_entries(),
            Some(Held::Aligned(aligned)) => aligned.into_bag(len).into_entries(),
            _ => Entries::default(),
        };
        self.tally.sifted += entries.len() as f64;
        let (each, longer) = (entries.len() / lanes, entries.len() % lanes);
        let mut from = 0;
        for piece in 0..lanes {
            let to = from + each + usize::from(piece < longer);
            let cut = Entries {
                indices: entries.indices[from..to].to_vec(),
                values: entries.values[from..to].to_vec(),
            };
            *store.at(Place { block, lane: piece as u32 }) = Some(Held::of_sparse(Bag::smaller(cut, len)));
            from = to;
        }
    }

    /// Ties a note to some bags.
    pub(super) fn tie(&mut self, store: &mut Store<Held<T>>, slots: Slots, note: Note) {
        let cuts = match note {
            Note::Cut(parts) => self.cuts(parts),
            Note::Seen => Vec::new(),
        };
        for place in store.places(slots) {
            let mut carried = match store.at(place).take() {
                Some(Held::Bag(carried)) => carried,
                Some(Held::Own(overlay)) => self.run.materialise(place.block, &overlay).into(),
                Some(Held::Aligned(_) | Held::Proposal(..)) | None => Bag::empty().into(),
            };
            carried.note = Some(match note {
                Note::Cut(_) => Arc::from([cuts[place.block.index()]]),
                Note::Seen => Arc::from([carried.seen as u64]),
            });
            *store.at(place) = Some(Held::Bag(carried));
        }
    }

    /// Where each of so many parts of equal counts of this worker's own selection begins.
    fn cuts(&self, parts: u32) -> Vec<u64> {
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
