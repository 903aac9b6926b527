//! Files that appear whole or not at all: written beside, put on the disk, and only then renamed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be written: {source}", path.display())]
pub struct StagedError {
    path: PathBuf,
    source: io::Error,
}

/// Files that are written and do not bear their names yet. Dropped before they are published, they vanish.
#[derive(Default)]
pub struct Staged {
    /// Where each lies, and where it belongs.
    files: Vec<(PathBuf, PathBuf)>,
}

impl Staged {
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
        let name = target.file_name().ok_or_else(|| io::Error::other("expected the name of a file"))?;
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.partial", std::process::id()));
        let beside = target.with_file_name(beside);
        let mut file = BufWriter::new(File::create(&beside)?);
        self.files.push((beside, target.into()));
        contents(&mut file)?;
        file.flush()?;
        file.get_ref().sync_all()
    }

    /// Gives all files their names, in the order in which they were written.
    pub fn publish(mut self) -> Result<(), StagedError> {
        let mut folders = BTreeSet::new();
        while !self.files.is_empty() {
            let (beside, target) = &self.files[0];
            fs::rename(beside, target).map_err(|source| StagedError { path: target.clone(), source })?;
            folders.extend(target.parent().map(Path::to_path_buf));
            self.files.remove(0);
        }
        for folder in folders {
            let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
            let synced = File::open(&folder).and_then(|f| f.sync_all());
            synced.map_err(|source| StagedError { path: folder, source })?;
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for (beside, _) in &self.files {
            // A file that cannot be removed does no harm: it does not bear the name that anyone reads.
            let _ = fs::remove_file(beside);
        }
    }
}
