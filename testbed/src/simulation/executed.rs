//! Small cases are executed: the executions of all workers run in one thread, and what they do is written down.
//!
//! A longer gradient is represented by a sample: one entry stands for `scale`. Density, number of workers and the distribution of the
//! values are those of the whole, so the lengths of all bags are, too, but for chance. So is the norm: √scale times larger
//! entries, for methods whose first threshold depends on it.

use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::schedule::{Happening, Outgoing, Tally, watched};
use gleaner_algorithms::{Method, Sparsity};

use super::Steps;
use super::trace::{Op, Part, Trace, accumulated, handled, pieces};
use crate::Error;

/// Entries of all workers' gradients together that are executed; longer gradients are sampled.
pub const MOST_ENTRIES: usize = 1 << 22;

/// Among so many workers a longer gradient is sampled; among more, only what is short enough is executed.
pub const MOST_SAMPLED: u32 = 16;

/// Among more workers, bags have expected lengths.
pub const MOST_WORKERS: u32 = 256;

/// The most messages that one payload is cut into.
const MOST_PIECES: usize = 4096;

/// Where gradients come from: writes the gradient of a rank in a step, as many entries as there is room for.
pub type Source<'a> = &'a (dyn Fn(u32, u64, &mut [f32]) + Sync);

/// How many entries one entry of a sample stands for, so that a case can be executed; None where there are too many
/// workers.
pub fn scale(workers: u32, n: usize) -> Option<usize> {
    let each = (MOST_ENTRIES / workers.max(1) as usize).max(1);
    let scale = n.div_ceil(each).max(1);
    let most = if scale > 1 { MOST_SAMPLED } else { MOST_WORKERS };
    (workers <= most).then_some(scale)
}

/// What happens in the steps of a job that count: in all of them where the method learns, or else in the middle one.
///
/// # Errors
/// A method that cannot run among so many workers, or gradients that are not finite.
pub fn traces(
    method: &Method,
    (workers, n): (u32, usize),
    scale: usize,
    steps: Steps,
    source: Source<'_>,
) -> Result<Vec<Trace>, Error> {
    let sample = n.div_ceil(scale);
    let method = match method.sparsity() {
        Sparsity::K(k) if scale > 1 => {
            method.clone().selecting(Sparsity::K((k / scale).clamp(usize::from(k > 0), sample)))
        }
        _ => method.clone(),
    };
    let scale = n as f64 / sample.max(1) as f64;
    let mut ensemble = Ensemble::<f32>::new(method.clone(), workers, sample)?;
    let memory = &ensemble.memories()[0];
    let learns = !(memory.agreed.is_empty() && memory.own.is_empty());
    // A sample with the norm of the whole gradient: first thresholds may depend on that and on k.
    let larger = scale.sqrt() as f32;
    let (warm_up, counted) = (u64::from(steps.warm_up), u64::from(steps.counted));
    let last = warm_up + if learns { counted.saturating_sub(1) } else { counted / 2 };
    let mut gradient = vec![0.0; sample];
    let mut traces = Vec::new();
    for step in 0..=last {
        let before = vec![Tally::default(); workers as usize];
        let mut recorder = Recorder { trace: Trace::new(workers as usize), before, scale };
        let mut executions = Vec::new();
        for rank in 0..workers {
            source(rank, step, &mut gradient);
            if scale > 1.0 {
                gradient.iter_mut().for_each(|entry| *entry *= larger);
            }
            ensemble.residuals[rank as usize].accumulate(0, &gradient)?;
            recorder.trace.work(rank as usize, Part::Select, accumulated(n as f64));
            executions.push(ensemble.begin(rank as usize)?);
        }
        recorder.trace.rounds = ensemble.cost().rounds;
        let done = watched(executions, |rank, happening| recorder.take(rank.index(), happening))?;
        recorder.trace.delivered = scale * done.runs.first().map_or(0, |run| run.finished.entries()) as f64;
        ensemble.commit(done, method.collection())?;
        if step == last || (learns && step >= warm_up) {
            traces.push(recorder.trace);
        }
    }
    Ok(traces)
}

/// Writes down what happens.
struct Recorder {
    trace: Trace,
    /// By rank, what was handled until now.
    before: Vec<Tally>,
    scale: f64,
}

impl Recorder {
    fn take(&mut self, rank: usize, happening: Happening<'_>) {
        match happening {
            Happening::Advanced(tally, outgoing) => {
                let work = self.since(rank, tally);
                self.trace.work(rank, Part::Select, handled(work, self.scale));
                outgoing.iter().for_each(|message| self.send(rank, message, 0..usize::MAX));
            }
            Happening::Received(from, bytes, tally, outgoing) => {
                let count = self.pieces(bytes as usize);
                let work = handled(self.since(rank, tally), self.scale / count as f64);
                for piece in 0..count {
                    self.trace.workers[rank].push(Op::Receive { from: from.0 });
                    self.trace.work(rank, Part::Merge, work);
                    // What is passed on leaves piece by piece, as it comes.
                    let end = if piece + 1 == count { usize::MAX } else { piece + 1 };
                    outgoing.iter().for_each(|message| self.send(rank, message, piece..end));
                }
            }
            Happening::Finished(tally) => self.trace.work(rank, Part::Merge, handled(tally, self.scale)),
        }
    }

    fn since(&mut self, rank: usize, tally: Tally) -> Tally {
        tally - std::mem::replace(&mut self.before[rank], tally)
    }

    /// Into how many messages a sampled payload is cut when it stands for the whole one.
    fn pieces(&self, bytes: usize) -> usize {
        if self.scale == 1.0 { 1 } else { pieces(bytes as f64 * self.scale, MOST_PIECES) }
    }

    /// Some of the pieces of a message.
    fn send(&mut self, rank: usize, message: &Outgoing, which: std::ops::Range<usize>) {
        let count = self.pieces(message.payload.len());
        let bytes = (message.payload.len() as f64 * self.scale / count as f64) as f32;
        let send = Op::Send { to: message.to.0, bytes };
        let pieces = which.start..which.end.min(count);
        self.trace.workers[rank].extend(pieces.map(|_| send));
    }
}
