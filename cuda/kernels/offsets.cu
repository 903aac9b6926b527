// Where in the output each tile's entries go.

// Tiles that a block makes sums of: an entry's place follows from the sums before its tile within its chunk, and from those before its
// chunk.
constexpr u32 CHUNK = THREADS * SCANNED;

// Both counts of a tile in one number.
__device__ __forceinline__ u64 packed_counts(const u32* counts, u64 tile, u32 tiles) {
    return tile < tiles ? static_cast<u64>(counts[2 * tile + 1]) << 32 | counts[2 * tile] : 0;
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

// Turns counts into the sums of those before in their chunk, `chunks` into the sums of the chunks before, and notes in the cut how many
// entries are kept. There is a block for each chunk.
extern "C" __global__ void __launch_bounds__(THREADS) offsets(u32* counts, u32 tiles, u64* chunks, Cut* cut) {
    __shared__ u64 sums[WARPS];
    __shared__ bool last;
    u64 all = sum_chunk(counts, tiles, sums);
    end_chunk(all, chunks, sums, last, cut);
}
