//! The library as C programs have it: installed, found by pkg-config, compiled with all warnings as errors, linked dynamically and
//! statically, and under AddressSanitizer. Cargo builds it for this test, with what the workspace has built.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::{env, fs};

use gleaner_transport::Secret;
use tempfile::TempDir;

/// What is compiled, and with what else.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
const SANITIZER: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder where `bindings/c/install` has put the library, for all tests; nothing where there is no C compiler or pkg-config.
fn installed() -> Option<&'static Path> {
    static INSTALLED: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        for program in ["cc", "pkg-config"] {
            let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
            if !found.is_ok_and(|status| status.success()) {
                gleaner_skips::skip(program, format!("there is no {program}"));
                return None;
            }
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-library");
        // An earlier one would hide what is not installed any more.
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        // Cargo has put the library beside this test.
        let built = env::current_exe().unwrap().parent().unwrap().to_owned();
        succeed(Command::new(here().join("install")).arg(&folder).arg(built));
        Some(folder)
    });
    INSTALLED.as_deref()
}

/// What a command printed, which has to succeed.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// What pkg-config says.
fn flags(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(arguments).arg("gleaner");
    succeed(&mut command).split_whitespace().map(str::to_owned).collect()
}

/// The book's page on C.
fn page() -> String {
    fs::read_to_string(here().join("../../docs/src/guide/c.md")).unwrap()
}

/// A compiled program, in a folder of its own.
struct Program {
    folder: TempDir,
    library: PathBuf,
}

impl Program {
    fn dynamic(source: &str, prefix: &Path, more: &[&str]) -> Self {
        Self::compile(&here().join(source), prefix, &flags(prefix, &["--cflags", "--libs"]), more)
    }

    fn compile(source: &Path, prefix: &Path, flags: &[String], more: &[&str]) -> Self {
        let program = Self { folder: tempfile::tempdir().unwrap(), library: prefix.join("lib") };
        let mut command = Command::new("cc");
        command
            .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-g", "-pthread"])
            .args(WARNINGS)
            .args(more);
        command.arg(source).args(flags).arg("-lm").arg("-o").arg(program.path());
        succeed(&mut command);
        program
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("program")
    }

    /// Runs it on this many workers, and gives what each printed.
    fn run(&self, workers: u32, arguments: &[&str]) -> Vec<String> {
        let secret = self.folder.path().join("job.secret");
        fs::write(&secret, Secret::random().unwrap().to_hex()).unwrap();
        fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let port = free_port();
        let start = |rank: u32| -> Child {
            // One that hangs fails the test, and does not hold it up.
            let mut command = Command::new("timeout");
            command
                .args(["--signal=KILL", "60"])
                .arg(self.path())
                .args(arguments)
                .env("LD_LIBRARY_PATH", &self.library)
                .env("GLEANER_RANK", rank.to_string())
                .env("GLEANER_WORLD_SIZE", workers.to_string())
                .env("GLEANER_RENDEZVOUS", format!("127.0.0.1:{port}"))
                .env("GLEANER_SECRET_FILE", &secret)
                .env("GLEANER_JOB", "example")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let ranks: Vec<Child> = (0..workers).map(start).collect();
        // All of them first: a rank that fails a test must not leave the others behind.
        let outputs: Vec<Output> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
        let printed = |(rank, output): (usize, &Output)| {
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "rank {rank} of {workers}: {} {printed}{said}", output.status);
            printed
        };
        outputs.iter().enumerate().map(printed).collect()
    }

    fn train(&self) {
        for workers in [1, 3] {
            let printed = self.run(workers, &[]);
            let line = format!("after 600 steps of {workers} ranks");
            assert!(printed[0].contains(&line), "{printed:?}");
        }
    }
}

/// A port below the ephemeral ones, which outgoing connections never take, tried out before it is used.
fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id() as u16).wrapping_mul(89).wrapping_add(offset) % 10_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[test]
fn the_example_trains() {
    let Some(prefix) = installed() else { return };
    Program::dynamic("examples/train.c", prefix, &[]).train();
}

/// What the book has readers save and compile prints what it says.
#[test]
fn the_program_of_the_book_finds_its_line() {
    let Some(prefix) = installed() else { return };
    let page = page();
    let (_, rest) = page.split_once("```c\n").unwrap();
    let (program, rest) = rest.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("line.c");
    fs::write(&source, program).unwrap();
    let program = Program::compile(&source, prefix, &flags(prefix, &["--cflags", "--libs"]), &[]);
    for workers in [1, 4] {
        for printed in program.run(workers, &[]) {
            assert!(rest.contains(&printed), "{printed} is not on the page");
        }
    }
}

#[test]
fn the_example_trains_when_it_is_linked_statically() {
    let Some(prefix) = installed() else { return };
    let mut flags = flags(prefix, &["--cflags", "--static", "--libs"]);
    let library = flags.iter_mut().find(|flag| *flag == "-lgleaner").unwrap();
    *library = "-l:libgleaner.a".into();
    let program = Program::compile(&here().join("examples/train.c"), prefix, &flags, &[]);
    // It needs no library beside it.
    Program { library: PathBuf::new(), ..program }.train();
}

#[test]
fn the_example_is_clean_under_address_sanitizer() {
    let Some(prefix) = installed() else { return };
    Program::dynamic("examples/train.c", prefix, &SANITIZER).train();
}

/// A program asks the loader for the library by its SONAME, so that another major version beside it changes nothing.
#[test]
fn programs_ask_for_the_soname() {
    let Some(prefix) = installed() else { return };
    let library = prefix.join("lib");
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    let program = Program::dynamic("examples/train.c", prefix, &[]);
    let bytes = fs::read(program.path()).unwrap();
    let asked = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
    assert!(asked(&format!("\0libgleaner.so.{major}\0")) && !asked("\0libgleaner_c.so\0"));
    let file = format!("libgleaner.so.{}", env!("CARGO_PKG_VERSION"));
    for link in ["libgleaner.so".to_owned(), format!("libgleaner.so.{major}")] {
        assert!(page().contains(&format!("`{link}`")), "{link} is not on the page");
        assert_eq!(library.join(link).canonicalize().unwrap(), library.canonicalize().unwrap().join(&file));
    }
    assert!(page().contains(&format!("`{file}`")), "{file} is not on the page");
}

/// Whatever a caller passes that cannot be gets a code and a sentence, and nothing is read that was freed.
#[test]
fn what_cannot_be_has_a_sentence() {
    let Some(prefix) = installed() else { return };
    Program::dynamic("tests/refused.c", prefix, &SANITIZER).run(1, &[]);
}

/// Momentum counts how long entries have waited, and sentences say what they wait too long for.
#[test]
fn entries_that_come_late_are_stepped_and_found() {
    let Some(prefix) = installed() else { return };
    Program::dynamic("tests/late.c", prefix, &SANITIZER).run(1, &[]);
}

#[test]
fn what_goes_wrong_between_ranks_has_a_sentence_on_each() {
    let Some(prefix) = installed() else { return };
    let program = Program::dynamic("tests/ranks.c", prefix, &[]);
    for (case, words) in [
        ("layouts", "it has 5 entries in all, rank 0 has 4"),
        ("lengths", "it has reducer 'mean' with 2 entries, rank 0 has"),
        ("methods", "bf16 values"),
        ("aborts", "the disk is full"),
        ("returns", "its connection closed without a leave message"),
    ] {
        let printed = program.run(2, &[case]);
        // The rank that returns has nothing to say.
        let expected_here = if case == "returns" { &printed[..1] } else { &printed[..] };
        for printed in expected_here {
            assert!(printed.contains("rank 1 failed: ") && printed.contains(words), "{case}: {printed}");
        }
    }
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
    assert!(functions.len() > 10 && functions.len() <= 21, "{functions:?}");
    for function in &functions {
        assert!(header.contains(&format!("{function}(")), "{function} is not in gleaner.h");
    }
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let declared: usize =
        code.map(|line| line.matches("gleaner_").filter(|_| line.contains('(')).count().min(1)).sum();
    assert_eq!(declared, functions.len(), "{header}");
}
