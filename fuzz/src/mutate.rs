//! Random changes to seeds, without coverage and without a nightly toolchain: each input follows from a seed and a number, so
//! that any can be made again alone.

use gleaner_statistics::random::Generator;

/// What no input is longer than.
const MOST: usize = 4096;

/// Numbers at which something often changes.
const INTERESTING: [u64; 16] =
    [0, 1, 2, 7, 8, 31, 32, 127, 128, 255, 256, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// Numbers from a seed.
pub struct Random(Generator);

impl Random {
    /// The numbers of one input.
    pub fn of(seed: u64, input: u64) -> Self {
        Self(Generator::new(seed, "input", input))
    }

    fn next(&mut self) -> u64 {
        self.0.bits()
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// Writes an input: one of the seeds with up to eight changes, or now and then something that has nothing to do with them.
pub fn input(seeds: &[Vec<u8>], random: &mut Random, input: &mut Vec<u8>) {
    input.clear();
    if seeds.is_empty() || random.below(64) == 0 {
        let length = random.below(80);
        input.extend((0..length).map(|_| random.next() as u8));
        return;
    }
    input.extend_from_slice(&seeds[random.below(seeds.len())]);
    for _ in 0..=random.below(8) {
        change(seeds, random, input);
    }
    input.truncate(MOST);
}

fn change(seeds: &[Vec<u8>], random: &mut Random, input: &mut Vec<u8>) {
    let length = input.len();
    let at = random.below(length + 1);
    match random.below(9) {
        0 | 1 if at < length => input[at] ^= 1 << random.below(8),
        2 if at < length => input[at] = random.next() as u8,
        3 if at < length => input[at] = input[at].wrapping_add(random.below(17) as u8).wrapping_sub(8),
        // A number of one, two, four or eight bytes.
        4 if at < length => {
            let number = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
            let width = (1 << random.below(4)).min(length - at);
            input[at..at + width].copy_from_slice(&number[..width]);
        }
        5 => input.truncate(at),
        6 => {
            let end = (at + 1 + random.below(16)).min(length);
            input.drain(at.min(end)..end);
        }
        7 => {
            let end = (at + 1 + random.below(32)).min(length);
            let again = input[at.min(end)..end].to_vec();
            input.splice(at..at, again);
        }
        _ => {
            // A stretch of another seed.
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len() + 1);
            let to = (from + 1 + random.below(64)).min(other.len());
            let end = (at + random.below(64)).min(length);
            input.splice(at..end, other[from.min(to)..to].iter().copied());
        }
    }
}
