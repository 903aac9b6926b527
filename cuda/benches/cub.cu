// The same step with CUB's selection: prints lines of JSON for `device --peers FILE`.
//
//   nvcc -O3 -std=c++17 -arch=native cuda/benches/cub.cu -o cub && ./cub > peers.jsonl
//
// A step adds a gradient to the residual, selects the k largest magnitudes with their indices, in any order and any of those that are
// equal to the last, gathers their values and makes the residual zero there. cub::DeviceTopK comes with CCCL 3.3, of CUDA 13.2; with
// an older one, a radix sort of all magnitudes is measured. CCCL 2.7 is the least, for cub::DeviceMerge. Options: entries, separated by spaces. Medians of 20, by events.
//
// And what merging would take there: k entries come from pinned memory, are merged with k that are on the device, equal indices are added,
// and the sums go back to pinned memory; by the host's clock, from an idle device on.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cub/device/device_merge.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/version.cuh>
#include <cuda/std/functional>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#if __has_include(<cub/device/device_topk.cuh>) && CUB_VERSION >= 300300
#include <cub/device/device_topk.cuh>
#define HAS_TOPK 1
#else
#define HAS_TOPK 0
#endif

constexpr int STEPS = 20;
constexpr int WARM_UP = 8;
constexpr unsigned THREADS = 256;
// Steps read gradients from different places on.
constexpr size_t SHIFT = 1024;
constexpr size_t BUSY = 256u << 20;

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "SKIPPED: %s: %s\n", what, cudaGetErrorString(error));
        std::exit(0);
    }
}

template <class T>
T* allocate(size_t count) {
    void* at = nullptr;
    check(cudaMalloc(&at, count * sizeof(T)), "memory");
    return static_cast<T*>(at);
}

// Cubes of nearly normal numbers: sums of four uniform ones.
__global__ void fill(float* values, size_t count, unsigned long long seed) {
    for (size_t i = blockIdx.x * size_t(THREADS) + threadIdx.x; i < count; i += size_t(gridDim.x) * THREADS) {
        unsigned long long mixed = (i + seed) * 0x9e3779b97f4a7c15ull;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
        mixed ^= mixed >> 31;
        unsigned sum = 0;
        for (int part = 0; part < 4; part++) {
            sum += unsigned(mixed >> 16 * part & 0xffff);
        }
        float normal = (float(sum) - 131070.0f) / 37837.0f;
        values[i] = normal * normal * normal;
    }
}

__global__ void accumulate(float4* residual, const float4* gradient, size_t count) {
    size_t i = blockIdx.x * size_t(THREADS) + threadIdx.x;
    if (i < count) {
        float4 sum = residual[i];
        float4 given = __ldcs(gradient + i);
        residual[i] = make_float4(sum.x + given.x, sum.y + given.y, sum.z + given.z, sum.w + given.w);
    }
}

__global__ void gather(const float* residual, const unsigned* indices, unsigned count, float* values) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) {
        values[i] = residual[indices[i]];
    }
}

__global__ void clear(float* residual, const unsigned* indices, unsigned count) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) {
        residual[indices[i]] = 0.0f;
    }
}

struct Magnitude {
    __host__ __device__ unsigned operator()(float value) const {
        unsigned bits;
        memcpy(&bits, &value, sizeof bits);
        return bits & 0x7fffffff;
    }
};

unsigned blocks(size_t count) {
    return unsigned((count + THREADS - 1) / THREADS);
}

#if !HAS_TOPK
__global__ void split(const float* residual, size_t count, unsigned* magnitudes, unsigned* indices) {
    size_t i = blockIdx.x * size_t(THREADS) + threadIdx.x;
    if (i < count) {
        magnitudes[i] = Magnitude()(residual[i]);
        indices[i] = unsigned(i);
    }
}
#endif

// Selects into `indices`.
struct Selector {
    size_t n;
    unsigned k;
    unsigned* keys;
    unsigned* indices;
    void* scratch = nullptr;
    size_t bytes = 0;
#if HAS_TOPK
    static constexpr const char* NAME = "cub::DeviceTopK";

    Selector(size_t n, unsigned k) : n(n), k(k), keys(allocate<unsigned>(k)), indices(allocate<unsigned>(k)) {}

    void select(const float* residual) {
        auto magnitudes = thrust::make_transform_iterator(residual, Magnitude());
        auto environment = cuda::std::execution::env{cuda::execution::require(
            cuda::execution::determinism::not_guaranteed, cuda::execution::output_ordering::unsorted
        )};
        check(
            cub::DeviceTopK::MaxPairs(
                scratch, bytes, magnitudes, keys, thrust::make_counting_iterator(0u), indices, unsigned(n), k, environment
            ),
            "cub::DeviceTopK"
        );
    }
#else
    static constexpr const char* NAME = "cub::DeviceRadixSort";
    unsigned* magnitudes;
    unsigned* unsorted;

    Selector(size_t n, unsigned k)
        : n(n), k(k), keys(allocate<unsigned>(n)), indices(allocate<unsigned>(n)), magnitudes(allocate<unsigned>(n)),
          unsorted(allocate<unsigned>(n)) {}

    void select(const float* residual) {
        if (scratch != nullptr) {
            split<<<blocks(n), THREADS>>>(residual, n, magnitudes, unsorted);
        }
        check(
            cub::DeviceRadixSort::SortPairsDescending(scratch, bytes, magnitudes, keys, unsorted, indices, n, 0, 31),
            "cub::DeviceRadixSort"
        );
    }
#endif

    // The first call says how much scratch memory it wants.
    void prepare(const float* residual) {
        select(residual);
        scratch = allocate<char>(bytes + 1);
    }
};

double median(std::vector<double> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void measure(size_t n) {
    unsigned k = unsigned((n + 99) / 100);
    size_t len = n + SHIFT * SHIFT;
    std::vector<float*> gradients(n < 50000000 ? 4 : 2);
    for (size_t g = 0; g < gradients.size(); g++) {
        gradients[g] = allocate<float>(len);
        fill<<<4096, THREADS>>>(gradients[g], len, g << 40);
    }
    float* residual = allocate<float>(n);
    float* values = allocate<float>(k);
    char* busy = allocate<char>(2 * BUSY);
    check(cudaMemset(residual, 0, n * sizeof(float)), "memset");
    Selector selector(n, k);
    selector.prepare(residual);
    cudaEvent_t events[4];
    for (cudaEvent_t& event : events) {
        check(cudaEventCreate(&event), "an event");
    }
    std::vector<double> added, selected, all;
    for (int step = 0; step < WARM_UP + STEPS; step++) {
        size_t start = size_t(step) * 0x9e3779b1 % SHIFT * SHIFT;
        const float* gradient = gradients[step % gradients.size()] + start;
        cudaMemcpyAsync(busy, busy + BUSY, BUSY, cudaMemcpyDeviceToDevice);
        cudaEventRecord(events[0]);
        // All sizes here are multiples of two: what is left of the last vector is not measured.
        accumulate<<<blocks(n / 4), THREADS>>>(
            reinterpret_cast<float4*>(residual), reinterpret_cast<const float4*>(gradient), n / 4
        );
        cudaEventRecord(events[1]);
        selector.select(residual);
        gather<<<blocks(k), THREADS>>>(residual, selector.indices, k, values);
        cudaEventRecord(events[2]);
        clear<<<blocks(k), THREADS>>>(residual, selector.indices, k);
        cudaEventRecord(events[3]);
        check(cudaEventSynchronize(events[3]), "a step");
        if (step >= WARM_UP) {
            std::vector<double>* times[] = {&added, &selected, &all};
            for (int i = 0; i < 3; i++) {
                float milliseconds = 0;
                check(cudaEventElapsedTime(&milliseconds, events[0], events[i + 1]), "a time");
                times[i]->push_back(1e3 * milliseconds);
            }
        }
    }
    std::printf("{\"peer\":\"accumulate alone, beside CUB\",\"n\":%zu,\"us\":%.2f}\n", n, median(added));
    std::printf(
        "{\"peer\":\"accumulate, %s %d, gather\",\"n\":%zu,\"us\":%.2f,\"whole_us\":%.2f}\n", Selector::NAME, CUB_VERSION, n,
        median(selected), median(all)
    );
    std::fflush(stdout);
    cudaFree(selector.scratch);
    cudaFree(selector.keys);
    cudaFree(selector.indices);
    for (float* gradient : gradients) {
        cudaFree(gradient);
    }
    for (void* at : {(void*)residual, (void*)values, (void*)busy}) {
        cudaFree(at);
    }
}

// Ascending indices, `step` on the average apart, and values.
void make(unsigned* indices, float* values, unsigned k, unsigned step, unsigned seed) {
    unsigned index = 0;
    for (unsigned i = 0; i < k; i++) {
        seed = seed * 1664525u + 1013904223u;
        index += 1 + (seed >> 8) % (2 * step - 1);
        indices[i] = index;
        values[i] = float(seed >> 8) / 8388608.0f - 1.0f;
    }
}

void measure_merge(size_t n) {
    unsigned k = unsigned((n + 99) / 100);
    unsigned* pinned = nullptr;
    // The bag that comes, and then what goes back: how many, indices, values.
    check(cudaMallocHost(&pinned, (6 * size_t(k) + 1) * sizeof(unsigned)), "pinned memory");
    unsigned* back = pinned + 2 * size_t(k);
    make(pinned, reinterpret_cast<float*>(pinned + k), k, 100, 2);
    unsigned* came = allocate<unsigned>(2 * size_t(k));
    unsigned* own = allocate<unsigned>(2 * size_t(k));
    unsigned* merged = allocate<unsigned>(4 * size_t(k));
    unsigned* sums = allocate<unsigned>(4 * size_t(k) + 1);
    std::vector<unsigned> here(2 * size_t(k));
    make(here.data(), reinterpret_cast<float*>(here.data() + k), k, 100, 1);
    check(cudaMemcpy(own, here.data(), here.size() * sizeof(unsigned), cudaMemcpyHostToDevice), "a copy");
    auto floats = [](unsigned* at) { return reinterpret_cast<float*>(at); };
    void* scratch[2] = {nullptr, nullptr};
    size_t bytes[2] = {0, 0};
    auto merge = [&] {
        check(
            cub::DeviceMerge::MergePairs(
                scratch[0], bytes[0], own, floats(own + k), int(k), came, floats(came + k), int(k), merged, floats(merged + 2 * size_t(k))
            ),
            "cub::DeviceMerge"
        );
        check(
            cub::DeviceReduce::ReduceByKey(
                scratch[1], bytes[1], merged, sums + 1, floats(merged + 2 * size_t(k)), floats(sums + 1 + 2 * size_t(k)), sums,
                cuda::std::plus<>{}, int(2 * k)
            ),
            "cub::DeviceReduce"
        );
    };
    // The first call says how much scratch memory is wanted.
    merge();
    for (int i = 0; i < 2; i++) {
        scratch[i] = allocate<char>(bytes[i] + 1);
    }
    std::vector<double> times;
    for (int step = 0; step < WARM_UP + STEPS; step++) {
        auto start = std::chrono::steady_clock::now();
        cudaMemcpyAsync(came, pinned, 2 * size_t(k) * sizeof(unsigned), cudaMemcpyHostToDevice);
        merge();
        cudaMemcpyAsync(back, sums, (4 * size_t(k) + 1) * sizeof(unsigned), cudaMemcpyDeviceToHost);
        check(cudaStreamSynchronize(0), "a merge");
        if (step >= WARM_UP) {
            times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
        }
    }
    std::printf("{\"peer\":\"cub::DeviceMerge, DeviceReduce, both ways\",\"of\":\"merge\",\"n\":%zu,\"us\":%.2f}\n", n, median(times));
    std::fflush(stdout);
    cudaFreeHost(pinned);
    for (void* at : {(void*)came, (void*)own, (void*)merged, (void*)sums, scratch[0], scratch[1]}) {
        cudaFree(at);
    }
}

int main(int count, char** arguments) {
    std::vector<size_t> sizes;
    for (int i = 1; i < count; i++) {
        sizes.push_back(std::strtoull(arguments[i], nullptr, 10));
    }
    for (size_t n : sizes.empty() ? std::vector<size_t>{14728266, 100000000, 1000000000} : sizes) {
        measure(n);
        measure_merge(n);
    }
}
