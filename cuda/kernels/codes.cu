// The values of a bag that came in QSGD's codings: a scale for each bucket that has entries, and from the word `limit` on for each entry a
// code of a few bits, its level and above it a bit for its sign. Buckets are ranges of 2^shift positions, so the indices come first, which
// decode.cu describes. The first kernel reads them and sums up buckets, the second reads the values.

// The magnitude of the smallest scale, 2^-118.
constexpr u32 SMALLEST_SCALE = (127 - 118) << 23;

// Indices, and buckets[b]: how many buckets begin before the entries of block b. fits[b] becomes 0 for all buckets, which lie before
// `limit`.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_indices(const u32* body, u32 count, u32 width, u32 limit, u32 shift, u32 len, const u64* lows, const u32* highs, u32* indices, u32* fits, u64* buckets, Merging* merging) {
    __shared__ u64 shared[WARPS];
    __shared__ bool last;
    each(limit, [=](u64 i) { fits[i] = 0; });
    u32 first = blockIdx.x * CHUNK + threadIdx.x * SCANNED;
    u32 low[SCANNED];
    u64 before = read_lows(body, count, width, lows, shared, first, low);
    // The bucket of the entry before; there is none of this number.
    u64 bucket = ~0ull;
    if (first > 0 && first < count) {
        bucket = index_of(highs[first - 1], width, before, first - 1) >> shift;
    }
    bool wrong = false;
    u64 found = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        if (first + i < count) {
            before += low[i];
            u64 index = index_of(highs[first + i], width, before, first + i);
            found += index >> shift != bucket;
            bucket = index >> shift;
            indices[first + i] = static_cast<u32>(index);
            wrong |= index >= len;
        }
    }
    if (wrong) {
        atomicOr(&merging->wrong, 1u);
    }
    u64 all;
    sum_before_thread(found, shared, &all);
    if (threadIdx.x == 0) {
        buckets[blockIdx.x] = all;
    }
    if (!is_last_block(&merging->ready, last)) {
        return;
    }
    all = sum_chunks(buckets, shared);
    if (threadIdx.x == 0) {
        // A scale for each bucket, and then the codes.
        if (merging->section + all != limit) {
            atomicOr(&merging->wrong, 1u);
        }
        merging->buckets = static_cast<u32>(all);
        merging->ready = 0;
    }
}

// Values. `buckets` and `fits` are as the kernel before has left them, with as many blocks, and `width` is that of a code. Does nothing if
// the indices are malformed.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_codes(const u32* body, u32 count, u32 width, u32 limit, u32 shift, const u32* indices, const u64* buckets, u32* fits, float* values, Merging* merging) {
    __shared__ u64 shared[WARPS];
    if (merging->wrong != 0) {
        return;
    }
    u32 first = blockIdx.x * CHUNK + threadIdx.x * SCANNED;
    bool begins[SCANNED];
    u64 found = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        u32 at = first + i;
        begins[i] = at < count && (at == 0 || indices[at] >> shift != indices[at - 1] >> shift);
        found += begins[i];
    }
    u64 all;
    u64 before = buckets[blockIdx.x] + sum_before_thread(found, shared, &all);
    const u32* scales = body + merging->section;
    u32 sign = 1u << (width - 1);
    u32 highest = sign - 1;
    bool wrong = is_padded(body, limit, static_cast<u64>(count) * width);
    u32 fitting = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        if (first + i < count) {
            before += begins[i];
            u32 bucket = static_cast<u32>(before) - 1;
            u32 scale = scales[bucket];
            u64 bit = static_cast<u64>(first + i) * width;
            u32 code = body[limit + bit / 32] >> bit % 32 & (sign | highest);
            u32 level = code & highest;
            float part = __fdiv_rn(__uint2float_rn(level), __uint2float_rn(highest));
            u32 magnitude = __float_as_uint(__fmul_rn(__uint_as_float(scale), part));
            values[first + i] = __uint_as_float(magnitude | (code & sign) << (32 - width));
            // The scale of nothing but zeros is 0. -0 stands for no entry.
            wrong |= code == sign || (scale == 0 ? level != 0 : scale < SMALLEST_SCALE || scale >= INFINITE);
            // The largest level of a bucket is the highest.
            if (level == highest || scale == 0) {
                fitting += atomicOr(&fits[bucket], 1u) == 0;
            }
        }
    }
    if (wrong) {
        atomicOr(&merging->wrong_code, 1u);
    }
    if (fitting > 0) {
        atomicAdd(&merging->fitting, fitting);
    }
}
