//! How far each worker is, as a server knows it. Bounds what a server keeps: a worker has one push of each stage at most that is
//! not answered.

use std::collections::BTreeMap;

use super::{PolicyError, Stage};

/// The clocks of the workers that are left.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    /// How many workers there were.
    workers: u32,
    /// Whether steps have a background stage.
    two_stages: bool,
    present: BTreeMap<u32, Clock>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    /// The step that comes next; how many were pushed, in a job that began at 0.
    next: u64,
    /// The step that may come next in the background.
    background: u64,
    /// The step whose routine stage is not answered.
    routine_waits: Option<u64>,
    /// The step whose background stage is not answered.
    background_waits: Option<u64>,
}

impl Clocks {
    /// All workers, with the first step of each.
    pub(super) fn new(first: &[u64], two_stages: bool) -> Self {
        let clock =
            |&next: &u64| Clock { next, background: next, routine_waits: None, background_waits: None };
        let present: BTreeMap<u32, Clock> = (0..).zip(first.iter().map(clock)).collect();
        Self { workers: present.len() as u32, two_stages, present }
    }

    /// A worker asks to push its next step. False if it has left, and is not to be listened to.
    pub(super) fn ask(&self, worker: u32, step: u64) -> Result<bool, PolicyError> {
        let Some(clock) = self.present.get(&worker) else { return self.left(worker) };
        if step != clock.next {
            return Err(PolicyError::Step { worker, step, expected: clock.next });
        }
        match clock.routine_waits.or(clock.background_waits) {
            Some(awaited) => Err(PolicyError::Early { worker, step, awaited }),
            None => Ok(true),
        }
    }

    /// A worker has pushed a stage of its step, and waits for the answer from now on. False if it has left.
    pub(super) fn push(&mut self, worker: u32, step: u64, stage: Stage) -> Result<bool, PolicyError> {
        match stage {
            Stage::Routine => {
                if !self.ask(worker, step)? {
                    return Ok(false);
                }
                if let Some(clock) = self.present.get_mut(&worker) {
                    (clock.next, clock.routine_waits) = (step.saturating_add(1), Some(step));
                }
            }
            Stage::Background => {
                let two_stages = self.two_stages;
                let Some(clock) = self.present.get_mut(&worker) else { return self.left(worker) };
                // Of the step whose routine stage came last, which is none before the first, and not twice.
                if !two_stages || step.checked_add(1) != Some(clock.next) || step < clock.background {
                    return Err(PolicyError::Background { worker, step });
                }
                (clock.background, clock.background_waits) = (clock.next, Some(step));
            }
        }
        Ok(true)
    }

    fn left(&self, worker: u32) -> Result<bool, PolicyError> {
        let workers = self.workers;
        if worker < workers { Ok(false) } else { Err(PolicyError::Unknown { worker, workers }) }
    }

    /// The worker's stage is answered. The step that was, unless it has left or did not wait.
    pub(super) fn answer(&mut self, worker: u32, stage: Stage) -> Option<u64> {
        let clock = self.present.get_mut(&worker)?;
        match stage {
            Stage::Routine => clock.routine_waits.take(),
            Stage::Background => clock.background_waits.take(),
        }
    }

    /// The worker counts no longer. False if it did not before.
    pub(super) fn leave(&mut self, worker: u32) -> Result<bool, PolicyError> {
        match self.present.remove(&worker) {
            Some(_) => Ok(true),
            None => self.left(worker),
        }
    }

    pub(super) fn has(&self, worker: u32) -> bool {
        self.present.contains_key(&worker)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// How many are left, or this many if those are more: among whom a sum is a mean.
    pub(super) fn mean_of(&self, pushes: usize) -> u32 {
        self.present.len().max(pushes) as u32
    }

    /// Those who are left, by rank.
    pub(super) fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.present.keys().copied()
    }

    /// The worker's next step; none if it has left.
    pub(super) fn next(&self, worker: u32) -> Option<u64> {
        self.present.get(&worker).map(|clock| clock.next)
    }

    /// The next step of the slowest; none if all have left.
    pub(super) fn slowest(&self) -> Option<u64> {
        self.present.values().map(|clock| clock.next).min()
    }

    /// Those whose routine stage is not answered, with their next steps.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.present
            .iter()
            .filter(|(_, clock)| clock.routine_waits.is_some())
            .map(|(&rank, clock)| (rank, clock.next))
    }

    /// Those who are more than this many steps behind one that waits, and do not wait themselves.
    pub(super) fn behind(&self, bound: u64) -> Vec<u32> {
        let first = self.waiting().map(|(_, next)| next.saturating_sub(bound)).max().unwrap_or(0);
        let behind =
            self.present.iter().filter(|(_, clock)| clock.next < first && clock.routine_waits.is_none());
        behind.map(|(&rank, _)| rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTINE: Stage = Stage::Routine;
    const BACKGROUND: Stage = Stage::Background;

    #[test]
    fn a_worker_takes_its_steps_one_by_one() {
        let mut clocks = Clocks::new(&[7, 5], false);
        assert_eq!(clocks.slowest(), Some(5));
        for step in [0, 6, 8, u64::MAX] {
            let expected = Err(PolicyError::Step { worker: 0, step, expected: 7 });
            assert_eq!(clocks.push(0, step, ROUTINE), expected);
        }
        assert_eq!(clocks.push(0, 7, ROUTINE), Ok(true));
        let error = clocks.push(0, 8, ROUTINE).unwrap_err();
        assert_eq!(error, PolicyError::Early { worker: 0, step: 8, awaited: 7 });
        assert!(error.to_string().contains("its step 7 was not answered"), "{error}");
        assert_eq!(clocks.push(0, 7, ROUTINE), Err(PolicyError::Step { worker: 0, step: 7, expected: 8 }));
        assert_eq!(clocks.answer(0, ROUTINE), Some(7));
        assert_eq!(clocks.answer(0, ROUTINE), None);
        assert_eq!(clocks.ask(0, 8), Ok(true));
        assert_eq!(clocks.push(2, 0, ROUTINE), Err(PolicyError::Unknown { worker: 2, workers: 2 }));
        assert_eq!(clocks.push(0, 7, BACKGROUND), Err(PolicyError::Background { worker: 0, step: 7 }));
    }

    #[test]
    fn a_background_stage_follows_its_routine_stage() {
        let mut clocks = Clocks::new(&[3], true);
        for step in [2, 3, u64::MAX] {
            let refused = Err(PolicyError::Background { worker: 0, step });
            assert_eq!(clocks.push(0, step, BACKGROUND), refused);
        }
        assert_eq!(clocks.push(0, 3, ROUTINE), Ok(true));
        assert_eq!(clocks.push(0, 3, BACKGROUND), Ok(true));
        assert_eq!(clocks.push(0, 3, BACKGROUND), Err(PolicyError::Background { worker: 0, step: 3 }));
        clocks.answer(0, ROUTINE);
        // What is under way in the background comes before the next step.
        let early = Err(PolicyError::Early { worker: 0, step: 4, awaited: 3 });
        assert_eq!(clocks.push(0, 4, ROUTINE), early);
        clocks.answer(0, BACKGROUND);
        assert_eq!(clocks.push(0, 4, ROUTINE), Ok(true));
    }

    #[test]
    fn who_has_left_is_not_listened_to() {
        let mut clocks = Clocks::new(&[0, 0, 0], false);
        assert_eq!((clocks.leave(1), clocks.leave(1)), (Ok(true), Ok(false)));
        assert!(clocks.leave(3).is_err());
        assert_eq!(clocks.push(1, 0, ROUTINE), Ok(false));
        assert_eq!(clocks.ranks().collect::<Vec<_>>(), [0, 2]);
        assert_eq!((clocks.mean_of(1), clocks.mean_of(3)), (2, 3));
        assert!(clocks.push(0, 0, ROUTINE).is_ok());
        assert_eq!((clocks.behind(0), clocks.behind(1)), (vec![2], vec![]));
    }
}
