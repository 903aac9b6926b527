// Runs the kernels on the CPU, for tests of them and of what launches them:
//   g++ -std=c++17 -O2 -fPIC -shared -ffp-contract=off -DGLEANER_HOST -x c++ -include host.hpp kernels.cu
//
// Blocks run one after the other, and each thread of a block is a fiber. A fiber runs until it has to wait for others. A barrier that
// not all threads of the block reach, or an operation of a warp that not all lanes of its mask reach, ends the process with a sentence.
// Shared memory holds what no kernel wrote when a block begins.
#pragma once

// The checked longjmp of the C library takes the step to another stack for a mistake.
#undef _FORTIFY_SOURCE

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <utility>

#include <csetjmp>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// In a section of their own, where all of them are found.
#define __shared__ static __attribute__((section("gleaner_shared")))

// Where the section begins and ends, by the linker.
extern "C" __attribute__((visibility("hidden"))) char __start_gleaner_shared[];
extern "C" __attribute__((visibility("hidden"))) char __stop_gleaner_shared[];

struct float4 {
    alignas(16) float x;
    float y, z, w;
};

struct uint2 {
    alignas(8) unsigned x;
    unsigned y;
};

struct Dimensions {
    unsigned x;
};

static Dimensions threadIdx;
static Dimensions blockIdx;
static Dimensions blockDim;
static Dimensions gridDim;

// Each library that is made of this has fibers of its own.
namespace gleaner_host {
namespace {

constexpr unsigned LANES_OF_WARP = 32;
constexpr unsigned MOST_THREADS = 1024;
constexpr std::size_t STACK = 256 << 10;

enum class Waits { Nothing, Block, Warp, End };

// What a lane brings to an operation of its warp, and what it takes away.
struct Operation {
    enum Kind { Ballot, Shuffle, Synchronize } kind;
    unsigned mask;
    // A value and the lane whose value is wanted, or 0 and 1.
    std::uint64_t value;
    unsigned source;
    std::uint64_t result;
};

struct Fiber {
    bool is_new = true;
    void* stack = nullptr;
    ucontext_t context;
    jmp_buf place;
    Waits waits = Waits::Nothing;
    // Where in the source it waits.
    const char* file = nullptr;
    int line = 0;
    Operation operation;
};

static Fiber fibers[MOST_THREADS];
static void (*kernel_call)(void* function, void** arguments);
static void* kernel_function;
static void** kernel_arguments;

[[noreturn]] inline void fail(const char* what, const char* file, int line) {
    std::fprintf(stderr, "%s:%d, thread %u of block %u: %s\n", file, line, threadIdx.x, blockIdx.x, what);
    std::abort();
}

// AddressSanitizer knows of swapcontext. A jump does the same without calls of the kernel of the operating system.
#if defined(__SANITIZE_ADDRESS__)
static ucontext_t scheduler_context;

inline void give_way(Fiber& fiber) {
    swapcontext(&fiber.context, &scheduler_context);
}

inline void resume(Fiber& fiber) {
    swapcontext(&scheduler_context, &fiber.context);
}
#else
static jmp_buf scheduler_place;

inline void give_way(Fiber& fiber) {
    if (_setjmp(fiber.place) == 0) {
        _longjmp(scheduler_place, 1);
    }
}

inline void resume(Fiber& fiber) {
    if (_setjmp(scheduler_place) == 0) {
        if (fiber.is_new) {
            fiber.is_new = false;
            setcontext(&fiber.context);
        }
        _longjmp(fiber.place, 1);
    }
}
#endif

// A fiber runs its thread of one block after the other, as long as the process lives.
inline void run_fiber() {
    for (;;) {
        kernel_call(kernel_function, kernel_arguments);
        Fiber& fiber = fibers[threadIdx.x];
        fiber.waits = Waits::End;
        give_way(fiber);
    }
}

inline void make_fiber(Fiber& fiber) {
    if (fiber.stack != nullptr) {
        return;
    }
    fiber.stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber.stack == MAP_FAILED || getcontext(&fiber.context) != 0) {
        std::fprintf(stderr, "no memory for the stacks of emulated threads\n");
        std::abort();
    }
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
}

inline void wait_for_block(const char* file, int line) {
    Fiber& fiber = fibers[threadIdx.x];
    fiber.waits = Waits::Block;
    fiber.file = file;
    fiber.line = line;
    give_way(fiber);
}

// Whether all lanes of a mask wait at the same operation.
inline bool is_complete(const Fiber* warp, const Fiber& fiber) {
    for (unsigned lane = 0; lane < LANES_OF_WARP; lane++) {
        const Fiber& other = warp[lane];
        if (fiber.operation.mask >> lane & 1
            && (other.waits != Waits::Warp || other.line != fiber.line || other.file != fiber.file
                || other.operation.mask != fiber.operation.mask || other.operation.kind != fiber.operation.kind)) {
            return false;
        }
    }
    return true;
}

// Gives each lane of a mask its result, and lets it go on.
inline void complete(Fiber* warp, const Fiber& fiber) {
    const unsigned mask = fiber.operation.mask;
    std::uint64_t ballot = 0;
    for (unsigned lane = 0; lane < LANES_OF_WARP; lane++) {
        if (mask >> lane & 1 && warp[lane].operation.value != 0) {
            ballot |= std::uint64_t(1) << lane;
        }
    }
    for (unsigned lane = 0; lane < LANES_OF_WARP; lane++) {
        if (!(mask >> lane & 1)) {
            continue;
        }
        Operation& operation = warp[lane].operation;
        if (operation.kind == Operation::Shuffle && !(mask >> operation.source & 1)) {
            fail("a lane asks for the value of one that is not in the mask", fiber.file, fiber.line);
        }
        operation.result = operation.kind == Operation::Shuffle ? warp[operation.source].operation.value : ballot;
        warp[lane].waits = Waits::Nothing;
    }
}

inline std::uint64_t wait_for_warp(Operation operation, const char* file, int line) {
    Fiber& fiber = fibers[threadIdx.x];
    if (!(operation.mask >> threadIdx.x % LANES_OF_WARP & 1)) {
        fail("a lane is not in the mask that it gives", file, line);
    }
    fiber.waits = Waits::Warp;
    fiber.file = file;
    fiber.line = line;
    fiber.operation = operation;
    Fiber* warp = fibers + threadIdx.x / LANES_OF_WARP * LANES_OF_WARP;
    if (is_complete(warp, fiber)) {
        complete(warp, fiber);
    } else {
        give_way(fiber);
    }
    return fiber.operation.result;
}

inline std::uint64_t ballot(unsigned mask, bool value, const char* file, int line) {
    return wait_for_warp({Operation::Ballot, mask, value, 0, 0}, file, line);
}

template <class Number>
Number shuffle(unsigned mask, Number value, unsigned source, const char* file, int line) {
    static_assert(std::is_trivially_copyable<Number>::value && sizeof(Number) <= sizeof(std::uint64_t), "a number");
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(value));
    bits = wait_for_warp({Operation::Shuffle, mask, bits, source % LANES_OF_WARP, 0}, file, line);
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

inline unsigned lane() {
    return threadIdx.x % LANES_OF_WARP;
}

// Whether blocks, warps and lanes run from the last to the first: what kernels write must not depend on it.
static std::atomic<bool> wants_descending(false);
// The same for the launch that runs.
static bool descending = false;

inline unsigned in_order(unsigned i, unsigned count) {
    return descending ? count - 1 - i : i;
}

// Lets each thread run until it waits for the block, or is at its end.
inline void run_warps() {
    const unsigned warps = (blockDim.x + LANES_OF_WARP - 1) / LANES_OF_WARP;
    for (unsigned i = 0; i < warps; i++) {
        const unsigned first = in_order(i, warps) * LANES_OF_WARP;
        const unsigned lanes = blockDim.x - first < LANES_OF_WARP ? blockDim.x - first : LANES_OF_WARP;
        for (bool runs = true; runs;) {
            runs = false;
            for (unsigned lane = 0; lane < lanes; lane++) {
                const unsigned thread = first + in_order(lane, lanes);
                if (fibers[thread].waits == Waits::Nothing) {
                    threadIdx.x = thread;
                    resume(fibers[thread]);
                    runs = true;
                }
            }
        }
    }
}

// Whether the block is at its end. If not, all its threads are at the same barrier, and go on.
inline bool pass_barrier() {
    for (unsigned thread = 0; thread < blockDim.x; thread++) {
        Fiber& fiber = fibers[thread];
        threadIdx.x = thread;
        if (fiber.waits == Waits::Warp) {
            fail("waits for lanes of its warp that are at their end or wait elsewhere", fiber.file, fiber.line);
        }
        if (fiber.waits != fibers[0].waits) {
            const Fiber& waiting = fiber.waits == Waits::Block ? fiber : fibers[0];
            fail("waits at a barrier, and other threads of the block are at their end", waiting.file, waiting.line);
        }
        if (fiber.waits == Waits::Block && (fiber.line != fibers[0].line || fiber.file != fibers[0].file)) {
            fail("waits at another barrier than thread 0", fiber.file, fiber.line);
        }
    }
    const bool is_over = fibers[0].waits == Waits::End;
    for (unsigned thread = 0; thread < blockDim.x; thread++) {
        fibers[thread].waits = Waits::Nothing;
    }
    return is_over;
}

inline void run_block() {
    std::memset(__start_gleaner_shared, 0xa5, static_cast<std::size_t>(__stop_gleaner_shared - __start_gleaner_shared));
    do {
        run_warps();
    } while (!pass_barrier());
}

template <class... Arguments, std::size_t... INDEX>
void call_unpacked(void (*function)(Arguments...), void** arguments, std::index_sequence<INDEX...>) {
    (void)arguments;
    function(*static_cast<Arguments*>(arguments[INDEX])...);
}

struct Kernel {
    const char* name;
    unsigned threads;
    void* function;
    void (*call)(void* function, void** arguments);
};

template <class... Arguments>
Kernel kernel(const char* name, unsigned threads, void (*function)(Arguments...)) {
    return {name, threads, reinterpret_cast<void*>(function), [](void* function, void** arguments) {
                call_unpacked(
                    reinterpret_cast<void (*)(Arguments...)>(function), arguments, std::index_sequence_for<Arguments...>()
                );
            }};
}

// A launch at a time: fibers and shared memory are those of the process.
inline int launch(const Kernel& kernel, unsigned grid, unsigned block, void** arguments) {
    static std::mutex turn;
    std::lock_guard<std::mutex> guard(turn);
    for (unsigned thread = 0; thread < block; thread++) {
        make_fiber(fibers[thread]);
    }
    descending = wants_descending;
    kernel_call = kernel.call;
    kernel_function = kernel.function;
    kernel_arguments = arguments;
    blockDim.x = block;
    gridDim.x = grid;
    for (unsigned i = 0; i < grid; i++) {
        blockIdx.x = in_order(i, grid);
        run_block();
    }
    return 0;
}

} // namespace
} // namespace gleaner_host

#define __syncthreads() gleaner_host::wait_for_block(__FILE__, __LINE__)
#define __syncwarp() \
    gleaner_host::wait_for_warp({gleaner_host::Operation::Synchronize, 0xffffffff, 0, 0, 0}, __FILE__, __LINE__)
#define __ballot_sync(mask, value) static_cast<unsigned>(gleaner_host::ballot(mask, value, __FILE__, __LINE__))
#define __any_sync(mask, value) (gleaner_host::ballot(mask, value, __FILE__, __LINE__) != 0)
#define __shfl_sync(mask, value, source) gleaner_host::shuffle(mask, value, source, __FILE__, __LINE__)
#define __shfl_xor_sync(mask, value, bits) gleaner_host::shuffle(mask, value, gleaner_host::lane() ^ (bits), __FILE__, __LINE__)
#define __shfl_up_sync(mask, value, distance) \
    gleaner_host::shuffle( \
        mask, value, gleaner_host::lane() < (distance) ? gleaner_host::lane() : gleaner_host::lane() - (distance), __FILE__, __LINE__ \
    )

inline void __threadfence() {}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// IEEE 754 arithmetic of 32 bits: the compiler does not contract it.
inline float __fadd_rn(float a, float b) {
    return a + b;
}

inline float __fmul_rn(float a, float b) {
    return a * b;
}

inline float __fdiv_rn(float a, float b) {
    return a / b;
}

inline float __uint2float_rn(unsigned value) {
    return static_cast<float>(value);
}

inline unsigned __popc(unsigned bits) {
    return static_cast<unsigned>(__builtin_popcount(bits));
}

inline int __ffs(unsigned bits) {
    return __builtin_ffs(static_cast<int>(bits));
}

inline unsigned min(unsigned a, unsigned b) {
    return a < b ? a : b;
}

inline unsigned max(unsigned a, unsigned b) {
    return a < b ? b : a;
}

inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

// Vectors are read from and written to what was declared as other types.
template <class Value>
Value load_vector(const Value* from) {
    if (reinterpret_cast<std::uintptr_t>(from) % alignof(Value) != 0) {
        gleaner_host::fail("reads from an address that is not a multiple of the width", __FILE__, __LINE__);
    }
    Value value;
    std::memcpy(&value, static_cast<const void*>(from), sizeof(Value));
    return value;
}

template <class Value>
Value __ldcg(const Value* from) {
    return load_vector(from);
}

template <class Value>
void store_vector(Value* to, Value value) {
    if (reinterpret_cast<std::uintptr_t>(to) % alignof(Value) != 0) {
        gleaner_host::fail("writes to an address that is not a multiple of the width", __FILE__, __LINE__);
    }
    std::memcpy(static_cast<void*>(to), &value, sizeof(Value));
}

template <class Number>
Number atomicAdd(Number* to, Number value) {
    Number before = *to;
    *to = before + value;
    return before;
}

template <class Number>
Number atomicMin(Number* to, Number value) {
    Number before = *to;
    *to = value < before ? value : before;
    return before;
}

template <class Number>
Number atomicOr(Number* to, Number value) {
    Number before = *to;
    *to = before | value;
    return before;
}

#define GLEANER_KERNEL(NAME, BLOCK) gleaner_host::kernel(#NAME, BLOCK, NAME)

extern "C" void gleaner_order(int descending) {
    gleaner_host::wants_descending = descending != 0;
}

// As cuLaunchKernel. 0: done. 1: no kernel has that name. 2: the grid is empty, or the block is not of the size that the kernel wants.
#define GLEANER_KERNELS(...) \
    extern "C" int gleaner_launch(const char* name, unsigned grid, unsigned block, unsigned, void** arguments) { \
        static const gleaner_host::Kernel kernels[] = {__VA_ARGS__}; \
        for (const gleaner_host::Kernel& kernel : kernels) { \
            if (std::strcmp(kernel.name, name) == 0) { \
                return grid == 0 || block != kernel.threads ? 2 : gleaner_host::launch(kernel, grid, block, arguments); \
            } \
        } \
        return 1; \
    }
