// What a selection starts from: the k entries of largest magnitude, or all that reach a limit.

// `reserved`: how many candidates there are, null if the values themselves are searched.
extern "C" __global__ void start_cut(Cut* cut, u32 k, const u32* reserved, u32 capacity) {
    if (blockIdx.x != 0 || threadIdx.x != 0) {
        return;
    }
    Cut started = {};
    // Nothing is larger: of no entries, none are kept.
    started.magnitude = k == 0 ? LARGEST : 0;
    started.reached = reserved == nullptr ? 0 : *reserved;
    started.smallest = NO_MAGNITUDE;
    // Of candidates that did not all find room nothing is looked for.
    started.remaining = started.reached > capacity && reserved != nullptr ? 0 : k;
    *cut = started;
}

// Keeps everything of magnitude >= `limit`, which is at least 1.
extern "C" __global__ void fixed_cut(Cut* cut, u32 limit) {
    if (blockIdx.x != 0 || threadIdx.x != 0) {
        return;
    }
    Cut fixed = {};
    fixed.magnitude = limit - 1;
    fixed.smallest = NO_MAGNITUDE;
    *cut = fixed;
}
