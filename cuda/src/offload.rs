//! Which side does it faster, the host or the device: it is measured here and not written down, as processors, the bus between
//! host and device, and what else the device has to do differ between machines. Both sides give the same bits, so that the choice changes
//! nothing but time.

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gleaner_algorithms::device::DeviceError;

/// What the device does in place of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// A bag is decoded, and added to nothing.
    Decode,
    /// A bag is decoded and added to entries.
    Add,
    /// A bag is decoded and added to the values of a block and to sums that are laid over them.
    AddToBlock,
    /// The indices of all that the device has chosen of a block are encoded.
    EncodeChosen,
    /// Indices that the host has are encoded.
    Encode,
}

/// What decides how long it takes. There is an entry at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffloadSize {
    pub(crate) kind: Offload,
    /// All that there are, of a bag and of what it is added to.
    pub(crate) entries: usize,
}

/// How long it took for a class of sizes: from a power of two to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadTimes {
    /// What was done.
    pub kind: Offload,
    /// The binary logarithm of the number of entries, of a bag and of what it is added to, rounded down.
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
pub(crate) struct OffloadChoice(Mutex<Vec<OffloadTimes>>);

impl OffloadChoice {
    fn locked(&self) -> MutexGuard<'_, Vec<OffloadTimes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was measured.
    pub(crate) fn measured(&self) -> Vec<OffloadTimes> {
        self.locked().clone()
    }

    /// Whether the host is known to be no slower.
    pub(crate) fn is_host(&self, size: OffloadSize) -> bool {
        self.known(size).is_some_and(|known| known.device >= known.host)
    }

    /// What was measured of a class of sizes, if it was often enough.
    fn known(&self, size: OffloadSize) -> Option<OffloadTimes> {
        let known = self.locked().iter().find(|known| known.is_of(size)).copied();
        known.filter(|known| known.times >= OffloadTimes::TRIALS)
    }

    /// What the device gives, which has all the memory that it needs, or None where it gives nothing. The first times the host does it, too,
    /// after the device: so what both read is in the caches of the host. Not to be asked where the host is [known](Self::is_host) to be no slower.
    pub(crate) fn choose<R: PartialEq>(
        &self,
        size: OffloadSize,
        device: impl FnOnce() -> Result<Option<R>, DeviceError>,
        host: impl FnOnce() -> Option<R>,
    ) -> Result<Option<R>, DeviceError> {
        if self.known(size).is_some() {
            return device();
        }
        let clock = Instant::now();
        let Some(result) = device()? else { return Ok(None) };
        let there = clock.elapsed();
        let clock = Instant::now();
        let expected = black_box(host());
        let here = clock.elapsed();
        debug_assert!(
            expected.is_none_or(|expected| expected == result),
            "the device gives what the host gives"
        );
        self.note(size, there, here);
        Ok(Some(result))
    }

    /// Notes a trial.
    fn note(&self, size: OffloadSize, device: Duration, host: Duration) {
        let mut all = self.locked();
        match all.iter_mut().find(|known| known.is_of(size)) {
            Some(known) => {
                (known.device, known.host) = (known.device.min(device), known.host.min(host));
                known.times += 1;
            }
            None => {
                let (kind, size) = (size.kind, size.entries.ilog2());
                all.push(OffloadTimes { kind, size, times: 1, device, host });
            }
        }
    }
}

impl OffloadTimes {
    /// How often both sides do it before one is chosen. The least time of each counts.
    pub const TRIALS: u32 = 3;

    /// Whether a size is of this class.
    fn is_of(&self, size: OffloadSize) -> bool {
        (self.kind, self.size) == (size.kind, size.entries.ilog2())
    }
}

/// None where memory is missing: the host can do without.
pub(crate) fn unless_memory_is_missing<R>(result: Result<R, DeviceError>) -> Result<Option<R>, DeviceError> {
    match result {
        Err(DeviceError::Memory(_)) => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread::sleep;

    use super::*;

    const SIZE: OffloadSize = OffloadSize { kind: Offload::Add, entries: 40_000 };

    /// Who has done it, with the device slower or faster by milliseconds.
    fn done(choice: &OffloadChoice, size: OffloadSize, slower: bool) -> (u32, u32) {
        let (mut there, mut here) = (0, 0);
        let side = |count: &mut u32, slow: bool| {
            *count += 1;
            sleep(Duration::from_millis(if slow { 3 } else { 0 }));
            Some(7)
        };
        if !choice.is_host(size) {
            choice.choose(size, || Ok(side(&mut there, slower)), || side(&mut here, !slower)).unwrap();
        }
        (there, here)
    }

    #[test]
    fn both_do_it_three_times_and_then_the_faster() {
        for slower in [false, true] {
            let choice = OffloadChoice::default();
            for _ in 0..OffloadTimes::TRIALS {
                assert_eq!(done(&choice, SIZE, slower), (1, 1));
            }
            assert_eq!(done(&choice, SIZE, slower), (u32::from(!slower), 0));
            // Up to the next power of two, and no further.
            assert_eq!(
                done(&choice, OffloadSize { entries: 65_535, ..SIZE }, slower),
                (u32::from(!slower), 0)
            );
            assert_eq!(done(&choice, OffloadSize { entries: 65_536, ..SIZE }, slower), (1, 1));
            assert_eq!(done(&choice, OffloadSize { kind: Offload::Decode, ..SIZE }, slower), (1, 1));
        }
    }

    #[test]
    fn what_the_device_does_not_give_is_no_trial() {
        let choice = OffloadChoice::default();
        for _ in 0..2 * OffloadTimes::TRIALS {
            assert_eq!(choice.choose(SIZE, || Ok(None::<u32>), || Some(7)).unwrap(), None);
        }
        assert_eq!(done(&choice, SIZE, false), (1, 1));
    }
}
