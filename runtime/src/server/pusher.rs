//! What a worker pushes of one part: its gradient there, or the entries that its method chooses, of which the rest waits in a residual.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use gleaner_algorithms::Method;
use gleaner_algorithms::residual::{
    AccumulateError, Collection, Correction, Lent, NonFinite, Residual, Waiting,
};
use gleaner_algorithms::schedule::{Execution, Memory};
use gleaner_statistics::random;

use super::Part;
use crate::failure::Error;

/// See the module.
pub(crate) struct Pusher {
    pub(crate) part: Part,
    pub(crate) server: u32,
    choosing: Option<Mutex<Choosing>>,
    collection: Collection,
}

/// What is left of a gradient from step to step.
struct Choosing {
    residual: Residual,
    memory: Memory,
    /// How many entries the step before has chosen.
    k: Option<usize>,
}

/// A part's gradient that can be pushed.
pub(crate) enum Brought {
    /// All of it.
    Whole(Arc<Vec<f32>>),
    /// It is in the residual.
    Accumulated,
}

impl Pusher {
    pub(crate) fn new(part: Part, server: u32, method: &Method) -> Result<Self, Error> {
        let choosing = method.collective().is_sparse().then(|| Choosing::new(&part, method.correction()));
        Ok(Self {
            part,
            server,
            choosing: choosing.transpose()?.map(Mutex::new),
            collection: method.collection(),
        })
    }

    /// Takes the gradient of a step.
    pub(crate) fn bring(&self, gradient: &[f32]) -> Result<Brought, AccumulateError> {
        let Some(choosing) = &self.choosing else {
            let count = gradient.iter().filter(|value| !value.is_finite()).count();
            return match gradient.iter().position(|value| !value.is_finite()) {
                Some(entry) => Err(NonFinite { entry, count }.into()),
                None => Ok(Brought::Whole(Arc::new(gradient.to_vec()))),
            };
        };
        let mut choosing = choosing.lock().unwrap_or_else(PoisonError::into_inner);
        choosing.residual.accumulate(0, gradient).map(|()| Brought::Accumulated)
    }

    /// What is sent of it.
    pub(crate) fn push(&self, step: u64, brought: Brought) -> Result<Vec<Bytes>, Error> {
        let program = self.part.maker.at(step)?.push[0].clone();
        let mut outbox = Vec::new();
        match (brought, &self.choosing) {
            (Brought::Whole(values), _) => {
                Execution::new(program, values, vec![Default::default()]).go_on(&mut outbox)?;
            }
            (Brought::Accumulated, Some(choosing)) => {
                let mut choosing = choosing.lock().unwrap_or_else(PoisonError::into_inner);
                let Choosing { residual, memory, k } = &mut *choosing;
                let wanted = self.part.maker.k(step)?;
                let selection = self.part.maker.selection(wanted);
                if k.replace(wanted).is_some_and(|before| before != wanted) {
                    residual.recut(program.schedule().partition.clone(), program.schedule().quotas())?;
                    memory.own = selection.as_ref().map(|selection| selection.memory()).unwrap_or_default();
                }
                let Lent { version, accumulator, candidates } = residual.begin()?;
                let mut execution = Execution::new(program, accumulator, candidates)
                    .with(Arc::new(memory.clone()), self.seed(step));
                execution.go_on(&mut outbox)?;
                let finished = execution.finish()?;
                if let Some(selection) = selection {
                    selection.learn(&mut memory.own, finished.observed().own.entries);
                }
                memory.steps += 1;
                residual.commit(version, finished, self.collection)?;
            }
            (Brought::Accumulated, None) => {}
        }
        Ok(outbox.into_iter().map(|outgoing| outgoing.payload).collect())
    }

    /// What is not pushed yet; nothing where all is.
    pub(crate) fn waiting(&self) -> Result<Option<Waiting>, Error> {
        let Some(choosing) = &self.choosing else { return Ok(None) };
        let choosing = choosing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Some(choosing.residual.waiting(0..self.part.range.len())?))
    }

    pub(crate) fn set_waiting(&self, waiting: &Waiting) -> Result<(), Error> {
        let Some(choosing) = &self.choosing else { return Ok(()) };
        let mut choosing = choosing.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(choosing.residual.set_waiting(0, waiting)?)
    }

    /// Another one in each step and part, the same on all workers.
    fn seed(&self, step: u64) -> u64 {
        let part = (self.part.unit as u64) << 20 | u64::from(self.server);
        random::at(part, step)
    }
}

impl Choosing {
    fn new(part: &Part, correction: &Correction) -> Result<Self, Error> {
        let programs = part.maker.at(0)?;
        let schedule = programs.push[0].schedule();
        let residual = Residual::new(schedule.partition.clone(), schedule.quotas()).corrected(correction);
        let k = part.maker.k(0)?;
        let own = part.maker.selection(k).map(|selection| selection.memory()).unwrap_or_default();
        Ok(Self { residual, memory: Memory { own, ..Memory::default() }, k: Some(k) })
    }
}
