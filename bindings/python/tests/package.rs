//! The Python package, with the native half that cargo has just built: its tests, file by file, under a Python of this machine.
//! Those of PyTorch or NumPy say SKIPPED where it has none.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
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

/// The package as it is installed, once for all tests.
fn package() -> Option<&'static (PathBuf, PathBuf)> {
    static PACKAGE: LazyLock<Option<(PathBuf, PathBuf)>> = LazyLock::new(|| {
        let python = python()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
        let package = folder.join("gleaner");
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        copy(&here().join("python/gleaner"), &package).unwrap();
        fs::copy(built().join("lib_native.so"), package.join("_native.abi3.so")).unwrap();
        Some((python, folder))
    });
    PACKAGE.as_ref()
}

/// What tests in Python lack, by words of what they say. The first that fits counts: Debian's PyTorch is there, and old.
const NEEDS: [(&str, &str); 7] = [
    ("PyTorch", "newer-torch"),
    ("torch", "torch"),
    ("NumPy", "numpy"),
    ("CUDA", "cuda"),
    ("Open MPI", "open-mpi"),
    ("by root", "root"),
    ("Slurm", "slurm"),
];

/// What a test that says this lacks, in words that `GLEANER_REQUIRE` may name.
fn needs(why: &str) -> Vec<&str> {
    if let Some((modules, _)) = why.split_once(" cannot be imported") {
        return modules.split(", ").collect();
    }
    if let Some(module) = why.strip_prefix("No module named '") {
        return module.split(['.', '\'']).take(1).collect();
    }
    let found = NEEDS.iter().find(|(words, _)| why.contains(*words));
    vec![found.map_or("python-packages", |(_, need)| *need)]
}

#[test]
fn a_skip_is_for_lack_of_what_its_words_name() {
    for (why, expected) in [
        ("No module named 'torch", "torch"),
        ("No module named 'torch.distributed.run'", "torch"),
        ("cannot import name 'group' from 'torch.distributed", "torch"),
        ("it needs PyTorch 2.6, and this is 1.13.1", "newer-torch"),
        ("the torchrun of PyTorch 1.13.1 fails under Python 3.11 and later", "newer-torch"),
        ("lightning cannot be imported: ModuleNotFoundError: No module named 'lightning", "lightning"),
        ("numpy, torch cannot be imported here", "numpy torch"),
        ("NumPy is not installed", "numpy"),
        ("no CUDA device is here", "cuda"),
        ("Open MPI's mpirun is not installed", "open-mpi"),
        ("Slurm's srun is not installed", "slurm"),
        ("a Slurm cluster is started by root", "root"),
        ("the command gleaner is not beside this Python", "python-packages"),
    ] {
        assert_eq!(needs(why).join(" "), expected, "{why}");
    }
}

/// Runs the tests of one file.
fn run(file: &str) {
    let Some((python, folder)) = package() else {
        gleaner_skips::skip("python", "there is no Python of 3.10 or later");
        return;
    };
    let paths = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    let commands = built().parent().unwrap().to_owned();
    let path = env::join_paths([commands].into_iter().chain(paths)).unwrap();
    let mut command = Command::new(python);
    command
        .args(["-W", "ignore", "-m", "unittest", "discover", "--verbose", "--start-directory"])
        .arg(here().join("tests"))
        .args(["--pattern", &format!("test_{file}.py")])
        .env("PYTHONPATH", folder)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PATH", path);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{}{said}", String::from_utf8_lossy(&output.stdout));
    for (_, why) in said.lines().filter_map(|line| line.split_once("SKIPPED: ")) {
        let why = why.trim_end_matches(['\'', '"']);
        needs(why).into_iter().for_each(|need| gleaner_skips::skip(need, why));
    }
    assert!(output.status.success(), "{}", output.status);
    assert!(!said.contains("Ran 0 tests"), "test_{file}.py has no test");
}

/// A test for each file of tests in Python.
macro_rules! files {
    ($($file:ident)*) => {
        $(#[test]
        fn $file() {
            run(stringify!($file));
        })*

        #[test]
        fn every_file_is_listed() {
            let names = fs::read_dir(here().join("tests")).unwrap().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap());
            let file = |name: String| Some(name.strip_prefix("test_")?.strip_suffix(".py")?.to_owned());
            let mut found: Vec<String> = names.filter_map(file).collect();
            found.sort();
            assert_eq!(found, [$(stringify!($file)),*]);
        }
    };
}

files! { backend bad_input cuda ddp dlpack examples hook numpy pages sgd starting synchronizer together }
