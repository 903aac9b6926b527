//! Gleaner for C: twenty-one functions, opaque handles, and errors as codes with a sentence. `include/gleaner.h` is made of this
//! crate by cbindgen, so its documentation is that of the functions here.
//!
//! Null pointers are refused, and so are handles that were freed. A panic becomes [`gleaner_status::GLEANER_PANIC`]. Whatever a handle
//! needs lives as long as the handle.

// The names are those of C.
#![allow(non_camel_case_types)]

mod gradients;
mod handles;
mod method;
mod optimizer;
mod session;
mod status;

pub use gradients::*;
pub use method::*;
pub use optimizer::*;
pub use session::*;
pub use status::{gleaner_error, gleaner_status};

use std::ffi::c_char;

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn gleaner_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
