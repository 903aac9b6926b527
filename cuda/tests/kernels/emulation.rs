//! The kernels, compiled for the CPU when the tests run.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libloading::{Library, Symbol};

pub const THREADS: u32 = 256;
pub const TILE: usize = 4096;
pub const CHUNK: usize = 1024;
pub const RECORDS: usize = 32;
pub const NO_LIMIT: u32 = u32::MAX;

/// What a kernel must write over, or must not touch.
pub const POISON: u32 = 0x7fc0_dead;

type Launch = unsafe extern "C" fn(*const c_char, c_uint, c_uint, c_uint, *mut *mut c_void) -> c_int;
type Order = unsafe extern "C" fn(c_int);

pub struct Emulation(Library);

/// The kernels, or None, with what is missing on standard output.
pub fn emulation() -> Option<&'static Emulation> {
    static COMPILED: OnceLock<Option<Emulation>> = OnceLock::new();
    COMPILED.get_or_init(compile).as_ref()
}

fn compile() -> Option<Emulation> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libkernels.so");
    let mut compiler = Command::new("g++");
    compiler.args([
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-shared",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    compiler.args(["-Wno-unknown-pragmas", "-DGLEANER_HOST", "-x", "c++", "-include"]);
    compiler.arg(kernels.join("host.hpp")).arg(kernels.join("kernels.cu")).arg("-o").arg(&library);
    let Ok(status) = compiler.status() else {
        gleaner_skips::skip("g++", "no g++ here");
        return None;
    };
    assert!(status.success(), "g++ cannot compile the kernels");
    // SAFETY: nothing runs when it is loaded but constructors of the C++ library.
    Some(Emulation(unsafe { Library::new(&library) }.unwrap()))
}

impl Emulation {
    /// Runs a kernel with what lies at the addresses as its arguments.
    ///
    /// # Safety
    /// They are as many and of the types as the kernel's parameters, and pointers among them are good for what it does.
    pub unsafe fn launch(&self, name: &str, grid: u32, block: u32, arguments: &mut [*mut c_void]) -> c_int {
        let name = CString::new(name).unwrap();
        // SAFETY: the type is that of the function in host.hpp, and the caller answers for the arguments.
        unsafe {
            let launch: Symbol<Launch> = self.0.get(b"gleaner_launch").unwrap();
            launch(name.as_ptr(), grid, block, 0, arguments.as_mut_ptr())
        }
    }

    /// Whether blocks, warps and lanes run from the last to the first.
    pub fn descend(&self, descending: bool) {
        // SAFETY: the type is that of the function in host.hpp.
        unsafe {
            let order: Symbol<Order> = self.0.get(b"gleaner_order").unwrap();
            order(descending.into());
        }
    }
}

/// Launches a kernel with arguments of exactly the types of its parameters.
macro_rules! launch {
    ($emulation:expr, $name:expr, $grid:expr, $block:expr, $($argument:expr),* $(,)?) => {{
        let (name, grid): (&str, u32) = ($name, $grid);
        // The arguments live as long as the call.
        // SAFETY: the tests give each kernel what it declares.
        let code = unsafe {
            $emulation.launch(name, grid, $block, &mut [$(std::ptr::from_mut(&mut { $argument }).cast::<std::ffi::c_void>()),*])
        };
        assert_eq!(code, 0, "{name}");
    }};
}

pub(crate) use launch;

/// Values from an address on that is so many of them past a multiple of 16 bytes, with poison on both sides.
pub struct Placed<T> {
    storage: Vec<T>,
    start: usize,
    len: usize,
    poison: T,
}

impl<T: Copy + PartialEq + std::fmt::Debug> Placed<T> {
    pub fn new(values: &[T], past: usize, poison: T) -> Self {
        let mut storage = vec![poison; values.len() + 32];
        let start = storage.as_ptr().align_offset(16) + past;
        storage[start..start + values.len()].copy_from_slice(values);
        Self { storage, start, len: values.len(), poison }
    }

    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.storage[self.start..].as_mut_ptr()
    }

    /// The values, once nothing beside them has changed.
    pub fn values(&self) -> &[T] {
        let (before, rest) = self.storage.split_at(self.start);
        let (values, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|value| *value == self.poison), "written beside the values");
        values
    }
}
