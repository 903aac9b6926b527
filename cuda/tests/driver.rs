//! What is said of a driver or a device that cannot be used, with a library in the driver's place.

#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::process::Command;

use gleaner_cuda::Cuda;

/// A driver that says what its environment tells it to.
const DRIVER: &str = r#"
#include <cstdio>
#include <cstdlib>
#define SAYS(function, parameters, code) extern "C" int function parameters { code; return 0; }
static int number(const char *name) { return std::atoi(std::getenv(name)); }
SAYS(cuDriverGetVersion, (int *version), *version = number("VERSION"))
SAYS(cuInit, (unsigned), return number("STARTED"))
SAYS(cuDeviceGetCount, (int *count), *count = number("DEVICES"))
SAYS(cuDeviceGet, (int *device, int ordinal), *device = ordinal)
SAYS(cuDeviceGetName, (char *name, int length, int), std::snprintf(name, length, "an old device"))
// The capability's two parts, and anything else.
SAYS(cuDeviceGetAttribute, (int *value, int attribute, int), *value = attribute == 75 ? 6 : 1)
SAYS(cuGetErrorName, (int error, const char **name), *name = error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR")
SAYS(cuGetErrorString, (int, const char **text), *text = "what it means")
"#;

/// Says what comes of opening the first device, in a process of its own: the library of the driver is loaded once.
const OPENS: &str = "GLEANER_TEST_OPENS_A_DEVICE";

#[test]
fn a_driver_or_a_device_that_cannot_be_used_is_said_with_what_is_needed() {
    if env::var_os(OPENS).is_some() {
        println!("said: {}", Cuda::open(0).unwrap_err());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("driver.cpp");
    fs::write(&source, DRIVER).unwrap();
    // cudarc loads the first of these.
    for name in ["libcuda.so", "libcuda.so.1"] {
        let mut compiler = Command::new("g++");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join(name)).arg(&source);
        match compiler.output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => return gleaner_skips::skip("g++", error),
        }
    }
    for ([version, started, devices], expected) in [
        (
            ["10020", "0", "1"],
            "the CUDA driver is too old: expected one for CUDA 11.0 or later, found one for CUDA 10.2; update NVIDIA's driver",
        ),
        (
            ["12080", "803", "1"],
            "there is no CUDA device here: the driver's library is there, but it says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, what it means",
        ),
        (["12080", "100", "1"], "there is no CUDA device 0: the driver lists none"),
        (["12080", "0", "0"], "there is no CUDA device 0: the driver lists none"),
        (
            ["12080", "0", "1"],
            "expected a CUDA device of compute capability 7.0 or later, found an old device of 6.1",
        ),
    ] {
        let mut child = Command::new(env::current_exe().unwrap());
        child.arg("--nocapture").env(OPENS, "1").env("LD_LIBRARY_PATH", folder.path());
        child.env("VERSION", version).env("STARTED", started).env("DEVICES", devices);
        let output = child.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains(&format!("said: {expected}")), "expected {expected:?} in: {printed}");
    }
}
