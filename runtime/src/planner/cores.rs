//! What the backward pass and exchanges take from each other where they share cores.

use std::collections::HashMap;
use std::{fs, thread};

use gleaner_algorithms::merging::{Costs, GroupCost, MergingError, Placement, Predicted};

use super::PlanError;
use crate::session::Session;

/// Which worker has a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cores {
    /// Where selection runs: beside the backward pass if a core is free for it.
    pub(super) place: Placement,
    /// How many workers share a core, where they are the most; 1 where each has its own.
    pub(super) sharing: f64,
}

impl Cores {
    /// A core for each worker.
    pub(super) const OWN: Self = Self { place: Placement::Beside, sharing: 1.0 };

    /// As the ranks say together. The same on every rank.
    ///
    /// # Errors
    /// The job has failed.
    pub(super) fn agree(session: &Session) -> Result<Self, PlanError> {
        // The same for all that run on one kernel, whatever their host is called.
        let machine = fs::read("/proc/sys/kernel/random/boot_id");
        let machine = machine.unwrap_or_else(|_| session.rank().to_le_bytes().into());
        let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
        let notes = session.all_gather(&[&cores.to_le_bytes()[..], &machine].concat())?;
        let mut workers: HashMap<&[u8], u32> = HashMap::new();
        let mut sharing = 1.0_f64;
        for note in &notes {
            let Some((cores, machine)) = note.split_first_chunk() else { continue };
            let here = workers.entry(machine).or_default();
            *here += 1;
            sharing = sharing.max(f64::from(*here) / f64::from(u32::from_le_bytes(*cores).max(1)));
        }
        Ok(Self { place: if sharing > 1.0 { Placement::InBackward } else { Placement::Beside }, sharing })
    }
}

/// What an exchange takes of the cores, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Of all workers' cores as they are shared, for a message.
    pub(super) message: f64,
    /// Of a core, for a byte.
    pub(super) byte: f64,
}

/// What steps are found to take beyond the session's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    /// How many times longer exchanges take.
    pub(super) factor: f64,
    /// Which share of what they take longer keeps the next group waiting, as a slower link does: 1 if all of it. The rest is latency, as
    /// that of workers that wait for each other's processors, in which the links are free for the next group.
    pub(super) held: f64,
    /// How many times longer selecting and merging take: the session measured them on entries that a processor's caches hold.
    pub(super) work: f64,
    /// How much longer each group stalls a backward pass that shares its cores, in seconds.
    pub(super) stall: f64,
}

impl Found {
    /// As the model says. What exchanges take longer is latency until groups are measured that could wait for each other.
    pub(super) const NONE: Self = Self { factor: 1.0, held: 0.0, work: 1.0, stall: 0.0 };

    /// How long the links are held, and how much later all is received, of an exchange for which the model has these two, in seconds.
    fn of(self, links: f64, latency: f64) -> (f64, f64) {
        let more = (self.factor - 1.0).max(0.0) * links * (1.0 - self.held);
        (self.factor * links - more, self.factor * latency + more)
    }
}

/// What the session's model predicts, and by how much exchanges are found to differ from it. Where the backward pass has to share its cores, all
/// that an exchange takes of them delays that pass as selecting does: merging, what each message costs, and sealing and copying each byte.
pub(super) struct Shared<'a> {
    pub(super) predicted: Predicted<'a>,
    pub(super) cores: Cores,
    pub(super) work: Work,
    pub(super) found: Found,
}

impl Costs for Shared<'_> {
    fn of(&self, entries: usize) -> Result<GroupCost, MergingError> {
        let Predicted { model, method, workers } = self.predicted;
        let forecast = model.forecast(method.clone(), workers, entries)?;
        let (links, latency) = self.found.of(forecast.exchange - forecast.latency, forecast.latency);
        let (select, merge) = (self.found.work * forecast.select, self.found.work * forecast.merge);
        if self.cores.place == Placement::Beside {
            return Ok(GroupCost::pipelined(select, links, merge, latency));
        }
        let messages = forecast.messages as f64 * self.work.message;
        let bytes = forecast.bytes_received as f64 * self.work.byte * self.cores.sharing;
        // The exchange cannot be over before its work is done.
        let work = (messages + bytes).min(links + latency);
        let exchange = (links - work).max(0.0);
        let latency = links + latency - work - exchange;
        let select = select + merge + work + self.found.stall;
        Ok(GroupCost { select, exchange, latency })
    }
}
