//! Residuals, algorithm state and step as a safetensors file.

mod own;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display};
use std::io::Write;
use std::path::{Path, PathBuf};

use gleaner_algorithms::Layers;
use gleaner_algorithms::residual::Waiting;
use gleaner_algorithms::schedule::Memory;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::checksum;
use crate::staged::{self, Staged, StagedError};

const FORMAT: &str = "gleaner residual 4";
const RESIDUAL: &str = "residual.";
const VELOCITY: &str = "velocity.";
const THRESHOLDS: &str = "thresholds.";
const AGREED: &str = "agreed.";
const OWN: &str = "own.";
const VALUES: &str = "values.";
const NUMBERS: &str = "numbers.";
const WORDS: &str = "words.";

/// A checkpoint that cannot be written or read.
#[derive(thiserror::Error)]
pub enum CheckpointError {
    /// It cannot be written.
    #[error("no checkpoint: {0}; make sure that the directory is there, writable and has room")]
    Write(#[from] StagedError),
    /// It cannot be read.
    #[error("the checkpoint {} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Not a whole checkpoint.
    #[error(
        "{path} is no checkpoint of residuals: {what}; the file is damaged, or of another program or version; remove it, and go on from an earlier checkpoint"
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Something is not in it.
    #[error(
        "the checkpoint has no '{0}' of the length that is expected; it was written by another version of the program"
    )]
    Lacks(String),
    /// Of another job.
    #[error(
        "{path} was written for another job: its {what} is {found}, here it is {expected}; bring back the file that this rank wrote at this step \
         with the same options, or begin again; load_from() takes the files of another number of workers"
    )]
    Other {
        /// Which file.
        path: PathBuf,
        /// What differs.
        what: String,
        /// In the file.
        found: String,
        /// In this job.
        expected: String,
    },
    /// Another rank cannot go on from its own.
    #[error("rank {rank} cannot go on from its checkpoint: {reason}")]
    Refused {
        /// Which rank.
        rank: u32,
        /// What it says.
        reason: String,
    },
    /// Not of the same step and the same run as another rank's.
    #[error(
        "the checkpoints of the ranks do not belong together: rank {}'s is of {}, rank {}'s of {}; load those that all ranks \
         wrote at the same step of the same run", first.0, first.1, other.0, other.1
    )]
    Apart {
        /// A rank, and where its checkpoint stands.
        first: (u32, String),
        /// Another.
        other: (u32, String),
    },
    /// No files at all.
    #[error("load_from() was given no checkpoints; it takes those of all ranks, in the order of the ranks")]
    Nothing,
    /// Between `ready` and `wait`.
    #[error("a checkpoint can be written between steps only: call wait() first")]
    MidStep,
}

gleaner_transport::debug_as_sentence!(CheckpointError);

/// What a checkpoint holds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) step: u64,
    /// How many of the steps were left out. Nothing was learnt from these.
    pub(crate) skipped: u64,
    pub(crate) rank: u32,
    pub(crate) workers: u32,
    /// Which run this is of: the same on all ranks, and after a job goes on from a checkpoint.
    pub(crate) run: String,
    pub(crate) method: String,
    /// What was not delivered, by parameter.
    pub(crate) waiting: BTreeMap<String, Waiting>,
    pub(crate) groups: Vec<Learnt>,
    /// By which groups share k, by parameter; empty where they do not compete for it.
    pub(crate) weights: BTreeMap<String, u64>,
    /// What the holder of the gradients has beside them, by name: of a replica its parameters and what its synchrony carries from
    /// step to step.
    pub(crate) values: BTreeMap<String, Vec<f32>>,
    pub(crate) numbers: BTreeMap<String, Vec<f64>>,
    /// What the trainer says of itself, by name.
    pub(crate) words: BTreeMap<String, String>,
}

/// What was learnt of a group.
#[derive(Debug, PartialEq)]
pub(crate) struct Learnt {
    /// The group's parameters, in order.
    pub(crate) parameters: Vec<String>,
    pub(crate) thresholds: Vec<Option<f32>>,
    pub(crate) memory: Memory,
}

impl State {
    /// The group that has these parameters, in the same order.
    pub(crate) fn carried_over(&self, parameters: &[String]) -> Option<usize> {
        self.groups.iter().position(|group| group.parameters == parameters)
    }

    /// The group whose knowledge a group of these parameters takes over: the very same, or else the first of those that have
    /// most entries in common with it.
    pub(crate) fn nearest(&self, parameters: &[String]) -> Option<&Learnt> {
        let same = self.carried_over(parameters);
        let common = |group: &Learnt| -> usize {
            let names = group.parameters.iter().filter(|name| parameters.contains(name));
            names.map(|name| self.entries_of(name)).sum()
        };
        let most = self.groups.iter().map(common).max().filter(|&most| most > 0);
        let near = || self.groups.iter().position(|group| Some(common(group)) == most);
        self.groups.get(same.or_else(near)?)
    }

    /// What the gradient of a group was made of.
    pub(crate) fn layers(&self, group: &Learnt) -> Layers {
        Layers::of(group.parameters.iter().map(|name| self.entries_of(name)))
    }

    fn entries_of(&self, parameter: &str) -> usize {
        self.waiting.get(parameter).map_or(0, |waiting| waiting.residual.len())
    }

    /// So many of its values, by name.
    pub(crate) fn values_of(&self, name: &str, len: usize) -> Result<&[f32], CheckpointError> {
        let values = self.values.get(name).filter(|values| values.len() == len);
        values.map(Vec::as_slice).ok_or_else(|| lacks(name))
    }

    /// Its numbers, by name.
    pub(crate) fn numbers_of(&self, name: &str) -> Result<&[f64], CheckpointError> {
        self.numbers.get(name).map(Vec::as_slice).ok_or_else(|| lacks(name))
    }

    pub(crate) fn expect<T: PartialEq + Display>(
        &self,
        path: &Path,
        what: &str,
        found: T,
        expected: T,
    ) -> Result<(), CheckpointError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_string(), expected.to_string());
        Err(CheckpointError::Other { path: path.into(), what: what.into(), found, expected })
    }
}

/// What may be missing, in a message.
#[derive(PartialEq)]
pub(crate) struct Found<T>(pub(crate) Option<T>);

impl<T: Display> Display for Found<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(found) => write!(f, "{found}"),
            None => write!(f, "missing"),
        }
    }
}

pub(crate) fn save(path: &Path, state: &State) -> Result<(), CheckpointError> {
    let file = write(path, state)?;
    let mut staged = Staged::private();
    staged.write(path, |out| out.write_all(&file))?;
    staged.publish()?;
    staged::sweep(&staged::folder(path), |name| path.file_name().is_some_and(|this| this == name));
    Ok(())
}

/// The contents of the file of that path.
pub(crate) fn write(path: &Path, state: &State) -> Result<Vec<u8>, CheckpointError> {
    let tensors = state.waiting.iter().flat_map(|(name, waiting)| {
        let velocity = waiting.velocity.as_ref().map(|values| (format!("{VELOCITY}{name}"), bytes(values)));
        std::iter::once((format!("{RESIDUAL}{name}"), bytes(&waiting.residual))).chain(velocity)
    });
    let thresholds = state.groups.iter().enumerate().map(|(group, learnt)| {
        let values: Vec<f32> = learnt.thresholds.iter().map(|t| t.unwrap_or(f32::NAN)).collect();
        (format!("{THRESHOLDS}{group}"), bytes(&values))
    });
    let values = state.values.iter().map(|(name, values)| (format!("{VALUES}{name}"), bytes(values)));
    let singles = tensors.chain(thresholds).chain(values).map(|(name, bytes)| (name, bytes, Dtype::F32));
    let numbers = |numbers: &[f64]| numbers.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let doubles = state.groups.iter().enumerate().flat_map(|(group, Learnt { memory, .. })| {
        let named = |kind: &str, of: &[f64]| (format!("{kind}{group}"), numbers(of), Dtype::F64);
        [named(AGREED, &memory.agreed), named(OWN, &memory.own)]
    });
    let others = state.numbers.iter();
    let others = others.map(|(name, values)| (format!("{NUMBERS}{name}"), numbers(values), Dtype::F64));
    let tensors: Vec<(String, Vec<u8>, Dtype)> = singles.chain(doubles).chain(others).collect();
    let views = tensors.iter().map(|(name, bytes, kind)| {
        let size = if *kind == Dtype::F64 { 8 } else { 4 };
        TensorView::new(*kind, vec![bytes.len() / size], bytes).map(|view| (name.as_str(), view))
    });
    let groups: Vec<&[String]> = state.groups.iter().map(|group| group.parameters.as_slice()).collect();
    let mut metadata = HashMap::from([
        ("groups".to_owned(), serde_json::json!(groups).to_string()),
        ("format".to_owned(), FORMAT.to_owned()),
        ("step".to_owned(), state.step.to_string()),
        ("skipped".to_owned(), state.skipped.to_string()),
        ("rank".to_owned(), state.rank.to_string()),
        ("workers".to_owned(), state.workers.to_string()),
        ("run".to_owned(), state.run.clone()),
        ("method".to_owned(), state.method.clone()),
    ]);
    if !state.weights.is_empty() {
        metadata.insert("weights".to_owned(), serde_json::json!(state.weights).to_string());
    }
    metadata.extend(state.words.iter().map(|(name, words)| (format!("{WORDS}{name}"), words.clone())));
    checksum::reserve(&mut metadata);
    let damaged = |what: String| CheckpointError::Damaged { path: path.into(), what };
    let mut file = views
        .collect::<Result<Vec<_>, _>>()
        .and_then(|views| safetensors::serialize(views, Some(metadata)))
        .map_err(|e| damaged(e.to_string()))?;
    checksum::seal(&mut file).map_err(|e| damaged(e.to_string()))?;
    Ok(file)
}

/// A checkpoint of this program and this method has everything.
pub(crate) fn lacks(name: &str) -> CheckpointError {
    CheckpointError::Lacks(name.to_owned())
}

pub(crate) fn load(path: &Path) -> Result<State, CheckpointError> {
    let file = std::fs::read(path).map_err(|source| CheckpointError::Read { path: path.into(), source })?;
    read(path, &file)
}

/// What the file of that path holds.
pub(crate) fn read(path: &Path, file: &[u8]) -> Result<State, CheckpointError> {
    let damaged = |what: String| CheckpointError::Damaged { path: path.into(), what };
    let (_, header) = SafeTensors::read_metadata(file).map_err(|e| damaged(e.to_string()))?;
    let tensors = SafeTensors::deserialize(file).map_err(|e| damaged(e.to_string()))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    let text =
        |key: &str| metadata.get(key).cloned().ok_or_else(|| damaged(format!("it does not say its {key}")));
    let number =
        |key: &str| text(key)?.parse::<u64>().map_err(|_| damaged(format!("its {key} is no number")));
    let small =
        |key: &str| u32::try_from(number(key)?).map_err(|_| damaged(format!("its {key} is too large")));
    if text("format")? != FORMAT {
        return Err(damaged(format!("its format is '{}', expected '{FORMAT}'", text("format")?)));
    }
    checksum::verify(file).map_err(|error| damaged(error.to_string()))?;
    let groups: Vec<Vec<String>> = serde_json::from_str(&text("groups")?)
        .map_err(|error| damaged(format!("its groups cannot be read: {error}")))?;
    let weights =
        metadata.get("weights").map_or(Ok(BTreeMap::new()), |weights| serde_json::from_str(weights));
    let weights = weights.map_err(|error| damaged(format!("its weights cannot be read: {error}")))?;
    let words = metadata.iter();
    let words = words.filter_map(|(key, words)| Some((key.strip_prefix(WORDS)?.to_owned(), words.clone())));
    let (step, skipped) = (number("step")?, number("skipped")?);
    let steps = step
        .checked_sub(skipped)
        .ok_or_else(|| damaged(format!("of {step} steps it has skipped {skipped}")))?;
    let learnt = |parameters| Learnt {
        parameters,
        thresholds: Vec::new(),
        memory: Memory { steps, ..Memory::default() },
    };
    let mut groups: Vec<Learnt> = groups.into_iter().map(learnt).collect();
    let (mut waiting, mut velocities) = (BTreeMap::<String, Waiting>::new(), BTreeMap::new());
    let (mut others, mut other_numbers) = (BTreeMap::new(), BTreeMap::new());
    for (name, view) in tensors.tensors() {
        let named = |kind: &str| name.strip_prefix(kind).map(str::to_owned);
        let of = |kind: &str| name.strip_prefix(kind)?.parse::<usize>().ok();
        let learns = of(AGREED).map(|group| (group, true)).or_else(|| of(OWN).map(|group| (group, false)));
        let number = named(NUMBERS);
        if learns.is_some() || number.is_some() {
            if view.dtype() != Dtype::F64 {
                return Err(damaged(format!("'{name}' is not of type F64")));
            }
            let numbers: Vec<f64> =
                view.data().as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
            let Some((group, agreed)) = learns else {
                other_numbers.extend(number.map(|number| (number, numbers)));
                continue;
            };
            if numbers.iter().any(|v| !v.is_finite()) {
                return Err(damaged(format!("'{name}' holds NaN or infinity")));
            }
            let group =
                groups.get_mut(group).ok_or_else(|| damaged(format!("it has no group of '{name}'")))?;
            *if agreed { &mut group.memory.agreed } else { &mut group.memory.own } = numbers;
            continue;
        }
        if view.dtype() != Dtype::F32 {
            return Err(damaged(format!("'{name}' is not of type F32")));
        }
        let values: Vec<f32> =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(group) = of(THRESHOLDS) {
            let group =
                groups.get_mut(group).ok_or_else(|| damaged(format!("it has no group of '{name}'")))?;
            group.thresholds = values.into_iter().map(|t| Some(t).filter(|t| !t.is_nan())).collect();
        } else if let Some(other) = named(VALUES) {
            others.insert(other, values);
        } else if values.iter().any(|v| !v.is_finite()) {
            return Err(damaged(format!("'{name}' holds NaN or infinity")));
        } else if let Some(parameter) = named(RESIDUAL) {
            waiting.insert(parameter, Waiting { residual: values, velocity: None });
        } else if let Some(parameter) = named(VELOCITY) {
            velocities.insert(parameter, values);
        }
    }
    for (parameter, velocity) in velocities {
        let of = waiting.get_mut(&parameter).filter(|waiting| waiting.residual.len() == velocity.len());
        let of =
            of.ok_or_else(|| damaged(format!("'{VELOCITY}{parameter}' has no residual of its length")))?;
        of.velocity = Some(velocity);
    }
    Ok(State {
        step,
        skipped,
        rank: small("rank")?,
        workers: small("workers")?,
        run: text("run")?,
        method: text("method")?,
        waiting,
        groups,
        weights,
        values: others,
        numbers: other_numbers,
        words: words.collect(),
    })
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let moving = Waiting { residual: vec![1.5, -0.0, 1e-40], velocity: Some(vec![-1.0, 0.0, 3e-39]) };
        State {
            step: 9,
            skipped: 2,
            rank: 2,
            workers: 5,
            run: "0123456789abcdef".repeat(2),
            method: "spardl".into(),
            weights: BTreeMap::from([("a".into(), u64::MAX), ("b.c\"".into(), 0)]),
            values: BTreeMap::from([("truth".into(), vec![1.0, f32::NEG_INFINITY, -0.0])]),
            numbers: BTreeMap::from([("epoch".into(), vec![0.1, 1e300])]),
            words: BTreeMap::from([("seed".into(), "3".into()), ("".into(), "\"".into())]),
            waiting: BTreeMap::from([("a".into(), moving), ("b.c\"".into(), Waiting::default())]),
            groups: vec![
                Learnt {
                    parameters: vec!["b.c\"".into()],
                    thresholds: vec![None, Some(0.25)],
                    memory: Memory { steps: 7, agreed: vec![0.1, -3.0], own: vec![] },
                },
                Learnt {
                    parameters: vec!["a".into()],
                    thresholds: vec![],
                    memory: Memory { steps: 7, agreed: vec![], own: vec![1e300] },
                },
            ],
        }
    }

    #[test]
    fn what_is_saved_is_loaded_bit_by_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.safetensors");
        save(&path, &state()).unwrap();
        let loaded = load(&path).unwrap();
        assert_eq!(loaded, state());
        assert_eq!(loaded.waiting["a"].residual[1].to_bits(), (-0.0f32).to_bits());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_file_is_refused_wherever_it_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.safetensors");
        save(&path, &state()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(load(&path), Err(CheckpointError::Damaged { .. })), "cut at {cut}");
        }
        assert!(matches!(load(&folder.path().join("none")), Err(CheckpointError::Read { .. })));
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        std::fs::create_dir_all(path.join("inside")).unwrap();
        let error = save(&path, &state()).unwrap_err();
        assert!(error.to_string().contains("taken"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
