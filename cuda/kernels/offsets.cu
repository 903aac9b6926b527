// Where in the output each tile's entries go.

// Threads of the one block, and tiles that each takes at a time.
constexpr u32 SCANNERS = 1024;
constexpr u32 SCANNED = 4;

// Both counts of a tile in one number: the larger ones in the low half. Neither sum reaches 2^32, except for equal zeros, which are
// not kept.
__device__ __forceinline__ u64 packed_counts(const u32* counts, u64 tile, u32 tiles) {
    return tile < tiles ? static_cast<u64>(counts[2 * tile + 1]) << 32 | counts[2 * tile] : 0;
}

// Turns counts into the sums of those before, and notes in the cut how many entries are kept.
extern "C" __global__ void __launch_bounds__(SCANNERS) offsets(u32* counts, u32 tiles, Cut* cut) {
    // Rounds take turns: a warp may be one barrier ahead of the others.
    __shared__ u64 shared[2][LANES];
    u64 before = 0;
    u32 turn = 0;
    u64 next[SCANNED];
    u64 at = static_cast<u64>(threadIdx.x) * SCANNED;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        next[i] = packed_counts(counts, at + i, tiles);
    }
    for (u64 start = 0; start < tiles; start += SCANNERS * SCANNED) {
        u64 own[SCANNED];
        u64 sum = 0;
#pragma unroll
        for (u32 i = 0; i < SCANNED; i++) {
            own[i] = next[i];
            sum += own[i];
            // Under way while this round is summed.
            next[i] = packed_counts(counts, at + SCANNERS * SCANNED + i, tiles);
        }
        u64 summed = sum_up_to_lane(sum);
        if (lane_of_thread() == LANES - 1) {
            shared[turn][warp_of_thread()] = summed;
        }
        __syncthreads();
        u64 warps = sum_up_to_lane(shared[turn][lane_of_thread()]);
        u64 lower_warps = __shfl_up_sync(EVERY_LANE, warps, 1);
        lower_warps = lane_of_thread() == 0 ? 0 : lower_warps;
        u64 lower = before + (summed - sum) + __shfl_sync(EVERY_LANE, lower_warps, warp_of_thread());
#pragma unroll
        for (u32 i = 0; i < SCANNED; i++) {
            if (at + i < tiles) {
                counts[2 * (at + i)] = static_cast<u32>(lower);
                counts[2 * (at + i) + 1] = static_cast<u32>(lower >> 32);
            }
            lower += own[i];
        }
        before += __shfl_sync(EVERY_LANE, warps, LANES - 1);
        at += SCANNERS * SCANNED;
        turn ^= 1;
    }
    if (threadIdx.x == 0) {
        u32 ties = min(static_cast<u32>(before >> 32), cut->ties);
        cut->kept = static_cast<u32>(before) + ties;
        if (ties > 0) {
            cut->smallest = cut->magnitude;
        }
    }
}
