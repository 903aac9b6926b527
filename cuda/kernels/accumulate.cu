// Adds a gradient to the accumulator, and collects in the same pass the sums that reach a limit.
//
// A tile needs two barriers if it has candidates, one if it has none, and none if nothing is collected. Each warp puts its candidates in
// order in shared memory while other warps still load, so that they are written to consecutive addresses.

struct Found {
    // Of each warp, ascending: where in the tile, and the sums.
    u16 positions[WARPS][SEGMENT];
    float sums[WARPS][SEGMENT];
    // How many each warp has, and where the tile's are written. Tiles take turns: a warp may be one barrier ahead of the others.
    u32 counts[2][WARPS];
    u32 starts[2];
};

constexpr u32 GROUPS = ITEMS / 4;

// Where a thread's item lies in its warp's segment: four next to each other for vector loads, or single ones.
template <bool VECTORS>
__device__ __forceinline__ u32 place_of_item(u32 i) {
    return VECTORS ? i / 4 * (4 * LANES) + lane_of_thread() * 4 + i % 4 : i * LANES + lane_of_thread();
}

// Adds a segment of whole vectors. No load or store tells the caches that it is not needed again: with such hints an H200 was slower.
template <class Format>
__device__ __forceinline__ void add_vectors(
    float* values, const typename Format::Stored* gradient, bool replaces, float (&sums)[ITEMS]
) {
    const typename Format::Four* given_at = reinterpret_cast<const typename Format::Four*>(gradient) + lane_of_thread();
    float4* held_at = reinterpret_cast<float4*>(values) + lane_of_thread();
    typename Format::Four given[GROUPS];
    float4 held[GROUPS];
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        given[group] = load_vector(given_at + group * LANES);
        held[group] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (!replaces) {
#pragma unroll
        for (u32 group = 0; group < GROUPS; group++) {
            held[group] = load_vector(held_at + group * LANES);
        }
    }
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        float4 added = Format::load_four(given[group]);
        float4 sum;
        sum.x = replaces ? added.x : __fadd_rn(held[group].x, added.x);
        sum.y = replaces ? added.y : __fadd_rn(held[group].y, added.y);
        sum.z = replaces ? added.z : __fadd_rn(held[group].z, added.z);
        sum.w = replaces ? added.w : __fadd_rn(held[group].w, added.w);
        store_vector(held_at + group * LANES, sum);
        sums[group * 4] = sum.x;
        sums[group * 4 + 1] = sum.y;
        sums[group * 4 + 2] = sum.z;
        sums[group * 4 + 3] = sum.w;
    }
}

// Adds the first `entries` of a segment, of any alignment, in two halves: more loads at once would need too many registers. The sums
// beyond are 0, which is never a candidate.
template <class Format>
__device__ __forceinline__ void add_single(
    float* values, const typename Format::Stored* gradient, u32 entries, bool replaces, float (&sums)[ITEMS]
) {
    constexpr u32 HALF = ITEMS / 2;
#pragma unroll
    for (u32 from = 0; from < ITEMS; from += HALF) {
        typename Format::Stored given[HALF];
        float held[HALF];
#pragma unroll
        for (u32 i = 0; i < HALF; i++) {
            u32 place = place_of_item<false>(from + i);
            given[i] = place < entries ? gradient[place] : typename Format::Stored(0);
            held[i] = !replaces && place < entries ? values[place] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < HALF; i++) {
            u32 place = place_of_item<false>(from + i);
            float added = Format::load(given[i]);
            sums[from + i] = replaces ? added : __fadd_rn(held[i], added);
            if (place < entries) {
                values[place] = sums[from + i];
            }
        }
    }
}

// Puts the candidates of a warp in the order of their places. Returns how many there are.
//
// With vectors the order is by group of 128 entries, then by lane. A warp has at most 128 in a group, so that the counts of all four
// groups are summed over the lanes at once, in the bytes of one word.
__device__ __forceinline__ u32 order_vectors(const float (&sums)[ITEMS], u32 limit, u16* positions, float* ordered) {
    u32 counts = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        counts += magnitude_of(sums[i]) >= limit ? 1u << i / 4 * 8 : 0;
    }
    u32 summed = sum_up_to_lane(counts);
    u32 totals = __shfl_sync(EVERY_LANE, summed, LANES - 1);
    u32 lower = summed - counts;
    u32 start = 0;
#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        u32 at = start + (lower >> group * 8 & 0xff);
#pragma unroll
        for (u32 i = group * 4; i < group * 4 + 4; i++) {
            if (magnitude_of(sums[i]) >= limit) {
                positions[at] = static_cast<u16>(warp_of_thread() * SEGMENT + place_of_item<true>(i));
                ordered[at] = sums[i];
                at++;
            }
        }
        start += totals >> group * 8 & 0xff;
    }
    return start;
}

// The same where the order is by item, then by lane.
__device__ __forceinline__ u32 order_single(const float (&sums)[ITEMS], u32 limit, u16* positions, float* ordered) {
    u32 start = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        bool reaches = magnitude_of(sums[i]) >= limit;
        u32 reaching = __ballot_sync(EVERY_LANE, reaches);
        if (reaches) {
            u32 at = start + lanes_below(reaching);
            positions[at] = static_cast<u16>(warp_of_thread() * SEGMENT + place_of_item<false>(i));
            ordered[at] = sums[i];
        }
        start += __popc(reaching);
    }
    return start;
}

// Notes a thread's sums that are not finite. `position` is that of the first entry of the segment.
template <bool VECTORS>
__device__ void note_non_finite(const float (&sums)[ITEMS], u64 position, Status* status) {
    u64 first = ~0ull;
    u32 count = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        if (magnitude_of(sums[i]) >= INFINITE) {
            // Places ascend with i.
            first = count == 0 ? position + place_of_item<VECTORS>(i) : first;
            count++;
        }
    }
    atomicMin(&status->first, first);
    atomicAdd(&status->count, static_cast<u64>(count));
}

// Adds a segment, notes what is not finite, and puts the candidates in order. Returns how many there are.
template <class Format, bool VECTORS>
__device__ __forceinline__ u32 add_segment(
    float* values, const typename Format::Stored* gradient, u32 entries, bool replaces, u32 limit, u16* positions, float* ordered,
    Status* status, u64 position
) {
    float sums[ITEMS];
    if (VECTORS) {
        add_vectors<Format>(values, gradient, replaces, sums);
    } else {
        add_single<Format>(values, gradient, entries, replaces, sums);
    }
    u32 largest = 0;
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
        largest = max(largest, magnitude_of(sums[i]));
    }
    if (largest >= INFINITE) {
        note_non_finite<VECTORS>(sums, position, status);
    }
    if (!__any_sync(EVERY_LANE, largest >= limit)) {
        return 0;
    }
    return VECTORS ? order_vectors(sums, limit, positions, ordered) : order_single(sums, limit, positions, ordered);
}

template <class Format>
__device__ __forceinline__ void accumulate(
    Found& found, float* values, const void* given, u32 count, u32 first, bool replaces, u32 limit, u32* candidate_indices,
    float* candidate_values, u32 capacity, u32* reserved, Record* records, Status* status, u64 base
) {
    typedef typename Format::Stored Stored;
    const Stored* gradient = static_cast<const Stored*>(given);
    u32 warp = warp_of_thread();
    u32 lane = lane_of_thread();
    bool aligned = reinterpret_cast<u64>(values) % sizeof(float4) == 0 && reinterpret_cast<u64>(gradient) % sizeof(typename Format::Four) == 0;
    u32 tiles = divided_up(count, TILE);
    u32 turn = 0;
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u32 start = tile * TILE + warp * SEGMENT;
        u32 entries = start < count ? min(count - start, SEGMENT) : 0;
        u32 own = aligned && entries == SEGMENT
            ? add_segment<Format, true>(values + start, gradient + start, entries, replaces, limit, found.positions[warp], found.sums[warp], status, base + start)
            : add_segment<Format, false>(values + start, gradient + start, entries, replaces, limit, found.positions[warp], found.sums[warp], status, base + start);
        if (limit == NO_LIMIT) {
            continue;
        }
        if (lane == 0) {
            found.counts[turn][warp] = own;
        }
        __syncthreads();
        u32 before = 0;
        u32 all = 0;
#pragma unroll
        for (u32 other = 0; other < WARPS; other++) {
            before += other < warp ? found.counts[turn][other] : 0;
            all += found.counts[turn][other];
        }
        if (threadIdx.x == 0) {
            Record record = {0, all};
            if (all > 0) {
                record.start = atomicAdd(reserved, all);
                found.starts[turn] = record.start;
            }
            records[tile] = record;
        }
        if (all > 0) {
            __syncthreads();
            u32 to = found.starts[turn] + before;
            for (u32 i = lane; i < own && to + i < capacity; i += LANES) {
                candidate_indices[to + i] = first + tile * TILE + found.positions[warp][i];
                candidate_values[to + i] = found.sums[warp][i];
            }
            // The lanes are done with what the next tile writes over.
            __syncwarp();
        }
        turn ^= 1;
    }
}

// Four blocks on a multiprocessor have 128 KiB of loads under way.
#define ACCUMULATE(NAME, FORMAT) \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) NAME( \
        float* values, const void* gradient, u32 count, u32 first, u32 replaces, u32 limit, u32* candidate_indices, \
        float* candidate_values, u32 capacity, u32* reserved, Record* records, Status* status, u64 base \
    ) { \
        __shared__ Found found; \
        accumulate<FORMAT>( \
            found, values, gradient, count, first, replaces != 0, limit, candidate_indices, candidate_values, capacity, reserved, records, \
            status, base \
        ); \
    }

ACCUMULATE(accumulate_f32, Float32)
ACCUMULATE(accumulate_f16, Float16)
ACCUMULATE(accumulate_bf16, BFloat16)
