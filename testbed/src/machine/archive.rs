//! The archive that the kernel unpacks into its first file system: cpio, in the form that the kernel's documentation
//! calls newc (`Documentation/driver-api/early-userspace/buffer-format.rst`).

/// The mode of a folder that all may read.
const FOLDER: u32 = 0o040_755;
/// The mode of a file that all may read and execute.
const FILE: u32 = 0o100_755;

/// An archive that is written in memory.
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An archive with nothing in it.
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    /// Adds a folder. What is above it must be there already.
    pub(super) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds a file. Its folder must be there already.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (inode, links, name_size) = (self.entries, 1, path.len() + 1);
        let (owner, group, time, device) = (0, 0, 0, 0);
        let header = format!(
            "070701{inode:08x}{mode:08x}{owner:08x}{group:08x}{links:08x}{time:08x}{:08x}{device:08x}{device:08x}\
             {device:08x}{device:08x}{name_size:08x}{:08x}",
            content.len(),
            0, // no checksum in this form
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Headers and contents begin at multiples of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// The archive is read by another program. Lengths of names and contents cover every remainder of four.
    #[test]
    fn cpio_unpacks_it() {
        let Ok(version) = Command::new("cpio").arg("--version").output() else {
            return gleaner_skips::skip("cpio", "cpio is not here");
        };
        assert!(version.status.success());
        let files: Vec<(String, Vec<u8>)> =
            (0..9).map(|i| (format!("folder/{}", "x".repeat(i + 1)), vec![i as u8; i * 3])).collect();
        let mut archive = Archive::new();
        archive.folder("folder");
        for (path, content) in &files {
            archive.file(path, content);
        }
        let place = tempfile::tempdir().unwrap();
        let mut cpio = Command::new("cpio")
            .args(["--extract", "--quiet"])
            .current_dir(place.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&archive.finish()).unwrap();
        assert!(cpio.wait().unwrap().success());
        for (path, content) in &files {
            assert_eq!(&std::fs::read(place.path().join(path)).unwrap(), content, "{path}");
        }
        assert_eq!(std::fs::read_dir(place.path().join("folder")).unwrap().count(), files.len());
    }
}
