//! The passes on AVX-512: 16 lanes, candidates packed by the compress instruction.
//!
//! Compression goes to a register and from there to memory as a whole vector, whose surplus the next one overwrites:
//! compressing straight into memory is microcoded on some processors. Hence the room for one vector more.

use std::arch::x86_64::*;

use super::packer::Packer;
use super::sweep::Sweep;
use super::top::Cut;
use super::{Entries, INFINITE};

const LANES: usize = 16;
/// Vectors that are checked together before any of them is stored.
const VECTORS: usize = 4;
const GROUP: usize = LANES * VECTORS;
/// How far ahead to ask for memory, in entries. The processor's own prefetching stops at the end of each 4 KiB page.
const AHEAD: usize = 1024;

/// Sweeps whole groups until the end or until one that may not be stored; returns the number of entries swept.
///
/// # Safety
/// The processor must have AVX-512F and POPCNT. If `P` stores, `residual` must be as long as `source`.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn sweep<P: Sweep>(
    residual: &mut [f32],
    source: &[f32],
    limit: u32,
    first: u32,
    out: &mut Entries,
) -> usize {
    let mut packed = Packer::new(out, source.len() + LANES);
    let limit = _mm512_set1_epi32(limit as i32);
    let infinite = _mm512_set1_epi32(INFINITE as i32);
    let magnitudes = _mm512_set1_epi32(0x7fff_ffff);
    let step = _mm512_set1_epi32(LANES as i32);
    let mut indices = _mm512_add_epi32(
        _mm512_set1_epi32(first as i32),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    );
    let mut swept = 0;
    while swept + GROUP <= source.len() {
        let from = source.as_ptr().wrapping_add(swept);
        let into = residual.as_mut_ptr().wrapping_add(swept);
        let mut entries = [_mm512_setzero_ps(); VECTORS];
        let mut sizes = [_mm512_setzero_si512(); VECTORS];
        for vector in 0..VECTORS {
            // SAFETY: `swept + GROUP` entries are within `source`, and within `residual` if `P` stores; only then it is
            // read. A prefetch may name any address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + vector * LANES).cast());
                entries[vector] = _mm512_loadu_ps(from.add(vector * LANES));
                if P::ADD {
                    _mm_prefetch::<_MM_HINT_T0>(into.wrapping_add(AHEAD + vector * LANES).cast());
                    let old = _mm512_loadu_ps(into.add(vector * LANES));
                    entries[vector] = _mm512_add_ps(old, entries[vector]);
                }
            }
            sizes[vector] = _mm512_and_si512(_mm512_castps_si512(entries[vector]), magnitudes);
        }
        if P::STORE {
            let largest =
                _mm512_max_epi32(_mm512_max_epi32(sizes[0], sizes[1]), _mm512_max_epi32(sizes[2], sizes[3]));
            if _mm512_cmpge_epi32_mask(largest, infinite) != 0 {
                break;
            }
        }
        for vector in 0..VECTORS {
            let chosen = _mm512_cmpge_epi32_mask(sizes[vector], limit);
            // SAFETY: the store is within `residual`, which is as long as `source`. The packer has room for `source.len()`
            // candidates and a vector, and has been given at most one candidate per entry swept.
            unsafe {
                if P::STORE {
                    _mm512_storeu_ps(into.add(vector * LANES), entries[vector]);
                }
                packed.push_16(chosen, indices, entries[vector]);
            }
            indices = _mm512_add_epi32(indices, step);
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
/// The processor must have AVX-512F and POPCNT. `indices` and `values` must be equally long.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn split(
    cut: &mut Cut<i32>,
    indices: &[u32],
    values: &[f32],
    kept: &mut Entries,
    dropped: Option<&mut Entries>,
) -> usize {
    let mut keep = Packer::new(kept, values.len() + LANES);
    let mut drop = dropped.map(|dropped| Packer::new(dropped, values.len() + LANES));
    let edge = _mm512_set1_epi32(cut.magnitude);
    let magnitudes = _mm512_set1_epi32(0x7fff_ffff);
    let mut done = 0;
    while done + LANES <= values.len() {
        // SAFETY: `done + LANES` entries are within both slices.
        let (index, value) = unsafe {
            (
                _mm512_loadu_si512(indices.as_ptr().add(done).cast()),
                _mm512_loadu_ps(values.as_ptr().add(done)),
            )
        };
        let size = _mm512_and_si512(_mm512_castps_si512(value), magnitudes);
        let mut ties = _mm512_cmpeq_epi32_mask(size, edge);
        while ties.count_ones() as usize > cut.ties {
            ties &= !(0x8000 >> ties.leading_zeros());
        }
        cut.ties -= ties.count_ones() as usize;
        let chosen = _mm512_cmpgt_epi32_mask(size, edge) | ties;
        // SAFETY: each packer has room for `values.len()` entries and a vector, and is given at most one per entry.
        unsafe {
            keep.push_16(chosen, index, value);
            if let Some(drop) = &mut drop {
                drop.push_16(!chosen, index, value);
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

impl Packer<'_> {
    /// Writes the chosen lanes densely.
    ///
    /// # Safety
    /// There must be room for `count` + [`LANES`] entries.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    unsafe fn push_16(&mut self, chosen: __mmask16, indices: __m512i, values: __m512) {
        // SAFETY: the caller's promise covers both whole vectors.
        unsafe {
            _mm512_storeu_si512(
                self.indices.add(self.count).cast(),
                _mm512_maskz_compress_epi32(chosen, indices),
            );
            _mm512_storeu_ps(self.values.add(self.count), _mm512_maskz_compress_ps(chosen, values));
        }
        self.count += chosen.count_ones() as usize;
    }
}
