//! That the committed PTX was made from the source beside it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

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

#[test]
fn the_ptx_has_all_kernels() {
    let source = kernels("kernels.cu");
    let named =
        source.lines().filter_map(|line| line.trim().strip_prefix("GLEANER_KERNEL(")?.split(',').next());
    let ptx = kernels("kernels.ptx");
    let entries = ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.strip_suffix('('));
    assert_eq!(entries.collect::<BTreeSet<_>>(), named.collect::<BTreeSet<_>>());
}
