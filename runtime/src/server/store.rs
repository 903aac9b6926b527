//! A server's state in a file, so that nothing that was applied is lost with its process.
//!
//! Behind a description there are two slots of one size, for the parameters, the velocities and how far each worker's gradients were
//! applied. Each step of the optimiser goes into the slot that is older, under a checksum, before anybody is told of it; a process that is killed while it writes
//! leaves the other slot. What was written survives the process. It survives a crash of the machine only as far as the system has
//! brought it to the disk.
//!
//! Servers of another number take the files of all those that were before, and cut anew. A set of files is of a *run*, and has a *generation*: the
//! first set of a run has one more than any other run's that lies there, and a set that was cut anew one more than that which it was cut from. The newest
//! set is taken, and only if all of its files are there, unless a server finds its own, since the others may lie on other hosts. A set that was never
//! finished has nothing that the one before it lacks.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::shard::{Slice, Values};
use crate::staged::{Staged, StagedError};

const MARK: &[u8; 16] = b"gleaner server 1";

/// Slots begin at multiples of this many bytes.
const PAGE: usize = 4096;

/// Number of the write, updates, checksum.
const HEAD: usize = 24;

/// The number of the write that makes a file.
const FIRST: u64 = 1;

/// The longest description, in bytes.
const LONGEST: usize = 1 << 26;

/// What a shard is made of: of each part the parameters and the velocities, and its slices.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) updates: u64,
    pub(crate) parts: Vec<(Vec<f32>, Vec<f32>)>,
    pub(crate) slices: Vec<Slice>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    file: File,
    path: PathBuf,
    /// Where the slots begin, and how long they are.
    start: usize,
    slot: usize,
    /// How often it was written.
    written: u64,
    bytes: Vec<u8>,
}

/// State that cannot be kept or found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(
        "the state of a server cannot be written: {0}; make sure that the directory is there, writable and has room"
    )]
    Staged(#[from] StagedError),
    #[error("the state of a server cannot be {what} at {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is no state of a server: {what}; go on from another checkpoint", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error(
        "{} was written for {found}, and this job has {expected}; start it with the same model and options, or without resuming", path.display()
    )]
    Other { path: PathBuf, found: String, expected: String },
    #[error("{} is in use by another server; end that one first", .0.display())]
    Locked(PathBuf),
    #[error("{} holds no server's state that is whole; start without resuming, or give the directory that the servers had", .0.display())]
    Nothing(PathBuf),
    #[error("{} is missing, and the newest state of the servers is not whole without it; bring it back, or start without resuming", .0.display())]
    Missing(PathBuf),
}

/// What stands before the slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) run: String,
    pub(crate) generation: u64,
    pub(crate) server: u32,
    pub(crate) servers: u32,
    pub(crate) workers: u32,
    /// Names and lengths.
    pub(crate) units: Vec<(String, usize)>,
    /// Among all parameters.
    pub(crate) slices: Vec<Range<usize>>,
}

/// What one file holds.
struct Found {
    description: Description,
    path: PathBuf,
    start: usize,
    written: u64,
    updates: u64,
    /// By slice.
    applied: Vec<Vec<u64>>,
    parameters: Vec<f32>,
    velocities: Vec<f32>,
}

fn path(directory: &Path, server: u32, servers: u32) -> PathBuf {
    directory.join(format!("server-{server}-of-{servers}.state"))
}

fn length(description: &Description) -> usize {
    let entries: usize = description.slices.iter().map(Range::len).sum();
    HEAD + 8 * description.slices.len() * description.workers as usize + 8 * entries
}

/// The state of a server, its file, and of which run it is: what lies in a directory, or `fresh` in place of it. The description is of a new run,
/// without slices and generation; `ranges` are those of the server's parts among all parameters.
pub(crate) fn take_up(
    directory: &Path,
    mut description: Description,
    ranges: &[Range<usize>],
    fresh: Option<State>,
) -> Result<(State, Store, String), StoreError> {
    if let Some(state) = fresh {
        fs::create_dir_all(directory).map_err(failed("made", directory))?;
        let (own, others): (Vec<_>, Vec<_>) =
            descriptions(directory)?.into_iter().partition(|(there, _)| there.run == description.run);
        // Another server may have been faster, and perhaps in place of the newest file that was there.
        let newest = |all: &[(Description, PathBuf)]| all.iter().map(|(there, _)| there.generation).max();
        description.generation = newest(&own).unwrap_or(1 + newest(&others).unwrap_or(0));
        return Store::create(directory, description, ranges, state);
    }
    let found = find(directory, &description)?;
    for Found { description: there, path, .. } in &found {
        let of = |d: &Description| format!("{} workers and the layers {}", d.workers, layers(&d.units));
        if (there.workers, &there.units) != (description.workers, &description.units) {
            let (path, found, expected) = (path.clone(), of(there), of(&description));
            return Err(StoreError::Other { path, found, expected });
        }
    }
    let state = State::cut(&found, ranges);
    match &found[..] {
        [own]
            if (own.description.server, own.description.servers)
                == (description.server, description.servers) =>
        {
            Ok((state, Store::reopen(own)?, own.description.run.clone()))
        }
        _ => {
            // They are of one set.
            if let Some(Found { description: there, .. }) = found.first() {
                (description.run, description.generation) = (there.run.clone(), there.generation + 1);
            }
            Store::create(directory, description, ranges, state)
        }
    }
}

/// Names and lengths, of which not more than some.
fn layers(units: &[(String, usize)]) -> String {
    let some: Vec<String> = units.iter().take(4).map(|(name, len)| format!("{name}: {len}")).collect();
    format!("{}{}", some.join(", "), if units.len() > 4 { ", ..." } else { "" })
}

impl State {
    /// What ranges of all parameters have in these files.
    fn cut(found: &[Found], ranges: &[Range<usize>]) -> Self {
        let updates = found.iter().map(|found| found.updates).max().unwrap_or(0);
        let mut state = Self { updates, ..Self::default() };
        for (part, range) in ranges.iter().enumerate() {
            let (mut parameters, mut velocities) = (Vec::new(), Vec::new());
            for found in found {
                let mut at = 0;
                for (there, applied) in found.description.slices.iter().zip(&found.applied) {
                    let both = there.start.max(range.start)..there.end.min(range.end);
                    if !both.is_empty() {
                        let here = at + both.start - there.start..at + both.end - there.start;
                        parameters.extend_from_slice(&found.parameters[here.clone()]);
                        velocities.extend_from_slice(&found.velocities[here]);
                        state.add(part, both.start - range.start..both.end - range.start, applied);
                    }
                    at += there.len();
                }
            }
            state.parts.push((parameters, velocities));
        }
        state
    }

    /// Appends a slice; it becomes one with that before it where the same was applied.
    fn add(&mut self, part: usize, range: Range<usize>, applied: &[u64]) {
        match self.slices.last_mut() {
            Some(last) if last.part == part && last.applied == applied => last.range.end = range.end,
            _ => self.slices.push(Slice { part, range, applied: applied.to_vec() }),
        }
    }
}

impl Store {
    /// A new file with this state, in place of one that may be there.
    fn create(
        directory: &Path,
        mut description: Description,
        ranges: &[Range<usize>],
        state: State,
    ) -> Result<(State, Self, String), StoreError> {
        let within = |slice: &Slice| {
            let start = ranges[slice.part].start;
            start + slice.range.start..start + slice.range.end
        };
        description.slices = state.slices.iter().map(within).collect();
        let path = path(directory, description.server, description.servers);
        // Nothing in it can fail to be written.
        let text = serde_json::to_vec(&description).unwrap_or_default();
        let start = (MARK.len() + 4 + text.len()).next_multiple_of(PAGE);
        let slot = length(&description).next_multiple_of(PAGE);
        let mut written = 0;
        let mut bytes = Vec::new();
        let parts = state.parts.iter().map(|(parameters, velocities)| (&parameters[..], &velocities[..]));
        fill(&mut bytes, &mut written, state.updates, parts, &state.slices);
        let mut staged = Staged::default();
        staged.write(&path, |file| {
            let length = (text.len() as u32).to_le_bytes();
            [&MARK[..], &length, &text].into_iter().try_for_each(|bytes| file.write_all(bytes))?;
            file.write_all(&vec![0; start - MARK.len() - 4 - text.len()])?;
            // The first write goes into the second slot.
            file.write_all(&vec![0; slot])?;
            file.write_all(&bytes)?;
            file.write_all(&vec![0; slot - bytes.len()])
        })?;
        staged.publish()?;
        Ok((state, Self::open(path, start, slot, written)?, description.run))
    }

    fn reopen(found: &Found) -> Result<Self, StoreError> {
        let slot = length(&found.description).next_multiple_of(PAGE);
        Self::open(found.path.clone(), found.start, slot, found.written)
    }

    fn open(path: PathBuf, start: usize, slot: usize, written: u64) -> Result<Self, StoreError> {
        let file = File::options().write(true).open(&path).map_err(failed("opened", &path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked(path)),
            // Where a file system has no locks, nothing is known.
            _ => Ok(Self { file, path, start, slot, written, bytes: Vec::new() }),
        }
    }

    /// Writes a state into the older slot.
    pub(crate) fn write(
        &mut self,
        updates: u64,
        parts: &[Values],
        slices: &[Slice],
    ) -> Result<(), StoreError> {
        let parts = parts.iter().map(|part| (&part.parameters[..], &part.velocities[..]));
        fill(&mut self.bytes, &mut self.written, updates, parts, slices);
        let at = self.start + self.slot * (self.written % 2) as usize;
        self.file.write_all_at(&self.bytes, at as u64).map_err(failed("written", &self.path))
    }
}

/// Puts a state together as it lies in a slot.
fn fill<'a>(
    bytes: &mut Vec<u8>,
    written: &mut u64,
    updates: u64,
    parts: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone,
    slices: &[Slice],
) {
    *written += 1;
    bytes.clear();
    bytes.extend(written.to_le_bytes());
    bytes.extend(updates.to_le_bytes());
    bytes.extend([0; 8]);
    slices.iter().flat_map(|slice| &slice.applied).for_each(|step| bytes.extend(step.to_le_bytes()));
    let mut values = |values: &[f32]| values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    parts.clone().for_each(|(parameters, _)| values(parameters));
    parts.for_each(|(_, velocities)| values(velocities));
    let sum = checksum(bytes);
    bytes[16..HEAD].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(slot: &[u8]) -> u64 {
    XxHash3_64::oneshot(&slot[HEAD..]) ^ XxHash3_64::oneshot(&slot[..16])
}

/// The descriptions of all files of a directory.
fn descriptions(directory: &Path) -> Result<Vec<(Description, PathBuf)>, StoreError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("looked for", directory))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("looked for", directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("server-") && name.ends_with(".state") {
            let (description, _) = describe(&path)?;
            all.push((description, path));
        }
    }
    Ok(all)
}

/// What a file is said to hold, and where its slots begin.
fn describe(path: &Path) -> Result<(Description, usize), StoreError> {
    let mut file = File::open(path).map_err(failed("opened", path))?;
    let damaged = |what: &str| StoreError::Damaged { path: path.to_owned(), what: what.to_owned() };
    let mut head = [0; MARK.len() + 4];
    file.read_exact(&mut head).map_err(|_| damaged("it is too short"))?;
    let (mark, length) = head.split_at(MARK.len());
    let length = length.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX) as usize;
    if mark != MARK || length > LONGEST {
        return Err(damaged("it begins otherwise"));
    }
    let mut text = vec![0; length];
    file.read_exact(&mut text).map_err(|_| damaged("its description is cut off"))?;
    let description = serde_json::from_slice(&text).map_err(|_| damaged("its description makes no sense"))?;
    Ok((description, (head.len() + length).next_multiple_of(PAGE)))
}

/// The files that a server takes up, in the order of the parameters: its own alone if that is of the newest set.
fn find(directory: &Path, wanted: &Description) -> Result<Vec<Found>, StoreError> {
    let mut sets: BTreeMap<(u64, u32, String), BTreeMap<u32, PathBuf>> = BTreeMap::new();
    for (description, file) in descriptions(directory)? {
        let Description { run, generation, server, servers, .. } = description;
        sets.entry((generation, servers, run)).or_default().insert(server, file);
    }
    for ((_, servers, _), files) in sets.into_iter().rev() {
        if let Some(own) = files.get(&wanted.server).filter(|_| servers == wanted.servers) {
            return Ok(vec![read(own)?]);
        }
        let found = files.values().map(|file| read(file)).collect::<Result<Vec<Found>, _>>()?;
        match (0..servers).find(|server| !files.contains_key(server)) {
            None => return Ok(found),
            // Nobody pushes before all servers have their files.
            Some(_) if found.iter().all(|found| found.written == FIRST) => {}
            Some(missing) => return Err(StoreError::Missing(path(directory, missing, servers))),
        }
    }
    Err(StoreError::Nothing(directory.to_owned()))
}

/// What a file holds, by the newer of its slots that are whole.
fn read(path: &Path) -> Result<Found, StoreError> {
    let (description, start) = describe(path)?;
    let (bytes, length) = (fs::read(path).map_err(failed("read", path))?, length(&description));
    let slot = length.next_multiple_of(PAGE);
    let whole = |at: usize| {
        let slot = bytes.get(at..at + length)?;
        let number = |at: usize| slot[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let written = number(0).filter(|written| *written > 0)?;
        (number(16)? == checksum(slot)).then_some((written, number(8)?, slot))
    };
    let slots = [start, start + slot].into_iter().filter_map(whole);
    let Some((written, updates, slot)) = slots.max_by_key(|(written, ..)| *written) else {
        return Err(StoreError::Damaged {
            path: path.to_owned(),
            what: "neither of its slots is whole".into(),
        });
    };
    let workers = description.workers as usize;
    let (steps, values) = slot[HEAD..].split_at(8 * workers * description.slices.len());
    let steps = steps.as_chunks::<8>().0;
    let applied =
        steps.chunks(workers).map(|steps| steps.iter().map(|step| u64::from_le_bytes(*step)).collect());
    let values = values.as_chunks::<4>().0;
    let mut values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let velocities = values.split_off(values.len() / 2);
    let (applied, parameters) = (applied.collect(), values);
    Ok(Found { description, path: path.to_owned(), start, written, updates, applied, parameters, velocities })
}

fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::File { what, path: path.clone(), source }
}
