// The indices of what was selected as they travel, in Rice's form: the low bits of all gaps in fields, and behind them for each gap as
// many zeros as is its higher part, and a one. The first kernel measures which parameter is best, the second writes. A block of threads
// takes a CHUNK of entries.

// Parameters that are tried, as on the host.
constexpr u32 TRIED = 4;

// What decides which form is smallest.
struct Survey {
    // All gaps, bit by bit.
    u32 widest;
    // The lowest parameter that is tried, and for it and those that follow the sum of the higher parts.
    u32 lowest;
    u32 highs[TRIED];
    // While it is measured: the gaps so far, and how many blocks have added theirs. 0 before and after.
    u32 gathered;
    u32 ready;
};

// How many positions lie between an index and the one before.
__device__ __forceinline__ u32 gap_at(const u32* indices, u32 at) {
    return at == 0 ? indices[0] : indices[at] - indices[at - 1] - 1;
}

// The lowest of the parameters that can be best and are tried.
__device__ __forceinline__ u32 lowest_tried(u32 last, u32 count) {
    u32 gaps = last - (count - 1);
    u32 largest = 0;
    while (largest < 31 && gaps >> largest > count) {
        largest++;
    }
    return largest + 1 > TRIED ? largest + 1 - TRIED : 0;
}

// Bits of all entries with the parameter of this number among those tried.
__device__ __forceinline__ u64 bits_of(const Survey& survey, u32 count, u32 tried) {
    return static_cast<u64>(count) * (survey.lowest + tried + 1) + survey.highs[tried];
}

// The number of the best parameter; of equal ones the lowest.
__device__ __forceinline__ u32 best_tried(const Survey& survey, u32 count) {
    u32 best = 0;
    for (u32 tried = 1; tried < TRIED; tried++) {
        best = bits_of(survey, count, tried) < bits_of(survey, count, best) ? tried : best;
    }
    return best;
}

// sums[b] and sums[gridDim.x + b]: of the higher parts before block b, two to a number. `out` becomes zero.
extern "C" __global__ void __launch_bounds__(THREADS)
    survey_gaps(const u32* indices, u32 count, u64* sums, Survey* survey, u32* out, u32 room) {
    __shared__ u64 shared[WARPS];
    __shared__ bool last;
    each(room, [=](u64 i) { out[i] = 0; });
    u32 lowest = lowest_tried(indices[count - 1], count);
    u32 widest = 0;
    u64 lower = 0;
    u64 upper = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        u32 at = blockIdx.x * CHUNK + i * THREADS + threadIdx.x;
        u32 gap = at < count ? gap_at(indices, at) : 0;
        widest |= gap;
        lower += static_cast<u64>(gap >> (lowest + 1)) << 32 | gap >> lowest;
        upper += static_cast<u64>(gap >> (lowest + 3)) << 32 | gap >> (lowest + 2);
    }
#pragma unroll
    for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
        widest |= __shfl_xor_sync(EVERY_LANE, widest, distance);
    }
    if (lane_of_thread() == 0) {
        atomicOr(&survey->gathered, widest);
        // It is seen by all before this block says that it is done.
        __threadfence();
    }
    u64 all_lower;
    u64 all_upper;
    sum_before_thread(lower, shared, &all_lower);
    sum_before_thread(upper, shared, &all_upper);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = all_lower;
        sums[gridDim.x + blockIdx.x] = all_upper;
    }
    if (!is_last_block(&survey->ready, last)) {
        return;
    }
    all_lower = sum_chunks(sums, shared);
    all_upper = sum_chunks(sums + gridDim.x, shared);
    if (threadIdx.x == 0) {
        survey->widest = __ldcg(&survey->gathered);
        survey->lowest = lowest;
        survey->highs[0] = static_cast<u32>(all_lower);
        survey->highs[1] = static_cast<u32>(all_lower >> 32);
        survey->highs[2] = static_cast<u32>(all_upper);
        survey->highs[3] = static_cast<u32>(all_upper >> 32);
        survey->gathered = 0;
        survey->ready = 0;
    }
}

// Writes with the best parameter that was tried. `sums` and `out` are as the kernel before has left them, with as many blocks. Writes
// nothing if there is not enough room.
extern "C" __global__ void __launch_bounds__(THREADS)
    encode_gaps(const u32* indices, u32 count, const u64* sums, const Survey* measured, u32* out, u32 room) {
    __shared__ u64 shared[WARPS];
    __shared__ u32 fields[CHUNK];
    Survey survey = *measured;
    u32 tried = best_tried(survey, count);
    u32 width = survey.lowest + tried;
    if (bits_of(survey, count, tried) > static_cast<u64>(room) * 32) {
        return;
    }
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        fields[i * THREADS + threadIdx.x] = 0;
    }
    u32 start = blockIdx.x * CHUNK;
    u32 first = start + threadIdx.x * SCANNED;
    u32 gaps[SCANNED];
    u64 highs = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        gaps[i] = first + i < count ? gap_at(indices, first + i) : 0;
        highs += gaps[i] >> width;
    }
    u64 all;
    // Its barriers are behind the zeros of `fields`, too.
    u64 lower = sum_before_thread(highs, shared, &all);
    u64 before = static_cast<u32>(sums[tried / 2 * gridDim.x + blockIdx.x] >> tried % 2 * 32);
    u64 one = static_cast<u64>(count) * width + first + before + lower;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        if (first + i < count) {
            one += gaps[i] >> width;
            atomicOr(&out[one / 32], 1u << one % 32);
            one++;
            u32 field = gaps[i] & ((1u << width) - 1);
            u32 at = (threadIdx.x * SCANNED + i) * width;
            if (width > 0) {
                atomicOr(&fields[at / 32], field << at % 32);
            }
            if (at % 32 + width > 32) {
                atomicOr(&fields[at / 32 + 1], field >> (32 - at % 32));
            }
        }
    }
    __syncthreads();
    // The fields of a chunk begin with a word. The last word of all may have ones in it.
    u32 bits = min(count - start, CHUNK) * width;
    u32* to = out + static_cast<u64>(blockIdx.x) * (CHUNK / 32) * width;
    for (u32 word = threadIdx.x; word < divided_up(bits, 32); word += THREADS) {
        if (word * 32 + 32 <= bits) {
            to[word] = fields[word];
        } else {
            atomicOr(&to[word], fields[word]);
        }
    }
}
