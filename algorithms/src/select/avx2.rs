//! The passes on AVX2: 8 lanes, candidates packed by a permutation looked up by their mask.
//!
//! Each vector is written whole behind the candidates, and the next one overwrites its surplus. Hence the room for one
//! vector more.

use std::arch::x86_64::*;

use super::packer::Packer;
use super::sweep::Sweep;
use super::top::Cut;
use super::{Entries, INFINITE, bucket, narrow};
use crate::Element;

const LANES: usize = 8;
/// Vectors that are checked together before any of them is stored.
const VECTORS: usize = 4;
const GROUP: usize = LANES * VECTORS;
/// How far ahead to ask for memory, in entries. The processor's own prefetching stops at the end of each 4 KiB page.
const AHEAD: usize = 1024;

/// Sweeps whole groups until the end or until one that may not be stored; returns the number of entries swept.
///
/// # Safety
/// The processor must have AVX2 and POPCNT. If `P` stores, `residual` must be as long as `source`.
#[target_feature(enable = "avx2,popcnt")]
pub(super) unsafe fn sweep<P: Sweep>(
    residual: &mut [f32],
    source: &[f32],
    limit: u32,
    first: u32,
    out: &mut Entries,
) -> usize {
    let mut packed = Packer::new(out, source.len() + LANES);
    // Limits are at least 1 and at most infinity, so one less is there, and fits a signed comparison.
    let below = _mm256_set1_epi32(limit as i32 - 1);
    let finite = _mm256_set1_epi32(INFINITE as i32 - 1);
    let magnitudes = _mm256_set1_epi32(0x7fff_ffff);
    let step = _mm256_set1_epi32(LANES as i32);
    let mut indices =
        _mm256_add_epi32(_mm256_set1_epi32(first as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    let mut swept = 0;
    while swept + GROUP <= source.len() {
        let from = source.as_ptr().wrapping_add(swept);
        let into = residual.as_mut_ptr().wrapping_add(swept);
        let mut entries = [_mm256_setzero_ps(); VECTORS];
        let mut sizes = [_mm256_setzero_si256(); VECTORS];
        for vector in 0..VECTORS {
            // SAFETY: `swept + GROUP` entries are within `source`, and within `residual` if `P` stores; only then it is
            // read. A prefetch may name any address.
            unsafe {
                if vector % 2 == 0 {
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + vector * LANES).cast());
                }
                entries[vector] = _mm256_loadu_ps(from.add(vector * LANES));
                if P::ADD {
                    if vector % 2 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(into.wrapping_add(AHEAD + vector * LANES).cast());
                    }
                    let old = _mm256_loadu_ps(into.add(vector * LANES));
                    entries[vector] = _mm256_add_ps(old, entries[vector]);
                }
            }
            sizes[vector] = _mm256_and_si256(_mm256_castps_si256(entries[vector]), magnitudes);
        }
        let largest =
            _mm256_max_epi32(_mm256_max_epi32(sizes[0], sizes[1]), _mm256_max_epi32(sizes[2], sizes[3]));
        if P::STORE {
            if mask(_mm256_cmpgt_epi32(largest, finite)) != 0 {
                break;
            }
            for (vector, &entries) in entries.iter().enumerate() {
                // SAFETY: within `residual`, which is as long as `source`.
                unsafe { _mm256_storeu_ps(into.add(vector * LANES), entries) };
            }
        }
        for vector in 0..VECTORS {
            let chosen = mask(_mm256_cmpgt_epi32(sizes[vector], below));
            // SAFETY: the packer has room for `source.len()` candidates and a vector, and has been given at most one
            // candidate per entry swept.
            unsafe { packed.push_8(chosen, indices, entries[vector]) };
            indices = _mm256_add_epi32(indices, step);
        }
        swept += GROUP;
    }
    // SAFETY: every push wrote what it counted.
    unsafe { packed.finish() };
    swept
}

/// Splits whole vectors of entries; returns how many entries that were. Takes off `cut` the ties it has kept.
///
/// # Safety
/// The processor must have AVX2 and POPCNT. `indices` and `values` must be equally long.
#[target_feature(enable = "avx2,popcnt")]
pub(super) unsafe fn split(
    cut: &mut Cut<i32>,
    indices: &[u32],
    values: &[f32],
    kept: &mut Entries,
    dropped: Option<&mut Entries>,
) -> usize {
    let mut keep = Packer::new(kept, values.len() + LANES);
    let mut drop = dropped.map(|dropped| Packer::new(dropped, values.len() + LANES));
    let edge = _mm256_set1_epi32(cut.magnitude);
    let magnitudes = _mm256_set1_epi32(0x7fff_ffff);
    let mut done = 0;
    while done + LANES <= values.len() {
        // SAFETY: `done + LANES` entries are within both slices.
        let (index, value) = unsafe {
            (
                _mm256_loadu_si256(indices.as_ptr().add(done).cast()),
                _mm256_loadu_ps(values.as_ptr().add(done)),
            )
        };
        let size = _mm256_and_si256(_mm256_castps_si256(value), magnitudes);
        let mut ties = mask(_mm256_cmpeq_epi32(size, edge));
        while ties.count_ones() as usize > cut.ties {
            ties &= !(0x80 >> ties.leading_zeros());
        }
        cut.ties -= ties.count_ones() as usize;
        let chosen = mask(_mm256_cmpgt_epi32(size, edge)) | ties;
        // SAFETY: each packer has room for `values.len()` entries and a vector, and is given at most one per entry.
        unsafe {
            keep.push_8(chosen, index, value);
            if let Some(drop) = &mut drop {
                drop.push_8(!chosen, index, value);
            }
        }
        done += LANES;
    }
    // SAFETY: every push wrote what it counted.
    unsafe {
        keep.finish();
        if let Some(drop) = drop {
            drop.finish();
        }
    }
    done
}

/// [`narrow::narrow`], compiled for AVX2.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn narrow<T: Element>(values: &[T], k: usize) -> (Vec<T::Magnitude>, usize) {
    narrow::narrow(values, k)
}

/// [`bucket::reached_by`], compiled for AVX2.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn reached_by<T: Element>(values: &[T], k: usize) -> T {
    bucket::reached_by(values, k)
}

/// One bit per lane, from lanes that are all ones or all zeros.
#[inline]
#[target_feature(enable = "avx2")]
fn mask(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}

/// For each mask, which lane to move to each place so that the chosen ones come first, in order: a byte per place.
static PACK: [u64; 256] = {
    let mut pack = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut place) = (0, 0);
        while lane < LANES {
            if mask >> lane & 1 == 1 {
                pack[mask] |= (lane as u64) << (8 * place);
                place += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    pack
};

impl Packer<'_> {
    /// Writes the chosen lanes densely.
    ///
    /// # Safety
    /// There must be room for `count` + [`LANES`] entries.
    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    unsafe fn push_8(&mut self, chosen: u8, indices: __m256i, values: __m256) {
        let order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(PACK[usize::from(chosen)] as i64));
        // SAFETY: the caller's promise covers both whole vectors.
        unsafe {
            _mm256_storeu_si256(
                self.indices.add(self.count).cast(),
                _mm256_permutevar8x32_epi32(indices, order),
            );
            _mm256_storeu_ps(self.values.add(self.count), _mm256_permutevar8x32_ps(values, order));
        }
        self.count += chosen.count_ones() as usize;
    }
}
