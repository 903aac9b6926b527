//! Each kernel by itself, as the CPU runs it, against plain Rust.

#![allow(clippy::unwrap_used, reason = "a test")]

mod accumulate;
mod apply;
mod decode;
mod emulation;
mod format;
mod host;
mod merge;
mod ptx;
mod random;
mod rice;
mod scatter;
mod select;
mod selection;
