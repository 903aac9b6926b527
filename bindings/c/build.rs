//! Gives the shared library its SONAME, which `install` names the file by: the name that programs linked against it ask the loader for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgleaner.so.{major}");
}
