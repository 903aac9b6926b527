//! Which of the NVRTCs that are installed compiles the kernels, with libraries in their place.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
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

/// Says what comes of compiling, in a process of its own, which finds other libraries; for a driver of this version, if it is one.
const DRIVER: &str = "GLEANER_TEST_COMPILES_FOR";

/// By the order in which they are looked for.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];

/// Each with its number, the capability that it knows, what it says of others, and whether it has all functions.
const OLD: (&str, &str, &str, bool) = ("12", "70", "", true);
const NEW: (&str, &str, &str, bool) = ("13", "70", "", true);
const OTHER: (&str, &str, &str, bool) = ("13", "75", "compute_70 is not supported", true);
const SILENT: (&str, &str, &str, bool) = ("13", "75", "", true);
const HALF: (&str, &str, &str, bool) = ("13", "70", "", false);

#[test]
fn the_newest_that_can_compiles() {
    if let Ok(driver) = env::var(DRIVER) {
        let driver = driver.parse().ok().map(|minor| Version { major: 12, minor });
        match nvrtc::compile(Version { major: 7, minor: 0 }, driver) {
            Ok(compiled) => println!("said: {} by {}", compiled.ptx, compiled.compiler),
            Err(error) => println!("said: {error}"),
        }
        return;
    }
    let mut libraries = BTreeMap::new();
    for library in [OLD, NEW, OTHER, SILENT, HALF] {
        let folder = tempfile::tempdir().unwrap();
        let (source, (number, knows, log, is_whole)) = (folder.path().join("nvrtc.cpp"), library);
        fs::write(&source, NVRTC).unwrap();
        let mut compiler = Command::new("g++");
        compiler.args(["-shared", "-fPIC", "-o", "library"]).arg(&source).current_dir(&folder);
        compiler.arg(format!("-DNUMBER={number}"));
        compiler.arg(format!("-DKNOWS=\"{knows}\"")).arg(format!("-DLOG=\"{log}\""));
        compiler.args(is_whole.then_some("-DWHOLE"));
        match compiler.output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => return gleaner_skips::skip("g++", error),
        }
        libraries.insert(library, folder);
    }
    let refused = "the kernels could not be compiled by NVRTC: ";
    for (found, driver, expected) in [
        ([OLD, OTHER, OTHER, OTHER], "", "// the text by 12.1"),
        ([OTHER, OLD, OTHER, OTHER], "", "// the text by 12.1"),
        ([OTHER, OTHER, OLD, OTHER], "", "// the text by 12.1"),
        ([OTHER, OTHER, OTHER, OLD], "", "// the text by 12.1"),
        ([NEW, OLD, OLD, OLD], "", "// the text by 13.1"),
        ([NEW, OLD, OTHER, OTHER], "8", "// the text by 12.1"),
        ([NEW, OLD, OLD, OLD], "1", "// the text by 12.1"),
        (
            [NEW; 4],
            "8",
            &format!(
                "{refused}expected one of CUDA 12.8 or earlier, as the driver is, found 13.1; install such a one or a newer driver, or leave out GLEANER_CUDA_NVRTC"
            ),
        ),
        ([OTHER; 4], "", &format!("{refused}compute_70 is not supported")),
        ([SILENT, OTHER, OTHER, OTHER], "", &format!("{refused}NVRTC_ERROR_INVALID_OPTION")),
        ([HALF, OLD, OTHER, OTHER], "", "// the text by 12.1"),
        ([HALF; 4], "", &format!("{refused}expected a function nvrtcGetPTX, found none in its library")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (name, library) in NAMES.iter().zip(found) {
            fs::copy(libraries[&library].path().join("library"), folder.path().join(name)).unwrap();
        }
        let mut child = Command::new(env::current_exe().unwrap());
        child.arg("--nocapture").env(DRIVER, driver).env("LD_LIBRARY_PATH", folder.path());
        let output = child.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let said = printed.lines().find_map(|line| line.split_once("said: ")).map_or("", |(_, said)| said);
        assert_eq!(said, expected, "{printed}");
    }
}
