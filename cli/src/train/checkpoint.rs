//! Checkpoints, one file per worker and step: `rank-R.step-S.safetensors` with parameters, what the optimiser keeps, running averages, and what the
//! exchange of gradients keeps.
//!
//! The newest two steps are kept, because workers may be one checkpoint apart when they are interrupted. What a worker that was killed
//! has left of a file is removed with the next checkpoint, and named.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::{NoCommonCheckpoint, TrainResult, unfit, unwritten};
use super::exchange::Exchange;
use crate::crew::gather;
use gleaner_runtime::{Session, staged};
use gleaner_trainer::parameters::Parameters;

const KEPT: usize = 2;

/// What a file calls the evaluations so far.
const LOSS_CURVE: &str = "loss curve";

/// Names and words that a file says of its run.
pub type Identity = Vec<(&'static str, String)>;

/// One worker's checkpoints in a directory.
pub struct Checkpoints {
    directory: PathBuf,
    rank: usize,
    identity: Identity,
}

impl Checkpoints {
    /// Makes the directory if it is missing.
    fn make(directory: &Path) -> TrainResult<()> {
        fs::create_dir_all(directory).map_err(unwritten(directory))
    }

    /// Those of a run that goes on or begins: a new one does not begin among the checkpoints of another.
    pub fn open(directory: &Path, rank: usize, identity: Identity, resume: bool) -> TrainResult<Self> {
        Self::make(directory)?;
        let checkpoints = Checkpoints { directory: directory.into(), rank, identity };
        if !resume {
            checkpoints.expect_none()?;
        }
        Ok(checkpoints)
    }

    /// Makes the directory if it is missing, and sees whether files can be written there.
    pub fn probe(directory: &Path) -> TrainResult<()> {
        Self::make(directory)?;
        // A name that no file or directory of a user has.
        Ok(crate::report::probe(&directory.join("rank-0.step-0.probe"))?)
    }

    /// Where parameter servers keep their state, in a directory for checkpoints.
    pub fn of_servers(directory: &Path) -> PathBuf {
        directory.join("servers")
    }

    fn name(&self, step: u64) -> String {
        format!("rank-{}.step-{step}.safetensors", self.rank)
    }

    fn file(&self, step: u64) -> PathBuf {
        self.directory.join(self.name(step))
    }

    /// Of which step a file of this worker is; None for any other name.
    fn parse(&self, name: &str) -> Option<u64> {
        let step = name.split('.').nth(1)?.strip_prefix("step-")?.parse().ok()?;
        (name == self.name(step)).then_some(step)
    }

    /// The steps of which this worker has a checkpoint.
    fn steps(&self) -> TrainResult<BTreeSet<u64>> {
        let refuse = |error: io::Error| {
            let (expected, advice) =
                ("a directory that can be read", "check --checkpoint and the permissions");
            unfit(&self.directory, expected, &format!("an error: {error}"), advice)
        };
        let mut steps = BTreeSet::new();
        for entry in fs::read_dir(&self.directory).map_err(refuse)? {
            let entry = entry.map_err(refuse)?;
            let step = entry.file_name().to_str().and_then(|name| self.parse(name));
            steps.extend(step.filter(|_| entry.path().is_file()));
        }
        Ok(steps)
    }

    /// Refuses to begin a new run among the checkpoints of another: their steps would be taken for its own.
    fn expect_none(&self) -> TrainResult<()> {
        let newest = self.steps()?.last().map(|step| self.file(*step));
        let servers = Self::of_servers(&self.directory);
        let has_state = fs::read_dir(&servers).is_ok_and(|mut entries| entries.next().is_some());
        match newest.or_else(|| has_state.then_some(servers)) {
            None => Ok(()),
            Some(path) => {
                let expected = "a directory without checkpoints for a new run";
                let advice = "add --resume to go on from it, or choose another --checkpoint directory";
                Err(unfit(&path, expected, "this one", advice))
            }
        }
    }

    /// The newest step of which every worker has a checkpoint.
    pub fn newest_common_step(&self, session: &Session) -> TrainResult<u64> {
        let of_ranks: Vec<BTreeSet<u64>> = gather(session, &self.steps()?)?;
        let newest = |(rank, steps): (usize, &BTreeSet<u64>)| {
            let newest = steps.last().map_or("none".into(), |step| format!("step {step}"));
            format!("{newest} as the newest on rank {rank}")
        };
        let found: Vec<String> = of_ranks.iter().enumerate().map(newest).collect();
        let common = of_ranks.into_iter().reduce(|common, steps| &common & &steps);
        Ok(common.and_then(|common| common.last().copied()).ok_or_else(|| {
            NoCommonCheckpoint(format!(
                "--resume: expected a step of which every worker has a checkpoint in {}, found {}; point --checkpoint at the directory \
                 of an earlier run, or start without --resume",
                self.directory.display(),
                found.join(", ")
            ))
        })?)
    }

    /// What this worker's file of a step says of itself.
    fn words(&self, step: u64) -> Identity {
        self.identity.iter().cloned().chain([("step", step.to_string())]).collect()
    }

    /// Writes a step and removes all but the newest two, and what killed workers have left of files.
    pub fn save(
        &self,
        step: u64,
        exchange: &mut dyn Exchange,
        parameters: &Parameters,
        curve: &[(u64, f64)],
    ) -> TrainResult<()> {
        // As bits, since JSON has no number that is not finite.
        let curve: Vec<(u64, u64)> = curve.iter().map(|(step, loss)| (*step, loss.to_bits())).collect();
        let mut words = self.words(step);
        words.push((LOSS_CURVE, serde_json::to_string(&curve).unwrap_or_default()));
        exchange.save(&self.file(step), parameters, &words)?;
        for &old in self.steps()?.iter().rev().skip(KEPT) {
            self.remove(old)?;
        }
        // Of earlier steps; for this one it is done as the file is written.
        staged::sweep(&self.directory, |name| self.parse(name).is_some());
        Ok(())
    }

    fn remove(&self, step: u64) -> TrainResult<()> {
        let path = self.file(step);
        fs::remove_file(&path).map_err(unwritten(&path))
    }

    /// Brings back a step that belongs to this run on all ranks, which call it together; removes newer steps, which others lack.
    pub fn load(
        &self,
        step: u64,
        exchange: &mut dyn Exchange,
        parameters: &mut Parameters,
    ) -> TrainResult<Vec<(u64, f64)>> {
        let words = exchange.load(&self.file(step), parameters, &self.words(step))?;
        let curve = words.get(LOSS_CURVE).and_then(|curve| serde_json::from_str(curve).ok());
        let curve: Vec<(u64, u64)> = curve.ok_or_else(|| {
            let advice = "remove the file, so that an earlier step is taken";
            unfit(&self.file(step), "the losses so far", "none that can be read", advice)
        })?;
        for newer in self.steps()?.split_off(&(step + 1)) {
            self.remove(newer)?;
        }
        Ok(curve.into_iter().map(|(step, loss)| (step, f64::from_bits(loss))).collect())
    }
}
