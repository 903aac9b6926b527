//! What was made, on disk: written before anything is made, so that whatever happens `down` knows.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{io, thread};

use serde::{Deserialize, Serialize};

use crate::topology::Topology;

/// Where the files are. The kernel forgets namespaces when it stops, and systems empty this directory then.
const DIRECTORY: &str = "/run/gleaner";

/// How long another process may hold the lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// An emulated network: as it was asked for, and how far it got. It stays when this value is dropped, and when the process ends:
/// [`Network::down`] removes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Network {
    /// What it is called.
    pub name: String,
    /// Written into every namespace, so that one which another program made later under the same name is not taken for ours.
    pub(super) token: String,
    /// What was asked for.
    pub topology: Topology,
    /// The namespaces, in the order in which they are made. The last of an unfinished network may not be there yet, or not
    /// have the token.
    pub(super) namespaces: Vec<String>,
    pub(super) complete: bool,
    /// Whether a process of ours carries packets over all links, because the kernel cannot delay or lose any.
    #[serde(default)]
    pub is_relayed: bool,
    /// Where the random numbers of that process start.
    #[serde(default)]
    pub(super) seed: u64,
}

impl Network {
    /// One of which nothing is made.
    pub(super) fn new(name: &str, topology: &Topology, is_relayed: bool, seed: u64) -> Result<Self, String> {
        let token = Path::new("/proc/sys/kernel/random/uuid");
        let token = fs::read_to_string(token).map_err(|error| trouble(token, &error))?;
        Ok(Self {
            name: name.into(),
            token: format!("gleaner {}", token.trim()),
            topology: topology.clone(),
            namespaces: Vec::new(),
            complete: false,
            is_relayed,
            seed,
        })
    }

    /// Reads the file of a network; none where there is none.
    pub(super) fn read(name: &str) -> Result<Option<Self>, String> {
        let path = path(name);
        let Some(text) = there(&path, fs::read_to_string(&path))? else { return Ok(None) };
        let network = serde_json::from_str(&text);
        network.map(Some).map_err(|error| {
            let expected = "expected what gleaner testbed up writes: look at it and at ip netns, and remove both by hand";
            format!("{} is not understood: {error}; {expected}", path.display())
        })
    }

    /// Replaces the file, all of it or nothing.
    pub(super) fn write(&self) -> Result<(), String> {
        let path = path(&self.name);
        let text = serde_json::to_string_pretty(self).map_err(|error| trouble(&path, &error.into()))?;
        let part = path.with_extension("json.part");
        let written = File::create(&part).and_then(|mut file| file.write_all(text.as_bytes()));
        let written = written.and_then(|()| fs::rename(&part, &path));
        written.map_err(|error| {
            let _ = fs::remove_file(&part);
            trouble(&path, &error)
        })
    }

    /// Removes the file, if it could be written at all.
    pub(super) fn forget(&self) -> Result<(), String> {
        // Nothing listens there any more.
        let _ = fs::remove_file(socket(&self.name));
        let path = path(&self.name);
        there(&path, fs::remove_file(&path)).map(drop)
    }

    /// The names of all networks, half-made ones too.
    pub fn names() -> Result<Vec<String>, String> {
        let directory = Path::new(DIRECTORY);
        let entries = there(directory, fs::read_dir(directory))?.into_iter().flatten();
        let files = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> =
            files.filter_map(|file| file.strip_suffix(".json").map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }
}

/// Takes the lock, which lasts as long as the file it gives is open here or in a child.
pub(super) fn lock() -> Result<File, String> {
    let directory = Path::new(DIRECTORY);
    fs::create_dir_all(directory).map_err(|error| trouble(directory, &error))?;
    let file = File::open(directory).map_err(|error| trouble(directory, &error))?;
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::Error(error)) => return Err(trouble(directory, &error)),
            Err(fs::TryLockError::WouldBlock) if since.elapsed() > PATIENCE => {
                return Err(format!(
                    "another gleaner testbed has been at work for a minute (it holds the lock on {DIRECTORY}); wait for it, or end it"
                ));
            }
            Err(fs::TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.json"))
}

/// Where the process that relays packets reads what links are like.
pub(super) fn socket(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.relay"))
}

/// What was done with a file; none where there is no such file.
fn there<T>(path: &Path, done: io::Result<T>) -> Result<Option<T>, String> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        done => done.map(Some).map_err(|error| trouble(path, &error)),
    }
}

fn trouble(path: &Path, error: &io::Error) -> String {
    let why = "it has to say what was made, so nothing is made without it";
    format!("{} cannot be used: {error}; {why}", path.display())
}
