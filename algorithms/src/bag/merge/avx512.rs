//! Merging on AVX-512: 16 entries at a time, for values of 32 bits.
//!
//! Of the next 16 entries of each run, the 16 that come first are found by one comparison with the other run's in reverse:
//! bitonic merging (Batcher 1968). What was compared rises and falls at most once, so four exchanges sort it. Only the
//! number of entries taken from each run has to be known before the next 16 are read, and no branch depends on it.

use std::arch::x86_64::*;

use super::portable::Merged;
use super::{Position, SortedRun};

const LANES: usize = 16;

/// Interleaves until fewer than 16 entries are left of one run; returns how many it has taken of each. Entries of equal
/// indices come in either order.
///
/// # Safety
/// The processor must have AVX-512F and POPCNT. `T` must be 4 bytes wide. `place` must have room for all entries.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn interleave<T>(
    a: SortedRun<T>,
    b: SortedRun<T>,
    place: &mut Position<T>,
) -> (usize, usize) {
    let reverse = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let (mut i, mut j) = (0, 0);
    while i + LANES <= a.indices.len() && j + LANES <= b.indices.len() {
        // SAFETY: 16 entries from `i` and from `j` on are within the runs, whose values are as many as their indices.
        let (here, here_values, there, there_values) = unsafe {
            (
                _mm512_loadu_si512(a.indices.as_ptr().add(i).cast()),
                _mm512_loadu_si512(a.values.as_ptr().add(i).cast()),
                _mm512_loadu_si512(b.indices.as_ptr().add(j).cast()),
                _mm512_loadu_si512(b.values.as_ptr().add(j).cast()),
            )
        };
        let there = _mm512_permutexvar_epi32(reverse, there);
        let there_values = _mm512_permutexvar_epi32(reverse, there_values);
        let first = _mm512_cmple_epu32_mask(here, there);
        let mut entries = VectorPair {
            indices: _mm512_mask_mov_epi32(there, first, here),
            values: _mm512_mask_mov_epi32(there_values, first, here_values),
        };
        entries.exchange::<0x00ff>(|lanes| _mm512_shuffle_i64x2::<0b01_00_11_10>(lanes, lanes));
        entries.exchange::<0x0f0f>(|lanes| _mm512_shuffle_i64x2::<0b10_11_00_01>(lanes, lanes));
        entries.exchange::<0x3333>(|lanes| _mm512_shuffle_epi32::<0b01_00_11_10>(lanes));
        entries.exchange::<0x5555>(|lanes| _mm512_shuffle_epi32::<0b10_11_00_01>(lanes));
        // SAFETY: at least 16 entries of each run are not yet written, so 16 places are left.
        unsafe {
            _mm512_storeu_si512(place.indices.as_mut_ptr().add(i + j).cast(), entries.indices);
            _mm512_storeu_si512(place.values.as_mut_ptr().add(i + j).cast(), entries.values);
        }
        let taken = first.count_ones() as usize;
        i += taken;
        j += LANES - taken;
    }
    (i, j)
}

/// Adds neighbours of one index, of which there are never more than two, until fewer than 17 entries are left.
///
/// # Safety
/// The processor must have AVX-512F and POPCNT. `indices` and `values` must be equally long.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn add_neighbours(indices: &mut [u32], values: &mut [f32]) -> Merged {
    let Merged { mut read, mut kept, mut joined } = Merged::default();
    while read + LANES < indices.len() {
        // SAFETY: 17 entries from `read` on are within both slices.
        let (index, next_index, value, next_value) = unsafe {
            (
                _mm512_loadu_si512(indices.as_ptr().add(read).cast()),
                _mm512_loadu_si512(indices.as_ptr().add(read + 1).cast()),
                _mm512_loadu_ps(values.as_ptr().add(read)),
                _mm512_loadu_ps(values.as_ptr().add(read + 1)),
            )
        };
        let twice = _mm512_cmpeq_epi32_mask(index, next_index);
        let value = _mm512_mask_add_ps(value, twice, value, next_value);
        let keep = !(twice << 1 | __mmask16::from(joined));
        // SAFETY: `kept` is at most `read`, so both vectors end within the slices, before what is not yet read.
        unsafe {
            let indices = indices.as_mut_ptr().add(kept).cast();
            _mm512_storeu_si512(indices, _mm512_maskz_compress_epi32(keep, index));
            _mm512_storeu_ps(values.as_mut_ptr().add(kept), _mm512_maskz_compress_ps(keep, value));
        }
        kept += keep.count_ones() as usize;
        read += LANES;
        joined = twice >> (LANES - 1) != 0;
    }
    Merged { read, kept, joined }
}

/// 16 entries.
struct VectorPair {
    indices: __m512i,
    values: __m512i,
}

impl VectorPair {
    /// Puts the lower entry of two into the lane that is in `LOW`, and the higher one into its partner's.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn exchange<const LOW: __mmask16>(&mut self, partner: impl Fn(__m512i) -> __m512i) {
        let (indices, values) = (partner(self.indices), partner(self.values));
        let take = _mm512_mask_cmplt_epu32_mask(LOW, indices, self.indices)
            | _mm512_mask_cmpgt_epu32_mask(!LOW, indices, self.indices);
        self.indices = _mm512_mask_mov_epi32(self.indices, take, indices);
        self.values = _mm512_mask_mov_epi32(self.values, take, values);
    }
}
