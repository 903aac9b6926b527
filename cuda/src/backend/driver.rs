//! NVIDIA's driver, loaded when a device is opened.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use cudarc::driver::sys::{self, CUresult};
use libloading::Library;

use super::{Backend, Belongs, Event, Failure, Kind, Mode, Place, Stream};
use crate::error::{CudaError, Version};
use crate::kernels::{self, Ptx};

#[cfg(windows)]
const LIBRARY: &str = "nvcuda.dll";
#[cfg(not(windows))]
const LIBRARY: &str = "libcuda.so.1";

/// A device of NVIDIA's driver, in its primary context: the one that frameworks use too, so that their memory is ours to read.
pub(crate) struct Driver {
    device: sys::CUdevice,
    ordinal: u32,
    name: String,
    multiprocessors: u32,
    context: sys::CUcontext,
    module: sys::CUmodule,
    functions: HashMap<&'static CStr, sys::CUfunction>,
}

// SAFETY: the handles name objects of the driver, which any thread may use at any time; nothing of them is read here.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA device {} ({})", self.ordinal, self.name)
    }
}

impl Driver {
    /// How many devices the driver lists.
    pub(crate) fn count() -> Result<u32, CudaError> {
        // SAFETY: the library is NVIDIA's driver by its name, whose initialisation any thread may run. cudarc loads the same
        // one, and panics where it is missing.
        if unsafe { Library::new(LIBRARY) }.is_err() {
            return Err(CudaError::NoDriver { library: LIBRARY });
        }
        let (found, mut devices) = (version().map_err(said)?, 0);
        let needed = kernels::committed().toolkit();
        if found < needed {
            return Err(CudaError::OldDriver { found, needed });
        }
        // SAFETY: nothing is needed before it.
        let started = unsafe { sys::cuInit(0) };
        if started != CUresult::CUDA_ERROR_NO_DEVICE {
            check(started).map_err(said)?;
            // SAFETY: the driver is initialised, and this writes one number.
            check(unsafe { sys::cuDeviceGetCount(&mut devices) }).map_err(said)?;
        }
        Ok(devices as u32)
    }

    /// The device of this number, with the kernels loaded.
    pub(crate) fn open(ordinal: u32) -> Result<Self, CudaError> {
        let devices = Self::count()?;
        if ordinal >= devices {
            return Err(CudaError::NoDevice { ordinal, devices });
        }
        Self::load(ordinal, &kernels::committed())
    }

    fn load(ordinal: u32, committed: &Ptx) -> Result<Self, CudaError> {
        let said = |failure: Failure| CudaError::Unusable { ordinal, said: failure.said };
        let mut device = 0;
        // SAFETY: the driver is initialised and lists this device.
        check(unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) }).map_err(said)?;
        let name = name_of(device).map_err(said)?;
        let number = |attribute| attribute_of(device, attribute).map_err(said);
        let found = Version {
            major: number(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: number(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        };
        if found < kernels::CAPABILITY {
            return Err(CudaError::OldDevice { name, found, needed: kernels::CAPABILITY });
        }
        let multiprocessors = number(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let compiled = kernels::compiled_here(found, version().map_err(said)?)?;
        let before = exchange_mode(RELAXED).map_err(said)?;
        let mut context = ptr::null_mut();
        // SAFETY: the device is the driver's; what is retained here is released when this is dropped.
        let retained = check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) });
        let _ = exchange_mode(before);
        retained.map_err(said)?;
        let mut driver = Self {
            device,
            ordinal,
            name,
            multiprocessors,
            context,
            module: ptr::null_mut(),
            functions: HashMap::new(),
        };
        let before = driver.enter().map_err(said)?;
        let loaded = driver.load_module(compiled.as_ref().unwrap_or(committed));
        driver.leave(before);
        loaded.map_err(said)?;
        Ok(driver)
    }

    fn load_module(&mut self, ptx: &Ptx) -> Result<(), Failure> {
        let text = CString::new(ptx.text()).map_err(|_| Failure::of("the kernels' PTX has a NUL in it"))?;
        // SAFETY: the text ends with NUL, and the driver copies what it needs of it.
        check(unsafe { sys::cuModuleLoadData(&mut self.module, text.as_ptr().cast()) })?;
        for &kernel in kernels::KERNELS {
            let mut function = ptr::null_mut();
            // SAFETY: the module was loaded, and the name ends with NUL.
            check(unsafe { sys::cuModuleGetFunction(&mut function, self.module, kernel.as_ptr()) })?;
            self.functions.insert(kernel, function);
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Ok(before) = self.enter() {
            if !self.module.is_null() {
                // SAFETY: it was loaded in this context, and no kernel of it runs: streams are destroyed before. That it may
                // fail after another failure does no harm.
                let _ = unsafe { sys::cuModuleUnload(self.module) };
            }
            self.leave(before);
        }
        // SAFETY: it was retained once, in `load`.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

fn raw(stream: Stream) -> sys::CUstream {
    stream.0 as usize as sys::CUstream
}

fn raw_event(event: Event) -> sys::CUevent {
    event.0 as usize as sys::CUevent
}

/// Calls the driver.
macro_rules! driver {
    ($function:ident($($argument:expr),*)) => {{
        // SAFETY: what the trait asks of its callers is all that the driver asks, and what is written to is the caller's and of
        // the type that the driver's header says.
        unsafe { sys::$function($($argument),*) }
    }};
}

impl Backend for Driver {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    fn enter(&self) -> Result<Mode, Failure> {
        let before = exchange_mode(RELAXED)?;
        let entered = check(driver!(cuCtxPushCurrent_v2(self.context)));
        if entered.is_err() {
            let _ = exchange_mode(before);
        }
        entered.map(|()| before)
    }

    fn leave(&self, before: Mode) {
        pop_context();
        let _ = exchange_mode(before);
    }

    fn allocate(&self, bytes: usize) -> Result<u64, Failure> {
        let mut address = 0;
        check(driver!(cuMemAlloc_v2(&mut address, bytes))).map(|()| address)
    }

    unsafe fn free(&self, address: u64) {
        let _ = driver!(cuMemFree_v2(address));
    }

    fn available(&self) -> Result<(usize, usize), Failure> {
        let (mut free, mut all) = (0, 0);
        check(driver!(cuMemGetInfo_v2(&mut free, &mut all))).map(|()| (free, all))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, Failure> {
        let mut at = ptr::null_mut();
        check(driver!(cuMemHostAlloc(&mut at, bytes, 0))).map(|()| at.cast())
    }

    unsafe fn free_pinned(&self, at: *mut u8) {
        let _ = driver!(cuMemFreeHost(at.cast()));
    }

    fn create_stream(&self) -> Result<Stream, Failure> {
        let (mut stream, kind) = (ptr::null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING);
        check(driver!(cuStreamCreate(&mut stream, kind as c_uint))).map(|()| Stream(stream as usize as u64))
    }

    unsafe fn destroy_stream(&self, stream: Stream) {
        let _ = driver!(cuStreamDestroy_v2(raw(stream)));
    }

    fn create_event(&self, kind: Kind) -> Result<Event, Failure> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC as BLOCKING, CU_EVENT_DISABLE_TIMING as UNTIMED};
        let mut event = ptr::null_mut();
        let flags = match kind {
            Kind::Order => UNTIMED as c_uint,
            Kind::Wait => BLOCKING as c_uint | UNTIMED as c_uint,
            Kind::Time => BLOCKING as c_uint,
        };
        check(driver!(cuEventCreate(&mut event, flags))).map(|()| Event(event as usize as u64))
    }

    unsafe fn destroy_event(&self, event: Event) {
        let _ = driver!(cuEventDestroy_v2(raw_event(event)));
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), Failure> {
        check(driver!(cuEventRecord(raw_event(event), raw(stream))))
    }

    unsafe fn await_in(&self, stream: Stream, event: Event) -> Result<(), Failure> {
        check(driver!(cuStreamWaitEvent(raw(stream), raw_event(event), 0)))
    }

    unsafe fn is_done(&self, event: Event) -> Result<bool, Failure> {
        match driver!(cuEventQuery(raw_event(event))) {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check(result).map(|()| true),
        }
    }

    unsafe fn wait(&self, event: Event) -> Result<(), Failure> {
        check(driver!(cuEventSynchronize(raw_event(event))))
    }

    unsafe fn elapsed(&self, from: Event, to: Event) -> Result<Duration, Failure> {
        let mut milliseconds = 0.0;
        check(driver!(cuEventElapsedTime(&mut milliseconds, raw_event(from), raw_event(to))))
            .map(|()| Duration::from_secs_f64(f64::from(milliseconds).max(0.0) / 1e3))
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result<(), Failure> {
        check(driver!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, raw(stream))))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result<(), Failure> {
        check(driver!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, raw(stream))))
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<(), Failure> {
        check(driver!(cuMemcpyDtoDAsync_v2(to, from, bytes, raw(stream))))
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize, stream: Stream) -> Result<(), Failure> {
        check(driver!(cuMemsetD8Async(at, byte, bytes, raw(stream))))
    }

    unsafe fn launch(
        &self,
        kernel: &'static CStr,
        grid: u32,
        block: u32,
        arguments: &mut [*mut c_void],
        stream: Stream,
    ) -> Result<(), Failure> {
        let Some(&function) = self.functions.get(kernel) else {
            return Err(Failure::of(format!("there is no kernel {}", kernel.to_string_lossy())));
        };
        let (arguments, none) = (arguments.as_mut_ptr(), ptr::null_mut());
        check(driver!(cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, raw(stream), arguments, none)))
    }

    fn place(&self, address: u64) -> Result<Place, Failure> {
        use sys::CUpointer_attribute as Attribute;
        let (mut context, mut kind, mut ordinal) = (ptr::null_mut::<c_void>(), 0_u32, -1_i32);
        let mut names = [
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        ];
        let mut into: [*mut c_void; 3] =
            [(&raw mut context).cast(), (&raw mut kind).cast(), (&raw mut ordinal).cast()];
        // What is no address of the driver's leaves zeros there.
        check(driver!(cuPointerGetAttributes(
            names.len() as c_uint,
            names.as_mut_ptr(),
            into.as_mut_ptr(),
            address
        )))?;
        // Memory from pools and of mapped ranges, as PyTorch may have it, is of no context, and all of the device may use it.
        let in_ours = context.is_null() || context == self.context.cast();
        Ok(match kind {
            0 => Place::Unknown,
            kind if kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32 => Place::Host,
            _ if ordinal < 0 => Place::Unknown,
            _ if ordinal as u32 != self.ordinal => Place::OtherDevice(ordinal as u32),
            _ if in_ours => Place::Ours,
            _ => Place::OtherContext,
        })
    }

    fn belongs(&self, stream: Stream) -> Result<Belongs, Failure> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        match driver!(cuStreamIsCapturing(raw(stream), &mut status)) {
            // The default stream, while another one that waits for it captures.
            CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => return Ok(Belongs::Capturing),
            result => check(result)?,
        }
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(Belongs::Capturing);
        }
        let mut context = ptr::null_mut();
        check(driver!(cuStreamGetCtx(raw(stream), &mut context)))?;
        if context == self.context {
            return Ok(Belongs::Ours);
        }
        let mut device = 0;
        check(driver!(cuCtxPushCurrent_v2(context)))?;
        let found = check(driver!(cuCtxGetDevice(&mut device)));
        pop_context();
        found.map(|()| match device == self.device {
            true => Belongs::OtherContext,
            // The driver's handle of a device is its number.
            false => Belongs::OtherDevice(device as u32),
        })
    }

    fn was_recorded(&self, event: Event) -> Result<bool, Failure> {
        match driver!(cuEventQuery(raw_event(event))) {
            CUresult::CUDA_ERROR_NOT_READY => Ok(true),
            CUresult::CUDA_ERROR_CAPTURED_EVENT => Ok(false),
            result => check(result).map(|()| true),
        }
    }
}

/// The version of CUDA that the driver is for.
fn version() -> Result<Version, Failure> {
    let mut version = 0;
    // SAFETY: it writes one number.
    check(unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(Version { major: version as u32 / 1000, minor: version as u32 % 1000 / 10 })
}

/// In which a thread may allocate and wait whatever other threads capture: its own calls are part of no graph.
const RELAXED: Mode = Mode(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32);

/// Gives this thread another mode, and says which it had.
fn exchange_mode(Mode(mut mode): Mode) -> Result<Mode, Failure> {
    // The driver's type is a number of 32 bits.
    check(driver!(cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()))).map(|()| Mode(mode))
}

fn pop_context() {
    let mut popped = ptr::null_mut();
    let _ = driver!(cuCtxPopCurrent_v2(&mut popped));
}

impl Failure {
    fn of(said: impl Into<String>) -> Self {
        Self { is_memory: false, said: said.into() }
    }
}

fn said(failure: Failure) -> CudaError {
    CudaError::Driver { said: failure.said }
}

fn check(result: CUresult) -> Result<(), Failure> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = ptr::null();
        // SAFETY: the driver writes the address of a text of its own, which stays and ends with NUL, or none for an error that
        // it does not know.
        unsafe {
            (get(result, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null())
                .then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let said = match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(words)) => format!("{name}, {words}"),
        _ => format!("error {}", result as u32),
    };
    Err(Failure { is_memory: result == CUresult::CUDA_ERROR_OUT_OF_MEMORY, said })
}

fn name_of(device: sys::CUdevice) -> Result<String, Failure> {
    let mut name = [0; 256];
    // SAFETY: it writes at most as many bytes as there are, with a NUL among them.
    check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) })?;
    // SAFETY: see above.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

fn attribute_of(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<u32, Failure> {
    let mut value = MaybeUninit::<c_int>::uninit();
    // SAFETY: it writes one number.
    check(unsafe { sys::cuDeviceGetAttribute(value.as_mut_ptr(), attribute, device) })?;
    // SAFETY: it was written, as the call has succeeded.
    Ok(unsafe { value.assume_init() } as u32)
}
