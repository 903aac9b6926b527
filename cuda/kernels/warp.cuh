// What the lanes of a warp and the blocks of a launch exchange, and how a warp reads its part of a tile.

__device__ __forceinline__ u32 lane_of_thread() {
    return threadIdx.x % LANES;
}

__device__ __forceinline__ u32 warp_of_thread() {
    return threadIdx.x / LANES;
}

// The sum of the values of this lane and all lower ones.
template <class Number>
__device__ __forceinline__ Number sum_up_to_lane(Number value) {
#pragma unroll
    for (u32 distance = 1; distance < LANES; distance *= 2) {
        Number lower = __shfl_up_sync(EVERY_LANE, value, distance);
        value += lane_of_thread() >= distance ? lower : 0;
    }
    return value;
}

// The sum of the values of all lanes.
template <class Number>
__device__ __forceinline__ Number sum_of_lanes(Number value) {
#pragma unroll
    for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(EVERY_LANE, value, distance);
    }
    return value;
}

__device__ __forceinline__ u32 least_of_lanes(u32 value) {
#pragma unroll
    for (u32 distance = LANES / 2; distance > 0; distance /= 2) {
        value = min(value, __shfl_xor_sync(EVERY_LANE, value, distance));
    }
    return value;
}

// How many of the lanes in `lanes` are below this one.
__device__ __forceinline__ u32 lanes_below(u32 lanes) {
    return __popc(lanes & ((1u << lane_of_thread()) - 1));
}

// Where in a tile the first of a thread's entries is, if its item i is i * LANES further on: the 32 lanes read next to each other
// whatever the alignment, and all of a thread's loads are under way before the first is used.
__device__ __forceinline__ u32 first_of_thread() {
    return warp_of_thread() * SEGMENT + lane_of_thread();
}

// Reads a thread's entries of the tile that begins at `start`; 0 beyond the end.
__device__ __forceinline__ void load_items(const float* values, u64 start, u32 count, float (&items)[ITEMS]) {
    u64 at = start + first_of_thread();
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        items[i] = at + i * LANES < count ? values[at + i * LANES] : 0.0f;
    }
}

// Whether this block is the last to come here. Then it sees what thread 0 of each block wrote before.
__device__ __forceinline__ bool is_last_block(u32* ready, bool& last) {
    if (threadIdx.x == 0) {
        // It is seen by all before this block says that it is done.
        __threadfence();
        last = atomicAdd(ready, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        __threadfence();
    }
    return last;
}
