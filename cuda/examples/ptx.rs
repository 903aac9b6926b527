//! Makes `cuda/kernels/kernels.ptx`, where NVRTC is: `cargo run -p gleaner-cuda --example ptx`. With `--check` it writes nothing and
//! fails if the file is not what it would write.
//!
//! NVRTC comes with the CUDA toolkit, and as the Python package `nvidia-cuda-nvrtc-cu12` or `nvidia-cuda-nvrtc`, whose `lib` is then to be named in
//! `LD_LIBRARY_PATH`. The file in the repository is of version 12.8; CUDA 13 compiles for compute capability 7.5 and later only.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

use gleaner_cuda::nvrtc::{self, SOURCES};
use gleaner_cuda::{CudaError, Version};
use sha2::{Digest, Sha256};

/// The version of PTX that is written into the file. No instruction needs a later one, and with this one drivers from CUDA 11.0 on take
/// it; the compiler writes its own version, which only drivers as new as the compiler take.
const VERSION: &str = ".version 7.0";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/kernels.ptx");
    let made = make()?;
    if !env::args().any(|argument| argument == "--check") {
        return Ok(fs::write(path, made)?);
    }
    if fs::read_to_string(&path)? != made {
        return Err(format!("{} is not what this compiler makes of the sources", path.display()).into());
    }
    Ok(())
}

/// The file, with a header that says what it was made of, and nothing of when or where.
fn make() -> Result<String, CudaError> {
    let compiled = nvrtc::compile(Version { major: 7, minor: 0 }, None)?;
    let mut hash = Sha256::new();
    SOURCES.iter().for_each(|(_, text)| hash.update(text));
    let hash = hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let header = format!(
        "// compiler: NVRTC {}\n// flags: {}\n// sources: sha256 {hash}\n",
        compiled.compiler, compiled.flags
    );
    let line = |line: &str| {
        let version = line.starts_with(".version ").then_some(VERSION);
        format!("{}\n", version.unwrap_or(line))
    };
    Ok(header + &compiled.ptx.lines().map(line).collect::<String>())
}
