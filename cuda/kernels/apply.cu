// What is done with an update where parameters or gradients lie. Products, quotients and sums are each rounded to f32, then the result
// to the format.

// A mean of -0 becomes 0, as where a mean is summed from 0.
__device__ __forceinline__ float mean_of(float sum, u32 divisor) {
    return __fadd_rn(__fdiv_rn(sum, __uint2float_rn(divisor)), 0.0f);
}

template <class Format>
__device__ __forceinline__ float scaled_sum(typename Format::Stored held, float given, float scale) {
    return __fadd_rn(Format::load(held), __fmul_rn(scale, given));
}

#define APPLY(FORMAT, NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS) \
        write_at_##NAME(void* into, const u32* indices, const float* given, u32 count, u32 divisor) { \
        FORMAT::Stored* held = static_cast<FORMAT::Stored*>(into); \
        each(count, [=](u64 i) { held[indices[i]] = FORMAT::store(mean_of(given[i], divisor)); }); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS) \
        add_at_##NAME(void* into, const u32* indices, const float* given, u32 count, float scale) { \
        FORMAT::Stored* held = static_cast<FORMAT::Stored*>(into); \
        each(count, [=](u64 i) { held[indices[i]] = FORMAT::store(scaled_sum<FORMAT>(held[indices[i]], given[i], scale)); }); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS) write_all_##NAME(void* into, const float* given, u64 count, u32 divisor) { \
        FORMAT::Stored* held = static_cast<FORMAT::Stored*>(into); \
        stream(count, [=](u64 i) { return mean_of(given[i], divisor); }, [=](u64 i, float mean) { held[i] = FORMAT::store(mean); }); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS) \
        add_all_scaled_##NAME(void* into, const float* given, u64 count, float scale) { \
        FORMAT::Stored* held = static_cast<FORMAT::Stored*>(into); \
        stream( \
            count, [=](u64 i) { return scaled_sum<FORMAT>(held[i], given[i], scale); }, \
            [=](u64 i, float sum) { held[i] = FORMAT::store(sum); } \
        ); \
    }

APPLY(Float32, f32)
APPLY(Float16, f16)
APPLY(BFloat16, bf16)
