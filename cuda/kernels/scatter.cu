// Entries of the accumulator at some indices, each given once, and all of it.

// Calls `act` with 0, 1 ... `count` - 1, over all threads of the grid.
template <class Act>
__device__ __forceinline__ void each(u64 count, Act act) {
    u64 stride = static_cast<u64>(gridDim.x) * THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += stride) {
        act(i);
    }
}

// For each of `count` entries, reads with `read` and then writes with `write`. A thread reads several before it writes the first, so
// that their loads are under way together.
template <class Read, class Write>
__device__ __forceinline__ void stream(u64 count, Read read, Write write) {
    constexpr u32 EACH = 4;
    u64 stride = static_cast<u64>(gridDim.x) * (THREADS * EACH);
    for (u64 start = static_cast<u64>(blockIdx.x) * (THREADS * EACH) + threadIdx.x; start < count; start += stride) {
        float items[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            items[i] = start + i * THREADS < count ? read(start + i * THREADS) : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            if (start + i * THREADS < count) {
                write(start + i * THREADS, items[i]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gather(const float* values, const u32* indices, u32 count, float* out) {
    each(count, [=](u64 i) { out[i] = values[indices[i]]; });
}

extern "C" __global__ void __launch_bounds__(THREADS) clear_at(float* values, const u32* indices, u32 count) {
    each(count, [=](u64 i) { values[indices[i]] = 0.0f; });
}

extern "C" __global__ void __launch_bounds__(THREADS) set_at(float* values, const u32* indices, const float* given, u32 count) {
    each(count, [=](u64 i) { values[indices[i]] = given[i]; });
}

extern "C" __global__ void __launch_bounds__(THREADS) add_at(float* values, const u32* indices, const float* given, u32 count) {
    each(count, [=](u64 i) { values[indices[i]] = __fadd_rn(values[indices[i]], given[i]); });
}

extern "C" __global__ void __launch_bounds__(THREADS) add_all(float* values, const float* given, u64 count) {
    stream(count, [=](u64 i) { return __fadd_rn(values[i], given[i]); }, [=](u64 i, float sum) { values[i] = sum; });
}
