// Finds the k-th largest magnitude, one digit after the other: bits 30..20, 19..10 and 9..0. Each launch counts how often each digit
// follows the digits found so far, and its last block picks the one that the k-th largest has. Counts do not depend on any order.

constexpr u32 BINS = 2048;

// Gradients have few exponents, so that many lanes count in the same bin. They count in copies beside each other, in different banks.
constexpr u32 COPIES = 4;

struct Bins {
    // Aligned, so that the copies are read at once.
    alignas(16) u32 counts[BINS * COPIES];
    u32 sums[WARPS];
    bool last;
};

struct Digit {
    u32 shift;
    u32 mask;
    // The digits before it, and how far right they are moved.
    u32 prefix;
    u32 above;
};

__device__ __forceinline__ Digit digit_of(u32 number, u32 magnitude) {
    Digit digit;
    digit.shift = number == 0 ? 20 : number == 1 ? 10 : 0;
    digit.mask = number == 0 ? BINS - 1 : 1023;
    digit.above = number == 0 ? 31 : number == 1 ? 20 : 10;
    digit.prefix = magnitude >> digit.above;
    return digit;
}

// Adds the digits of `count` values to the bins of all blocks.
__device__ __forceinline__ void count_digits(Bins& bins, const float* values, u32 count, Digit digit, u32* sums) {
    u32 used = digit.mask + 1;
    for (u32 i = threadIdx.x; i < used * COPIES; i += THREADS) {
        bins.counts[i] = 0;
    }
    __syncthreads();
    u32 copy = lane_of_thread() % COPIES;
    u32 tiles = divided_up(count, TILE);
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float items[ITEMS];
        load_items(values, static_cast<u64>(tile) * TILE, count, items);
#pragma unroll
        for (u32 i = 0; i < ITEMS; i++) {
            u32 magnitude = magnitude_of(items[i]);
            if (magnitude != 0 && magnitude >> digit.above == digit.prefix) {
                atomicAdd(&bins.counts[(magnitude >> digit.shift & digit.mask) * COPIES + copy], 1u);
            }
        }
    }
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < used; bin += THREADS) {
        u32 sum = 0;
#pragma unroll
        for (u32 i = 0; i < COPIES; i++) {
            sum += bins.counts[bin * COPIES + i];
        }
        if (sum > 0) {
            atomicAdd(&sums[bin], sum);
        }
    }
}

// Picks the digit that the entry looked for has, and empties the bins. One block does it, after all have counted. The first digit begins
// the cut: of the k largest, among `found` candidates or, if that is 0, among all that were counted.
__device__ __forceinline__ void pick_digit(Bins& bins, u32 number, Digit digit, u32 k, u32 found, Cut* cut, u32* sums) {
    constexpr u32 EACH = BINS / THREADS;
    u32 counts[EACH];
    u32 own = 0;
    // From the highest bin down.
    u32 top = BINS - 1 - threadIdx.x * EACH;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        // Other blocks wrote them: not from the cache of this multiprocessor.
        counts[i] = __ldcg(&sums[top - i]);
        own += counts[i];
        sums[top - i] = 0;
    }
    u32 remaining = number == 0 ? k : cut->remaining;
    u32 magnitude = number == 0 ? 0 : cut->magnitude;
    u32 summed = sum_up_to_lane(own);
    if (lane_of_thread() == LANES - 1) {
        bins.sums[warp_of_thread()] = summed;
    }
    __syncthreads();
    u32 higher = summed - own;
    u32 all = 0;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) {
        higher += warp < warp_of_thread() ? bins.sums[warp] : 0;
        all += bins.sums[warp];
    }
    if (threadIdx.x == 0) {
        cut->ready = 0;
        if (number == 0) {
            // If there are not as many, all that are not zero are kept, and no further digit is looked for.
            start_cut(cut, 0, found == 0 ? all : found, 0);
        }
    }
    __syncthreads();
    if (all < remaining || higher >= remaining || remaining > higher + own) {
        return;
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (higher < remaining && remaining <= higher + counts[i]) {
            cut->magnitude = magnitude | (top - i) << digit.shift;
            cut->remaining = remaining - higher;
            if (number == 2) {
                cut->ties = remaining - higher;
            }
            return;
        }
        higher += counts[i];
    }
}

__device__ __forceinline__ void find_digit(
    Bins& bins, const float* values, u32 count, u32 number, u32 k, u32 found, Cut* cut, u32* sums
) {
    Digit digit = digit_of(number, number == 0 ? 0 : cut->magnitude);
    count_digits(bins, values, count, digit, sums);
    // What all threads of a block added is seen by all before it says that it is done.
    __threadfence();
    __syncthreads();
    if (is_last_block(&cut->ready, bins.last)) {
        pick_digit(bins, number, digit, k, found, cut, sums);
    }
}

// Whether there is no digit to be found: of a cut that is found already, of k = 0, which keeps nothing, and of candidates that did not
// all find room. The first digit's launch writes the cut then.
__device__ __forceinline__ bool ends_before(u32 number, u32 k, u32 reached, bool fits, Cut* cut) {
    if (number != 0) {
        return cut->remaining == 0;
    }
    bool ends = k == 0 || !fits;
    if (ends && blockIdx.x == 0 && threadIdx.x == 0) {
        start_cut(cut, k == 0 ? LARGEST : 0, reached, 0);
    }
    return ends;
}

// The cut's memory is zero before its first use.
extern "C" __global__ void __launch_bounds__(THREADS)
    histogram_dense(const float* values, u32 count, u32 digit, u32 k, Cut* cut, u32* bins) {
    __shared__ Bins shared;
    if (!ends_before(digit, k, 0, true, cut)) {
        find_digit(shared, values, count, digit, k, 0, cut, bins);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    histogram_found(const float* candidate_values, const u32* reserved, u32 capacity, u32 digit, u32 k, Cut* cut, u32* bins) {
    __shared__ Bins shared;
    u32 count = *reserved;
    if (!ends_before(digit, k, count, count <= capacity, cut)) {
        find_digit(shared, candidate_values, count, digit, k, count, cut, bins);
    }
}
