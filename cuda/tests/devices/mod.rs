//! The devices that tests run on: the one that the CPU emulates, where there is a compiler for it, and the first real one, where
//! there is any.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use gleaner_algorithms::device::{DeviceSlice, Format};
use gleaner_cuda::{Cuda, Emulation, Memory};
use half::{bf16, f16};

/// Both, as far as they are there.
pub fn all() -> Vec<Arc<Cuda>> {
    emulated().into_iter().chain(real()).collect()
}

/// The first device of this machine.
pub fn real() -> Option<Arc<Cuda>> {
    static REAL: OnceLock<Option<Arc<Cuda>>> = OnceLock::new();
    let open = || Cuda::open(0).inspect_err(|error| println!("SKIPPED on a device: {error}")).ok();
    REAL.get_or_init(open).clone()
}

/// A device that the CPU emulates.
pub fn emulated() -> Option<Arc<Cuda>> {
    Some(Cuda::emulated(emulation()?).unwrap())
}

/// The kernels, compiled for the CPU.
pub fn emulation() -> Option<Emulation> {
    static LIBRARY: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let (_, library) = LIBRARY.get_or_init(compile).as_ref()?;
    // SAFETY: it was compiled of these kernels.
    Some(unsafe { Emulation::load(library) }.unwrap())
}

fn compile() -> Option<(tempfile::TempDir, PathBuf)> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    if !kernels.is_dir() {
        println!("SKIPPED on the emulation: the kernels' source is not at {}", kernels.display());
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libkernels.so");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-DGLEANER_HOST", "-x", "c++"]);
    compiler.arg("-include").arg(kernels.join("host.hpp")).arg(kernels.join("kernels.cu"));
    match compiler.arg("-o").arg(&library).output() {
        Ok(output) if output.status.success() => Some((folder, library)),
        Ok(output) => panic!("g++ refused the kernels: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("SKIPPED on the emulation: g++: {error}");
            None
        }
    }
}

/// Values of the program in a device's memory.
pub struct Values {
    memory: Memory,
    len: usize,
    format: Format,
}

impl Values {
    pub fn new(device: &Arc<Cuda>, values: &[f32], format: Format) -> Self {
        let memory = device.memory(values.len() * format.width()).unwrap();
        let bytes: Vec<u8> = match format {
            Format::Float32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Format::Float16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Format::BFloat16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        };
        memory.write(0, &bytes).unwrap();
        Self { memory, len: values.len(), format }
    }

    /// On the default stream.
    pub fn slice(&self) -> DeviceSlice {
        DeviceSlice { address: self.memory.address(), len: self.len, format: self.format, stream: 0 }
    }

    /// The values as floats of 32 bits.
    pub fn read(&self) -> Vec<f32> {
        let bytes = self.memory.read(0..self.memory.len()).unwrap();
        let pairs = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
        match self.format {
            Format::Float32 => bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect(),
            Format::Float16 => pairs().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Format::BFloat16 => pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        }
    }

    /// Writes something else, as a program does with memory that it was told is free.
    pub fn overwrite(&self) {
        self.memory.write(0, &vec![0x7f; self.memory.len()]).unwrap();
    }
}

/// Values that a format has.
pub fn rounded(values: &[f32], format: Format) -> Vec<f32> {
    let round = |value: f32| match format {
        Format::Float32 => value,
        Format::Float16 => f16::from_f32(value).to_f32(),
        Format::BFloat16 => bf16::from_f32(value).to_f32(),
    };
    values.iter().copied().map(round).collect()
}
