//! What `gleaner reduce` refuses, and that nothing is written then.

use std::fs;

use crate::{Bench, little, npy};

/// Each is refused with a sentence that has these parts, and nothing is written.
#[test]
fn bad_files_are_refused_with_a_sentence() {
    let bench = Bench::new();
    let good = npy("<f4", "False", "(4,)", &little(&[1.0, 2.0, 3.0, 4.0]));
    bench.file("good.npy", &good);
    bench.file("cut.npy", &good[..good.len() - 3]);
    bench.file("long.npy", &[&good[..], b"abcd"].concat());
    bench.file("header.npy", &good[..40]);
    bench.file("magic.npy", b"PK\x03\x04 this is an archive");
    bench.file("empty.npy", b"");
    bench.file("none.npy", &npy("<f4", "False", "(0,)", b""));
    bench.file("double.npy", &npy("<f8", "False", "(4,)", &[0; 32]));
    bench.file("half.npy", &npy("<f2", "False", "(4,)", &[0; 8]));
    bench.file("int.npy", &npy("<i4", "False", "(4,)", &[0; 16]));
    bench.file("fortran.npy", &npy("<f4", "True", "(2, 2)", &[0; 16]));
    bench.file("square.npy", &npy("<f4", "False", "(2, 2)", &[0; 16]));
    bench.file("dict.npy", &npy("<f4", "Maybe", "(4,)", &[0; 16]));
    bench.file("negative.npy", &npy("<f4", "False", "(-4,)", &[0; 16]));
    let deep = format!("{}0{}", "[".repeat(500), "]".repeat(500));
    bench.file("deep.npy", &npy("<f4", "False", &deep, &[0; 16]));
    bench.gradient("five.npy", &[0.0; 5]);
    bench.gradient("nan.npy", &[1.0, 2.0, f32::NAN, 4.0]);
    bench.gradient("infinite.npy", &[1.0, 2.0, 3.0, f32::NEG_INFINITY]);
    bench.gradient("huge.npy", &[f32::MAX; 4]);
    fs::create_dir(bench.path("folder.npy")).unwrap();
    for (file, parts) in [
        ("missing.npy", &["rank 1: missing.npy", "No such file"][..]),
        ("folder.npy", &["folder.npy is no regular file", "expected a .npy file"]),
        ("cut.npy", &["cut.npy has 13 bytes", "announces 16", "truncated"]),
        ("long.npy", &["long.npy has 20 bytes", "announces 16", "damaged"]),
        ("header.npy", &["header of header.npy is damaged", "ends early"]),
        ("magic.npy", &["magic.npy is no .npy file", "numpy.save"]),
        ("empty.npy", &["empty.npy is no .npy file"]),
        ("none.npy", &["none.npy holds no entries"]),
        ("double.npy", &["double.npy holds float64 ('<f8')", "32-bit floats", "astype(numpy.float32)"]),
        ("half.npy", &["float16"]),
        ("int.npy", &["int32"]),
        ("fortran.npy", &["fortran.npy is in Fortran order", "ascontiguousarray"]),
        ("square.npy", &["good.npy has 4 entries of shape [4]", "square.npy has 4 of shape [2, 2]"]),
        ("dict.npy", &["header of dict.npy is damaged"]),
        ("negative.npy", &["header of negative.npy is damaged"]),
        ("deep.npy", &["header of deep.npy is damaged", "deep"]),
        ("five.npy", &["good.npy has 4 entries", "five.npy has 5"]),
        ("nan.npy", &["rank 1: nan.npy holds NaN at entry 2", "finite"]),
        ("infinite.npy", &["rank 1: infinite.npy holds -inf at entry 3"]),
    ] {
        let sentence = bench.refused(&format!("--method spardl --k 2 --out out good.npy {file}"), 1);
        assert!(sentence.starts_with("gleaner: ") && sentence.lines().count() == 1, "{sentence}");
        parts.iter().for_each(|part| assert!(sentence.contains(part), "{file}: {sentence}"));
        assert!(!bench.path("out").exists(), "{file}");
    }
    let sentence = bench.refused("--method ring --out out huge.npy huge.npy", 1);
    assert!(sentence.contains("not finite at entry") && sentence.contains("clip"), "{sentence}");
    assert!(!bench.path("out").exists());
}

/// In a build that checks arithmetic, the library that reads headers stops at these by itself.
#[cfg(not(debug_assertions))]
#[test]
fn headers_that_claim_too_much_do_no_harm() {
    let bench = Bench::new();
    bench.file("claims.npy", &npy("<f4", "False", "(4294967296, 4294967296, 3)", &[0; 16]));
    bench.file("wraps.npy", &npy("<f4", "False", "(4611686018427387904, 4)", b""));
    for file in ["claims.npy", "wraps.npy"] {
        let sentence = bench.refused(&format!("--method ring --out out {file}"), 1);
        assert!(sentence.contains("truncated"), "{sentence}");
    }
}

#[test]
fn bad_choices_are_refused_with_a_sentence() {
    let bench = Bench::new();
    bench.gradient("a.npy", &[1.0, 2.0, 3.0, 4.0]);
    for (choice, parts) in [
        ("--method spardl --density 0", &["the density is 0", "above 0 and at most 1"][..]),
        ("--method spardl --density 1.5", &["the density is 1.5"]),
        ("--method spardl --density -0.5", &["the density is -0.5"]),
        ("--method spardl --density NaN", &["the density is NaN"]),
        ("--method spardl --k 5", &["k is 5", "4 entries", "from 1 to 4"]),
        ("--method spardl --k 0", &["k is 0", "from 1 to 4"]),
        ("--method sparse", &["no method 'sparse'", "choose one of spardl, "]),
        ("--method ring --out a.npy", &["a.npy is no directory"]),
    ] {
        let out = if choice.contains("--out") { "" } else { "--out out" };
        // What lies at a path is not of the arguments alone.
        let code = if out.is_empty() { 1 } else { 2 };
        let sentence = bench.refused(&format!("{choice} {out} a.npy a.npy"), code);
        assert!(sentence.starts_with("gleaner: "), "{sentence}");
        parts.iter().for_each(|part| assert!(sentence.contains(part), "{choice}: {sentence}"));
        assert!(!bench.path("out").exists(), "{choice}");
    }
    // Without a name it is SparDL.
    assert_eq!(bench.json("--out named a.npy a.npy")["method"], "spardl");
    for (usage, part) in [
        ("--method spardl --out out", "<GRADIENT>"),
        ("--method spardl --density 0.1 --k 1 --out out a.npy", "cannot be used with"),
        ("--method spardl --density few --out out a.npy", "'few'"),
        ("--method spardl --k few --out out a.npy", "expected a whole number"),
        ("--method spardl --residual all --out out a.npy", "expected global, partial or local"),
    ] {
        let sentence = bench.refused(usage, 2);
        assert!(sentence.contains(part), "{usage}: {sentence}");
    }
}

#[test]
fn residuals_of_another_run_are_refused() {
    let bench = Bench::new();
    bench.gradient("a.npy", &[1.0, 2.0, 3.0, 4.0]);
    let two = "--method spardl --k 2 --residuals old --out out a.npy a.npy";
    let expect = |arguments: &str, parts: &[&str]| {
        let sentence = bench.refused(arguments, 1);
        parts.iter().for_each(|part| assert!(sentence.contains(part), "{sentence}"));
        assert!(!bench.path("out").exists());
    };
    expect(two, &["old/residual-0.npy does not exist", "residual-1.npy", "2 gradients"]);
    fs::create_dir(bench.path("old")).unwrap();
    bench.gradient("old/residual-0.npy", &[0.0; 4]);
    expect(two, &["old/residual-1.npy does not exist"]);
    bench.gradient("old/residual-1.npy", &[0.0; 5]);
    expect(two, &["old/residual-1.npy has 5 entries", "the gradients have 4"]);
    bench.gradient("old/residual-1.npy", &[0.0, f32::NAN, 0.0, 0.0]);
    expect(two, &["rank 1: old/residual-1.npy holds NaN at entry 1"]);
    bench.gradient("old/residual-1.npy", &[f32::MAX; 4]);
    bench.gradient("huge.npy", &[f32::MAX; 4]);
    expect(
        "--method spardl --k 2 --residuals old --out out a.npy huge.npy",
        &["rank 1 (huge.npy)", "sum of gradient and residual at entry 0"],
    );
    // What belongs to a third worker would never be delivered.
    bench.gradient("old/residual-1.npy", &[0.0; 4]);
    bench.gradient("old/residual-2.npy", &[0.0; 4]);
    expect(two, &["old/residual-2.npy belongs to another worker than the 2", "left behind"]);
    fs::remove_file(bench.path("old/residual-2.npy")).unwrap();
    bench.json(two);
}

#[test]
fn a_run_that_fails_leaves_the_earlier_results_whole() {
    let bench = Bench::new();
    bench.gradient("a.npy", &[1.0, 2.0, 3.0, 4.0]);
    bench.json("--method spardl --k 2 --out out a.npy");
    let before = fs::read(bench.path("out/residual-0.npy")).unwrap();
    fs::remove_file(bench.path("out/update.npy")).unwrap();
    fs::create_dir(bench.path("out/update.npy")).unwrap();
    let sentence = bench.refused("--method spardl --k 1 --out out a.npy", 1);
    assert!(sentence.contains("out/update.npy cannot be written"), "{sentence}");
    assert_eq!(fs::read(bench.path("out/residual-0.npy")).unwrap(), before);
    let names: Vec<_> = fs::read_dir(bench.path("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}
