// What the kernels and the host agree on: sizes, and how what lies between launches is laid out.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of a block, and entries that a block takes at a time. A warp takes a SEGMENT of a tile, so that what its
// lanes find is put in order without the other warps, and a thread ITEMS of it.
constexpr u32 THREADS = 256;
constexpr u32 LANES = 32;
constexpr u32 WARPS = THREADS / LANES;
constexpr u32 TILE = 4096;
constexpr u32 SEGMENT = TILE / WARPS;
constexpr u32 ITEMS = TILE / THREADS;

constexpr u32 EVERY_LANE = 0xffffffff;
constexpr u32 NO_LIMIT = 0xffffffff;
constexpr u32 NO_MAGNITUDE = 0xffffffff;

// The magnitude of infinity, and the largest, of a NaN.
constexpr u32 INFINITE = 0x7f800000;
constexpr u32 LARGEST = 0x7fffffff;

// Where in the candidates what one tile of one call found begins, and how many they are.
struct Record {
    u32 start;
    u32 count;
};

// The lowest position of a sum that is not finite, at first the largest u64, and how many such sums there were.
struct Status {
    u64 first;
    u64 count;
};

// Kept are entries of magnitude > `magnitude`, and the first `ties` by index that equal it.
struct Cut {
    u32 magnitude;
    u32 ties;
    // Non-zero entries that were searched.
    u32 reached;
    // How many come out in the end, and the least magnitude among them, NO_MAGNITUDE if there are none.
    u32 kept;
    u32 smallest;
    // While digits are found: the rank of the entry that is looked for among those whose digits so far are `magnitude`'s. 0: none is
    // looked for.
    u32 remaining;
    // How many blocks have added to the bins of a digit.
    u32 ready;
    u32 unused;
};

// The records of one call of accumulate: where they begin, how many, and how many records the calls of lower index have.
struct Call {
    u32 first;
    u32 count;
    u32 before;
    u32 unused;
};

// Orders floats by their absolute value: finite ones below infinity, infinity below NaN, and 0 for both zeros.
__device__ __forceinline__ u32 magnitude_of(float value) {
    return __float_as_uint(value) & LARGEST;
}

#ifndef GLEANER_HOST
// Vectors of what was declared as single values: for g++ they are copied in host.hpp.
template <class Value>
__device__ __forceinline__ Value load_vector(const Value* from) {
    return *from;
}

template <class Value>
__device__ __forceinline__ void store_vector(Value* to, Value value) {
    *to = value;
}
#endif

__device__ __forceinline__ u32 divided_up(u64 number, u32 by) {
    return static_cast<u32>((number + by - 1) / by);
}
