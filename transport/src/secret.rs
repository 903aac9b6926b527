//! The secret that all workers of one job share, and by which they know each other.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::hmac;
use zeroize::{Zeroize, Zeroizing};

/// Bytes in a secret.
const LENGTH: usize = 32;

/// More than anything that is a secret.
const LONG: u64 = 1024;

/// The 32 bytes that every worker of a job holds and no other process does. They lie in one place, from which they are wiped.
#[derive(Clone)]
pub struct Secret(Box<[u8; LENGTH]>);

/// A secret could not be had.
#[derive(thiserror::Error)]
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
    /// The file belongs to another user, who may read it and put another secret into it.
    #[error(
        "the secret file {} is owned by UID {owner}, and this process runs as UID {user}: make a file of your own", path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// The user that this process runs as.
        user: u32,
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
    /// The secret's descriptor could not be read.
    #[error("the descriptor with the secret could not be read: {0}")]
    Lost(io::Error),
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

crate::debug_as_sentence!(SecretError);

impl Secret {
    /// A fresh secret from the operating system's random numbers.
    pub fn random() -> Result<Self, SecretError> {
        let mut secret = Secret(Box::new([0; LENGTH]));
        getrandom::fill(&mut *secret.0).map_err(SecretError::NoRandomness)?;
        Ok(secret)
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        Self::parse(text.as_bytes()).map_err(|found| SecretError::NotHex { found })
    }

    /// Writes 64 hexadecimal digits, for handing the secret to another worker of the job.
    pub fn to_hex(&self) -> String {
        let mut hex = String::with_capacity(2 * LENGTH);
        for byte in *self.0 {
            hex.extend([byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')));
        }
        hex
    }

    /// Reads a file that only this user, or root, owns and may use, holding 64 hexadecimal digits (a line end may
    /// follow) or exactly 32 raw bytes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        let path = path.as_ref();
        let unreadable = |source| SecretError::Unreadable { path: path.to_owned(), source };
        // Looked at before it is opened, because opening a pipe would wait for its writer.
        check_file(path, &fs::metadata(path).map_err(unreadable)?)?;
        let file = File::open(path).map_err(unreadable)?;
        check_file(path, &file.metadata().map_err(unreadable)?)?;
        let content = content(file).map_err(unreadable)?;
        if content.len() == LENGTH {
            let mut secret = Secret(Box::new([0; LENGTH]));
            secret.0.copy_from_slice(&content);
            return Ok(secret);
        }
        Self::parse(line(&content))
            .map_err(|_| SecretError::Malformed { path: path.to_owned(), found: describe(&content) })
    }

    /// Reads 64 hexadecimal digits (a line end may follow) to the end of what a launcher wrote.
    pub fn from_pipe(pipe: impl Read) -> Result<Self, SecretError> {
        let content = content(pipe).map_err(SecretError::Lost)?;
        Self::parse(line(&content)).map_err(|found| SecretError::NotHex { found })
    }

    fn parse(digits: &[u8]) -> Result<Self, String> {
        if digits.len() != 2 * LENGTH {
            return Err(describe(digits));
        }
        let mut secret = Secret(Box::new([0; LENGTH]));
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
            match (value(pair[0]), value(pair[1])) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err(describe(digits)),
            }
        }
        Ok(secret)
    }

    /// Forgets the bytes: they are zeros from now on.
    pub(crate) fn wipe(&mut self) {
        self.0.zeroize();
    }

    /// What the workers of one job know: the secret may serve for several, which know each other apart by their ids.
    pub(crate) fn key_of(&self, job: &str) -> JobKey {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*self.0);
        let mut context = hmac::Context::with_key(&key);
        context.update(b"gleaner job\0");
        context.update(job.as_bytes());
        let mut bytes = Box::new([0; LENGTH]);
        bytes.copy_from_slice(context.sign().as_ref());
        JobKey(bytes)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// The key of one job, made of its secret and its id.
#[derive(Clone)]
pub(crate) struct JobKey(Box<[u8; LENGTH]>);

impl Drop for JobKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl JobKey {
    /// The bytes, for keying.
    pub(crate) fn bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

fn check_file(path: &Path, metadata: &fs::Metadata) -> Result<(), SecretError> {
    if !metadata.is_file() {
        return Err(SecretError::NotAFile { path: path.to_owned() });
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != user && owner != 0 {
            return Err(SecretError::Foreign { path: path.to_owned(), owner, user });
        }
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(SecretError::Exposed { path: path.to_owned(), mode });
        }
    }
    Ok(())
}

/// The first bytes of it, wiped when they are dropped. They have room from the beginning, so that none are left behind
/// elsewhere.
fn content(from: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut content = Zeroizing::new(Vec::with_capacity(2 * LONG as usize));
    from.take(LONG).read_to_end(&mut content)?;
    Ok(content)
}

/// What stands before the line end.
fn line(content: &[u8]) -> &[u8] {
    let line = content.strip_suffix(b"\n").unwrap_or(content);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Says what was found without showing any of it.
fn describe(content: &[u8]) -> String {
    match content.len() {
        1024.. => "1024 bytes or more".to_owned(),
        length if length == 2 * LENGTH => format!("{length} characters that are not all hexadecimal"),
        length => format!("{length} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wiped_is_zero_and_the_key_is_not() {
        let mut secret = Secret::from_hex(&"5a".repeat(LENGTH)).unwrap();
        let key = secret.key_of("job");
        secret.wipe();
        assert_eq!(*secret.0, [0; LENGTH]);
        assert_eq!(key.bytes(), Secret::from_hex(&"5a".repeat(LENGTH)).unwrap().key_of("job").bytes());
        assert_ne!(key.bytes(), secret.key_of("job").bytes());
    }
}
