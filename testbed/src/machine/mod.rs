//! A machine with the kernel parts that this one may lack: Debian's kernel in qemu, with netem and Soft-RoCE.
//!
//! Inside, a command finds the files of this machine at the same places. Only the shared folder can be written; what is
//! written elsewhere stays in the machine's memory and ends with it. There is no network to the outside, but machines can be wired
//! to each other.

mod boot;
mod supervise;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use gleaner_runtime::launcher::quote;

pub use boot::run;

/// What to run, and in which machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The program and its arguments. It gets the environment of this process, and it starts in this folder.
    pub command: Vec<OsString>,
    /// The folder whose files the command may write, for good.
    pub share: PathBuf,
    /// How long the command may run, without the time that the machine takes to start.
    pub timeout: Option<Duration>,
    /// Memory in MiB.
    pub memory: u32,
    /// How many processors it sees.
    pub cpus: u32,
    /// Writes what the kernel says to standard error.
    pub verbose: bool,
    /// Its network interfaces, in order: eth0, eth1 and so on.
    pub wires: Vec<Wire>,
}

/// A network interface whose frames go to one of another machine, by Unix sockets. That has the two the other way round. What is sent
/// while the other machine is not there is lost, as on any wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The socket at which this machine receives. It is made.
    pub ours: PathBuf,
    /// The other machine's.
    pub theirs: PathBuf,
}

impl FromStr for Wire {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once(':').filter(|(ours, theirs)| {
            !ours.is_empty() && !theirs.is_empty() && ours != theirs && !theirs.contains(':')
        });
        let (ours, theirs) = parts.ok_or("expected two different paths of sockets, as OURS:THEIRS")?;
        Ok(Self { ours: ours.into(), theirs: theirs.into() })
    }
}

/// How a command in the machine ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// The exit code of the command: 127 if it was not found, 128 + n after signal n.
    pub exit_code: u8,
    /// How long the machine took to start.
    pub started_in: Duration,
    /// How long the command ran.
    pub ran_for: Duration,
}

/// Why there is no machine, or no end of the command.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Where the output goes takes no more.
    #[error("cannot pass on what the command printed: {0}")]
    Output(io::Error),
    /// The machine takes too long to start, or prints nothing meanwhile.
    #[error(
        "the machine had not started after {after:.0?}, however often it was started; is this one busy? The last lines of its console:\n{console}"
    )]
    Stuck {
        /// How long that was waited for.
        after: Duration,
        /// The last lines of its console.
        console: String,
    },
    /// The command takes too long.
    #[error("the command ran longer than {0:?} and was ended")]
    TimedOut(Duration),
    /// A signal came: 128 + its number.
    #[error("interrupted; the machine has ended")]
    Interrupted(u8),
    /// Anything else, in a sentence.
    #[error("{0}")]
    Other(String),
}

impl MachineError {
    fn file(path: &Path, error: io::Error) -> Self {
        Self::Other(format!("cannot use {}: {error}", path.display()))
    }

    /// The machine cannot be talked to.
    fn talk(error: io::Error) -> Self {
        Self::Other(format!("cannot talk with the machine: {error}"))
    }

    fn program(program: &str, error: io::Error) -> Self {
        Self::Other(format!("cannot run {program}: {error}"))
    }

    /// The exit code for a shell: 124 after a timeout, as `timeout` has it, 128 + n after signal n, 141 if
    /// the output is not read any more, and otherwise 125.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::TimedOut(_) => 124,
            Self::Interrupted(exit_code) => *exit_code,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 141,
            _ => 125,
        }
    }
}

/// A program in the PATH.
fn program(program: &str, package: &str) -> Result<PathBuf, MachineError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let advice = format!("found none; install it with: apt-get install {package}");
        MachineError::Other(format!("expected the program {program} in the PATH, {advice}"))
    })
}

/// A script that runs the command in its folder, with the environment of this process.
fn script(command: &[OsString], folder: &Path) -> Vec<u8> {
    let mut script = b"cd ".to_vec();
    quote(&mut script, folder.as_os_str());
    script.extend_from_slice(b" || exit 125\nexec env -i");
    for (name, value) in env::vars_os().filter(|(name, _)| name != "PATH" && name != "PWD") {
        script.push(b' ');
        let mut variable = name;
        variable.push("=");
        variable.push(value);
        quote(&mut script, &variable);
    }
    // Programs for administrators are not in every user's PATH, but the user is root inside.
    let mut path = OsString::from("PATH=");
    path.push(env::var_os("PATH").unwrap_or_default());
    path.push(":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    script.push(b' ');
    quote(&mut script, &path);
    // The system's own shell finds the program. Busybox would take one of its own, such as its `ip`.
    script.extend_from_slice(br#" /bin/sh -c 'exec "$0" "$@"'"#);
    for word in command {
        script.push(b' ');
        quote(&mut script, word);
    }
    script.push(b'\n');
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    /// A real shell reads the script, and the command writes its arguments, each behind a zero.
    #[test]
    fn a_shell_reads_every_byte_of_every_word() {
        let every: Vec<u8> = (1..=255).collect();
        let words = [&b"it's"[..], b"", b" $HOME `ls` \\ \n\n", b"''", &every];
        let mut command: Vec<OsString> =
            ["sh", "-c", r#"printf '%s\0' "$@""#, "sh"].map(OsString::from).into();
        command.extend(words.iter().map(|word| OsString::from_vec(word.to_vec())));
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a folder's name");
        std::fs::create_dir(&folder).unwrap();
        let path = place.path().join("script");
        std::fs::write(&path, script(&command, &folder)).unwrap();
        let output = Command::new("sh").arg(&path).output().unwrap();
        let expected: Vec<u8> = words.iter().flat_map(|word| [word, &b"\0"[..]].concat()).collect();
        assert_eq!(output.stdout, expected);
    }

    #[test]
    fn a_command_that_is_not_there_gives_127() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("script");
        std::fs::write(&path, script(&["no-such-command".into()], place.path())).unwrap();
        let output = Command::new("sh").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(127), "{said}");
        assert!(said.contains("no-such-command") && output.stdout.is_empty(), "{said}");
    }
}
