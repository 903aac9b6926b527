//! Files that appear whole or not at all: written beside, put on the disk, and only then renamed.
//!
//! The file beside is new, of a random name, and locked for as long as its writer lives. So nothing that lies there already,
//! be it a link, is written through, and what a killed writer left can be distinguished from what another is writing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::report;

/// What the name of a file beside ends with.
const ENDING: &str = ".partial";

/// Hexadecimal digits before that.
const DIGITS: usize = 16;

/// A file that cannot be written.
#[derive(thiserror::Error)]
#[error("{} cannot be written: {source}", path.display())]
pub struct StagedError {
    path: PathBuf,
    source: io::Error,
}

gleaner_transport::debug_as_sentence!(StagedError);

/// Files that are written and do not have their final names yet. Dropped before they are published, they are removed.
#[derive(Default)]
pub struct Staged {
    files: Vec<Beside>,
    is_private: bool,
}

/// A file that does not have its final name yet.
struct Beside {
    path: PathBuf,
    target: PathBuf,
    /// Keeps the lock.
    _file: File,
}

impl Staged {
    /// Files that only their owner can read.
    pub fn private() -> Self {
        Self { files: Vec::new(), is_private: true }
    }

    /// Writes a file beside `target`.
    pub fn write(
        &mut self,
        target: &Path,
        contents: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), StagedError> {
        self.stage(target, contents).map_err(|source| StagedError { path: target.into(), source })
    }

    fn stage(
        &mut self,
        target: &Path,
        contents: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        if target.is_dir() {
            return Err(io::Error::other("there is a directory of that name"));
        }
        let (path, file) = self.beside(target)?;
        self.files.push(Beside { path, target: target.into(), _file: file.try_clone()? });
        let mut file = BufWriter::new(file);
        contents(&mut file)?;
        file.flush()?;
        file.get_ref().sync_all()
    }

    /// A new file beside `target`, locked where the file system has locks.
    fn beside(&self, target: &Path) -> io::Result<(PathBuf, File)> {
        let name = target.file_name().ok_or_else(|| io::Error::other("expected the name of a file"))?;
        let mode = if self.is_private { 0o600 } else { 0o666 };
        loop {
            let mut random = [0; DIGITS / 2];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            let mut beside = OsStr::new(".").to_owned();
            beside.push(name);
            beside.push(format!(".{:0DIGITS$x}{ENDING}", u64::from_le_bytes(random)));
            let path = target.with_file_name(beside);
            // What is there already, a link that leads nowhere included, is not opened.
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(mode).custom_flags(libc::O_NOFOLLOW);
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            let _ = file.lock();
            // Until it was locked it could be taken for a leftover.
            if file.metadata()?.nlink() > 0 {
                return Ok((path, file));
            }
        }
    }

    /// Gives all files their names, in the order in which they were written.
    pub fn publish(mut self) -> Result<(), StagedError> {
        let mut folders = BTreeSet::new();
        while !self.files.is_empty() {
            let Beside { path, target, .. } = &self.files[0];
            fs::rename(path, target).map_err(|source| StagedError { path: target.clone(), source })?;
            folders.insert(folder(target));
            self.files.remove(0);
        }
        for folder in folders {
            let synced = File::open(&folder).and_then(|f| f.sync_all());
            synced.map_err(|source| StagedError { path: folder, source })?;
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for Beside { path, .. } in &self.files {
            // A file that cannot be removed does no harm: it does not have the name that is read.
            let _ = fs::remove_file(path);
        }
    }
}

/// Removes what writers that were killed have left beside files of a folder whose name is wanted, and names it on standard error. Where
/// a file system has no locks, nothing is known to be left, and nothing is removed.
pub fn sweep(folder: &Path, wanted: impl Fn(&str) -> bool) {
    // What cannot be removed does no harm.
    for left in swept(folder, &wanted).unwrap_or_default() {
        report::say(format_args!(
            "gleaner: removed {}, which a writer that was killed has left",
            left.display()
        ));
    }
}

/// Removes it, and gives what it was.
fn swept(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut swept = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_wanted = name.to_str().and_then(target_of).is_some_and(wanted);
        if is_wanted && remove_unless_locked(&entry) {
            swept.push(entry.path());
        }
    }
    swept.sort();
    Ok(swept)
}

/// The folder that a file lies in.
pub(crate) fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => PathBuf::from("."),
    }
}

/// The name that a file of this name was to have, if it is one that was written beside.
fn target_of(name: &str) -> Option<&str> {
    let (target, digits) = name.strip_prefix('.')?.strip_suffix(ENDING)?.rsplit_once('.')?;
    let are_digits = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    (digits.len() == DIGITS && are_digits && !target.is_empty()).then_some(target)
}

fn remove_unless_locked(entry: &DirEntry) -> bool {
    if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
        return false;
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(entry.path()) else { return false };
    file.try_lock().is_ok() && fs::remove_file(entry.path()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_owner_may_read_private_files_from_the_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o666)).unwrap();
        let mut staged = Staged::private();
        staged.write(&target, |out| out.write_all(b"new")).unwrap();
        let beside = folder.path().join(&names(folder.path())[0]);
        assert_eq!((mode(&beside), fs::read(&beside).unwrap()), (0o600, b"new".to_vec()));
        staged.publish().unwrap();
        assert_eq!((mode(&target), fs::read(&target).unwrap()), (0o600, b"new".to_vec()));
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_link_of_the_files_name_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, other) = (folder.path().join("a"), folder.path().join("other"));
        fs::write(&other, "precious").unwrap();
        symlink(&other, &target).unwrap();
        let mut staged = Staged::default();
        staged.write(&target, |out| out.write_all(b"new")).unwrap();
        staged.publish().unwrap();
        assert_eq!(
            (fs::read(&other).unwrap(), fs::read(&target).unwrap()),
            (b"precious".to_vec(), b"new".to_vec())
        );
        assert!(!fs::symlink_metadata(&target).unwrap().is_symlink());
    }

    #[test]
    fn only_what_is_not_written_any_more_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut living = Staged::default();
        living.write(&path("a"), |out| out.write_all(b"half")).unwrap();
        let lives = names(folder.path())[0].clone();
        let left = ".a.0123456789abcdef.partial";
        let others = [
            ".a.0123456789abcde.partial",
            ".a.0123456789abcdeg.partial",
            ".a.0123456789abcdef.part",
            ".0123456789abcdef.partial",
            ".b.0123456789abcdef.partial",
            "a.0123456789abcdef.partial",
            "precious",
        ];
        for name in others.iter().chain([&left]) {
            fs::write(path(name), "").unwrap();
        }
        fs::create_dir(path(".a.1111111111111111.partial")).unwrap();
        symlink(path("precious"), path(".a.2222222222222222.partial")).unwrap();
        let before = names(folder.path());
        assert_eq!(swept(folder.path(), &|target| target == "a").unwrap(), [path(left)]);
        let after: Vec<String> = before.into_iter().filter(|name| name != left).collect();
        assert_eq!(names(folder.path()), after);
        living.publish().unwrap();
        assert!(!path(&lives).exists() && path("a").exists());
    }

    #[test]
    fn what_is_not_published_vanishes() {
        let folder = tempfile::tempdir().unwrap();
        let mut staged = Staged::default();
        staged.write(&folder.path().join("a"), |_| Ok(())).unwrap();
        staged.write(&folder.path().join("b"), |_| Err(io::Error::other("full"))).unwrap_err();
        drop(staged);
        assert!(names(folder.path()).is_empty());
    }
}
