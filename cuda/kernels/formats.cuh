// The formats of gradients and parameters, and conversions between them and f32.
//
// Conversions are written with integers and exact multiplications, so that the device and the CPU run the same code and get the same
// bits. To 16 bits they round to nearest, ties to even. A NaN stays a NaN: what is left of its payload stays, and it becomes quiet when
// it is made shorter. A NaN that arithmetic makes differs between processors (0x7fffffff on the device), and so do its 16 bits.

struct Float32 {
    typedef float Stored;
    typedef float4 Four;

    static __device__ __forceinline__ float load(float stored) {
        return stored;
    }

    static __device__ __forceinline__ float4 load_four(float4 stored) {
        return stored;
    }

    static __device__ __forceinline__ float store(float value) {
        return value;
    }
};

// Formats of 16 bits: four of them lie in two words.
template <class Format>
struct Short {
    typedef u16 Stored;
    typedef uint2 Four;

    static __device__ __forceinline__ float4 load_four(uint2 stored) {
        float4 values;
        values.x = Format::load(static_cast<u16>(stored.x));
        values.y = Format::load(static_cast<u16>(stored.x >> 16));
        values.z = Format::load(static_cast<u16>(stored.y));
        values.w = Format::load(static_cast<u16>(stored.y >> 16));
        return values;
    }
};

struct BFloat16 : Short<BFloat16> {
    static __device__ __forceinline__ float load(u16 stored) {
        return __uint_as_float(static_cast<u32>(stored) << 16);
    }

    static __device__ __forceinline__ u16 store(float value) {
        u32 bits = __float_as_uint(value);
        if (magnitude_of(value) > INFINITE) {
            return static_cast<u16>(bits >> 16 | 0x0040);
        }
        return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

struct Float16 : Short<Float16> {
    static __device__ __forceinline__ float load(u16 stored) {
        u32 sign = static_cast<u32>(stored & 0x8000) << 16;
        // The exponent of f16 in the place of f32's is too small by 112. The product is exact, for subnormal values too.
        float scaled = __fmul_rn(__uint_as_float(static_cast<u32>(stored & 0x7fff) << 13), __uint_as_float((127 + 112) << 23));
        u32 beyond = (stored & 0x7c00) == 0x7c00 ? INFINITE : 0;
        return __uint_as_float(__float_as_uint(scaled) | beyond | sign);
    }

    static __device__ __forceinline__ u16 store(float value) {
        u32 sign = __float_as_uint(value) >> 16 & 0x8000;
        u32 magnitude = magnitude_of(value);
        u32 stored;
        if (magnitude > INFINITE) {
            stored = 0x7e00 | (magnitude >> 13 & 0x03ff);
        } else if (magnitude >= 0x477ff000) {
            // Half-way from the largest to the next power of two, and above.
            stored = 0x7c00;
        } else if (magnitude < 0x38800000) {
            // Subnormal: one half has the unit in the last place that they have, so that the addition rounds.
            stored = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 0.5f)) - 0x3f000000;
        } else {
            stored = (magnitude - (112u << 23) + 0x0fff + (magnitude >> 13 & 1)) >> 13;
        }
        return static_cast<u16>(sign | stored);
    }
};
