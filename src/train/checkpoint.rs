//! Checkpoints, one pair of files per worker: `rank-R.step-S.safetensors` with parameters, velocities and running
//! averages, and `rank-R.step-S.residual.safetensors` with what the exchange of gradients keeps.
//!
//! A file is written under another name, synced and renamed, the residuals first: a step whose first file is there is
//! complete. The newest two steps are kept, because workers may be one checkpoint apart when they are interrupted.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::error::TrainError;
use super::optimizer::Optimizer;
use super::parameters::Parameters;
use gleaner_runtime::staged::Staged;
use gleaner_runtime::{Gradients, Session};

const KEPT: usize = 2;
const DAMAGED: &str =
    "the file is damaged or of another version; remove it, so that an earlier step is taken";

/// What must be equal for a run to go on from a checkpoint: names and values, for the header and for messages.
pub type Identity = Vec<(&'static str, String)>;

/// Everything of a worker that a checkpoint holds.
pub struct State<'a> {
    /// The model's parameters and buffers.
    pub parameters: &'a mut Parameters,
    /// The velocities.
    pub optimizer: &'a mut Optimizer,
    /// Residuals and the method's own state.
    pub gradients: &'a mut Gradients,
    /// Step and held-out loss of the evaluations so far.
    pub loss_curve: &'a mut Vec<(u64, f64)>,
}

/// One worker's checkpoints in a directory.
pub struct Checkpoints {
    directory: PathBuf,
    rank: usize,
    identity: Identity,
}

impl Checkpoints {
    /// Makes the directory if it is missing.
    pub fn open(directory: &Path, rank: usize, identity: Identity) -> Result<Self, TrainError> {
        fs::create_dir_all(directory)
            .map_err(|source| TrainError::Write { path: directory.into(), source })?;
        Ok(Checkpoints { directory: directory.into(), rank, identity })
    }

    fn file(&self, step: u64) -> PathBuf {
        self.directory.join(format!("rank-{}.step-{step}.safetensors", self.rank))
    }

    fn residual_file(&self, step: u64) -> PathBuf {
        self.directory.join(format!("rank-{}.step-{step}.residual.safetensors", self.rank))
    }

    /// The steps of which this worker has a complete checkpoint.
    fn steps(&self) -> Result<BTreeSet<u64>, TrainError> {
        let refuse = |error: io::Error| TrainError::Checkpoint {
            path: self.directory.clone(),
            expected: "a directory that can be read".into(),
            found: format!("an error: {error}"),
            advice: "check --checkpoint and the permissions",
        };
        let prefix = format!("rank-{}.step-", self.rank);
        let mut steps = BTreeSet::new();
        for entry in fs::read_dir(&self.directory).map_err(refuse)? {
            let name = entry.map_err(refuse)?.file_name();
            let step = name
                .to_str()
                .and_then(|name| name.strip_prefix(&prefix)?.strip_suffix(".safetensors")?.parse().ok());
            steps.extend(step.filter(|&step| self.residual_file(step).is_file()));
        }
        Ok(steps)
    }

    /// Refuses to begin a new run among the checkpoints of another: their steps would be taken for its own.
    pub fn expect_none(&self) -> Result<(), TrainError> {
        match self.steps()?.last() {
            None => Ok(()),
            Some(&step) => Err(TrainError::Checkpoint {
                path: self.file(step),
                expected: "a directory without checkpoints for a new run".into(),
                found: "this one".into(),
                advice: "add --resume to go on from it, or choose another --checkpoint directory",
            }),
        }
    }

    /// The newest step of which every worker has a checkpoint.
    pub fn newest_common_step(&self, session: &Session) -> Result<u64, TrainError> {
        let own: Vec<u8> = self.steps()?.iter().flat_map(|step| step.to_le_bytes()).collect();
        let mut common: Option<BTreeSet<u64>> = None;
        let mut found = Vec::new();
        for (rank, note) in session.all_gather(&own)?.iter().enumerate() {
            let (words, rest) = note.as_chunks::<8>();
            if !rest.is_empty() {
                return Err(TrainError::Note { rank, expected: "steps with checkpoints", found: note.len() });
            }
            let steps: BTreeSet<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
            let newest = steps.last().map_or("none".into(), |step| format!("step {step}"));
            found.push(format!("{newest} as the newest on rank {rank}"));
            common = Some(common.map_or(steps.clone(), |common| &common & &steps));
        }
        common.and_then(|common| common.last().copied()).ok_or_else(|| TrainError::NoCommonCheckpoint {
            directory: self.directory.clone(),
            found: found.join(", "),
        })
    }

    /// Writes a step and removes all but the newest two.
    pub fn save(&self, step: u64, state: &State) -> Result<(), TrainError> {
        state.gradients.save(&self.residual_file(step))?;
        let path = self.file(step);
        let content = self
            .serialize(step, state)
            .map_err(|error| TrainError::Write { path: path.clone(), source: io::Error::other(error) })?;
        let mut staged = Staged::default();
        staged.write(&path, |file| file.write_all(&content))?;
        staged.publish()?;

        let steps = self.steps()?;
        for &old in steps.iter().rev().skip(KEPT) {
            self.remove(old)?;
        }
        Ok(())
    }

    fn remove(&self, step: u64) -> Result<(), TrainError> {
        for path in [self.file(step), self.residual_file(step)] {
            fs::remove_file(&path).map_err(|source| TrainError::Write { path, source })?;
        }
        Ok(())
    }

    fn serialize(
        &self,
        step: u64,
        state: &State,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let mut tensors: Vec<(String, Vec<u8>)> = Vec::new();
        for (parameter, velocities) in state.parameters.list.iter().zip(&state.optimizer.velocities) {
            tensors.push((format!("parameter/{}", parameter.name), bytes(parameter.values())));
            tensors.push((format!("velocity/{}", parameter.name), bytes(velocities)));
        }
        for buffer in &state.parameters.buffers {
            tensors.push((format!("buffer/{}", buffer.name), bytes(&buffer.values.borrow())));
        }
        let views = tensors
            .iter()
            .map(|(name, bytes)| Ok((name, TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)?)));
        let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
        let mut header: HashMap<String, String> =
            self.identity.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        header.insert("step".into(), step.to_string());
        header.insert("rank".into(), self.rank.to_string());
        header.insert("loss_curve".into(), write_curve(state.loss_curve));
        Ok(safetensors::serialize(views, Some(header))?)
    }

    /// Brings back a step, after checking that it belongs to this run; removes newer steps, which others lack.
    pub fn load(&self, step: u64, state: &mut State) -> Result<(), TrainError> {
        let path = self.file(step);
        let refuse = |expected: String, found: String, advice| TrainError::Checkpoint {
            path: path.clone(),
            expected,
            found,
            advice,
        };
        let damaged = |found: String| refuse("a checkpoint of gleaner train".into(), found, DAMAGED);
        let content = fs::read(&path).map_err(|error| damaged(format!("an error: {error}")))?;
        let tensors = SafeTensors::deserialize(&content).map_err(|error| damaged(format!("{error}")))?;
        let (_, metadata) =
            SafeTensors::read_metadata(&content).map_err(|error| damaged(format!("{error}")))?;
        let header = metadata.metadata().clone().unwrap_or_default();
        for (name, value) in &self.identity {
            if header.get(*name) != Some(value) {
                let found = header.get(*name).map_or("nothing".into(), |found| format!("{name} {found}"));
                let advice = "resume with the options of the interrupted run, or start anew in another --checkpoint directory";
                return Err(refuse(format!("{name} {value}"), found, advice));
            }
        }
        let curve = header.get("loss_curve").and_then(|curve| read_curve(curve));
        *state.loss_curve = curve.ok_or_else(|| damaged("no loss curve".into()))?;

        let read = |name: String, into: &mut [f32]| -> Result<(), TrainError> {
            let tensor = tensors.tensor(&name).map_err(|error| damaged(format!("{error}")))?;
            let (words, _) = tensor.data().as_chunks::<4>();
            if tensor.dtype() != Dtype::F32 || words.len() != into.len() {
                return Err(damaged(format!("{} numbers for {name} instead of {}", words.len(), into.len())));
            }
            into.iter_mut().zip(words).for_each(|(value, &word)| *value = f32::from_le_bytes(word));
            Ok(())
        };
        for (parameter, velocities) in state.parameters.list.iter_mut().zip(&mut state.optimizer.velocities) {
            read(format!("velocity/{}", parameter.name), velocities)?;
            let (name, mut outcome) = (format!("parameter/{}", parameter.name), Ok(()));
            parameter.update(|values| outcome = read(name, values))?;
            outcome?;
        }
        for buffer in &state.parameters.buffers {
            read(format!("buffer/{}", buffer.name), &mut buffer.values.borrow_mut())?;
        }
        state.gradients.load(&self.residual_file(step))?;
        for newer in self.steps()?.split_off(&(step + 1)) {
            self.remove(newer)?;
        }
        Ok(())
    }
}

/// Steps and losses as words; unlike JSON's, Rust's own decimals come back as the same bits.
fn write_curve(curve: &[(u64, f64)]) -> String {
    let words: Vec<String> = curve.iter().map(|(step, loss)| format!("{step} {loss}")).collect();
    words.join(" ")
}

fn read_curve(text: &str) -> Option<Vec<(u64, f64)>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [step, loss] => Some((step.parse().ok()?, loss.parse().ok()?)),
        _ => None,
    });
    pairs.collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
