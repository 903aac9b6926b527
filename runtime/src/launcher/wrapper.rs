//! The shell script that stands between the launcher and one worker.
//!
//! It travels on standard input, not on a command line: `ip netns exec` hands its arguments on as they are, ssh joins
//! them and lets a remote shell take them apart again, and neither matters to the single word `sh`. Nor can anyone
//! read a secret off a process list. The job's secret comes before the script, and goes on to the worker through a pipe.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use gleaner_transport::Secret;
use shlex::bytes::Quoter;
use zeroize::Zeroizing;

/// The part that is the same for every worker.
const BODY: &str = include_str!("wrapper.sh");

/// The descriptor of the pipe through which the script hands the secret to its worker.
pub(super) const SECRET_AT: u8 = 3;

/// What one worker is given.
pub(super) struct Worker<'a> {
    pub directory: &'a OsStr,
    pub program: &'a [std::ffi::OsString],
    pub environment: &'a [(String, String)],
    /// How many workers share its machine's cores.
    pub sharing: u32,
    /// The descriptor that this one alone is to inherit, or nothing.
    pub listens_at: &'a str,
}

/// The script that runs one worker.
pub(super) fn script(worker: &Worker) -> Vec<u8> {
    let mut script = b"{\ngleaner_enter() { cd ".to_vec();
    quote(&mut script, worker.directory);
    let numbers = format!("; }}\ngleaner_share={}\ngleaner_listener={}\n", worker.sharing, worker.listens_at);
    script.extend_from_slice(numbers.as_bytes());
    script.extend_from_slice(b"gleaner_program() {\nset -- $gleaner_start");
    for argument in worker.program {
        script.push(b' ');
        quote(&mut script, argument);
    }
    for (name, value) in worker.environment {
        script.extend_from_slice(format!("\nexport {name}=").as_bytes());
        quote(&mut script, OsStr::new(value));
    }
    script.extend_from_slice(b"\nexec \"$@\"\n}\n");
    script.extend_from_slice(BODY.as_bytes());
    script.extend_from_slice(b"}\n");
    script
}

/// The line before the script: a variable of the shell, whatever its environment holds.
pub(super) fn secret(secret: &Secret) -> Zeroizing<Vec<u8>> {
    let hex = Zeroizing::new(secret.to_hex());
    let mut line = Zeroizing::new(Vec::with_capacity(256));
    for part in ["unset gleaner_secret; gleaner_secret=", &hex, "\n"] {
        line.extend_from_slice(part.as_bytes());
    }
    line
}

/// Appends one word for the shell, whatever its bytes.
pub fn quote(script: &mut Vec<u8>, word: &OsStr) {
    let Ok(quoted) = Quoter::new().allow_nul(true).quote(word.as_bytes()) else {
        unreachable!("NUL is all that could not be quoted, and it is allowed")
    };
    script.extend_from_slice(&quoted);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_everything_but_nul() {
        let word: Vec<u8> = (1..=255).collect();
        let mut script = b"printf %s ".to_vec();
        quote(&mut script, OsStr::from_bytes(&word));
        for shell in ["sh", "bash"] {
            let output = std::process::Command::new(shell).arg("-c").arg(OsStr::from_bytes(&script)).output();
            assert_eq!(output.unwrap().stdout, word, "{shell}");
        }
    }
}
