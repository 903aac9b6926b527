// How many entries of each tile, or of each record of candidates, are larger than a cut and how many equal it.

struct Tallies {
    u32 larger;
    u32 equal;
};

// Both in one word: a tile has fewer than 65536 entries.
__device__ __forceinline__ u32 tally_of(float value, u32 cut) {
    u32 magnitude = magnitude_of(value);
    return magnitude > cut ? 1 : magnitude == cut ? 1 << 16 : 0;
}

__device__ __forceinline__ Tallies tallies_of(u32 packed) {
    Tallies tallies = {packed & 0xffff, packed >> 16};
    return tallies;
}

// counts[2 * t] and [2 * t + 1]: of tile t.
extern "C" __global__ void __launch_bounds__(THREADS) count_dense(const float* values, u32 count, const Cut* cut, u32* counts) {
    // Tiles take turns: a warp may be one barrier ahead of the others.
    __shared__ u32 shared[2][WARPS];
    u32 magnitude = cut->magnitude;
    u32 tiles = divided_up(count, TILE);
    u32 turn = 0;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float items[ITEMS];
        load_items(values, static_cast<u64>(tile) * TILE, count, items);
        u32 packed = 0;
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            packed += tally_of(items[i], magnitude);
        }
        packed = sum_of_lanes(packed);
        if (lane_of_thread() == 0) {
            shared[turn][warp_of_thread()] = packed;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 all = 0;
#pragma unroll
            for (u32 warp = 0; warp < WARPS; warp++) {
                all += shared[turn][warp];
            }
            Tallies tallies = tallies_of(all);
            counts[2 * tile] = tallies.larger;
            counts[2 * tile + 1] = tallies.equal;
        }
        turn ^= 1;
    }
}

// The record that is `number`th by index. Calls ascend by index, and the last whose records begin at or before it has it.
__device__ __forceinline__ Record record_of(const Record* records, const Call* calls, u32 call_count, u32 number) {
    u32 low = 0;
    u32 high = call_count;
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (calls[middle].before <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return records[calls[low].first + (number - calls[low].before)];
}

// The first record of a warp, and by how many its next one is further on.
__device__ __forceinline__ u32 first_record() {
    return blockIdx.x * WARPS + warp_of_thread();
}

__device__ __forceinline__ u32 record_stride() {
    return gridDim.x * WARPS;
}

// counts[2 * r] and [2 * r + 1]: of the record that is rth by index. A warp takes a record.
extern "C" __global__ void __launch_bounds__(THREADS) count_found(
    const float* candidate_values, const Record* records, const Call* calls, u32 call_count, u32 record_count, u32 capacity,
    const u32* reserved, const Cut* cut, u32* counts
) {
    u32 magnitude = cut->magnitude;
    // Of candidates that did not all find room nothing is chosen.
    bool fits = *reserved <= capacity;
    for (u32 number = first_record(); number < record_count; number += record_stride()) {
        Record record = record_of(records, calls, call_count, number);
        u32 packed = 0;
        for (u32 i = lane_of_thread(); fits && i < record.count; i += LANES) {
            packed += tally_of(candidate_values[record.start + i], magnitude);
        }
        packed = sum_of_lanes(packed);
        if (lane_of_thread() == 0) {
            Tallies tallies = tallies_of(packed);
            counts[2 * number] = tallies.larger;
            counts[2 * number + 1] = tallies.equal;
        }
    }
}
