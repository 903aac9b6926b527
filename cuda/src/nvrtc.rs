//! The kernels compiled by NVRTC, where that is installed: for the PTX in the repository, and for a device of its own.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use libloading::Library;

use crate::error::{CudaError, Version};

/// Names of the library, the newest first: the Python packages of NVIDIA have none without a number.
#[cfg(windows)]
const LIBRARIES: [&str; 3] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"];
#[cfg(not(windows))]
const LIBRARIES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

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

/// Compiles the kernels for a compute capability and all later ones, by the newest NVRTC here that can: each knows the capabilities of some
/// years, and a `driver` for some version of CUDA loads what NVRTC has made up to that version.
///
/// # Errors
/// No NVRTC, or what the newest says.
pub fn compile(capability: Version, driver: Option<Version>) -> Result<Compiled, CudaError> {
    let mut refused = None;
    for name in LIBRARIES {
        // SAFETY: the library is NVRTC by its name, whose initialisation any thread may run.
        let Ok(library) = (unsafe { Library::new(name) }) else { continue };
        match Nvrtc::of(library).and_then(|nvrtc| nvrtc.compile(capability, driver)) {
            Err(error) => drop(refused.get_or_insert(error)),
            compiled => return compiled,
        }
    }
    let said = || {
        format!(
            "expected the library {}, found none; install it, or name its folder in LD_LIBRARY_PATH",
            LIBRARIES.join(" or ")
        )
    };
    Err(refused.unwrap_or_else(|| CudaError::Nvrtc { said: said() }))
}

/// A program as NVRTC has it.
type Handle = *mut c_void;
/// Reads the size of a text of a program, or writes it.
type SizeOf = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type WriteTo = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// The functions of the library that are used here, as `nvrtc.h` declares them.
struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    compile_program: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int,
    ptx: (SizeOf, WriteTo),
    log: (SizeOf, WriteTo),
    /// Where they are.
    _library: Library,
}

impl Nvrtc {
    /// What the library has.
    fn of(library: Library) -> Result<Self, CudaError> {
        // SAFETY: these are the functions of that name, which are used only as long as the library is here.
        let loaded = unsafe {
            Self {
                version: function(&library, "nvrtcVersion")?,
                error: function(&library, "nvrtcGetErrorString")?,
                create: function(&library, "nvrtcCreateProgram")?,
                destroy: function(&library, "nvrtcDestroyProgram")?,
                compile_program: function(&library, "nvrtcCompileProgram")?,
                ptx: (function(&library, "nvrtcGetPTXSize")?, function(&library, "nvrtcGetPTX")?),
                log: (
                    function(&library, "nvrtcGetProgramLogSize")?,
                    function(&library, "nvrtcGetProgramLog")?,
                ),
                _library: library,
            }
        };
        Ok(loaded)
    }

    fn compile(&self, capability: Version, driver: Option<Version>) -> Result<Compiled, CudaError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: it writes two numbers.
        self.check(unsafe { (self.version)(&mut major, &mut minor) })?;
        let compiler = Version { major: major as u32, minor: minor as u32 };
        if let Some(driver) = driver.filter(|driver| compiler > *driver) {
            let said = format!(
                "expected one of CUDA {driver} or earlier, as the driver is, found {compiler}; install such a one or a newer driver, or leave out \
                 GLEANER_CUDA_NVRTC"
            );
            return Err(CudaError::Nvrtc { said });
        }
        let architecture = format!("--gpu-architecture=compute_{}{}", capability.major, capability.minor);
        let flags: Vec<&str> = std::iter::once(&*architecture).chain(FLAGS).collect();
        let ptx = Program::new(self)?.compile(&flags)?;
        Ok(Compiled { ptx, compiler, flags: flags.join(" ") })
    }

    fn check(&self, result: c_int) -> Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: it gives a text for any number, which stays as long as the library.
        let said = unsafe { CStr::from_ptr((self.error)(result)) };
        Err(CudaError::Nvrtc { said: said.to_string_lossy().into_owned() })
    }
}

/// A function of the library.
///
/// # Safety
/// It is of this type, and used only as long as the library is there.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, CudaError> {
    // SAFETY: the caller says so.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(found) => Ok(*found),
        Err(_) => {
            Err(CudaError::Nvrtc { said: format!("expected a function {name}, found none in its library") })
        }
    }
}

/// The kernels as NVRTC has them.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
    /// What it may look at until it is destroyed.
    _texts: Vec<CString>,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc) -> Result<Self, CudaError> {
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
        let (count, mut handle) = (names.len() as c_int, ptr::null_mut());
        // SAFETY: all texts end with NUL and stay as long as the program; there are as many names as sources.
        nvrtc.check(unsafe {
            (nvrtc.create)(&mut handle, source, main, count, sources.as_ptr(), names.as_ptr())
        })?;
        Ok(Self { nvrtc, handle, _texts: texts })
    }

    fn compile(&self, flags: &[&str]) -> Result<String, CudaError> {
        let flags: Vec<CString> = flags.iter().filter_map(|flag| CString::new(*flag).ok()).collect();
        let places: Vec<*const c_char> = flags.iter().map(|flag| flag.as_ptr()).collect();
        // SAFETY: the program was made, and the flags end with NUL.
        let compiled =
            unsafe { (self.nvrtc.compile_program)(self.handle, places.len() as c_int, places.as_ptr()) };
        self.nvrtc.check(compiled).map_err(|error| match self.text(self.nvrtc.log) {
            Ok(log) if !log.trim().is_empty() => CudaError::Nvrtc { said: log },
            _ => error,
        })?;
        self.text(self.nvrtc.ptx)
    }

    /// A text of the program, of which one call says the size and the other writes it.
    fn text(&self, (size_of, write): (SizeOf, WriteTo)) -> Result<String, CudaError> {
        let mut size = 0;
        // SAFETY: the program was made, and this writes one number.
        self.nvrtc.check(unsafe { size_of(self.handle, &mut size) })?;
        let mut text = vec![0_u8; size.max(1)];
        // SAFETY: there is as much room as was said.
        self.nvrtc.check(unsafe { write(self.handle, text.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made, and is destroyed once.
        let _ = unsafe { (self.nvrtc.destroy)(&mut self.handle) };
    }
}
