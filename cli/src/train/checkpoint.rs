//! Checkpoints, one pair of files per worker: `rank-R.step-S.safetensors` with parameters, what the optimiser keeps and running
//! averages, and `rank-R.step-S.residual.safetensors` with what the exchange of gradients keeps.
//!
//! A file is written under another name, synced and renamed, the residuals first: a step whose first file is there is
//! complete. The newest two steps are kept, because workers may be one checkpoint apart when they are interrupted. What an
//! interrupted run left otherwise is removed with the next whole checkpoint, and named.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::agreement::{all_can, expect_agreement};
use super::error::TrainError;
use super::exchange::Exchange;
use super::model_file::{self, Identity, Model, Refusal};
use crate::crew::gather;
use gleaner_runtime::staged::{self, Staged};
use gleaner_runtime::{Session, report};
use gleaner_trainer::optimizer;
use gleaner_trainer::parameters::Parameters;

const KEPT: usize = 2;
const DAMAGED: &str =
    "the file is damaged or of another version; remove it, so that an earlier step is taken";
const MOVED: &str = "it was copied or renamed; bring back the file that this rank wrote at this step, or remove it, so that an earlier step is taken";
const OTHERWISE: &str =
    "resume with the options of the interrupted run, or start anew in another --checkpoint directory";

/// Everything of a worker that a checkpoint holds.
pub struct State<'a> {
    /// The model's parameters and buffers.
    pub parameters: &'a mut Parameters,
    /// Velocities, residuals, and the method's own state.
    pub exchange: &'a mut dyn Exchange,
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

    /// Makes the directory if it is missing, and sees whether files can be written there.
    pub fn probe(directory: &Path) -> Result<(), TrainError> {
        Self::open(directory, 0, Identity::new())?;
        // A name that no file or directory of a user has.
        Ok(crate::report::probe(&directory.join("rank-0.step-0.probe"))?)
    }

    /// Where parameter servers keep their state, in a directory for checkpoints.
    pub fn of_servers(directory: &Path) -> PathBuf {
        directory.join("servers")
    }

    fn file(&self, step: u64) -> PathBuf {
        self.directory.join(format!("rank-{}.step-{step}.safetensors", self.rank))
    }

    fn residual_file(&self, step: u64) -> PathBuf {
        self.directory.join(format!("rank-{}.step-{step}.residual.safetensors", self.rank))
    }

    /// Of which step a file of this worker is, and whether it holds residuals; None for any other name.
    fn parse(&self, name: &str) -> Option<(u64, bool)> {
        let rest =
            name.strip_prefix("rank-")?.strip_prefix(&self.rank.to_string())?.strip_prefix(".step-")?;
        let rest = rest.strip_suffix(".safetensors")?;
        let (digits, residual) =
            rest.strip_suffix(".residual").map_or((rest, false), |digits| (digits, true));
        let step: u64 = digits.parse().ok()?;
        (step.to_string() == digits).then_some((step, residual))
    }

    /// The steps of which this worker has a complete checkpoint, and those of which it has only one of the two files.
    fn steps_and_halves(&self) -> Result<(BTreeSet<u64>, BTreeSet<u64>), TrainError> {
        let refuse = |error: io::Error| TrainError::Checkpoint {
            path: self.directory.clone(),
            expected: "a directory that can be read".into(),
            found: format!("an error: {error}"),
            advice: "check --checkpoint and the permissions",
        };
        let (mut models, mut residuals) = (BTreeSet::new(), BTreeSet::new());
        for entry in fs::read_dir(&self.directory).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let parsed = entry.file_name().to_str().and_then(|name| self.parse(name));
            if let Some((step, residual)) = parsed.filter(|_| entry.path().is_file()) {
                if residual { &mut residuals } else { &mut models }.insert(step);
            }
        }
        Ok((&models & &residuals, &models ^ &residuals))
    }

    fn steps(&self) -> Result<BTreeSet<u64>, TrainError> {
        Ok(self.steps_and_halves()?.0)
    }

    /// Refuses to begin a new run among the checkpoints of another: their steps would be taken for its own.
    pub fn expect_none(&self) -> Result<(), TrainError> {
        let newest = self.steps()?.last().map(|step| self.file(*step));
        let servers = Self::of_servers(&self.directory);
        let has_state = fs::read_dir(&servers).is_ok_and(|mut entries| entries.next().is_some());
        match newest.or_else(|| has_state.then_some(servers)) {
            None => Ok(()),
            Some(path) => Err(TrainError::Checkpoint {
                path,
                expected: "a directory without checkpoints for a new run".into(),
                found: "this one".into(),
                advice: "add --resume to go on from it, or choose another --checkpoint directory",
            }),
        }
    }

    /// The newest step of which every worker has a checkpoint.
    pub fn newest_common_step(&self, session: &Session) -> Result<u64, TrainError> {
        let of_ranks: Vec<BTreeSet<u64>> = gather(session, &self.steps()?)?;
        let newest = |(rank, steps): (usize, &BTreeSet<u64>)| {
            let newest = steps.last().map_or("none".into(), |step| format!("step {step}"));
            format!("{newest} as the newest on rank {rank}")
        };
        let found: Vec<String> = of_ranks.iter().enumerate().map(newest).collect();
        let common = of_ranks.into_iter().reduce(|common, steps| &common & &steps);
        common.and_then(|common| common.last().copied()).ok_or_else(|| TrainError::NoCommonCheckpoint {
            directory: self.directory.clone(),
            found: found.join(", "),
        })
    }

    /// Writes a step and removes all but the newest two, and what an interrupted run has left.
    pub fn save(&self, step: u64, state: &mut State) -> Result<(), TrainError> {
        state.exchange.save(&self.residual_file(step))?;
        let path = self.file(step);
        let refuse = |error| TrainError::Write { path: path.clone(), source: io::Error::other(error) };
        let content = self.serialize(step, state).map_err(refuse)?;
        let mut staged = Staged::private();
        staged.write(&path, |file| file.write_all(&content))?;
        staged.publish()?;

        let (steps, halves) = self.steps_and_halves()?;
        for &old in steps.iter().rev().skip(KEPT) {
            self.remove(old)?;
        }
        for &half in halves.iter().take_while(|&&half| half < step) {
            for path in [self.file(half), self.residual_file(half)].into_iter().filter(|path| path.is_file())
            {
                fs::remove_file(&path).map_err(|source| TrainError::Write { path: path.clone(), source })?;
                removed(&path, "half of a checkpoint");
            }
        }
        staged::sweep(&self.directory, |name| self.parse(name).is_some());
        Ok(())
    }

    /// Removes a whole checkpoint: both of its files are there.
    fn remove(&self, step: u64) -> Result<(), TrainError> {
        for path in [self.file(step), self.residual_file(step)] {
            fs::remove_file(&path).map_err(|source| TrainError::Write { path, source })?;
        }
        Ok(())
    }

    /// What this worker's file of a step says of itself.
    fn identity_of(&self, step: u64) -> Identity {
        let own = [("rank", self.rank.to_string()), ("step", step.to_string())];
        self.identity.iter().cloned().chain(own).collect()
    }

    fn serialize(
        &self,
        step: u64,
        state: &mut State,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let mut tensors: Vec<(String, Vec<f32>)> = Vec::new();
        for parameter in &state.parameters.list {
            tensors.push((format!("parameter/{}", parameter.name), parameter.values()?.into_owned()));
        }
        for (kind, values) in state.exchange.optimizer_state()? {
            for (parameter, values) in state.parameters.list.iter().zip(values) {
                tensors.push((format!("{kind}/{}", parameter.name), values));
            }
        }
        for buffer in &state.parameters.buffers {
            tensors.push((format!("buffer/{}", buffer.name), buffer.values.borrow().to_vec1()?));
        }
        let (_, run) = state.exchange.stand();
        model_file::write(&self.identity_of(step), &run, state.loss_curve, &tensors)
    }

    /// Brings back a step, after all ranks have made sure that it belongs to this run; removes newer steps, which others lack.
    pub fn load(&self, session: &Session, step: u64, state: &mut State) -> Result<(), TrainError> {
        let saved = all_can(session, self.read(step, state))?;
        expect_agreement(session, &[("run", saved.run.clone())], MOVED)?;
        let residuals = self.residual_file(step);
        state.exchange.load(&residuals)?;
        // From here on all ranks find the same.
        let found = state.exchange.stand();
        // What servers have is newer.
        let (expected, is_kept) = (saved.run.as_str(), state.exchange.kept().is_some());
        if found.1 != expected || found.0 != step && !is_kept {
            return Err(TrainError::Checkpoint {
                path: residuals,
                expected: format!("step {step} of run {}", saved.run),
                found: format!("step {} of run {}", found.0, found.1),
                advice: MOVED,
            });
        }
        *state.loss_curve = saved.loss_curve;
        state.exchange.restore_optimizer(saved.optimizer)?;
        for (parameter, values) in state.parameters.list.iter_mut().zip(&saved.parameters) {
            parameter.update(|into| into.copy_from_slice(values))?;
        }
        state.exchange.hand_on(state.parameters)?;
        for (buffer, values) in state.parameters.buffers.iter().zip(&saved.buffers) {
            buffer.set(values)?;
        }
        for newer in self.steps()?.split_off(&(step + 1)) {
            self.remove(newer)?;
        }
        Ok(())
    }

    /// What this worker's file of a step holds, for parameters like these.
    fn read(&self, step: u64, state: &mut State) -> Result<Saved, TrainError> {
        let path = self.file(step);
        let refuse = |refusal| {
            let (expected, found, advice) = match refusal {
                Refusal::Damaged(found) => ("a checkpoint of gleaner train".to_owned(), found, DAMAGED),
                Refusal::Other { name, expected, found } => {
                    let found = found.map_or("nothing".into(), |found| format!("{name} {found}"));
                    let advice = if matches!(name, "rank" | "step") { MOVED } else { OTHERWISE };
                    (format!("{name} {expected}"), found, advice)
                }
            };
            TrainError::Checkpoint { path: path.clone(), expected, found, advice }
        };
        let unreadable = |error: io::Error| refuse(Refusal::Damaged(format!("an error: {error}")));
        let content = fs::read(&path).map_err(unreadable)?;
        let Model { run, loss_curve, tensors } =
            Model::read(&content, &self.identity_of(step)).map_err(refuse)?;
        let values =
            |kind: &str, name: &str, len| tensors.values(&format!("{kind}/{name}"), len).map_err(refuse);
        let kinds = state.exchange.optimizer_state()?.into_iter().map(|(kind, _)| kind);
        let of_parameters = |kind: &str| -> Result<Vec<Vec<f32>>, TrainError> {
            state.parameters.list.iter().map(|p| values(kind, &p.name, p.count())).collect()
        };
        let buffers = state.parameters.buffers.iter();
        let buffers = buffers.map(|buffer| values("buffer", &buffer.name, buffer.count()));
        Ok(Saved {
            run,
            loss_curve,
            parameters: of_parameters("parameter")?,
            optimizer: kinds
                .map(|kind| Ok((kind, of_parameters(kind)?)))
                .collect::<Result<_, TrainError>>()?,
            buffers: buffers.collect::<Result<_, _>>()?,
        })
    }
}

/// What a file of a model holds, in the order of the parameters and buffers.
struct Saved {
    run: String,
    loss_curve: Vec<(u64, f64)>,
    parameters: Vec<Vec<f32>>,
    optimizer: optimizer::State,
    buffers: Vec<Vec<f32>>,
}

fn removed(path: &Path, what: &str) {
    report::say(format_args!("gleaner: removed {}, {what} that an interrupted run has left", path.display()));
}
