//! That what runs kernels on the CPU reports mistakes that a GPU would not.

use std::path::Path;
use std::process::Command;

const MISTAKES: &str = r#"
extern "C" __global__ void some_threads(unsigned*) {
    if (threadIdx.x != 77) {
        __syncthreads();
    }
}

extern "C" __global__ void two_barriers(unsigned*) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}

extern "C" __global__ void some_lanes(unsigned*) {
    if (threadIdx.x % 32 < 31) {
        __ballot_sync(0xffffffff, true);
    }
}

extern "C" __global__ void not_in_mask(unsigned* out) {
    *out = __shfl_sync(0x7fffffff, 1u, 0);
}

extern "C" __global__ void leftovers(unsigned* out) {
    __shared__ unsigned shared;
    *out = blockIdx.x == 0 ? 0 : shared;
    __syncthreads();
    shared = 7;
}

extern "C" __global__ void right(unsigned* out) {
    unsigned lanes = threadIdx.x % 32 < 16 ? 0x0000ffff : 0xffff0000;
    unsigned upper = threadIdx.x % 32 < 16 ? __ballot_sync(lanes, true) : __ballot_sync(lanes, true);
    __syncthreads();
    atomicAdd(out, __shfl_xor_sync(0xffffffff, upper, 16) & 1u);
}

GLEANER_KERNELS(
    GLEANER_KERNEL(some_threads, 256), GLEANER_KERNEL(two_barriers, 256), GLEANER_KERNEL(some_lanes, 256),
    GLEANER_KERNEL(not_in_mask, 256), GLEANER_KERNEL(leftovers, 256), GLEANER_KERNEL(right, 256))

int main(int, char** names) {
    unsigned out = 0;
    unsigned* to = &out;
    void* arguments[] = {&to};
    int code = gleaner_launch(names[1], 2, 256, 0, arguments);
    std::printf("%d %x\n", code, out);
    return 0;
}
"#;

/// What the kernel `name` prints, and what it ends with on standard error.
fn run(program: &Path, name: &str) -> (String, String) {
    let output = Command::new(program).arg(name).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn mistakes_end_with_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("mistakes.cu"), directory.path().join("mistakes"));
    std::fs::write(&source, MISTAKES).unwrap();
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/host.hpp");
    let mut compiler = Command::new("g++");
    // As the compilers of some systems do by themselves.
    compiler.args(["-std=c++17", "-O2", "-D_FORTIFY_SOURCE=2", "-x", "c++", "-include"]);
    let Ok(status) = compiler.arg(host).arg(source).arg("-o").arg(&program).status() else {
        gleaner_skips::skip("g++", "no g++ here");
        return;
    };
    assert!(status.success());
    let failed = |name, sentence| {
        let (printed, said) = run(&program, name);
        assert!(printed.is_empty() && said.contains(sentence), "{name}: {printed}{said}");
    };
    failed("some_threads", "waits at a barrier, and other threads of the block are at their end");
    failed("two_barriers", "waits at another barrier than thread 0");
    failed("some_lanes", "waits for lanes of its warp that are at their end or wait elsewhere");
    failed("not_in_mask", "a lane is not in the mask that it gives");
    // What one block leaves in shared memory, the next does not find.
    assert_eq!(run(&program, "leftovers").0, "0 a5a5a5a5\n");
    // One half of each warp finds the ballot of the other.
    assert_eq!(run(&program, "right").0, "0 100\n");
    assert_eq!(run(&program, "none").0, "1 0\n");
}
