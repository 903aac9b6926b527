//! The directory of a run: copies of what was asked for, and the measurements, one line each, safe once they are written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::case::Case;
use crate::Error;
use crate::record::{self, Line, Record, Unread};

/// The directory of a run, open for more.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    /// Bytes that are whole lines.
    length: u64,
    /// What was measured so far.
    pub(super) records: Vec<Record>,
    /// Whether the last line was torn, and dropped.
    pub(super) torn: bool,
}

impl Store {
    /// Makes the directory, with copies of these texts; or, to go on, opens it if its copies are the same.
    ///
    /// # Errors
    /// A directory that is not empty without `resume`, or of another experiment, or in use, or cannot be written.
    pub fn open(directory: &Path, texts: &[(String, String)], resume: bool) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(system(directory, "made"))?;
        let mut entries = fs::read_dir(directory).map_err(system(directory, "read"))?;
        let path = directory.join(record::FILE);
        // One in which nothing was measured yet may have copies that were cut off.
        let unused = fs::metadata(&path).is_ok_and(|file| file.len() == 0);
        let is_new = entries.next().is_none() || unused;
        if !is_new && !resume {
            let advice = "go on with what is in it by --resume, or name another directory with --out";
            return Err(format!("{} is not empty; {advice}", directory.display()).into());
        }
        let differs = |name: &String, text: &String| {
            fs::read_to_string(directory.join(name)).ok().as_ref() != Some(text)
        };
        if let Some((name, _)) = texts.iter().find(|(name, text)| !is_new && differs(name, text)) {
            let advice = format!("its {name} differs from the one given; name another directory with --out");
            let holds = format!("{} holds measurements of another experiment", directory.display());
            return Err(format!("{holds}: {advice}").into());
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(system(&path, "opened"))?;
        file.try_lock().map_err(|_| {
            let advice = "wait for it, or name another directory with --out";
            format!("another run is writing to {}; {advice}", directory.display())
        })?;
        for (name, text) in texts.iter().filter(|_| is_new) {
            let copy = directory.join(name);
            fs::write(&copy, text).map_err(system(&copy, "written"))?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(system(&path, "read"))?;
        let (records, length) = whole_lines(&bytes, &path)?;
        let torn = length < bytes.len();
        let mut store = Self { path, file, length: length as u64, records, torn };
        store.rewind().map_err(system(&store.path, "written"))?;
        Ok(store)
    }

    /// What was measured in a directory, without keeping other processes from writing there. A torn last line is left out.
    ///
    /// # Errors
    /// A file that is not there or holds something else.
    pub fn read(directory: &Path) -> Result<Vec<Record>, Error> {
        let path = directory.join(record::FILE);
        let bytes = fs::read(&path).map_err(system(&path, "read"))?;
        Ok(whole_lines(&bytes, &path)?.0)
    }

    /// Whether there is a record of this case in this turn.
    pub fn has(&self, case: &Case, turn: u32) -> bool {
        self.records.iter().any(|record| record.turn == turn && record.case == case.0)
    }

    /// Adds records, and waits until the disk has them. If it refuses, what was there before stays as it was.
    ///
    /// # Errors
    /// A full disk, and other refusals.
    pub fn append(&mut self, records: Vec<Record>) -> Result<(), Error> {
        let mut lines = Vec::new();
        for record in &records {
            serde_json::to_writer(&mut lines, record).map_err(|e| system(&self.path, "written")(e.into()))?;
            lines.push(b'\n');
        }
        let written = self.file.write_all(&lines).and_then(|()| self.file.sync_data());
        if let Err(refusal) = written {
            // Half a line would be dropped by the next run as well; without it, the file is whole for every reader.
            let _ = self.rewind();
            return Err(system(&self.path, "written")(refusal));
        }
        self.length += lines.len() as u64;
        self.records.extend(records);
        Ok(())
    }

    /// Drops what stands after the whole lines.
    fn rewind(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.seek(io::SeekFrom::End(0)).map(|_| ())
    }
}

/// A refusal of the system.
fn system(file: &Path, what: &str) -> impl Fn(io::Error) -> Error {
    let refused = format!("{} cannot be {what}", file.display());
    let advice = "what was measured before stays valid, and --resume goes on once there is room and access";
    move |source| format!("{refused}: {source}; {advice}").into()
}

impl Drop for Store {
    /// Lets others write there. Closing the file would not do while a process that is being started still holds a copy.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// The records, and how many bytes their lines have. A line that was not written to its end can only be the last one.
fn whole_lines(bytes: &[u8], file: &Path) -> Result<(Vec<Record>, usize), Error> {
    let (mut records, mut length) = (Vec::new(), 0);
    let mut lines = record::lines(bytes).peekable();
    while let Some(Line { number, bytes, until, record }) = lines.next() {
        match record {
            Ok(record) if bytes.ends_with(b"\n") => records.push(record),
            Ok(_) | Err(Unread::Torn) => break,
            Err(Unread::Other(_)) if lines.peek().is_none() => break,
            Err(unread) => {
                let what = format!("no measurement of format {}: {unread}", record::VERSION);
                let advice = "remove the line, or name another directory with --out";
                return Err(format!("{}, line {number}: {what}; {advice}", file.display()).into());
            }
        }
        length = until;
    }
    Ok((records, length))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(turn: u32, density: f64) -> Record {
        let case = json!({ "command": "bench", "density": density, "seed": record::SEED });
        let failed = json!({ "failed": { "exit_code": 3, "reason": "ü\n" } });
        let of_case = record::tests::record(&case, failed);
        Record { turn, started: 0.1, seconds: 0.2, command: vec!["a b".into()], ..of_case }
    }

    fn texts(text: &str) -> Vec<(String, String)> {
        vec![("experiment.toml".into(), text.into())]
    }

    /// Densities whose shortest decimals are long.
    fn densities() -> impl Iterator<Item = f64> {
        (1..40).map(|i| 0.1 + f64::from(i) / 7.0 / 3.0)
    }

    #[test]
    fn what_was_appended_is_there_again_however_the_file_was_torn() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("a/b");
        let mut store = Store::open(&out, &texts("x"), false).unwrap();
        for density in densities() {
            store.append(vec![record(1, density)]).unwrap();
        }
        drop(store);
        let path = out.join(record::FILE);
        let whole = fs::read(&path).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for cut in last..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut store = Store::open(&out, &texts("x"), true).unwrap();
            let kept = if cut == whole.len() { 39 } else { 38 };
            assert_eq!(store.records.len(), kept);
            assert_eq!(store.torn, cut != last && cut != whole.len());
            for (i, density) in densities().enumerate() {
                assert_eq!(store.has(&Case(record(1, density).case), 1), i < kept);
                assert!(!store.has(&Case(record(1, density).case), 0));
            }
            if kept == 38 {
                store.append(vec![record(1, densities().last().unwrap())]).unwrap();
            }
            drop(store);
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn a_directory_of_something_else_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let store = Store::open(&out, &texts("x"), true).unwrap();
        let refused = |text, resume, words: &str| {
            let refusal = Store::open(&out, &texts(text), resume).unwrap_err().to_string();
            assert!(refusal.contains(words), "{refusal}");
        };
        refused("x", true, "another run is writing");
        drop(store);
        // Nothing was measured there yet, so it may belong to another program.
        drop(Store::open(&out, &texts("z"), false).unwrap());
        let mut store = Store::open(&out, &texts("x"), false).unwrap();
        store.append(vec![record(0, 0.5)]).unwrap();
        drop(store);
        refused("x", false, "is not empty");
        refused("y", true, "its experiment.toml differs");
        assert_eq!(fs::read_to_string(out.join("experiment.toml")).unwrap(), "x");

        let path = out.join(record::FILE);
        let mut old = record(0, 0.5);
        old.version = 999;
        let line = |record: &Record| serde_json::to_string(record).unwrap();
        for first in [line(&old), "nonsense".to_owned()] {
            fs::write(&path, format!("{first}\n{}\n", line(&record(0, 0.5)))).unwrap();
            let error = Store::open(&out, &texts("x"), true).unwrap_err().to_string();
            assert!(error.contains("line 1: no measurement"), "{error}");
        }
    }
}
