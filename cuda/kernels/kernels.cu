// All kernels, as one translation unit: for NVRTC and nvcc, and with host.hpp before it for g++. Includes stand here only, so that a
// hash over the files in this order names the source.
#include "types.cuh"
#include "formats.cuh"
#include "warp.cuh"
#include "accumulate.cu"
#include "cut.cu"
#include "digits.cu"
#include "sums.cuh"
#include "count.cu"
#include "offsets.cu"
#include "emit.cu"
#include "scatter.cu"
#include "rice.cu"
#include "decode.cu"
#include "codes.cu"
#include "merge.cu"
#include "apply.cu"

#ifdef GLEANER_HOST
// By name, as a driver finds them, with the threads of a block.
GLEANER_KERNELS(
    GLEANER_KERNEL(accumulate_f32, THREADS),
    GLEANER_KERNEL(accumulate_f16, THREADS),
    GLEANER_KERNEL(accumulate_bf16, THREADS),
    GLEANER_KERNEL(fixed_cut, 1),
    GLEANER_KERNEL(histogram_dense, THREADS),
    GLEANER_KERNEL(histogram_found, THREADS),
    GLEANER_KERNEL(count_dense, THREADS),
    GLEANER_KERNEL(count_found, THREADS),
    GLEANER_KERNEL(offsets, THREADS),
    GLEANER_KERNEL(emit_dense, THREADS),
    GLEANER_KERNEL(emit_found, THREADS),
    GLEANER_KERNEL(gather, THREADS),
    GLEANER_KERNEL(survey_gaps, THREADS),
    GLEANER_KERNEL(encode_gaps, THREADS),
    GLEANER_KERNEL(survey_bag, THREADS),
    GLEANER_KERNEL(read_highs, THREADS),
    GLEANER_KERNEL(read_entries, THREADS),
    GLEANER_KERNEL(read_indices, THREADS),
    GLEANER_KERNEL(read_codes, THREADS),
    GLEANER_KERNEL(find_held, THREADS),
    GLEANER_KERNEL(write_held, THREADS),
    GLEANER_KERNEL(write_came, THREADS),
    GLEANER_KERNEL(add_block, THREADS),
    GLEANER_KERNEL(clear_at, THREADS),
    GLEANER_KERNEL(set_at, THREADS),
    GLEANER_KERNEL(add_at, THREADS),
    GLEANER_KERNEL(add_all, THREADS),
    GLEANER_KERNEL(write_at_f32, THREADS),
    GLEANER_KERNEL(write_at_f16, THREADS),
    GLEANER_KERNEL(write_at_bf16, THREADS),
    GLEANER_KERNEL(add_at_f32, THREADS),
    GLEANER_KERNEL(add_at_f16, THREADS),
    GLEANER_KERNEL(add_at_bf16, THREADS),
    GLEANER_KERNEL(write_all_f32, THREADS),
    GLEANER_KERNEL(write_all_f16, THREADS),
    GLEANER_KERNEL(write_all_bf16, THREADS),
    GLEANER_KERNEL(add_all_scaled_f32, THREADS),
    GLEANER_KERNEL(add_all_scaled_f16, THREADS),
    GLEANER_KERNEL(add_all_scaled_bf16, THREADS))
#endif
