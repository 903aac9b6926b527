// Writes the entries that a cut keeps, in the order of their indices. An entry's place follows from how many larger and how many equal
// ones come before it, so that no thread waits for another's output.

struct Kept {
    u32 magnitude;
    u32 ties;
    u32 most;
    u32* indices;
    float* values;
};

// Writes those of a warp's entries, in the order of lanes, that are kept. `before` counts entries before the first, and grows by all.
// Returns the least magnitude that this lane kept, NO_MAGNITUDE if it kept none.
__device__ __forceinline__ u32 emit_lanes(bool is_there, u32 index, float value, Tallies& before, const Kept& kept) {
    u32 magnitude = magnitude_of(value);
    bool is_larger = is_there && magnitude > kept.magnitude;
    bool is_equal = is_there && magnitude == kept.magnitude;
    u32 larger = __ballot_sync(EVERY_LANE, is_larger);
    u32 equal = __ballot_sync(EVERY_LANE, is_equal);
    u32 equal_before = before.equal + lanes_below(equal);
    u32 place = before.larger + lanes_below(larger) + min(equal_before, kept.ties);
    before.larger += __popc(larger);
    before.equal += __popc(equal);
    if (!is_larger && !(is_equal && equal_before < kept.ties)) {
        return NO_MAGNITUDE;
    }
    if (place < kept.most) {
        kept.indices[place] = index;
        kept.values[place] = value;
    }
    return magnitude;
}

// Notes the least of all magnitudes that were kept, if the cut does not say it: with ties, it is theirs.
__device__ __forceinline__ void note_smallest(u32 smallest, Cut* cut) {
    if (cut->ties > 0) {
        return;
    }
    smallest = least_of_lanes(smallest);
    // Few atomics: most warps find that others had a smaller one.
    if (lane_of_thread() == 0 && smallest < __ldcg(&cut->smallest)) {
        atomicMin(&cut->smallest, smallest);
    }
}

// How many larger and how many equal entries come before a tile or a record, of which so many make a chunk.
__device__ __forceinline__ Tallies tallies_before(const u32* counts, const u64* chunks, u32 number, u32 chunk) {
    u64 lower = chunks[number / chunk];
    Tallies before = {static_cast<u32>(lower) + counts[2 * number], static_cast<u32>(lower >> 32) + counts[2 * number + 1]};
    return before;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    emit_dense(
        const float* values, u32 count, const u32* counts, const u64* chunks, Cut* cut, u32 most, u32* out_indices, float* out_values
    ) {
    // Tiles take turns: a warp may be one barrier ahead of the others.
    __shared__ u32 shared[2][WARPS];
    Kept kept = {cut->magnitude, cut->ties, most, out_indices, out_values};
    u32 smallest = NO_MAGNITUDE;
    u32 tiles = divided_up(count, TILE);
    u32 turn = 0;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float items[ITEMS];
        u32 packed = tally_items(values, tile, count, kept.magnitude, items);
        if (lane_of_thread() == 0) {
            shared[turn][warp_of_thread()] = packed;
        }
        __syncthreads();
        u32 lower = 0;
        for (u32 warp = 0; warp < warp_of_thread(); warp++) {
            lower += shared[turn][warp];
        }
        turn ^= 1;
        if (packed == 0) {
            continue;
        }
        Tallies before = tallies_before(counts, chunks, tile, CHUNK);
        Tallies of_warps = tallies_of(lower);
        before.larger += of_warps.larger;
        before.equal += of_warps.equal;
        u32 first = tile * TILE + first_of_thread();
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            smallest = min(smallest, emit_lanes(true, first + i * LANES, items[i], before, kept));
        }
    }
    note_smallest(smallest, cut);
}

// A warp takes a record. There is one for each.
extern "C" __global__ void __launch_bounds__(THREADS) emit_found(
    const u32* candidate_indices, const float* candidate_values, const Record* records, const Call* calls, u32 call_count,
    u32 record_count, u32 capacity, const u32* reserved, const u32* counts, const u64* chunks, Cut* cut, u32 most, u32* out_indices,
    float* out_values
) {
    u32 number = blockIdx.x * WARPS + warp_of_thread();
    if (*reserved > capacity || number >= record_count) {
        return;
    }
    Kept kept = {cut->magnitude, cut->ties, most, out_indices, out_values};
    u32 smallest = NO_MAGNITUDE;
    Record record = record_of(records, calls, call_count, number);
    Tallies before = tallies_before(counts, chunks, number, RECORDS);
    for (u32 start = 0; start < record.count; start += LANES * AT_ONCE) {
        u32 indices[AT_ONCE];
        float values[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 at = start + i * LANES + lane_of_thread();
            indices[i] = at < record.count ? candidate_indices[record.start + at] : 0;
            values[i] = at < record.count ? candidate_values[record.start + at] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            bool is_there = start + i * LANES + lane_of_thread() < record.count;
            smallest = min(smallest, emit_lanes(is_there, indices[i], values[i], before, kept));
        }
    }
    note_smallest(smallest, cut);
}
