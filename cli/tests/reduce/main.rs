//! `gleaner reduce` as its users see it: the real command on real files.
//!
//! Files are written and read by a few lines of this test, not by the library that the command uses.

#![allow(clippy::unwrap_used)]

mod refused;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gleaner_statistics::random::Generator;
use serde_json::Value;
use tempfile::TempDir;

/// A `.npy` file, version 1.0.
fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

fn little(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The shape as text, and the values.
fn read(path: &Path) -> (String, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let start = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    assert!(header.contains("'descr': '<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split("'shape': ").nth(1).unwrap().split(')').next().unwrap();
    let shape = shape.chars().filter(|c| c.is_ascii_digit() || *c == ',').collect::<String>();
    let values = bytes[start..].chunks(4).map(|w| f32::from_le_bytes(w.try_into().unwrap()));
    (shape.trim_end_matches(',').into(), values.collect())
}

struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn gradient(&self, name: &str, values: &[f32]) {
        self.file(name, &npy("<f4", "False", &format!("({},)", values.len()), &little(values)));
    }

    fn run(&self, arguments: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gleaner"))
            .current_dir(self.folder.path())
            .arg("reduce")
            .args(arguments.split_whitespace())
            .output()
            .unwrap()
    }

    fn json(&self, arguments: &str) -> Value {
        let output = self.run(&format!("{arguments} --json"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs into an error of this exit code, and returns the sentence.
    fn refused(&self, arguments: &str, code: i32) -> String {
        let output = self.run(arguments);
        let sentence = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments}: {sentence}");
        assert!(output.stdout.is_empty());
        sentence
    }

    fn values(&self, name: &str) -> Vec<f32> {
        read(&self.path(name)).1
    }
}

/// Random numbers in [-1, 1).
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut generator = Generator::seeded(seed);
    (0..n).map(|_| generator.symmetric()).collect()
}

#[test]
fn two_workers_by_hand() {
    let bench = Bench::new();
    bench.gradient("a.npy", &[6.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 1.0]);
    bench.gradient("b.npy", &[1.0, 4.0, 0.0, 0.0, 0.0, 0.0, 3.0, 1.0]);
    // Rank 0 sends entry 4, rank 1 sends entry 1; the largest sums are 6 at 0 and 3 at 6.
    let report = bench.json("--method spardl --k 2 --out out a.npy b.npy");
    let expected = serde_json::json!({
        "method": "spardl", "workers": 2, "params": 8, "k": 2, "rounds": 2, "messages": 2,
        "words_received": 4, "words_critical": 4, "entries_received": 2, "payload_bytes_per_step": 32,
        "entries_per_step": 2, "lost": 0.0,
    });
    assert_eq!(report, expected);
    assert_eq!(bench.values("out/update.npy"), [3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.5, 0.0]);
    assert_eq!(bench.values("out/residual-0.npy"), [0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 1.0]);
    assert_eq!(bench.values("out/residual-1.npy"), [1.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);

    // Nothing new: what was held back goes out.
    bench.gradient("zero.npy", &[0.0; 8]);
    bench.json("--method spardl --k 2 --residuals out --out out zero.npy zero.npy");
    assert_eq!(bench.values("out/update.npy"), [0.0, 2.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(bench.values("out/residual-0.npy"), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(bench.values("out/residual-1.npy"), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}

/// All methods, as the command itself lists them.
fn methods(bench: &Bench) -> Vec<String> {
    bench.gradient("one.npy", &[1.0]);
    let sentence = bench.refused("--method none-such --out out one.npy", 2);
    let names = sentence.split("choose one of ").nth(1).unwrap().trim().split(", ").map(str::to_owned);
    let names: Vec<String> = names.filter(|name| name != "auto").collect();
    assert!(names.len() >= 11 && names.contains(&"spardl".into()), "{sentence}");
    names
}

/// Three steps, the later ones with the residuals of those before; gives the last report. Entry by entry, gradients and old
/// residuals are what is delivered and what is kept.
fn nothing_is_lost(bench: &Bench, choice: &str, workers: usize) -> Value {
    let (n, mut old, mut last) = (300, vec![vec![0.0f32; 300]; workers], Value::Null);
    for step in 0..3 {
        let (mut brought, mut size) = (vec![0.0f64; n], vec![0.0f64; n]);
        let mut count = |values: &[f32], sign: f64| {
            for (i, v) in values.iter().enumerate() {
                brought[i] += sign * f64::from(*v);
                size[i] += f64::from(v.abs());
            }
        };
        old.iter().for_each(|residual| count(residual, 1.0));
        let names: Vec<String> = (0..workers).map(|w| format!("g{w}.npy")).collect();
        for (w, name) in names.iter().enumerate() {
            let gradient = noise(100 * step + w as u64, n);
            bench.file(name, &npy("<f4", "False", "(3, 10, 10)", &little(&gradient)));
            count(&gradient, 1.0);
        }
        let again = if step > 0 { "--residuals out" } else { "" };
        let report = bench.json(&format!("{choice} {again} --out out {}", names.join(" ")));
        assert_eq!(report["lost"], 0.0, "{choice}");
        let (shape, update) = read(&bench.path("out/update.npy"));
        assert_eq!(shape, "3,10,10");
        (0..workers).for_each(|_| count(&update, -1.0));
        for (w, old) in old.iter_mut().enumerate() {
            let (shape, residual) = read(&bench.path(&format!("out/residual-{w}.npy")));
            assert_eq!(shape, "3,10,10");
            count(&residual, -1.0);
            *old = residual;
        }
        for i in 0..n {
            assert!(brought[i].abs() <= 1e-5 * size[i], "{choice}, P {workers}, entry {i}: {}", brought[i]);
        }
        let delivered = update.iter().filter(|v| **v != 0.0).count();
        assert!(delivered > 0, "{choice}");
        assert_eq!(report["entries_per_step"], delivered, "{choice}");
        last = report;
    }
    fs::remove_dir_all(bench.path("out")).unwrap();
    last
}

#[test]
fn nothing_is_lost_over_several_steps_for_every_method_and_number_of_workers() {
    let bench = Bench::new();
    for method in methods(&bench) {
        for workers in [1, 2, 3, 6] {
            let choice = format!("--method {method} --density 0.1");
            let report = nothing_is_lost(&bench, &choice, workers);
            assert_eq!(report["method"], method.as_str());
            let dense = report["k"] == 300;
            assert!(dense || report["k"] == 30, "{report}");
            if dense || method == "spardl" {
                assert_eq!(report["entries_per_step"], report["k"], "{method}");
            }
            for values in ["bf16", "qsgd4"] {
                let choice = format!("{choice} --values {values}");
                if dense {
                    let sentence = bench.refused(&format!("{choice} --out out g0.npy"), 2);
                    assert!(sentence.contains("sends values as they are"), "{sentence}");
                } else {
                    let bytes = nothing_is_lost(&bench, &choice, workers)["payload_bytes_per_step"].as_u64();
                    // Elsewhere rounding changes how many entries come.
                    if method == "spardl" && workers > 1 {
                        assert!(bytes < report["payload_bytes_per_step"].as_u64(), "{choice}");
                    }
                }
            }
            if !dense && method != "spardl" {
                let sentence = bench.refused(&format!("{choice} --teams 2 --out out g0.npy g0.npy"), 2);
                assert!(sentence.contains("only spardl has teams"), "{sentence}");
            }
        }
    }
}

#[test]
fn nothing_is_lost_with_teams_either() {
    let bench = Bench::new();
    for (workers, teams, sag) in
        [(2, 2, "auto"), (6, 2, "recursive"), (6, 2, "bruck"), (6, 3, "auto"), (6, 6, "bruck")]
    {
        for values in ["exact", "bf16", "qsgd4"] {
            let choice =
                format!("--method spardl --density 0.1 --teams {teams} --sag {sag} --values {values}");
            let report = nothing_is_lost(&bench, &choice, workers);
            let levels = |x: u32| x.next_power_of_two().ilog2();
            assert_eq!(report["rounds"], 2 * levels(workers as u32 / teams) + levels(teams), "{choice}");
        }
    }
    let sentence = bench.refused("--method spardl --teams 4 --out out g0.npy g0.npy g0.npy", 2);
    assert!(sentence.contains("choose 1 or 3"), "{sentence}");
    let sentence = bench.refused("--method auto --out out g0.npy g0.npy", 2);
    assert!(sentence.contains("name a method"), "{sentence}");
}

/// What `memory.json` holds: the steps, and the numbers that all workers agree on.
fn learnt(bench: &Bench) -> (u64, Vec<f64>) {
    let learnt: Value = serde_json::from_slice(&fs::read(bench.path("out/memory.json")).unwrap()).unwrap();
    let agreed = learnt["agreed"].as_array().unwrap().iter();
    (learnt["steps"].as_u64().unwrap(), agreed.map(|bits| f64::from_bits(bits.as_u64().unwrap())).collect())
}

/// B-SAG's h by Algorithm 2, by hand: with k = 60, six workers and three teams it starts at k/P = 10 with a step of
/// 0.01 · 60 · 2/6 = 0.2. Where all workers choose the same there is room in every step, so it grows, and the step, from
/// then on at least 1, is doubled every other time.
#[test]
fn what_was_learnt_is_carried_from_call_to_call() {
    let bench = Bench::new();
    bench.gradient("a.npy", &noise(1, 600));
    let call = |residuals: &str| {
        let files = "a.npy ".repeat(6);
        bench.json(&format!("--method spardl --teams 3 --k 60 {residuals} --out out {files}"));
    };
    let mut expected = 10.0;
    for (step, by) in [0.2, 2.0, 2.0, 4.0, 4.0].into_iter().enumerate() {
        call(if step == 0 { "" } else { "--residuals out" });
        expected += by;
        let (steps, agreed) = learnt(&bench);
        assert_eq!(steps, step as u64 + 1);
        assert!((agreed[0] - expected).abs() < 1e-12, "step {step}: h is {}, expected {expected}", agreed[0]);
    }
    // Without what was learnt it starts again.
    fs::remove_file(bench.path("out/memory.json")).unwrap();
    call("--residuals out");
    let (steps, agreed) = learnt(&bench);
    assert!(steps == 1 && (agreed[0] - 10.2).abs() < 1e-12, "{steps} steps, h is {}", agreed[0]);
}

/// Ok-Topk finds its thresholds exactly in the first call, and the next one selects by them: whatever reaches them. Without
/// what was learnt it would be a first step again, which delivers k.
#[test]
fn oktopk_goes_on_with_its_thresholds_in_the_next_call() {
    let bench = Bench::new();
    (0..4).for_each(|w| bench.gradient(&format!("{w}.npy"), &noise(w, 4000)));
    let call = |folders: &str| {
        bench.json(&format!("--method oktopk --k 100 {folders} 0.npy 1.npy 2.npy 3.npy"))["entries_per_step"]
            .as_u64()
            .unwrap()
    };
    let smallest = |folder: &str| {
        let values = bench.values(&format!("{folder}/update.npy"));
        values.into_iter().filter(|v| *v != 0.0).map(|v| 4.0 * v.abs()).fold(f32::MAX, f32::min)
    };
    assert_eq!(call("--out out"), 100);
    let threshold = learnt(&bench).1[0];
    assert_eq!(threshold, f64::from(smallest("out")), "the threshold of the sums");
    // The residuals have grown, so more than k reach it.
    assert!(call("--residuals out --out next") > 100);
    assert!(f64::from(smallest("next")) >= threshold);
    fs::remove_file(bench.path("out/memory.json")).unwrap();
    assert_eq!(call("--residuals out --out again"), 100);
}

#[test]
fn what_another_run_has_learnt_is_refused() {
    let bench = Bench::new();
    bench.gradient("a.npy", &noise(1, 60));
    bench.json("--method oktopk --k 6 --out old a.npy a.npy");
    let memory = fs::read_to_string(bench.path("old/memory.json")).unwrap();
    // One team learns nothing, two learn h.
    let of_spardl = r#"{"method":"spardl","steps":1,"agreed":[],"own":[[],[]]}"#;
    let nan = memory.replacen("\"agreed\":[", &format!("\"agreed\":[{},", f64::NAN.to_bits()), 1);
    bench.gradient("old/residual-2.npy", &[0.0; 60]);
    for (text, method, files, parts) in [
        (
            &memory[..],
            "spardl --teams 2 --sag bruck",
            2,
            &["old/memory.json", "what oktopk has learnt", "remove it"][..],
        ),
        (of_spardl, "spardl --teams 2 --sag bruck", 2, &["old/memory.json", "remove it"]),
        (&memory, "oktopk", 3, &["old/memory.json", "of 2 workers, and there are 3"]),
        ("{", "oktopk", 2, &["old/memory.json", "an earlier step"]),
        (&nan, "oktopk", 2, &["old/memory.json", "NaN or infinity"]),
    ] {
        bench.file("old/memory.json", text.as_bytes());
        if files == 2 {
            let _ = fs::remove_file(bench.path("old/residual-2.npy"));
        } else {
            bench.gradient("old/residual-2.npy", &[0.0; 60]);
        }
        let files = "a.npy ".repeat(files);
        let sentence =
            bench.refused(&format!("--method {method} --k 6 --residuals old --out out {files}"), 1);
        parts.iter().for_each(|part| assert!(sentence.contains(part), "{sentence}"));
        assert!(!bench.path("out").exists());
    }
}

/// SparDL, equation 3: 4k(P−1)/P words, and 2⌈log2 P⌉ rounds. A dense ring: 2n(P−1)/P words in 2(P−1) rounds.
#[test]
fn costs_are_the_papers() {
    let (bench, n, k) = (Bench::new(), 4000, 400);
    let files: Vec<String> = (0..8).map(|w| format!("{w}.npy")).collect();
    files.iter().enumerate().for_each(|(w, f)| bench.gradient(f, &noise(w as u64, n)));
    for p in [4, 5, 8] {
        let files = files[..p].join(" ");
        let report = bench.json(&format!("--method spardl --k {k} --out out {files}"));
        assert_eq!(report["rounds"], 2 * p.next_power_of_two().ilog2());
        assert_eq!(report["words_received"], 4 * k * (p - 1) / p);
        assert_eq!(report["words_critical"], 4 * k * (p - 1) / p);
        assert_eq!(report["entries_received"], 2 * k * (p - 1) / p);
        // A value takes four bytes, an index four at most, and before each of the 2(P−1) blocks that come stand 8 or 12.
        let (entries, blocks) = (2 * k * (p - 1) / p, 2 * (p - 1));
        let bytes = report["payload_bytes_per_step"].as_u64().unwrap() as usize;
        assert!((4 * entries + 8 * blocks..=8 * entries + 12 * blocks).contains(&bytes), "P {p}: {bytes}");
        let report = bench.json(&format!("--method ring --out out {files}"));
        assert_eq!(report["rounds"], 2 * (p - 1));
        assert_eq!(report["words_received"], 2 * n * (p - 1) / p);
        assert_eq!(report["entries_received"], 2 * n * (p - 1) / p);
        assert_eq!(report["payload_bytes_per_step"], 4 * 2 * n * (p - 1) / p + 8 * 2 * (p - 1));
    }
}

#[test]
fn what_is_lost_on_request_is_reported() {
    let bench = Bench::new();
    // Partial collection loses something only where sums of several workers are dropped in the end: not with all gradients.
    let lost = |residual: &str| -> f64 {
        let of_step = |step: u64| {
            let files: Vec<String> = (0..4).map(|w| format!("{w}.npy")).collect();
            files.iter().zip(4 * step..).for_each(|(f, seed)| bench.gradient(f, &noise(seed, 1000)));
            let arguments =
                format!("--method spardl --density 0.05 --residual {residual} --out out {}", files.join(" "));
            bench.json(&arguments)["lost"].as_f64().unwrap()
        };
        (0..8).map(of_step).sum()
    };
    assert_eq!(lost("global"), 0.0);
    assert!(0.0 < lost("partial") && lost("partial") < lost("local"));
}

#[test]
fn big_endian_floats_and_scalars_are_read() {
    let bench = Bench::new();
    let big: Vec<u8> = [1.0f32, -2.0].iter().flat_map(|v| v.to_be_bytes()).collect();
    bench.file("a.npy", &npy(">f4", "False", "(2,)", &big));
    // With one axis, Fortran order is C order.
    bench.file("b.npy", &npy("<f4", "True", "(2,)", &little(&[3.0, 4.0])));
    bench.json("--method ring --out out a.npy b.npy");
    assert_eq!(bench.values("out/update.npy"), [2.0, 1.0]);
    bench.file("c.npy", &npy("<f4", "False", "()", &little(&[5.0])));
    bench.json("--method spardl --k 1 --out out c.npy");
    assert_eq!(read(&bench.path("out/update.npy")), (String::new(), vec![5.0]));
}

#[test]
fn the_table_is_readable() {
    let bench = Bench::new();
    bench.gradient("a.npy", &noise(1, 12345));
    let output = bench.run("--method spardl --density 0.01 --out out a.npy a.npy");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("spardl among 2 workers: n = 12_345, k = 123\n"), "{text}");
    assert!(text.contains("The mean is in out/update.npy"), "{text}");
    let help = String::from_utf8(bench.run("--help").stdout).unwrap();
    assert!(help.contains("Example") && help.contains("recursive-doubling"), "{help}");
}
