//! How many entries each block of a partition delivers.

use std::sync::Arc;

use crate::{Block, Partition, SparsityError};

/// k shared out to the blocks of a partition, of which none has more than its length. The remainder goes round with the
/// step, so that no block waits for ever where k is smaller than the number of blocks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allotment {
    shares: Arc<[Share]>,
}

/// What one block has: `least`, and one entry more in the steps in which its place is among the `rest` that begin at
/// turn · rest, round a circle of `circle` places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    least: u32,
    place: u32,
    rest: u32,
    circle: u32,
}

impl Share {
    fn fixed(least: u32) -> Self {
        Self { least, place: 0, rest: 0, circle: 1 }
    }

    pub(crate) fn at(self, turn: u64) -> u32 {
        let circle = u64::from(self.circle);
        let first = turn % circle * u64::from(self.rest) % circle;
        let distance = (u64::from(self.place) + circle - first) % circle;
        self.least + u32::from(distance < u64::from(self.rest))
    }

    pub(crate) fn most(self) -> u32 {
        self.least + self.rest.min(1)
    }
}

impl Allotment {
    /// k / blocks for each block; what a short block cannot take goes to those that can. The remainder, less than the number
    /// of blocks that have room, goes to the next ones of them in each step, and to the first ones in step 0.
    ///
    /// # Errors
    /// k above n.
    pub fn of(partition: &Partition, k: usize) -> Result<Self, SparsityError> {
        let n = partition.entries();
        if k > n {
            return Err(SparsityError::MoreThanAll { k, n });
        }
        let lens: Vec<usize> =
            (0..partition.blocks() as u32).map(|b| partition.block_len(Block(b))).collect();
        let mut least = vec![0; lens.len()];
        let mut left = k;
        loop {
            let open: Vec<usize> = (0..lens.len()).filter(|&b| least[b] < lens[b]).collect();
            if left < open.len().max(1) {
                let mut shares: Vec<Share> = least.iter().map(|&least| Share::fixed(least as u32)).collect();
                if left > 0 {
                    for (place, &b) in open.iter().enumerate() {
                        let (place, rest, circle) = (place as u32, left as u32, open.len() as u32);
                        shares[b] = Share { place, rest, circle, ..shares[b] };
                    }
                }
                return Ok(Self { shares: shares.into() });
            }
            let each = left / open.len();
            for b in open {
                let share = each.min(lens[b] - least[b]);
                least[b] += share;
                left -= share;
            }
        }
    }

    /// What a block has in the step of this number, which is the same on all workers. The blocks have k together.
    pub fn at(&self, turn: u64, block: Block) -> u32 {
        self.share(block).at(turn)
    }

    /// What a block has in every step.
    pub fn least(&self, block: Block) -> u32 {
        self.share(block).least
    }

    /// What a block has in any step at most.
    pub fn most(&self, block: Block) -> u32 {
        self.share(block).most()
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.shares.len()
    }

    pub(crate) fn share(&self, block: Block) -> Share {
        self.shares[block.index()]
    }
}

/// This many entries for each block, the same in every step.
impl From<Vec<u32>> for Allotment {
    fn from(counts: Vec<u32>) -> Self {
        Self { shares: counts.into_iter().map(Share::fixed).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Short blocks and empty ones, too.
    fn partitions() -> impl Strategy<Value = Partition> {
        let cuts = proptest::collection::vec(0usize..500, 0..40);
        let cut = (0usize..500, cuts).prop_map(|(n, mut cuts)| {
            cuts.sort_unstable();
            Partition::at(n, cuts)
        });
        prop_oneof![(0usize..500, 1usize..40).prop_map(|(n, blocks)| Partition::even(n, blocks)), cut]
    }

    proptest! {
        #[test]
        fn allotments_add_up_in_every_turn(partition in partitions(), share in 0.0f64..=1.0, from: u64) {
            let k = (share * partition.entries() as f64) as usize;
            let allotment = Allotment::of(&partition, k).unwrap();
            let blocks = || (0..partition.blocks() as u32).map(Block);
            prop_assert_eq!(allotment.blocks(), partition.blocks());
            for turn in (0..3).chain((0..3).map(|t| from.saturating_add(t))) {
                prop_assert_eq!(blocks().map(|b| allotment.at(turn, b) as usize).sum::<usize>(), k);
                for b in blocks() {
                    let here = allotment.at(turn, b);
                    prop_assert!((allotment.least(b)..=allotment.most(b)).contains(&here));
                    prop_assert!(here as usize <= partition.block_len(b));
                }
            }
            // No block has less than another by more than one, unless its length says so.
            let most = blocks().map(|b| allotment.most(b)).max().unwrap();
            for b in blocks() {
                prop_assert!(allotment.least(b) + 1 >= most || allotment.least(b) as usize == partition.block_len(b));
            }
        }

        #[test]
        fn every_block_with_room_has_its_turn(partition in partitions(), share in 0.0f64..=0.2, from in 0u64..1_000_000) {
            let k = (share * partition.entries() as f64) as usize;
            let allotment = Allotment::of(&partition, k).unwrap();
            let blocks = || (0..partition.blocks() as u32).map(Block);
            let rest = k - blocks().map(|b| allotment.least(b) as usize).sum::<usize>();
            let room: Vec<Block> =
                blocks().filter(|&b| (allotment.least(b) as usize) < partition.block_len(b)).collect();
            for b in blocks() {
                let turns = from..from + room.len().div_ceil(rest.max(1)) as u64;
                let once = turns.clone().any(|turn| allotment.at(turn, b) > allotment.least(b));
                prop_assert_eq!(once, rest > 0 && room.contains(&b), "{} in {:?}", b, turns);
            }
        }

        #[test]
        fn where_k_is_divisible_no_turn_matters(each in 0usize..20, more in 0usize..20, blocks in 1usize..40, turn: u64) {
            let partition = Partition::even((each + more) * blocks, blocks);
            let allotment = Allotment::of(&partition, each * blocks).unwrap();
            prop_assert_eq!(allotment, Allotment::from(vec![each as u32; blocks]));
            let same = Allotment::from(vec![each as u32; blocks]);
            prop_assert!((0..blocks as u32).all(|b| same.at(turn, Block(b)) as usize == each));
        }
    }

    #[test]
    fn the_first_blocks_begin() {
        let allotted = |n, blocks, k, turn| -> Vec<u32> {
            let allotment = Allotment::of(&Partition::even(n, blocks), k).unwrap();
            (0..blocks as u32).map(|b| allotment.at(turn, Block(b))).collect()
        };
        assert_eq!(allotted(60, 6, 8, 0), [2, 2, 1, 1, 1, 1]);
        assert_eq!(allotted(60, 6, 8, 1), [1, 1, 2, 2, 1, 1]);
        assert_eq!(allotted(60, 6, 10, 1), [2, 2, 1, 1, 2, 2]);
        assert_eq!(allotted(4, 6, 1, 3), [0, 0, 0, 1, 0, 0]);
        assert_eq!(allotted(4, 6, 1, 4), [1, 0, 0, 0, 0, 0]);
        assert!(Allotment::of(&Partition::even(3, 2), 4).is_err());
    }
}
