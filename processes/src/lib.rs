//! The processes of this machine, as the kernel lists them in `/proc`: what they were started with, and how they are ended.

mod ending;

use std::fs;
use std::path::PathBuf;

use rustix::process::Pid;

pub use ending::end;

/// A process that ran when it was looked for or named; what is asked of one that has ended by then is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process(Pid);

/// All processes of this machine that this one may see.
pub fn all() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?).map(Process))
}

/// Those that have all these entries, such as `NAME=value`, in their environment.
pub fn with_environment<S: AsRef<[u8]>>(wanted: &[S]) -> impl Iterator<Item = Process> {
    let has = |environment: &[Vec<u8>], entry: &S| environment.iter().any(|one| one == entry.as_ref());
    all().filter(move |process| {
        let environment = process.environment();
        wanted.iter().all(|entry| has(&environment, entry))
    })
}

impl From<Pid> for Process {
    fn from(id: Pid) -> Self {
        Self(id)
    }
}

impl Process {
    /// Its number.
    pub fn id(self) -> Pid {
        self.0
    }

    /// Its number, as other programs take it.
    pub fn number(self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// What the kernel has of it under this name.
    pub fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.number()))
    }

    /// The entries of its environment.
    pub fn environment(self) -> Vec<Vec<u8>> {
        self.words("environ")
    }

    /// The words of its command line.
    pub fn command(self) -> Vec<String> {
        self.words("cmdline").iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Whether it leads a session.
    pub fn leads_session(self) -> bool {
        let stat = fs::read_to_string(self.file("stat")).unwrap_or_default();
        // number (name) state parent group session
        let session = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(3));
        session.and_then(|session| session.parse().ok()) == Some(self.number())
    }

    /// What is ended by a NUL each.
    fn words(self, file: &str) -> Vec<Vec<u8>> {
        let bytes = fs::read(self.file(file)).unwrap_or_default();
        let Some(words) = bytes.strip_suffix(&[0]) else { return Vec::new() };
        words.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_is_found_by_its_environment_until_it_ends() {
        let mark = format!("GLEANER_TEST_MARK={}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        let mut child = Command::new("sleep").arg("1000").env(name, value).spawn().unwrap();
        let found = || with_environment(&[&mark]).collect::<Vec<_>>();
        // The kernel lets the parent go on a moment before a started program has its environment.
        let since = Instant::now();
        while found().is_empty() && since.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        let process = found()[0];
        assert_eq!((process.number(), process.command()), (child.id(), vec!["sleep".into(), "1000".into()]));
        assert!(!process.leads_session() && all().any(|one| one == process));
        assert_eq!(end(found), None);
        child.wait().unwrap();
        assert_eq!((found(), process.environment()), (vec![], vec![]));
    }
}
