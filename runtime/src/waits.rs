//! Which worker waits for which.

use std::collections::VecDeque;
use std::time::Duration;

use crate::failure::{Error, Failure};
use crate::notes::Purpose;
use crate::session::{Inner, Session};

/// The rank that a worker waited for in a step, as far as it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Awaited {
    /// It cannot know: in an all-reduce a rank that is late makes others late, whose messages come last. What [`Waits`] finds out.
    #[default]
    Unknown,
    /// None: the server did not wait for others.
    NoRank,
    /// This rank, whose part came last at a server.
    Rank(u32),
}

/// For how long each worker of a job waited for which other one.
///
/// After an all-reduce no rank knows which one it has waited for, but the rank that was last has waited least. So the workers exchange now and then how
/// long they waited in each step, and what one of them waited longer than the one that waited least is put down to that.
///
/// ```
/// use std::time::Duration;
/// use gleaner_runtime::{Awaited, Session, Waits};
///
/// let session = Session::join()?;
/// let mut waits = Waits::new(&session);
/// waits.count(0, Duration::from_millis(3), Awaited::Unknown);
/// // All workers call it together, after as many steps.
/// waits.share(&session)?;
/// assert_eq!(waits.seconds(), [[0.0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Waits {
    /// What this worker waited in each step since they were shared last.
    steps: VecDeque<(u64, f32)>,
    /// What it is known to have waited for each rank since then, in seconds.
    own: Vec<f64>,
    shared: Vec<Vec<f64>>,
}

/// Steps that are kept at most until they are shared; of more, the newest.
const KEPT: usize = 100_000;

impl Waits {
    /// No worker has waited yet.
    pub fn new(session: &Session) -> Self {
        let workers = session.world_size();
        Self { steps: VecDeque::new(), own: vec![0.0; workers], shared: vec![vec![0.0; workers]; workers] }
    }

    /// This worker waited so long in the step of this number.
    pub fn count(&mut self, step: u64, waited: Duration, awaited: Awaited) {
        match awaited {
            Awaited::Unknown => {
                self.steps.push_back((step, waited.as_secs_f32()));
                if self.steps.len() > KEPT {
                    self.steps.pop_front();
                }
            }
            Awaited::NoRank => {}
            Awaited::Rank(rank) => {
                if let Some(of) = self.own.get_mut(rank as usize) {
                    *of += waited.as_secs_f64();
                }
            }
        }
    }

    /// Exchanges with all others how long they have waited. All call it together. A [timeline](crate::Timeline) says from now on which rank this
    /// worker waited in the steps that were reported.
    ///
    /// # Errors
    /// The job has failed.
    pub fn share(&mut self, session: &Session) -> Result<(), Error> {
        self.share_in(&session.inner)
    }

    fn share_in(&mut self, session: &Inner) -> Result<(), Error> {
        let mut note: Vec<u8> = self.own.iter().flat_map(|seconds| seconds.to_le_bytes()).collect();
        note.extend(self.steps.iter().flat_map(|(_, seconds)| seconds.to_le_bytes()));
        let known = 8 * self.own.len();
        let mut steps: Vec<Vec<f32>> = Vec::new();
        for (rank, note) in (0..).zip(session.gather(Purpose::Waits, &note)?) {
            // Without this one the others go on.
            if note.is_empty() {
                steps.push(Vec::new());
                continue;
            }
            let Some((own, rest)) =
                note.split_at_checked(known).filter(|(_, rest)| rest.len().is_multiple_of(4))
            else {
                let reason =
                    format!("it sent {} bytes about its waits, expected {known} and steps", note.len());
                return Err(session.fail(Failure { rank, step: None, reason }));
            };
            let words = own.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word));
            let row = &mut self.shared[rank as usize];
            row.iter_mut().zip(words).for_each(|(sum, seconds)| *sum += seconds);
            steps.push(rest.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect());
        }
        let own = session.rank.0 as usize;
        for (back, last) in (1..).zip(blame(&steps, &mut self.shared)) {
            if let Some(&(step, _)) = self.steps.get(self.steps.len() - back).filter(|_| last != own) {
                session.recorder.awaited(step, last as u32);
            }
        }
        self.steps.clear();
        self.own.fill(0.0);
        Ok(())
    }

    /// What was shared so far, in seconds: of each worker, by rank, for which other one it has waited.
    pub fn seconds(&self) -> &[Vec<f64>] {
        &self.shared
    }

    /// The rank for which the others have waited longest, the one of them that waited longest for it, and how long all of them together, in
    /// seconds; no rank if none has waited.
    pub fn most_awaited(&self) -> Option<(usize, usize, f64)> {
        let column = |rank: usize| self.shared.iter().map(move |row| row[rank]);
        let ranks = 0..self.own.len();
        let (awaited, seconds) =
            ranks.map(|rank| (rank, column(rank).sum::<f64>())).max_by(|a, b| a.1.total_cmp(&b.1))?;
        let longest = column(awaited).enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (seconds > 0.0).then_some((awaited, longest.0, seconds))
    }
}

/// Adds what each rank waited longer in a step than the one that waited least. As many steps as all have, the newest. Says who that one was
/// in each of them, the newest first.
fn blame(steps: &[Vec<f32>], waited: &mut [Vec<f64>]) -> Vec<usize> {
    let count = steps.iter().map(Vec::len).min().unwrap_or(0);
    let mut all = Vec::new();
    for back in 1..=count {
        let of_step = || steps.iter().map(|steps| steps[steps.len() - back]).enumerate();
        let Some((last, least)) = of_step().min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        for (rank, seconds) in of_step().filter(|(rank, _)| *rank != last) {
            waited[rank][last] += f64::from(seconds) - f64::from(least);
        }
        all.push(last);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_waited_least_was_waited_for() {
        let mut waited = vec![vec![0.0; 3]; 3];
        // The first rank has reported a step more than the others.
        let steps = [vec![9.0, 0.25, 2.0, 1.0], vec![1.25, 0.5, 4.0], vec![1.0, 0.75, 0.5]];
        assert_eq!(blame(&steps, &mut waited), [2, 1, 0]);
        assert_eq!(waited, [[0.0, 0.0 + 1.5, 0.5], [1.0, 0.0, 3.5], [0.75, 0.25, 0.0]]);
        assert!(blame(&[], &mut waited).is_empty());
        assert!(blame(&[vec![1.0], vec![]], &mut waited[..2]).is_empty());
        assert_eq!(waited[0], [0.0, 1.5, 0.5]);
    }
}
