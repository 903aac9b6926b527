//! A server's state in a file, so that nothing that was applied is lost with its process.
//!
//! Behind a description there are two slots of one size, for the parameters, the velocities and up to which step each worker's gradients were
//! applied. Each step of the optimiser goes into the slot that is older, under a checksum over it and the description, before any worker is notified
//! of it; a process that is killed while it writes leaves the other slot. What was written survives the process. It survives a crash of the machine only if the system has
//! written it to the disk.
//!
//! Where servers were interrupted between their updates of one step, those that have made it roll back to the older slot when all resume,
//! if that has exactly the steps before: under a barrier all parameters are then those of one step, as the workers' gradients need them.
//!
//! Servers of another number take the files of all those that were before, and cut again. A set of files is of a *run*, and has a *generation*: the
//! first set of a run has one more than any other run's that lies there, and a set that was cut again one more than that which it was cut from. The newest
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

const MARK: &[u8; 16] = b"gleaner server 2";

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
    /// Of the description.
    seed: u64,
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

/// The header before the slots.
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
    /// The length of a slot.
    slot: usize,
    seed: u64,
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

/// Bytes of a state. None where nothing can be so long.
fn length(Description { slices, workers, .. }: &Description) -> Option<usize> {
    let numbers = slices.len().checked_mul(*workers as usize)?;
    let numbers = slices.iter().try_fold(numbers, |sum, slice| sum.checked_add(slice.len()))?;
    numbers.checked_mul(8)?.checked_add(HEAD + PAGE).map(|bytes| bytes - PAGE)
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
    /// The state before the last update, if that has exactly the steps before this one. The next update is written in place of the last.
    pub(crate) fn go_back(
        &mut self,
        step: u64,
        ranges: &[Range<usize>],
    ) -> Result<Option<State>, StoreError> {
        let found = read(&self.path, Some(step))?;
        let is_older = found.written < self.written;
        self.written = found.written;
        Ok(is_older.then(|| State::cut(&[found], ranges)))
    }

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
        let seed = XxHash3_64::oneshot(&text);
        let mut written = 0;
        let mut bytes = Vec::new();
        let parts = state.parts.iter().map(|(parameters, velocities)| (&parameters[..], &velocities[..]));
        fill(&mut bytes, (&mut written, state.updates, seed), parts, &state.slices);
        let slot = bytes.len().next_multiple_of(PAGE);
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
        Ok((state, Self::open(path, start, slot, (seed, written))?, description.run))
    }

    fn reopen(found: &Found) -> Result<Self, StoreError> {
        Self::open(found.path.clone(), found.start, found.slot, (found.seed, found.written))
    }

    fn open(
        path: PathBuf,
        start: usize,
        slot: usize,
        (seed, written): (u64, u64),
    ) -> Result<Self, StoreError> {
        let file = File::options().write(true).open(&path).map_err(failed("opened", &path))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked(path)),
            // Where a file system has no locks, nothing is known.
            _ => Ok(Self { file, path, start, slot, seed, written, bytes: Vec::new() }),
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
        fill(&mut self.bytes, (&mut self.written, updates, self.seed), parts, slices);
        let at = self.start + self.slot * (self.written % 2) as usize;
        self.file.write_all_at(&self.bytes, at as u64).map_err(failed("written", &self.path))
    }
}

/// Puts a state together as it lies in a slot.
fn fill<'a>(
    bytes: &mut Vec<u8>,
    (written, updates, seed): (&mut u64, u64, u64),
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
    let sum = checksum(bytes, seed);
    bytes[16..HEAD].copy_from_slice(&sum.to_le_bytes());
}

/// Over all of a slot but its place, and over the description, whose hash is the seed.
fn checksum(slot: &[u8], seed: u64) -> u64 {
    let (head, rest) = (&slot[..16], &slot[HEAD..]);
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot_with_seed(seed, head), rest)
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
            let (description, ..) = describe(&path)?;
            all.push((description, path));
        }
    }
    Ok(all)
}

/// What a file is said to hold, where its slots begin, and the hash of the description.
fn describe(path: &Path) -> Result<(Description, usize, u64), StoreError> {
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
    Ok((description, (head.len() + length).next_multiple_of(PAGE), XxHash3_64::oneshot(&text)))
}

/// The files that a server resumes from, in the order of the parameters: its own alone if that is of the newest set.
fn find(directory: &Path, wanted: &Description) -> Result<Vec<Found>, StoreError> {
    let mut sets: BTreeMap<(u64, u32, String), BTreeMap<u32, PathBuf>> = BTreeMap::new();
    for (description, file) in descriptions(directory)? {
        let Description { run, generation, server, servers, .. } = description;
        sets.entry((generation, servers, run)).or_default().insert(server, file);
    }
    for ((_, servers, _), files) in sets.into_iter().rev() {
        if let Some(own) = files.get(&wanted.server).filter(|_| servers == wanted.servers) {
            return Ok(vec![read(own, None)?]);
        }
        let all = |step| files.values().map(|file| read(file, step)).collect::<Result<Vec<Found>, _>>();
        let found = all(None)?;
        match (0..servers).find(|server| !files.contains_key(server)) {
            None => return all(found.iter().flat_map(|found| &found.applied).flatten().min().copied()),
            // No worker pushes before all servers have their files.
            Some(_) if found.iter().all(|found| found.written == FIRST) => {}
            Some(missing) => return Err(StoreError::Missing(path(directory, missing, servers))),
        }
    }
    Err(StoreError::Nothing(directory.to_owned()))
}

/// What a file holds, by the newer of its slots that are whole; or by the older, where the newer has a step that is
/// still to be made, and the older exactly those before it.
fn read(path: &Path, step: Option<u64>) -> Result<Found, StoreError> {
    let (description, start, seed) = describe(path)?;
    let damaged = |what: &str| StoreError::Damaged { path: path.to_owned(), what: what.to_owned() };
    let length = length(&description).filter(|_| description.workers > 0);
    let length = length.ok_or_else(|| damaged("its description makes no sense"))?;
    let (bytes, slot) = (fs::read(path).map_err(failed("read", path))?, length.next_multiple_of(PAGE));
    let whole = |at: usize| {
        let slot = bytes.get(at..)?.get(..length)?;
        let number = |at: usize| slot[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let written = number(0).filter(|written| *written > 0)?;
        (number(16)? == checksum(slot, seed)).then_some((written, number(8)?, slot))
    };
    let slots = [Some(start), start.checked_add(slot)].into_iter().flatten().filter_map(whole);
    let workers = description.workers as usize;
    let cut = |state| <[u8]>::split_at(state, 8 * workers * description.slices.len());
    let steps_of = |state| cut(state).0.as_chunks::<8>().0.iter().map(|step| u64::from_le_bytes(*step));
    let slots = slots.map(|(written, updates, slot)| (written, updates, &slot[HEAD..]));
    let mut slots: Vec<_> = slots.collect();
    slots.sort_unstable_by_key(|(written, ..)| *written);
    // The last is the newer.
    if let (Some(step), [(.., older), (.., newer)]) = (step, &slots[..])
        && steps_of(newer).all(|next| next > step)
        && steps_of(older).all(|next| next == step)
    {
        slots.pop();
    }
    let Some((written, updates, state)) = slots.pop() else {
        return Err(damaged("neither of its slots is whole"));
    };
    let (applied, values) = (steps_of(state).collect::<Vec<_>>(), cut(state).1);
    let applied = applied.chunks(workers).map(<[u64]>::to_vec);
    let values = values.as_chunks::<4>().0;
    let mut values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let velocities = values.split_off(values.len() / 2);
    let (applied, parameters) = (applied.collect(), values);
    let path = path.to_owned();
    Ok(Found { description, path, start, slot, seed, written, updates, applied, parameters, velocities })
}

fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::File { what, path: path.clone(), source }
}

#[cfg(test)]
mod tests;
