// Where in the output each tile's entries go.

// Tiles that a block makes sums of, and how many a thread takes: an entry's place follows from the sums before its tile within its
// chunk, and from those before its chunk.
constexpr u32 SCANNED = 4;
constexpr u32 CHUNK = THREADS * SCANNED;

// Both counts of a tile in one number: the larger ones in the low half. Neither sum reaches 2^32, except for equal zeros, which are
// not kept.
__device__ __forceinline__ u64 packed_counts(const u32* counts, u64 tile, u32 tiles) {
    return tile < tiles ? static_cast<u64>(counts[2 * tile + 1]) << 32 | counts[2 * tile] : 0;
}

// The sum of what the threads before this one have, and of what all have.
__device__ __forceinline__ u64 sum_before_thread(u64 own, u64 (&sums)[WARPS], u64* all) {
    u64 summed = sum_up_to_lane(own);
    // The sums of a round before were read by all.
    __syncthreads();
    if (lane_of_thread() == LANES - 1) {
        sums[warp_of_thread()] = summed;
    }
    __syncthreads();
    u64 lower = summed - own;
    *all = 0;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) {
        lower += warp < warp_of_thread() ? sums[warp] : 0;
        *all += sums[warp];
    }
    return lower;
}

// Turns the counts of a chunk into sums of those before. Returns the sum of all.
__device__ __forceinline__ u64 sum_chunk(u32* counts, u32 tiles, u64 (&sums)[WARPS]) {
    u64 at = static_cast<u64>(blockIdx.x) * CHUNK + threadIdx.x * SCANNED;
    u64 own[SCANNED];
    u64 sum = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        own[i] = packed_counts(counts, at + i, tiles);
        sum += own[i];
    }
    u64 all;
    u64 lower = sum_before_thread(sum, sums, &all);
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        if (at + i < tiles) {
            counts[2 * (at + i)] = static_cast<u32>(lower);
            counts[2 * (at + i) + 1] = static_cast<u32>(lower >> 32);
        }
        lower += own[i];
    }
    return all;
}

// Turns the sums of all chunks into sums of those before. One block does it, after all have summed. Returns the sum of all.
__device__ __forceinline__ u64 sum_chunks(u64* chunks, u64 (&sums)[WARPS]) {
    u64 before = 0;
    for (u32 start = 0; start < gridDim.x; start += THREADS) {
        u32 chunk = start + threadIdx.x;
        // Other blocks wrote them: not from the cache of this multiprocessor.
        u64 own = chunk < gridDim.x ? __ldcg(&chunks[chunk]) : 0;
        u64 all;
        u64 lower = sum_before_thread(own, sums, &all);
        if (chunk < gridDim.x) {
            chunks[chunk] = before + lower;
        }
        before += all;
    }
    return before;
}

// Turns counts into the sums of those before in their chunk, `chunks` into the sums of the chunks before, one for each block, and notes
// in the cut how many entries are kept. A block takes a chunk: there are as many as chunks.
extern "C" __global__ void __launch_bounds__(THREADS) offsets(u32* counts, u32 tiles, u64* chunks, Cut* cut) {
    __shared__ u64 sums[WARPS];
    __shared__ bool last;
    u64 all = sum_chunk(counts, tiles, sums);
    if (threadIdx.x == 0) {
        chunks[blockIdx.x] = all;
        // It is seen by all before this block says that it is done.
        __threadfence();
        last = atomicAdd(&cut->ready, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) {
        return;
    }
    __threadfence();
    all = sum_chunks(chunks, sums);
    if (threadIdx.x == 0) {
        u32 ties = min(static_cast<u32>(all >> 32), cut->ties);
        cut->kept = static_cast<u32>(all) + ties;
        cut->ready = 0;
        if (ties > 0) {
            cut->smallest = cut->magnitude;
        }
    }
}

// How many larger and how many equal entries the tiles before this one have.
__device__ __forceinline__ Tallies tallies_before(const u32* counts, const u64* chunks, u32 tile) {
    u64 lower = chunks[tile / CHUNK];
    Tallies before = {static_cast<u32>(lower) + counts[2 * tile], static_cast<u32>(lower >> 32) + counts[2 * tile + 1]};
    return before;
}
