//! Emulated machines that are wired to each other.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use tempfile::TempDir;

use crate::lacks::can_be_here;

/// Lets one test have the processors.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its standard error.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// So many machines that run one script, the first wired to all others.
pub struct Machines {
    place: TempDir,
    count: usize,
}

impl Machines {
    pub fn new(count: usize, script: &str) -> Self {
        let machines = Self { place: tempfile::tempdir().unwrap(), count };
        (0..count).for_each(|number| fs::create_dir(machines.share(number)).unwrap());
        fs::write(machines.path("script"), script).unwrap();
        let mut options = fs::OpenOptions::new();
        let mut secret =
            options.write(true).create_new(true).mode(0o600).open(machines.path("secret")).unwrap();
        secret.write_all("5c".repeat(32).as_bytes()).unwrap();
        machines
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The folder that one of them writes.
    pub fn share(&self, number: usize) -> PathBuf {
        self.path(&format!("machine-{number}"))
    }

    /// Runs the script in all of them at once, with these words. None, and a line that says why, where there can be no such
    /// machine.
    pub fn run(&self, words: &[&str]) -> Option<Vec<Output>> {
        let children: Vec<_> = (0..self.count)
            .map(|number| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_gleaner"));
                command.args(["testbed", "vm", "--limit", "15m", "--memory", "1536", "--share"]);
                command.arg(self.share(number)).current_dir(self.share(number));
                for (ours, theirs) in self.wires(number) {
                    let path = |name: String| self.path(&name).display().to_string();
                    command.arg("--wire").arg(format!("{}:{}", path(ours), path(theirs)));
                }
                command.env("RANK", number.to_string()).env("MACHINES", self.count.to_string());
                command.env("SECRET", self.path("secret"));
                command.args(["--", "bash"]).arg(self.path("script")).args(words);
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        // All are read at once: one that is not read would wait, and the others for it.
        let waits: Vec<_> =
            children.into_iter().map(|child| thread::spawn(|| child.wait_with_output().unwrap())).collect();
        let outputs: Vec<_> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
        let are_here = outputs.iter().all(|output| can_be_here(output.status.code(), &said(output)));
        are_here.then_some(outputs)
    }

    /// The wires of one: sockets of its own, and of the machine at the other end.
    fn wires(&self, number: usize) -> Vec<(String, String)> {
        let wire = |from: usize, to: usize| (format!("wire-{from}-{to}"), format!("wire-{to}-{from}"));
        match number {
            0 => (1..self.count).map(|other| wire(0, other)).collect(),
            _ => vec![wire(number, 0)],
        }
    }
}
