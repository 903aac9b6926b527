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

// Reads a warp's entries of a tile, and gives in all lanes how many of them are larger than a cut and how many equal it.
__device__ __forceinline__ u32 tally_items(const float* values, u32 tile, u32 count, u32 cut, float (&items)[ITEMS]) {
    load_items(values, static_cast<u64>(tile) * TILE, count, items);
    u32 packed = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        packed += tally_of(items[i], cut);
    }
    return sum_of_lanes(packed);
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
        u32 packed = tally_items(values, tile, count, magnitude, items);
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

// Records of which a block of threads makes sums, and how many of them a warp takes.
constexpr u32 EACH_WARP = 4;
constexpr u32 RECORDS = WARPS * EACH_WARP;

// Candidates of a record that a lane takes at a time: so many loads are under way together.
constexpr u32 AT_ONCE = 4;

// How many of a record's candidates are larger than a cut, and how many equal it: in all lanes.
__device__ __forceinline__ u32 tally_record(const float* candidate_values, Record record, u32 cut) {
    u32 packed = 0;
    for (u32 start = 0; start < record.count; start += LANES * AT_ONCE) {
        float values[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 at = start + i * LANES + lane_of_thread();
            values[i] = at < record.count ? candidate_values[record.start + at] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 at = start + i * LANES + lane_of_thread();
            packed += at < record.count ? tally_of(values[i], cut) : 0;
        }
    }
    return sum_of_lanes(packed);
}

// counts[2 * r] and [2 * r + 1]: what the records before the rth by index have, of the same block of threads; `chunks`: what the blocks
// before have. Notes in the cut how many entries are kept. There is a block for each RECORDS.
extern "C" __global__ void __launch_bounds__(THREADS) count_found(
    const float* candidate_values, const Record* records, const Call* calls, u32 call_count, u32 record_count, u32 capacity,
    const u32* reserved, Cut* cut, u32* counts, u64* chunks
) {
    __shared__ u64 sums[WARPS];
    __shared__ bool last;
    u32 magnitude = cut->magnitude;
    // Of candidates that did not all find room nothing is chosen.
    bool fits = *reserved <= capacity;
    u32 first = blockIdx.x * RECORDS + warp_of_thread() * EACH_WARP;
    u64 before[EACH_WARP];
    u64 own = 0;
#pragma unroll
    for (u32 i = 0; i < EACH_WARP; i++) {
        Record none = {0, 0};
        Record record = fits && first + i < record_count ? record_of(records, calls, call_count, first + i) : none;
        Tallies tallies = tallies_of(tally_record(candidate_values, record, magnitude));
        before[i] = own;
        own += static_cast<u64>(tallies.equal) << 32 | tallies.larger;
    }
    if (lane_of_thread() == 0) {
        sums[warp_of_thread()] = own;
    }
    __syncthreads();
    u64 lower = 0;
    u64 all = 0;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) {
        lower += warp < warp_of_thread() ? sums[warp] : 0;
        all += sums[warp];
    }
#pragma unroll
    for (u32 i = 0; i < EACH_WARP; i++) {
        if (lane_of_thread() == i && first + i < record_count) {
            counts[2 * (first + i)] = static_cast<u32>(lower + before[i]);
            counts[2 * (first + i) + 1] = static_cast<u32>((lower + before[i]) >> 32);
        }
    }
    end_chunk(all, chunks, sums, last, cut);
}
