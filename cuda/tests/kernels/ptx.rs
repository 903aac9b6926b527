//! That the committed PTX was made from the source beside it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use gleaner_cuda::{Version, nvrtc};
use sha2::{Digest, Sha256};

fn kernels(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(file)).unwrap()
}

/// kernels.cu and what it includes, in that order.
fn source_hash() -> String {
    let main = kernels("kernels.cu");
    let included = main.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    let mut hash = Sha256::new();
    hash.update(&main);
    included.for_each(|file| hash.update(kernels(file)));
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

#[test]
fn the_ptx_is_of_this_source() {
    let ptx = kernels("kernels.ptx");
    let noted = ptx.lines().find_map(|line| line.strip_prefix("// sources: sha256 "));
    assert_eq!(
        noted,
        Some(&*source_hash()),
        "kernels.ptx is stale: make it again with `cargo run -p gleaner-cuda --example ptx`"
    );
    assert!(ptx.contains("\n.target sm_70\n"));
    // No instruction needs a later one, and with this version drivers since CUDA 11.0 take it.
    assert!(ptx.contains("\n.version 7.0\n"));
    // Contraction, flushed subnormals and approximate quotients would give other bits than the CPU's.
    for unwanted in ["fma.", ".ftz", "div.full", "div.approx"] {
        assert!(!ptx.contains(unwanted), "{unwanted}");
    }
}

/// The kernels that the source names.
fn named() -> BTreeSet<String> {
    let source = kernels("kernels.cu");
    let name = |line: &str| Some(line.trim().strip_prefix("GLEANER_KERNEL(")?.split(',').next()?.to_owned());
    source.lines().filter_map(name).collect()
}

/// The kernels that there are in PTX.
fn entries(ptx: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(line.strip_prefix(".visible .entry ")?.strip_suffix('(')?.to_owned());
    ptx.lines().filter_map(name).collect()
}

#[test]
fn the_ptx_has_all_kernels() {
    assert_eq!(entries(&kernels("kernels.ptx")), named());
}

#[test]
fn nvrtc_makes_the_ptx_where_it_is_there() {
    let compile = |minor| nvrtc::compile(Version { major: 7, minor }, None);
    // Every NVRTC since CUDA 11 compiles for this capability.
    let compiled = match compile(5) {
        Ok(compiled) => compiled,
        Err(error) if error.to_string().contains("expected the library") => {
            return gleaner_skips::skip("nvrtc", error);
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(entries(&compiled.ptx), named());
    assert!(!compiled.ptx.contains("fma."), "compiled with {}", compiled.flags);
    // The compiler that made the file makes it again, but for the header and the version of PTX; that of CUDA 13 does not know 7.0.
    let committed = kernels("kernels.ptx");
    let is_by = |compiler| committed.contains(&format!("// compiler: NVRTC {compiler}\n"));
    let again =
        compile(0).inspect_err(|error| assert!(error.to_string().contains("--gpu-architecture"), "{error}"));
    if let Some(again) = again.ok().filter(|again| is_by(again.compiler)) {
        let body = |ptx: &str| -> Vec<String> {
            let kept = |line: &&str| !line.starts_with("//") && !line.starts_with(".version ");
            ptx.lines().filter(kept).map(str::to_owned).collect()
        };
        assert!(
            body(&again.ptx) == body(&committed),
            "kernels.ptx is not what its compiler makes of the sources"
        );
    }
}
