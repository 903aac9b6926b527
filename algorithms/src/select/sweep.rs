//! One pass over a slice that finds the entries that reach a threshold, and accumulates on its way.

use std::any::Any;

use super::{Entries, Simd, limit, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::Element;
use crate::element::Magnitude;

/// A sum that is NaN or infinite, or too large for its type, where a residual met its gradient.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected finite gradients, found NaN or infinity at entry {index} of the slice once the residual was added: \
     skip this step's gradient, or lower the loss scale"
)]
pub struct NonFiniteSum {
    /// The first such entry, counted from the start of the slice.
    pub index: usize,
}

crate::sentence::debug_as_sentence!(NonFiniteSum);

/// Adds `gradient` to `residual` and appends every non-zero sum whose magnitude reaches `threshold` to `out`, at index
/// `base` + its position in the slice. A threshold of 0 or less takes every non-zero sum. One pass over memory.
///
/// A slice may be a layer, a block, or one thread's part of either:
///
/// ```
/// use gleaner_algorithms::bag::Entries;
/// use gleaner_algorithms::select::accumulate;
///
/// let (mut residual, gradient) = (vec![0.5f32; 1000], vec![0.25f32; 1000]);
/// let halves = residual.chunks_mut(500).zip(gradient.chunks(500)).zip([0, 500]);
/// let found: Vec<Entries> = std::thread::scope(|scope| {
///     let threads: Vec<_> = halves
///         .map(|((residual, gradient), base)| {
///             scope.spawn(move || {
///                 let mut found = Entries::default();
///                 accumulate(residual, gradient, 0.7, base, &mut found).map(|()| found)
///             })
///         })
///         .collect();
///     threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_, _>>()
/// })?;
/// assert_eq!(found[1].indices[0], 500);
/// assert_eq!(found[0].len() + found[1].len(), 1000);
/// # Ok::<(), gleaner_algorithms::select::NonFiniteSum>(())
/// ```
///
/// # Errors
/// [`NonFiniteSum`] names the first entry i whose sum is NaN or infinite. Then the entries before i have been accumulated, and
/// their candidates appended; `residual[i..]` is unchanged, bit by bit, and `out` holds nothing from it. Which entries
/// that leaves does not depend on the processor.
///
/// # Panics
/// If the slices differ in length, or if an index would not fit into u32.
pub fn accumulate<T: Element>(
    residual: &mut [T],
    gradient: &[T],
    threshold: T,
    base: u32,
    out: &mut Entries<T>,
) -> Result<(), NonFiniteSum> {
    sweep::<T, Accumulate>(Simd::current(), residual, gradient, limit(threshold), base, out)
}

/// What [`accumulate`] does when the residual is known to be zero: `residual[i] = gradient[i]`, and the residual is not
/// read. (A negative zero stays negative; that is the only difference.)
///
/// # Errors
/// As [`accumulate`]: entries before the first that is not finite are written, those from it on are not.
///
/// # Panics
/// If the slices differ in length, or if an index would not fit into u32.
pub fn replace<T: Element>(
    residual: &mut [T],
    gradient: &[T],
    threshold: T,
    base: u32,
    out: &mut Entries<T>,
) -> Result<(), NonFiniteSum> {
    sweep::<T, Replace>(Simd::current(), residual, gradient, limit(threshold), base, out)
}

/// Appends every non-zero entry whose magnitude reaches `threshold` to `out`, at index `base` + its position. A threshold
/// of 0 or less takes every non-zero entry; NaN and infinity reach every threshold.
///
/// # Panics
/// If an index would not fit into u32.
pub fn scan<T: Element>(values: &[T], threshold: T, base: u32, out: &mut Entries<T>) {
    scan_with(Simd::current(), values, threshold, base, out);
}

/// [`scan`] with the instructions named.
pub(super) fn scan_with<T: Element>(simd: Simd, values: &[T], threshold: T, base: u32, out: &mut Entries<T>) {
    scan_from(simd, values, limit(threshold), base, out);
}

/// [`scan`] from a magnitude on, which must not be 0.
pub(super) fn scan_from<T: Element>(
    simd: Simd,
    values: &[T],
    limit: T::Magnitude,
    base: u32,
    out: &mut Entries<T>,
) {
    let finished = sweep::<T, Scan>(simd, &mut [], values, limit, base, out);
    debug_assert!(finished.is_ok(), "a scan looks for candidates only");
}

/// What a pass does beside finding candidates.
pub(super) trait Sweep {
    /// The entries are residual + source, else source alone.
    const ADD: bool;
    /// The entries are stored to the residual, so they must be finite. Else the residual is an empty slice.
    const STORE: bool;
}

pub(super) struct Accumulate;
pub(super) struct Replace;
pub(super) struct Scan;

impl Sweep for Accumulate {
    const ADD: bool = true;
    const STORE: bool = true;
}

impl Sweep for Replace {
    const ADD: bool = false;
    const STORE: bool = true;
}

impl Sweep for Scan {
    const ADD: bool = false;
    const STORE: bool = false;
}

/// Entries per call of a kernel, which first makes room for as many candidates: small enough that the room is small.
const CHUNK: usize = 4096;

/// The pass `P` with the instructions named, which the processor must have. `limit` is not 0.
pub(super) fn sweep<T: Element, P: Sweep>(
    simd: Simd,
    residual: &mut [T],
    source: &[T],
    limit: T::Magnitude,
    base: u32,
    out: &mut Entries<T>,
) -> Result<(), NonFiniteSum> {
    assert!(!P::STORE || residual.len() == source.len(), "residual and gradient differ in length");
    assert!(source.len() as u64 + u64::from(base) <= 1 << 32, "an index would not fit into u32");
    assert!(simd <= Simd::best(), "this processor lacks {simd:?}");
    for (number, source) in source.chunks(CHUNK).enumerate() {
        let start = number * CHUNK;
        let residual = if P::STORE { &mut residual[start..][..source.len()] } else { &mut [] };
        // `start` is below the slice's length, and base + that length fits.
        let first = base + start as u32;
        let swept = sweep_groups::<T, P>(simd, residual, source, limit, first, out);
        if swept < source.len() {
            let residual = if P::STORE { &mut residual[swept..] } else { &mut [] };
            portable::sweep::<T, P>(residual, &source[swept..], limit, first + swept as u32, out)
                .map_err(|NonFiniteSum { index }| NonFiniteSum { index: start + swept + index })?;
        }
    }
    Ok(())
}

/// Sweeps whole groups of a chunk, if there is a kernel for the type, and stops before a group whose entries may not be
/// stored. Returns how many entries it has swept: the portable code does the rest, be it a tail or the way up to the
/// offending entry. The processor must have the instructions named, and the slices be equally long if `P` stores.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn sweep_groups<T: Element, P: Sweep>(
    simd: Simd,
    residual: &mut [T],
    source: &[T],
    limit: T::Magnitude,
    first: u32,
    out: &mut Entries<T>,
) -> usize {
    let Some(out) = (out as &mut dyn Any).downcast_mut::<Entries>() else { return 0 };
    // So T is f32, and these casts change nothing.
    let residual: &mut [f32] = bytemuck::cast_slice_mut(residual);
    let source: &[f32] = bytemuck::cast_slice(source);
    let limit = limit.low();
    match simd {
        // SAFETY: the processor has the kernel's instructions, the two slices are equally long if `P` stores, and
        // first + source.len() fits into u32 or is just beyond: the caller asserts all that.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { avx512::sweep::<P>(residual, source, limit, first, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { avx2::sweep::<P>(residual, source, limit, first, out) },
        _ => 0,
    }
}
