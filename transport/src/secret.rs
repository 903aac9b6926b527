//! The secret that all workers of one job share, and by which they know each other.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes in a secret.
const LENGTH: usize = 32;

/// The 32 bytes that every worker of a job holds and nobody else does.
#[derive(Clone)]
pub struct Secret([u8; LENGTH]);

/// A secret could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file could not be read.
    #[error("could not read the secret file {}: {source}; check the path and its owner", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Something that is not a file stands there.
    #[error("the secret file {} is not a regular file: name a file that holds the secret", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// Others than its owner may use the file.
    #[error(
        "the secret file {} has mode {mode:04o}, so others than its owner may use it: run `chmod 600 {}`",
        path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds something else.
    #[error(
        "the secret file {} should hold 64 hexadecimal digits or exactly 32 raw bytes and holds {found}: \
         write a new secret to it, for example with `openssl rand -hex 32`", path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What was found, without its content.
        found: String,
    },
    /// The text is no secret.
    #[error("a secret is 64 hexadecimal digits, and {found} were given")]
    NotHex {
        /// What was found, without its content.
        found: String,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system gave no random bytes: {0}")]
    NoRandomness(getrandom::Error),
}

impl Secret {
    /// A fresh secret from the operating system's random numbers.
    pub fn random() -> Result<Self, SecretError> {
        random_bytes().map(Secret).map_err(SecretError::NoRandomness)
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        decode_hex(text.as_bytes()).map(Secret).map_err(|found| SecretError::NotHex { found })
    }

    /// Writes 64 hexadecimal digits, for handing the secret to another worker of the job.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads a file that its owner alone may use, holding 64 hexadecimal digits (a line end may follow) or
    /// exactly 32 raw bytes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        let path = path.as_ref();
        let unreadable = |source| SecretError::Unreadable { path: path.to_owned(), source };
        // Looked at before it is opened, because opening a pipe would wait for its writer.
        check_file(path, &fs::metadata(path).map_err(unreadable)?)?;
        let file = File::open(path).map_err(unreadable)?;
        check_file(path, &file.metadata().map_err(unreadable)?)?;
        let mut content = Vec::new();
        file.take(1024).read_to_end(&mut content).map_err(unreadable)?;
        if let Ok(raw) = <[u8; LENGTH]>::try_from(content.as_slice()) {
            return Ok(Secret(raw));
        }
        let digits = content.strip_suffix(b"\n").unwrap_or(&content);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        decode_hex(digits)
            .map(Secret)
            .map_err(|_| SecretError::Malformed { path: path.to_owned(), found: describe(&content) })
    }

    /// The bytes, for keying.
    pub(crate) fn bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// 32 bytes from the operating system's random numbers.
pub(crate) fn random_bytes() -> Result<[u8; LENGTH], getrandom::Error> {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn check_file(path: &Path, metadata: &fs::Metadata) -> Result<(), SecretError> {
    if !metadata.is_file() {
        return Err(SecretError::NotAFile { path: path.to_owned() });
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Exposed { path: path.to_owned(), mode });
        }
    }
    Ok(())
}

fn decode_hex(digits: &[u8]) -> Result<[u8; LENGTH], String> {
    let mut bytes = [0; LENGTH];
    if digits.len() != 2 * LENGTH {
        return Err(describe(digits));
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        match (value(pair[0]), value(pair[1])) {
            (Some(high), Some(low)) => *byte = high << 4 | low,
            _ => return Err(format!("{} characters that are not all hexadecimal", digits.len())),
        }
    }
    Ok(bytes)
}

/// Says what was found without showing any of it.
fn describe(content: &[u8]) -> String {
    match content.len() {
        1024.. => "1024 bytes or more".to_owned(),
        length if length == 2 * LENGTH => format!("{length} characters that are not all hexadecimal"),
        length => format!("{length} bytes"),
    }
}
