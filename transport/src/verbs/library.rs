//! libibverbs, loaded when it is first needed, so that one program runs with it and without.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use super::error::VerbsError;
use super::sys::Functions;

const NAME: &CStr = c"libibverbs.so.1";

enum Missing {
    Library(String),
    Function(&'static str),
}

/// The functions of the library, which stays loaded.
pub(super) fn library() -> Result<&'static Functions, VerbsError> {
    static LOADED: OnceLock<Result<Functions, Missing>> = OnceLock::new();
    match LOADED.get_or_init(load) {
        Ok(functions) => Ok(functions),
        Err(Missing::Library(reason)) => Err(VerbsError::NoLibrary { reason: reason.clone() }),
        Err(Missing::Function(function)) => Err(VerbsError::OldLibrary { function }),
    }
}

fn load() -> Result<Functions, Missing> {
    // SAFETY: the name ends with a zero. What the library does when it is loaded is to find the drivers that are installed.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let Some(handle) = NonNull::new(handle) else { return Err(Missing::Library(refusal())) };
    let find = |name: &'static CStr| -> Option<NonNull<c_void>> {
        // SAFETY: the handle is never closed, and the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) })
    };
    // SAFETY: the library has that name, and is never unloaded.
    let functions = unsafe { Functions::find(find) }.map_err(Missing::Function)?;
    // Without it a child that this process forks takes registered pages from under the adapter, on kernels before 5.12; on later
    // ones it does nothing. It must come before all other calls, and what it refuses is only that protection.
    // SAFETY: it takes nothing, and no device is open yet.
    let _ = unsafe { (functions.ibv_fork_init)() };
    Ok(functions)
}

/// What the loader says.
fn refusal() -> String {
    // SAFETY: the text belongs to the loader and stays until this thread calls it again; it is copied at once.
    let said = unsafe {
        let said = libc::dlerror();
        (!said.is_null()).then(|| CStr::from_ptr(said).to_string_lossy().into_owned())
    };
    said.unwrap_or_else(|| "it is not installed".to_owned())
}
