//! Which of the NVRTCs that are installed compiles the kernels, with libraries in their place.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::{env, fs};

use gleaner_cuda::{Version, nvrtc};

/// One that compiles for the capability of the same number, and anything else refuses.
const NVRTC: &str = r#"
#include <cstring>
#define HAS(function, parameters, code) extern "C" int function parameters { code; return 0; }
HAS(nvrtcVersion, (int *major, int *minor), *major = NUMBER; *minor = 1)
HAS(nvrtcCreateProgram, (void **, const char *, const char *, int, const char *const *, const char *const *), )
HAS(nvrtcDestroyProgram, (void **), )
HAS(nvrtcCompileProgram, (void *, int, const char *const *flags),
    if (std::strcmp(flags[0], "--gpu-architecture=compute_" KNOWS) != 0) return 5)
HAS(nvrtcGetPTXSize, (void *, unsigned long *size), *size = 12)
HAS(nvrtcGetProgramLogSize, (void *, unsigned long *size), *size = std::strlen(LOG) + 1)
HAS(nvrtcGetProgramLog, (void *, char *text), std::strcpy(text, LOG))
extern "C" const char *nvrtcGetErrorString(int error) { return error == 5 ? "NVRTC_ERROR_INVALID_OPTION" : "?"; }
#ifdef WHOLE
HAS(nvrtcGetPTX, (void *, char *text), std::strcpy(text, "// the text"))
#endif
"#;

/// Says what comes of compiling, in a process of its own, which finds other libraries.
const COMPILES: &str = "GLEANER_TEST_COMPILES";

/// A library's number, the capability that it knows, what it says of others, and whether it has all functions.
type Stub = (&'static str, &'static str, &'static str, bool);

#[test]
fn the_newest_that_knows_the_capability_compiles() {
    if env::var_os(COMPILES).is_some() {
        match nvrtc::compile(Version { major: 7, minor: 0 }) {
            Ok(compiled) => println!("said: {} by {}", compiled.ptx, compiled.compiler),
            Err(error) => println!("said: {error}"),
        }
        return;
    }
    let (old, new, silent): (Stub, Stub, Stub) =
        (("12", "70", "", true), ("13", "75", "compute_70 is not supported", true), ("13", "75", "", true));
    let half = ("13", "70", "", false);
    for (stubs, expected) in [
        ([old, old], "// the text by 12.1"),
        ([new, old], "// the text by 12.1"),
        ([new, new], "the kernels could not be compiled by NVRTC: compute_70 is not supported"),
        ([silent, new], "the kernels could not be compiled by NVRTC: NVRTC_ERROR_INVALID_OPTION"),
        ([half, old], "// the text by 12.1"),
        ([half, new], "expected a function nvrtcGetPTX, found none in its library"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("nvrtc.cpp");
        fs::write(&source, NVRTC).unwrap();
        let [first, last] = stubs;
        for (name, (number, knows, log, is_whole)) in [
            ("libnvrtc.so.13", first),
            ("libnvrtc.so.12", last),
            ("libnvrtc.so.11.2", last),
            ("libnvrtc.so", last),
        ] {
            let mut compiler = Command::new("g++");
            compiler.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join(name)).arg(&source);
            compiler.arg(format!("-DNUMBER={number}"));
            compiler.arg(format!("-DKNOWS=\"{knows}\"")).arg(format!("-DLOG=\"{log}\""));
            compiler.args(is_whole.then_some("-DWHOLE"));
            match compiler.output() {
                Ok(output) => {
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                }
                Err(error) => return gleaner_skips::skip("g++", error),
            }
        }
        let mut child = Command::new(env::current_exe().unwrap());
        child.arg("--nocapture").env(COMPILES, "1").env("LD_LIBRARY_PATH", folder.path());
        let output = child.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let said = printed.lines().find_map(|line| line.split_once("said: ")).map_or("", |(_, said)| said);
        assert!(said.contains(expected), "expected {expected:?} in: {printed}");
    }
}
