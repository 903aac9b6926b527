//! The Python package, with the native half that cargo has just built: its tests, under a Python of this machine. Those of PyTorch
//! or NumPy say SKIPPED where it has none.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, io};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the library, beside this test, and the command, above it.
fn built() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn says(python: &Path, program: &str) -> Option<Output> {
    Command::new(python).args(["-c", program]).output().ok().filter(|output| output.status.success())
}

/// Of the machine's Pythons the one with most of what the tests are about; none before 3.10.
fn python() -> Option<PathBuf> {
    let given = env::var_os("GLEANER_PYTHON").map(PathBuf::from);
    let candidates = match given {
        Some(given) => vec![given],
        None => vec!["python3".into(), "/usr/bin/python3".into()],
    };
    let modern = candidates
        .into_iter()
        .filter(|python| says(python, "import sys; assert sys.version_info >= (3, 10)").is_some());
    let worth = |python: &PathBuf| {
        ["numpy", "torch"].iter().filter(|name| says(python, &format!("import {name}")).is_some()).count()
    };
    modern.rev().max_by_key(worth)
}

fn copy(from: &Path, into: &Path) -> io::Result<()> {
    fs::create_dir_all(into)?;
    for entry in fs::read_dir(from)? {
        let (path, to) = (entry.as_ref().unwrap().path(), into.join(entry.unwrap().file_name()));
        if !path.is_dir() {
            fs::copy(&path, &to)?;
        } else if !path.ends_with("__pycache__") {
            copy(&path, &to)?;
        }
    }
    Ok(())
}

#[test]
fn tests_in_python() {
    let Some(python) = python() else {
        gleaner_skips::skip("python", "there is no Python of 3.10 or later");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("gleaner");
    copy(&here().join("python/gleaner"), &package).unwrap();
    fs::copy(built().join("lib_native.so"), package.join("_native.abi3.so")).unwrap();
    let paths = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    let commands = built().parent().unwrap().to_owned();
    let path = env::join_paths([commands].into_iter().chain(paths)).unwrap();
    let mut command = Command::new(&python);
    command
        .args(["-W", "ignore", "-m", "unittest", "discover", "--verbose", "--start-directory"])
        .arg(here().join("tests"))
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PATH", path);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{}{said}", String::from_utf8_lossy(&output.stdout));
    for (_, why) in said.lines().filter_map(|line| line.split_once("SKIPPED: ")) {
        gleaner_skips::skip("python-packages", why.trim_end_matches(['\'', '"']));
    }
    assert!(output.status.success(), "{}", output.status);
}
