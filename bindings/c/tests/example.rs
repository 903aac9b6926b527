//! The example in C, as its first lines say that it is built: with all warnings as errors, and under AddressSanitizer.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

use gleaner_transport::Secret;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the library: beside this test.
fn built() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIPPED: there is no C compiler");
    }
    found
}

/// Compiles a program, with these flags besides.
fn compile(source: &Path, program: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]).args(flags);
    command.arg("-I").arg(here().join("include")).arg(source).arg("-o").arg(program);
    command.arg("-L").arg(built()).args(["-lgleaner_c", "-lm"]);
    command.output().unwrap()
}

/// A worker of a job, as it is started by hand.
fn worker(program: &Path, rank: u32, workers: u32, secret: &Path, rendezvous: &str) -> Child {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", built())
        .env("GLEANER_RANK", rank.to_string())
        .env("GLEANER_WORLD_SIZE", workers.to_string())
        .env("GLEANER_RENDEZVOUS", rendezvous)
        .env("GLEANER_SECRET_FILE", secret)
        .env("GLEANER_JOB", "example")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs a program on so many workers, and gives what rank 0 printed.
fn run(program: &Path, workers: u32, folder: &Path) -> String {
    let secret = folder.join("job.secret");
    fs::write(&secret, Secret::random().unwrap().to_hex()).unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rendezvous = format!("127.0.0.1:{port}");
    let ranks: Vec<Child> =
        (0..workers).map(|rank| worker(program, rank, workers, &secret, &rendezvous)).collect();
    let outputs: Vec<Output> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    for (rank, output) in outputs.iter().enumerate() {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rank {rank} of {workers}: {} {said}", output.status);
    }
    String::from_utf8_lossy(&outputs[0].stdout).into_owned()
}

fn example_with(flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("train");
    let compiled = compile(&here().join("examples/train.c"), &program, flags);
    let said = String::from_utf8_lossy(&compiled.stderr);
    if !compiled.status.success() && !flags.is_empty() && (said.contains("asan") || said.contains("sanitize"))
    {
        println!("SKIPPED: the C compiler has no AddressSanitizer: {said}");
        return;
    }
    assert!(compiled.status.success(), "{said}");
    for workers in [1, 3] {
        let line = run(&program, workers, folder.path());
        assert!(line.contains(&format!("after 600 steps of {workers} ranks")), "{line}");
    }
}

#[test]
fn the_example_trains() {
    if has_compiler() {
        example_with(&[]);
    }
}

#[test]
fn the_example_is_clean_under_address_sanitizer() {
    if has_compiler() {
        example_with(&["-fsanitize=address", "-fno-omit-frame-pointer"]);
    }
}

/// Whatever a caller passes that cannot be gets a code and a sentence.
#[test]
fn what_cannot_be_has_a_sentence() {
    if !has_compiler() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("refused");
    let compiled = compile(&here().join("tests/refused.c"), &program, &[]);
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).env("LD_LIBRARY_PATH", built()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// The header has the functions of the code, and no others; and there are few.
#[test]
fn the_header_has_all_functions() {
    let header = fs::read_to_string(here().join("include/gleaner.h")).unwrap();
    let mut functions = Vec::new();
    for entry in fs::read_dir(here().join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let named = text.split("extern \"C\" fn ").skip(1);
        functions.extend(named.map(|rest| rest.split('(').next().unwrap().to_owned()));
    }
    assert!(functions.len() > 10 && functions.len() <= 20, "{functions:?}");
    for function in &functions {
        assert!(header.contains(&format!("{function}(")), "{function} is not in gleaner.h");
    }
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let declared: usize =
        code.map(|line| line.matches("gleaner_").filter(|_| line.contains('(')).count().min(1)).sum();
    assert_eq!(declared, functions.len(), "{header}");
}
