// The sum of entries that are held and of entries that came. The first kernel finds where each held index would stand among those that
// came, the second writes the held entries and their sums, the last those that came alone. A block of threads takes a CHUNK of entries.
// If the held entries are sums with the values of a block, `add_block` adds these to what came, before the last kernel or alone.
//
// If indices do not ascend, as in a malformed bag, anything is written, and nothing beyond the entries of both.

// How many of the indices are below this one. They ascend.
__device__ __forceinline__ u32 count_below(const u32* indices, u32 count, u32 index) {
    u32 low = 0;
    u32 high = count;
    while (low < high) {
        u32 middle = low + (high - low) / 2;
        if (indices[middle] < index) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// below[i]: how many of the indices that came are below held index i. both[b]: how many indices of the blocks before b came, too.
extern "C" __global__ void __launch_bounds__(THREADS)
    find_held(const u32* held, u32 count, const u32* came, u32 came_count, u32* below, u64* both, Merging* merging) {
    __shared__ u64 shared[WARPS];
    __shared__ bool last;
    u64 found = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        u32 at = blockIdx.x * CHUNK + i * THREADS + threadIdx.x;
        if (at < count) {
            u32 lower = count_below(came, came_count, held[at]);
            below[at] = lower;
            found += lower < came_count && came[lower] == held[at];
        }
    }
    u64 all;
    sum_before_thread(found, shared, &all);
    if (threadIdx.x == 0) {
        both[blockIdx.x] = all;
    }
    if (!is_last_block(&merging->ready, last)) {
        return;
    }
    all = sum_chunks(both, shared);
    if (threadIdx.x == 0) {
        merging->both = static_cast<u32>(all);
        merging->ready = 0;
    }
}

// below[i] becomes how many of the held indices before i came, too.
extern "C" __global__ void __launch_bounds__(THREADS) write_held(
    const u32* held,
    const float* values,
    u32 count,
    const u32* came,
    const float* came_values,
    u32 came_count,
    u32* below,
    const u64* both,
    u32* out,
    float* out_values
) {
    __shared__ u64 shared[WARPS];
    u32 first = blockIdx.x * CHUNK + threadIdx.x * SCANNED;
    u32 lower[SCANNED];
    bool found[SCANNED];
    u64 sum = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        lower[i] = first + i < count ? below[first + i] : came_count;
        found[i] = lower[i] < came_count && came[lower[i]] == held[first + i];
        sum += found[i];
    }
    u64 all;
    u32 before = static_cast<u32>(both[blockIdx.x] + sum_before_thread(sum, shared, &all));
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        if (first + i < count) {
            u32 to = first + i + lower[i] - before;
            float value = values[first + i];
            if (to < count + came_count) {
                out[to] = held[first + i];
                out_values[to] = found[i] ? __fadd_rn(value, came_values[lower[i]]) : value;
            }
            below[first + i] = before;
            before += found[i];
        }
    }
}

// `before` is what the kernel before has left in `below`.
extern "C" __global__ void __launch_bounds__(THREADS) write_came(
    const u32* held,
    u32 count,
    const u32* came,
    const float* came_values,
    u32 came_count,
    const u32* before,
    const Merging* merging,
    u32* out,
    float* out_values
) {
    each(came_count, [=](u64 i) {
        u32 lower = count_below(held, count, came[i]);
        if (lower < count && held[lower] == came[i]) {
            return;
        }
        u32 to = static_cast<u32>(i) + lower - (lower < count ? before[lower] : merging->both);
        if (to < count + came_count) {
            out[to] = came[i];
            out_values[to] = came_values[i];
        }
    });
}

// Adds the values of a block to those that came, unless the bag is malformed.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_block(const float* block, const u32* came, float* came_values, u32 came_count, const Merging* merging) {
    if (merging->wrong != 0) {
        return;
    }
    each(came_count, [=](u64 i) { came_values[i] = __fadd_rn(block[came[i]], came_values[i]); });
}
