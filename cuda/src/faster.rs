//! Which side merges faster, the host or the device: it is measured here and not written down, as processors, the bus between
//! host and device, and what else the device has to do differ between machines. Both sides give the same bits, so that the choice changes
//! nothing but time.

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_algorithms::device::DeviceError;

/// How often both sides do it before one is chosen. The least time of each counts: the first may include an allocation.
const TRIALS: u32 = 3;

/// What is done with a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeKind {
    /// It is decoded, and added to nothing.
    Decode,
    /// It is decoded and added to entries.
    Add,
    /// It is decoded and added to the values of a block and to sums that are laid over them.
    AddToBlock,
}

/// What decides how long it takes. There is an entry at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MergeSize {
    pub(crate) kind: MergeKind,
    /// Entries of both sides.
    pub(crate) entries: usize,
}

/// How long bags of a class of sizes took: from a power of two to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeTimes {
    /// What was done with them.
    pub kind: MergeKind,
    /// The binary logarithm of the number of entries of both sides, rounded down.
    pub size: u32,
    /// How often both sides have done it.
    pub times: u32,
    /// The least time on the device, with all copies.
    pub device: Duration,
    /// The least time on the host.
    pub host: Duration,
}

/// What was measured on a device so far.
#[derive(Debug, Default)]
pub(crate) struct Faster(Mutex<Vec<MergeTimes>>);

impl Faster {
    fn locked(&self) -> MutexGuard<'_, Vec<MergeTimes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was measured.
    pub(crate) fn measured(&self) -> Vec<MergeTimes> {
        self.locked().clone()
    }

    /// What the device gives, or None where the host is known to be no slower, or where the device gives nothing. The first times the host
    /// does it, too, after the device: so what both read is in the caches of the host.
    pub(crate) fn choose<R: PartialEq>(
        &self,
        size: MergeSize,
        device: impl FnOnce() -> Result<Option<R>, DeviceError>,
        host: impl FnOnce() -> Option<R>,
    ) -> Result<Option<R>, DeviceError> {
        let known = self.locked().iter().find(|known| known.is_of(size)).copied();
        if let Some(known) = known.filter(|known| known.times >= TRIALS) {
            return if known.device < known.host { device() } else { Ok(None) };
        }
        let clock = Instant::now();
        let Some(result) = device()? else { return Ok(None) };
        let there = clock.elapsed();
        let clock = Instant::now();
        let expected = black_box(host());
        let here = clock.elapsed();
        debug_assert!(expected.as_ref() == Some(&result), "the device merges as the host does");
        self.note(size, there, here);
        Ok(Some(result))
    }

    /// Notes a trial.
    fn note(&self, size: MergeSize, device: Duration, host: Duration) {
        let mut all = self.locked();
        match all.iter_mut().find(|known| known.is_of(size)) {
            Some(known) => {
                (known.device, known.host) = (known.device.min(device), known.host.min(host));
                known.times += 1;
            }
            None => {
                let (kind, size) = (size.kind, size.entries.ilog2());
                all.push(MergeTimes { kind, size, times: 1, device, host });
            }
        }
    }
}

impl MergeTimes {
    /// Whether a size is of this class.
    fn is_of(&self, size: MergeSize) -> bool {
        (self.kind, self.size) == (size.kind, size.entries.ilog2())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread::sleep;

    use super::*;

    const SIZE: MergeSize = MergeSize { kind: MergeKind::Add, entries: 40_000 };

    /// Who has done it, with the device slower or faster by milliseconds.
    fn done(faster: &Faster, size: MergeSize, slower: bool) -> (u32, u32) {
        let (mut there, mut here) = (0, 0);
        let side = |count: &mut u32, slow: bool| {
            *count += 1;
            sleep(Duration::from_millis(if slow { 3 } else { 0 }));
            Some(7)
        };
        faster.choose(size, || Ok(side(&mut there, slower)), || side(&mut here, !slower)).unwrap();
        (there, here)
    }

    #[test]
    fn both_do_it_three_times_and_then_the_faster() {
        for slower in [false, true] {
            let faster = Faster::default();
            for _ in 0..TRIALS {
                assert_eq!(done(&faster, SIZE, slower), (1, 1));
            }
            assert_eq!(done(&faster, SIZE, slower), (u32::from(!slower), 0));
            // Up to the next power of two, and no further.
            assert_eq!(done(&faster, MergeSize { entries: 65_535, ..SIZE }, slower), (u32::from(!slower), 0));
            assert_eq!(done(&faster, MergeSize { entries: 65_536, ..SIZE }, slower), (1, 1));
            assert_eq!(done(&faster, MergeSize { kind: MergeKind::Decode, ..SIZE }, slower), (1, 1));
        }
    }

    #[test]
    fn what_the_device_does_not_give_is_no_trial() {
        let faster = Faster::default();
        for _ in 0..2 * TRIALS {
            assert_eq!(faster.choose(SIZE, || Ok(None::<u32>), || Some(7)).unwrap(), None);
        }
        assert_eq!(done(&faster, SIZE, false), (1, 1));
    }
}
