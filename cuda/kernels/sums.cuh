// Sums of counts over many blocks of threads: each has those of its own chunk, and the last that is done has those of all chunks.
//
// A count is how many entries are larger than a cut, in the low half of a word, and how many equal it. Neither sum reaches 2^32, except
// for equal zeros, which are not kept.

// Counts that a thread takes at a time.
constexpr u32 SCANNED = 4;

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

// Turns the sums of all chunks into sums of those before. One block does it, after all have summed. Returns the sum of all.
__device__ __forceinline__ u64 sum_chunks(u64* chunks, u64 (&sums)[WARPS]) {
    u64 before = 0;
    for (u32 start = 0; start < gridDim.x; start += THREADS * SCANNED) {
        u32 at = start + threadIdx.x * SCANNED;
        u64 own[SCANNED];
        u64 sum = 0;
#pragma unroll
        for (u32 i = 0; i < SCANNED; i++) {
            // Other blocks wrote them: not from the cache of this multiprocessor.
            own[i] = at + i < gridDim.x ? __ldcg(&chunks[at + i]) : 0;
            sum += own[i];
        }
        u64 all;
        u64 lower = before + sum_before_thread(sum, sums, &all);
#pragma unroll
        for (u32 i = 0; i < SCANNED; i++) {
            if (at + i < gridDim.x) {
                chunks[at + i] = lower;
            }
            lower += own[i];
        }
        before += all;
    }
    return before;
}

// Ends a chunk whose counts sum up to `all`. The last block of threads turns `chunks` into the sums of the chunks before, and notes in the
// cut how many entries are kept.
__device__ __forceinline__ void end_chunk(u64 all, u64* chunks, u64 (&sums)[WARPS], bool& last, Cut* cut) {
    if (threadIdx.x == 0) {
        chunks[blockIdx.x] = all;
    }
    if (!is_last_block(&cut->ready, last)) {
        return;
    }
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
