//! The kernels: their names, their arguments, and their PTX.

use std::ffi::CStr;

use crate::error::{CudaError, Version};
use crate::nvrtc;

/// The PTX that is in the repository, with a header that says what it was made of.
const COMMITTED: &str = include_str!("../kernels/kernels.ptx");

/// What the PTX in the repository is compiled for: the least that it runs on.
pub(crate) const CAPABILITY: Version = Version { major: 7, minor: 0 };

/// Threads of a block, in all kernels but that which fixes a cut.
pub(crate) const THREADS: u32 = 256;

/// Threads that go together.
pub(crate) const WARP: u32 = 32;

/// Entries that are counted together.
pub(crate) const TILE: usize = 4096;

/// Tiles of which a block makes sums.
pub(crate) const CHUNK: u32 = 1024;

/// Records of which a block makes sums.
pub(crate) const RECORDS: u32 = 32;

/// Bins of a histogram of one digit.
pub(crate) const BINS: usize = 2048;

/// Collects nothing: no magnitude is as large.
pub(crate) const NOTHING: u32 = u32::MAX;

macro_rules! kernels {
    ($($constant:ident $name:literal)*) => {
        $(pub(crate) const $constant: &CStr = $name;)*

        /// All of them.
        pub(crate) const KERNELS: &[&CStr] = &[$($constant),*];
    };
}

kernels! {
    ACCUMULATE_F32 c"accumulate_f32"
    ACCUMULATE_F16 c"accumulate_f16"
    ACCUMULATE_BF16 c"accumulate_bf16"
    FIXED_CUT c"fixed_cut"
    HISTOGRAM_DENSE c"histogram_dense"
    HISTOGRAM_FOUND c"histogram_found"
    COUNT_DENSE c"count_dense"
    COUNT_FOUND c"count_found"
    OFFSETS c"offsets"
    EMIT_DENSE c"emit_dense"
    EMIT_FOUND c"emit_found"
    GATHER c"gather"
    SURVEY_GAPS c"survey_gaps"
    ENCODE_GAPS c"encode_gaps"
    SURVEY_BAG c"survey_bag"
    READ_HIGHS c"read_highs"
    READ_ENTRIES c"read_entries"
    READ_INDICES c"read_indices"
    READ_CODES c"read_codes"
    FIND_HELD c"find_held"
    WRITE_HELD c"write_held"
    WRITE_CAME c"write_came"
    ADD_BLOCK c"add_block"
    CLEAR_AT c"clear_at"
    SET_AT c"set_at"
    ADD_AT c"add_at"
    ADD_ALL c"add_all"
    WRITE_AT_F32 c"write_at_f32"
    WRITE_AT_F16 c"write_at_f16"
    WRITE_AT_BF16 c"write_at_bf16"
    ADD_AT_F32 c"add_at_f32"
    ADD_AT_F16 c"add_at_f16"
    ADD_AT_BF16 c"add_at_bf16"
    WRITE_ALL_F32 c"write_all_f32"
    WRITE_ALL_F16 c"write_all_f16"
    WRITE_ALL_BF16 c"write_all_bf16"
    ADD_ALL_SCALED_F32 c"add_all_scaled_f32"
    ADD_ALL_SCALED_F16 c"add_all_scaled_f16"
    ADD_ALL_SCALED_BF16 c"add_all_scaled_bf16"
}

/// An argument of a kernel: an address, or a number of 32 or 64 bits, in the low bytes. A launch passes its address, and the
/// kernel reads as many bytes as its own argument has: the lowest, as every device that CUDA knows is little-endian.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument(pub(crate) u64);

impl From<u64> for Argument {
    fn from(address: u64) -> Self {
        Self(address)
    }
}

impl From<u32> for Argument {
    fn from(number: u32) -> Self {
        Self(number.into())
    }
}

impl From<f32> for Argument {
    fn from(number: f32) -> Self {
        Self(number.to_bits().into())
    }
}

/// The arguments of a launch.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => { &[$($crate::kernels::Argument::from($argument)),*] };
}

pub(crate) use arguments;

/// What a selection found and keeps, as the kernels write it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    /// Non-zero entries that were searched.
    pub(crate) reached: u32,
    /// Those that are kept.
    pub(crate) kept: u32,
    /// The least magnitude kept, or [`NOTHING`].
    pub(crate) smallest: u32,
}

impl Cut {
    /// Bytes of it in memory.
    pub(crate) const WIDTH: usize = 32;

    /// As it lies in memory.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { reached: word(8), kept: word(12), smallest: word(16) }
    }
}

/// Kernels as PTX.
pub(crate) struct Ptx(String);

/// The kernels as they are in the repository.
pub(crate) fn committed() -> Ptx {
    Ptx(COMMITTED.to_owned())
}

/// The kernels compiled for this capability by an NVRTC that is here, if the environment asks for it, for a driver of this version.
pub(crate) fn compiled_here(capability: Version, driver: Version) -> Result<Option<Ptx>, CudaError> {
    match std::env::var_os("GLEANER_CUDA_NVRTC") {
        Some(value) if value == "1" => {
            nvrtc::compile(capability, Some(driver)).map(|compiled| Some(Ptx(compiled.ptx)))
        }
        _ => Ok(None),
    }
}

impl Ptx {
    /// The text.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The first version of CUDA whose driver knows this version of PTX.
    pub(crate) fn toolkit(&self) -> Version {
        let version = self.0.lines().find_map(|line| line.strip_prefix(".version "));
        let numbers = version.and_then(|version| version.trim().split_once('.'));
        let number = |text: &str| text.parse().unwrap_or(0);
        let (major, minor) = numbers.map_or((0, 0), |(major, minor)| (number(major), number(minor)));
        match (major, minor) {
            (6, 3..) => Version { major: 10, minor: minor - 3 },
            (..=6, _) => Version { major: 9, minor },
            // 12.5 and 12.6 have the same.
            (8, 6..) => Version { major: 12, minor: minor + 1 },
            _ => Version { major: major + 4, minor },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_ptx_names_the_toolkit_that_brought_it() {
        for (ptx, toolkit) in [
            ("6.0", "9.0"),
            ("6.4", "10.1"),
            ("7.8", "11.8"),
            ("8.5", "12.5"),
            ("8.7", "12.8"),
            ("9.0", "13.0"),
        ] {
            let text = format!("//\n.version {ptx}\n.target sm_70\n");
            assert_eq!(Ptx(text).toolkit().to_string(), toolkit);
        }
    }
}
