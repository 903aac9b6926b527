//! The devices that tests run on: one that the CPU emulates, where g++ is, and the first of the machine, where there is one.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use gleaner_algorithms::device::{DeviceSlice, Format, Order};
use gleaner_cuda::{Cuda, Emulation, Memory, Offload, nvrtc};
use gleaner_statistics::random::Generator;
use half::{bf16, f16};

/// Calls the driver.
macro_rules! driver {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: what it is given was made by the driver or outlives the call, and is used by one thread.
        assert_eq!(unsafe { cudarc::driver::sys::$function($($argument),*) }, cudarc::driver::sys::CUresult::CUDA_SUCCESS)
    };
}

/// The device's primary context is current for this thread, as it is where a framework is at work.
pub fn enter() -> cudarc::driver::sys::CUcontext {
    let mut context = std::ptr::null_mut();
    driver!(cuDevicePrimaryCtxRetain(&mut context, 0));
    driver!(cuCtxSetCurrent(context));
    context
}

const LIBRARY_FILE: &str = "libkernels.so";
const HOST: &str = include_str!("../../kernels/host.hpp");

/// Runs a test on each device.
pub fn on_each(test: impl Fn(&Arc<Cuda>)) {
    if let Some(emulation) = emulation() {
        test(&Cuda::emulated(emulation).unwrap());
    }
    on_real(test);
}

/// Runs a test on the first device of this machine, if there is one.
pub fn on_real(test: impl Fn(&Arc<Cuda>)) {
    match Cuda::open(0) {
        Ok(device) => test(&device),
        Err(error) => gleaner_skips::skip("cuda", error),
    }
}

/// An emulated device, if it can be compiled here.
pub fn emulation() -> Option<Emulation> {
    static LIBRARY: OnceLock<Option<File>> = OnceLock::new();
    let compiled = || compiled().inspect_err(|reason| gleaner_skips::skip("g++", reason)).ok();
    let library = LIBRARY.get_or_init(compiled).as_ref()?;
    let path = format!("/proc/self/fd/{}", library.as_raw_fd());
    // SAFETY: it is what was just compiled.
    Some(unsafe { Emulation::load(Path::new(&path)) }.unwrap())
}

/// The library that the kernels are compiled to, which no folder holds any more. Their sources are in this program, so that it may be carried.
fn compiled() -> Result<File, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    for (name, text) in nvrtc::SOURCES.iter().chain(&[("host.hpp", HOST)]) {
        fs::write(folder.path().join(name), text).map_err(|error| error.to_string())?;
    }
    let mut compiler = Command::new("g++");
    compiler.args([
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-ffp-contract=off",
        "-DGLEANER_HOST",
        "-x",
        "c++",
    ]);
    compiler.arg("-include").arg(folder.path().join("host.hpp")).args(["kernels.cu", "-o", LIBRARY_FILE]);
    let output = compiler.current_dir(folder.path()).output().map_err(|error| format!("g++: {error}"))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    File::open(folder.path().join(LIBRARY_FILE)).map_err(|error| error.to_string())
}

/// How often indices that were chosen on a device were encoded there, and indices of the host: as long as both sides do it.
pub fn encoded(device: &Cuda) -> [u32; 2] {
    [Offload::EncodeChosen, Offload::Encode].map(|kind| {
        let times = device.offload_times().into_iter().filter(|times| times.kind == kind);
        times.map(|times| times.times).sum()
    })
}

/// Random numbers, always the same.
pub struct Random(Generator);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Generator::seeded(seed))
    }

    pub fn below(&mut self, most: usize) -> usize {
        self.0.below(most as u32) as usize
    }

    /// The cube of a nearly normal number.
    pub fn cube(&mut self) -> f32 {
        self.0.normal().powi(3)
    }

    /// Cuts a range into parts, in an order of its own.
    pub fn parts(&mut self, len: usize, most: usize) -> Vec<std::ops::Range<usize>> {
        let mut bounds: Vec<usize> = (0..self.below(most)).map(|_| self.below(len + 1)).collect();
        bounds.extend([0, len]);
        bounds.sort_unstable();
        let mut parts: Vec<_> = bounds.windows(2).map(|pair| pair[0]..pair[1]).collect();
        match self.below(3) {
            0 => {}
            1 => parts.reverse(),
            _ => (1..parts.len()).rev().for_each(|i| parts.swap(i, self.below(i + 1))),
        }
        parts
    }
}

/// Values in a device's memory, as they are there.
pub struct Program {
    pub memory: Memory,
    pub format: Format,
    pub len: usize,
}

impl Program {
    /// These values, rounded to a format.
    pub fn new(device: &Cuda, values: &[f32], format: Format) -> Self {
        let memory = device.memory((values.len() * format.width()).max(1)).unwrap();
        let program = Self { memory, format, len: values.len() };
        program.memory.write(0, &bytes(values, format)).unwrap();
        program
    }

    /// Some of them.
    pub fn slice(&self, range: std::ops::Range<usize>) -> DeviceSlice {
        let address = self.memory.address() + (range.start * self.format.width()) as u64;
        DeviceSlice { address, len: range.len(), format: self.format, order: Order::Stream(0) }
    }

    /// What is there by now, as bits.
    pub fn bits(&self) -> Vec<u32> {
        let bytes = self.memory.read(0..self.len * self.format.width()).unwrap();
        bits_of(&bytes, self.format)
    }
}

pub const FORMATS: [Format; 3] = [Format::Float32, Format::Float16, Format::BFloat16];

/// Values as they lie in memory, rounded to a format.
pub fn bytes(values: &[f32], format: Format) -> Vec<u8> {
    match format {
        Format::Float32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Format::Float16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        Format::BFloat16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
    }
}

/// The bits of each value.
pub fn bits_of(bytes: &[u8], format: Format) -> Vec<u32> {
    match format.width() {
        4 => bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        _ => bytes.chunks(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect(),
    }
}

/// Values rounded to a format.
pub fn rounded(values: &[f32], format: Format) -> Vec<f32> {
    let bits = bits_of(&bytes(values, format), format);
    bits.into_iter()
        .map(|bits| match format {
            Format::Float32 => f32::from_bits(bits),
            Format::Float16 => f16::from_bits(bits as u16).to_f32(),
            Format::BFloat16 => bf16::from_bits(bits as u16).to_f32(),
        })
        .collect()
}

/// The bits of floats: what is compared, so that zeros have signs. Every NaN has the same: the one that an addition makes is another
/// on a device, 0x7fffffff, than on the host, and what has it is not exchanged.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN } else { *value }.to_bits()).collect()
}
