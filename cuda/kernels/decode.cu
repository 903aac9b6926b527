// A bag that came, in Rice's form: the low bits of all gaps in fields of `width` bits, behind them for each gap as many zeros as is its
// higher part, and a one; from a whole word on, `section`, the scales of buckets, if the coding has them, and from the word `limit` on the
// values or their codes. Where the section ends is known by its ones alone. The first kernel sums up ones and fields, the second finds how
// many zeros are before each one, the third adds up and reads the values. Codes are read by those in codes.cu. A block of threads takes a
// CHUNK of words or entries.
//
// The bytes may be anything: what is read and written does not go beyond the bag and its entries, and what is wrong is noted.

// How values are written.
constexpr u32 EXACT = 0;
constexpr u32 BF16 = 1;

// What is noted of a bag that is decoded and merged. All are 0 before.
struct Merging {
    // Whether the bag is malformed, its codes apart.
    u32 wrong;
    // How many indices both sides have.
    u32 both;
    // How many blocks have summed. 0 before and after each kernel.
    u32 ready;
    // The word in which the indices end.
    u32 section;
    // How many buckets the entries are in, and how many of these have a scale that fits their codes.
    u32 buckets;
    u32 fitting;
    // Whether a code is malformed.
    u32 wrong_code;
    u32 unused;
};

// The field of an entry.
__device__ __forceinline__ u32 low_bits(const u32* body, u32 at, u32 width) {
    u64 first = static_cast<u64>(at) * width;
    u32 shift = first % 32;
    u32 bits = body[first / 32] >> shift;
    if (shift + width > 32) {
        bits |= body[first / 32 + 1] << (32 - shift);
    }
    return bits & ((1u << width) - 1);
}

// The word in which the fields end and the zeros and ones begin.
__device__ __forceinline__ u32 first_unary(u32 count, u32 width) {
    return static_cast<u32>(static_cast<u64>(count) * width / 32);
}

// Zeros and ones in a word from that one on, without the bits of fields.
__device__ __forceinline__ u32 unary_bits(const u32* body, u32 count, u32 width, u32 word) {
    u32 fields = word == first_unary(count, width) ? static_cast<u64>(count) * width % 32 : 0;
    return body[word] >> fields << fields;
}

// ones[b] and lows[b]: how many ones are before the words of block b, and the sum of the fields before its entries. There are at least
// (width + 1) * count bits before `limit`, and as many blocks as entries and words need. Scales may have ones, too: they follow.
extern "C" __global__ void __launch_bounds__(THREADS)
    survey_bag(const u32* body, u32 count, u32 width, u32 limit, u64* ones, u64* lows, Merging* merging) {
    __shared__ u64 shared[WARPS];
    __shared__ bool last;
    u32 first = first_unary(count, width);
    u64 found = 0;
    u64 low = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        u32 at = blockIdx.x * CHUNK + i * THREADS + threadIdx.x;
        found += at < limit - first ? __popc(unary_bits(body, count, width, first + at)) : 0;
        low += at < count ? low_bits(body, at, width) : 0;
    }
    u64 all_found;
    u64 all_low;
    sum_before_thread(found, shared, &all_found);
    sum_before_thread(low, shared, &all_low);
    if (threadIdx.x == 0) {
        ones[blockIdx.x] = all_found;
        lows[blockIdx.x] = all_low;
    }
    if (!is_last_block(&merging->ready, last)) {
        return;
    }
    all_found = sum_chunks(ones, shared);
    sum_chunks(lows, shared);
    if (threadIdx.x == 0) {
        // A one for each entry.
        if (all_found < count) {
            merging->wrong = 1;
        }
        merging->ready = 0;
    }
}

// highs[i]: how many zeros are before the one of entry i, or the largest u32 if they are more. Notes where the section ends.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_highs(const u32* body, u32 count, u32 width, u32 limit, const u64* ones, u32* highs, Merging* merging) {
    __shared__ u64 shared[WARPS];
    u32 first = first_unary(count, width);
    u32 start = blockIdx.x * CHUNK + threadIdx.x * SCANNED;
    u32 words[SCANNED];
    u64 found = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        words[i] = start + i < limit - first ? unary_bits(body, count, width, first + start + i) : 0;
        found += __popc(words[i]);
    }
    u64 all;
    u64 entry = ones[blockIdx.x] + sum_before_thread(found, shared, &all);
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        // Where the word begins, counted from the first bit behind the fields: below it by less than a word, or above.
        u64 word = static_cast<u64>(start + i) * 32 - static_cast<u64>(count) * width % 32;
        for (u32 rest = words[i]; rest != 0; rest &= rest - 1) {
            u64 zeros = word + (__ffs(rest) - 1) - entry;
            if (entry < count) {
                highs[entry] = zeros < NO_LIMIT ? static_cast<u32>(zeros) : NO_LIMIT;
            }
            if (entry == count - 1) {
                merging->section = first + start + i + 1;
                // Behind the last one are zeros.
                if ((rest & (rest - 1)) != 0) {
                    merging->wrong = 1;
                }
            }
            entry++;
        }
    }
}

__device__ __forceinline__ float value_at(const u32* values, u32 at, u32 coding) {
    if (coding == EXACT) {
        return __uint_as_float(values[at]);
    }
    u16 stored = static_cast<u16>(values[at / 2] >> at % 2 * 16);
    return coding == BF16 ? BFloat16::load(stored) : Float16::load(stored);
}

// The fields of a thread's entries, and the sum of all fields before them.
__device__ __forceinline__ u64
    read_lows(const u32* body, u32 count, u32 width, const u64* lows, u64 (&shared)[WARPS], u32 first, u32 (&low)[SCANNED]) {
    u64 sum = 0;
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        low[i] = first + i < count ? low_bits(body, first + i, width) : 0;
        sum += low[i];
    }
    u64 all;
    return lows[blockIdx.x] + sum_before_thread(sum, shared, &all);
}

// The index of an entry: higher parts, fields up to its own, and a one for each entry before. No sum wraps: highs are below 2^32, fields
// below 2^31 and entries fewer than 2^31.
__device__ __forceinline__ u64 index_of(u32 high, u32 width, u64 fields, u32 at) {
    return (static_cast<u64>(high) << width) + fields + at;
}

// Whether something follows the values, which take so many bits from the word `limit` on.
__device__ __forceinline__ bool is_padded(const u32* body, u32 limit, u64 bits) {
    return bits % 32 != 0 && body[limit + bits / 32] >> bits % 32 != 0;
}

// Indices, in the place of `highs`, and values.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_entries(const u32* body, u32 count, u32 width, u32 limit, u32 coding, u32 len, const u64* lows, u32* indices, float* values, Merging* merging) {
    __shared__ u64 shared[WARPS];
    u32 first = blockIdx.x * CHUNK + threadIdx.x * SCANNED;
    u32 low[SCANNED];
    u64 before = read_lows(body, count, width, lows, shared, first, low);
    bool wrong = merging->section != limit || (coding != EXACT && is_padded(body, limit, static_cast<u64>(count) * 16));
#pragma unroll
    for (u32 i = 0; i < SCANNED; i++) {
        if (first + i < count) {
            before += low[i];
            u64 index = index_of(indices[first + i], width, before, first + i);
            float value = value_at(body + limit, first + i, coding);
            indices[first + i] = static_cast<u32>(index);
            values[first + i] = value;
            // -0 stands for no entry.
            wrong |= index >= len || magnitude_of(value) >= INFINITE || __float_as_uint(value) == LARGEST + 1;
        }
    }
    if (wrong) {
        atomicOr(&merging->wrong, 1u);
    }
}
