//! What counts of a run over all of its workers.

use gleaner_runtime::Session;

use super::clock::{self, Clock, Times};
use crate::train::error::TrainError;

/// The most bytes, the largest waiting share and the longest blocking of any worker, what a step takes, and means over workers.
pub struct All {
    /// What the worker that received most received.
    pub bytes: u64,
    pub waiting_share: f64,
    pub seconds_blocked: f64,
    pub times: Times,
    /// Samples of all workers in a second, and of those at the bound of what may be in the background.
    pub throughput: f64,
    pub throughput_at_bound: Option<f64>,
    /// Of a step, in seconds: until the next pass could begin, the pass, and what travelled during it.
    pub synchronising: f64,
    pub computing: f64,
    pub background: f64,
    /// What a pass takes at each rank.
    pub computing_of: Vec<f64>,
}

/// Numbers before the times of the steps.
const HEAD: usize = 11;

/// All workers exchange what they have measured, and come to the same. `samples`: of each of this worker's passes; `received`: bytes so far.
pub fn all_workers(
    session: &Session,
    clock: &Clock,
    (samples, received): (usize, u64),
) -> Result<All, TrainError> {
    let seconds = |duration: std::time::Duration| duration.as_secs_f64();
    let head: [f64; HEAD] = [
        (received - clock.bytes_at_start) as f64,
        clock.waiting_share(),
        seconds(clock.blocked),
        clock.steps as f64,
        seconds(clock.worked),
        seconds(clock.waited),
        seconds(clock.computed),
        seconds(clock.background),
        clock.at_bound.0 as f64,
        seconds(clock.at_bound.1),
        samples as f64,
    ];
    let mut note: Vec<u8> = head.into_iter().flat_map(f64::to_le_bytes).collect();
    note.extend(clock.note());
    // A worker without which the others go on says nothing.
    let notes = session.all_gather(&note)?;
    let (ranks, notes): (Vec<usize>, Vec<Vec<u8>>) =
        notes.into_iter().enumerate().filter(|(_, note)| !note.is_empty()).unzip();
    let wrong = |of: usize| TrainError::Note {
        rank: ranks[of],
        expected: "bytes, shares of time and the times of steps",
        found: notes[of].len(),
    };
    let (mut heads, mut steps) = (Vec::new(), Vec::new());
    for (of, found) in notes.iter().enumerate() {
        let (head, times) = found.split_at_checked(8 * HEAD).ok_or_else(|| wrong(of))?;
        heads
            .push(head.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word)).collect::<Vec<f64>>());
        steps.push(times);
    }
    let differs = notes.iter().position(|found| found.len() != note.len()).unwrap_or(0);
    let times = clock::typical(&steps).ok_or_else(|| wrong(differs))?;
    let most = |field: usize| heads.iter().map(|head| head[field]).fold(0.0, f64::max);
    // Workers that do not wait for each other are not equally fast.
    let rate = |steps: usize, seconds: usize| -> f64 {
        heads
            .iter()
            .filter(|head| head[seconds] > 0.0)
            .map(|head| head[10] * head[steps] / head[seconds])
            .sum()
    };
    let of_step = |field: usize| {
        let steps: f64 = heads.iter().map(|head| head[3]).sum();
        heads.iter().map(|head| head[field]).sum::<f64>() / steps.max(1.0)
    };
    Ok(All {
        bytes: most(0) as u64,
        waiting_share: most(1),
        seconds_blocked: most(2),
        times,
        throughput: rate(3, 4),
        throughput_at_bound: (most(8) > 0.0).then(|| rate(8, 9)),
        synchronising: of_step(5),
        computing: of_step(6),
        background: of_step(7),
        computing_of: heads.iter().map(|head| head[6] / head[3].max(1.0)).collect(),
    })
}
