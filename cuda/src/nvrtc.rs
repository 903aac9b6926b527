//! The kernels compiled by NVRTC, where that is installed: for the PTX in the repository, and for a device of its own.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::sys::{self, nvrtcResult};
use libloading::Library;

use crate::error::{CudaError, Version};

/// Names of the library, by one of which cudarc loads it.
#[cfg(windows)]
const LIBRARIES: [&str; 2] = ["nvrtc.dll", "nvrtc64_120_0.dll"];
#[cfg(not(windows))]
const LIBRARIES: [&str; 2] = ["libnvrtc.so.12", "libnvrtc.so"];

/// Beside the architecture: no contraction, so that bits are those of the CPU.
const FLAGS: [&str; 2] = ["--fmad=false", "--std=c++17"];

/// The file that includes the others.
const MAIN: &str = "kernels.cu";

macro_rules! sources {
    ($($name:literal)*) => {
        /// The files in `cuda/kernels` that the kernels are compiled of, in the order in which they are included, the one that includes
        /// them first.
        pub const SOURCES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../kernels/", $name)))),*];
    };
}

sources! {
    "kernels.cu"
    "types.cuh"
    "formats.cuh"
    "warp.cuh"
    "accumulate.cu"
    "cut.cu"
    "digits.cu"
    "sums.cuh"
    "count.cu"
    "offsets.cu"
    "emit.cu"
    "scatter.cu"
    "rice.cu"
    "decode.cu"
    "codes.cu"
    "merge.cu"
    "apply.cu"
}

/// What the compiler made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The text.
    pub ptx: String,
    /// The compiler's version.
    pub compiler: Version,
    /// Its options.
    pub flags: String,
}

/// Compiles the kernels for a compute capability and all later ones.
///
/// # Errors
/// No NVRTC, or what it says.
pub fn compile(capability: Version) -> Result<Compiled, CudaError> {
    // SAFETY: the library is NVRTC by its name, whose initialisation any thread may run. cudarc panics where it is missing.
    if !LIBRARIES.iter().any(|name| unsafe { Library::new(*name) }.is_ok()) {
        let said = format!("expected the library {}, found none", LIBRARIES.join(" or "));
        return Err(CudaError::Nvrtc { said });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two numbers.
    check(unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    let architecture = format!("--gpu-architecture=compute_{}{}", capability.major, capability.minor);
    let flags: Vec<&str> = std::iter::once(&*architecture).chain(FLAGS).collect();
    let program = Program::new()?;
    let ptx = program.compile(&flags)?;
    Ok(Compiled {
        ptx,
        compiler: Version { major: major as u32, minor: minor as u32 },
        flags: flags.join(" "),
    })
}

fn check(result: nvrtcResult) -> Result<(), CudaError> {
    match result {
        nvrtcResult::NVRTC_SUCCESS => Ok(()),
        error => Err(CudaError::Nvrtc { said: format!("{error:?}") }),
    }
}

/// The kernels as NVRTC has them.
struct Program {
    program: sys::nvrtcProgram,
    /// What it may look at until it is destroyed.
    _texts: Vec<CString>,
}

impl Program {
    fn new() -> Result<Self, CudaError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| CudaError::Nvrtc { said: "a source has a NUL in it".into() })
        };
        let mut texts = Vec::new();
        for (name, source) in SOURCES {
            texts.push(text(name)?);
            texts.push(text(source)?);
        }
        let headers = texts.chunks(2).skip(1);
        let names: Vec<*const c_char> = headers.clone().map(|pair| pair[0].as_ptr()).collect();
        let sources: Vec<*const c_char> = headers.map(|pair| pair[1].as_ptr()).collect();
        debug_assert_eq!(SOURCES[0].0, MAIN);
        let (main, source) = (texts[0].as_ptr(), texts[1].as_ptr());
        let (count, mut program) = (names.len() as c_int, ptr::null_mut());
        // SAFETY: all texts end with NUL and stay as long as the program; there are as many names as sources.
        check(unsafe {
            sys::nvrtcCreateProgram(&mut program, source, main, count, sources.as_ptr(), names.as_ptr())
        })?;
        Ok(Self { program, _texts: texts })
    }

    fn compile(&self, flags: &[&str]) -> Result<String, CudaError> {
        let flags: Vec<CString> = flags.iter().filter_map(|flag| CString::new(*flag).ok()).collect();
        let places: Vec<*const c_char> = flags.iter().map(|flag| flag.as_ptr()).collect();
        // SAFETY: the program was made, and the flags end with NUL.
        let compiled =
            unsafe { sys::nvrtcCompileProgram(self.program, places.len() as c_int, places.as_ptr()) };
        check(compiled).map_err(|error| {
            match self.text(sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog) {
                Ok(log) => CudaError::Nvrtc { said: log },
                Err(_) => error,
            }
        })?;
        self.text(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)
    }

    /// A text of the program, of which one call says the size and the other writes it.
    fn text(
        &self,
        size_of: unsafe fn(sys::nvrtcProgram, *mut usize) -> nvrtcResult,
        write: unsafe fn(sys::nvrtcProgram, *mut c_char) -> nvrtcResult,
    ) -> Result<String, CudaError> {
        let mut size = 0;
        // SAFETY: the program was made, and this writes one number.
        check(unsafe { size_of(self.program, &mut size) })?;
        let mut text = vec![0_u8; size.max(1)];
        // SAFETY: there is as much room as was said.
        check(unsafe { write(self.program, text.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was made, and is destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.program) };
    }
}
