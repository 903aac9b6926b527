// What a selection starts from: the k entries of largest magnitude, or all that reach a limit.

// Nothing is found yet; of `reached` entries it is known that they are searched.
__device__ __forceinline__ void start_cut(Cut* cut, u32 magnitude, u32 reached, u32 remaining) {
    Cut started = {};
    started.magnitude = magnitude;
    started.reached = reached;
    started.smallest = NO_MAGNITUDE;
    started.remaining = remaining;
    *cut = started;
}

// Keeps everything of magnitude >= `limit`, which is at least 1.
extern "C" __global__ void fixed_cut(Cut* cut, u32 limit) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        start_cut(cut, limit - 1, 0, 0);
    }
}
