//! What a worker and a server do with one part of the parameters, as checked programs of two ranks: the worker is rank 0 of
//! them and the server rank 1.
//!
//! In a *push* the worker brings its gradient, or the entries that the method chooses of it, and the server ends with them; in a
//! *pull* the server brings values, or those that have changed, and the worker ends with them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::density::NormShareError;
use gleaner_algorithms::residual::{Correction, CorrectionError};
use gleaner_algorithms::schedule::{
    After, Goal, How, Program, Receive, Rule, Schedule, Send, Slots, Step, check_for,
};
use gleaner_algorithms::selectors::{Selection, Selector};
use gleaner_algorithms::{Block, Layers, Method, Partition, Rank, Sparsity};
use serde::{Deserialize, Serialize};

use crate::failure::Error;
use crate::group::credit;

/// How much of a gradient is pushed, and how: the part of a method that matters where only a server adds up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pushing {
    /// None if everything is pushed.
    sparse: Option<Sparse>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sparse {
    density: Option<f64>,
    k: Option<usize>,
    warm_up: u64,
    #[serde(with = "text")]
    coding: Coding,
    #[serde(with = "text")]
    selector: Selector,
}

/// What has a name travels by it.
mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(Error::custom)
    }
}

impl Pushing {
    pub(crate) fn of(method: &Method) -> Result<Self, MethodError> {
        method.correction().check()?;
        if !method.delivers_whole().is_none() || method.is_dense_below() > 0 {
            return Err(CorrectionError::WholeServed.into());
        }
        if method.correction().ef21 {
            return Err(CorrectionError::Ef21Served.into());
        }
        if method.correction().decay.is_some() {
            let servers = "parameter servers, which step by what is pushed, late or not; do without servers, or leave the decay out";
            return Err(CorrectionError::DecayBeside(servers).into());
        }
        if method.completes_sums() {
            return Err(CorrectionError::SumsServed.into());
        }
        if method.follows_norm_share().is_some() {
            let servers = "parameter servers, whose workers push in steps of their own; do without servers, or leave the share out";
            return Err(NormShareError::Beside(servers).into());
        }
        method.selects_by().check()?;
        let (density, k) = match method.sparsity() {
            Sparsity::Density(density) => (Some(density), None),
            Sparsity::K(k) => (None, Some(k)),
        };
        let sparse = method.collective().is_sparse().then(|| Sparse {
            density,
            k,
            warm_up: method.correction().warm_up,
            coding: method.values(),
            selector: method.selects_by(),
        });
        Ok(Self { sparse })
    }

    /// Whether some entries stay behind, and only those that changed come back.
    pub(crate) fn is_sparse(&self) -> bool {
        self.sparse.is_some()
    }
}

/// What both sides do in a step.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// Of the worker and of the server.
    pub(crate) push: [Arc<Program>; 2],
    pub(crate) pull: [Arc<Program>; 2],
}

/// The programs of one part of a unit, whatever the step.
#[derive(Debug)]
pub(crate) struct Maker {
    pushing: Pushing,
    /// Entries of the unit, and of the part.
    unit: usize,
    n: usize,
    /// By how many entries are pushed.
    made: Mutex<HashMap<usize, Programs>>,
    /// What brings all values to a worker, whichever it has.
    whole: [Arc<Program>; 2],
}

impl Maker {
    pub(crate) fn new(pushing: &Pushing, unit: usize, n: usize) -> Result<Self, Error> {
        let whole = proved(Goal::pull([Rank(1)]), n, None, Some(1))?;
        let maker = Self { pushing: pushing.clone(), unit, n, made: Mutex::default(), whole };
        // Refused now rather than in the first step.
        maker.at(0)?;
        Ok(maker)
    }

    /// How many entries are pushed in a step: the unit's k, in proportion to the part's share of its entries, and at least one.
    pub(crate) fn k(&self, step: u64) -> Result<usize, Error> {
        let Some(sparse) = &self.pushing.sparse else { return Ok(self.n) };
        let sparsity = match (sparse.density, sparse.k) {
            (Some(density), _) => Sparsity::Density(density),
            (None, k) => Sparsity::K(k.unwrap_or(self.unit)),
        };
        let correction = Correction { warm_up: sparse.warm_up, ..Correction::default() };
        let k = correction.sparsity(sparsity, step, self.unit).and_then(|sparsity| sparsity.k(self.unit));
        let k = k.map_err(MethodError::from)?;
        if k == 0 {
            return Ok(0);
        }
        let share = (k as u128 * self.n as u128 + self.unit as u128 / 2) / self.unit.max(1) as u128;
        Ok((share as usize).clamp(1, self.n))
    }

    /// What both sides do in a step.
    pub(crate) fn at(&self, step: u64) -> Result<Programs, Error> {
        let k = self.k(step)?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(programs) = made.get(&k) {
            return Ok(programs.clone());
        }
        let keep = self.pushing.sparse.as_ref().map(|sparse| self.keep(sparse, k));
        let push = proved(Goal::push([Rank(1)]), self.n, keep, Some(0))?;
        let changed = Step::Keep { slots: Slots::one(Block(0)), rule: Rule::Every, coding: Coding::Exact };
        let pull = match self.pushing.is_sparse() {
            true => proved(Goal::pull([Rank(1)]), self.n, Some(changed), Some(1))?,
            false => self.whole.clone(),
        };
        let programs = Programs { push, pull };
        made.insert(k, programs.clone());
        Ok(programs)
    }

    /// Brings all values to a worker, whichever it has.
    pub(crate) fn whole(&self) -> &[Arc<Program>; 2] {
        &self.whole
    }

    /// What chooses k entries, if it is not simply the largest or all of them.
    pub(crate) fn selection(&self, k: usize) -> Option<Selection> {
        let selector = self.pushing.sparse.as_ref()?.selector;
        let layers = Layers::from(self.n);
        (selector != Selector::Top && k < self.n).then_some(Selection { selector, k, layers })
    }

    /// The first selection of a worker's own gradient.
    fn keep(&self, sparse: &Sparse, k: usize) -> Step {
        let rule = match self.selection(k) {
            Some(selection) => Rule::By(Arc::new(selection)),
            None if k == self.n => Rule::Every,
            None => Rule::Jointly(k),
        };
        Step::Keep { slots: Slots::one(Block(0)), rule, coding: sparse.coding }
    }

    /// What one run of a push, and of a pull, may bring to its receiver, in bytes of credit.
    pub(crate) fn most(&self, step: u64) -> Result<[u64; 2], Error> {
        let Programs { push, pull } = self.at(step)?;
        let most = |program: &Program| program.volumes::<f32>().into_values().map(credit).sum::<u64>();
        Ok([most(&push[1]), most(&pull[0]).max(most(&self.whole[0]))])
    }
}

/// One side keeps something first, the sender sends all of the one block, and the other ends with it.
fn proved(goal: Goal, n: usize, keep: Option<Step>, sender: Option<u32>) -> Result<[Arc<Program>; 2], Error> {
    let slots = Slots::one(Block(0));
    let schedule = |rank: u32| {
        let mut steps: Vec<Step> = keep.iter().filter(|_| Some(rank) == sender).cloned().collect();
        steps.push(if Some(rank) == sender {
            let send = Send { to: Rank(1 - rank), slots, after: After::Drop };
            Step::Exchange { sends: vec![send], receives: Vec::new() }
        } else {
            let receive = Receive { from: Rank(1 - rank), slots, how: How::Place };
            Step::Exchange { sends: Vec::new(), receives: vec![receive] }
        });
        let (partition, lanes, lane) = (Partition::even(n, 1), 1, 0);
        Schedule { rank: Rank(rank), workers: 2, partition, lanes, lane, steps }
    };
    let proof = check_for(goal, [schedule(0), schedule(1)])?;
    Ok([0, 1].map(|rank| Arc::new(proof.program(Rank(rank)))))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use gleaner_algorithms::residual::WholeSteps;

    use super::*;

    #[test]
    fn what_no_server_can_do_is_refused() {
        let every = WholeSteps { every: NonZeroU64::new(5), at: Vec::new() };
        let changes = Correction { momentum: 0.5, ef21: true, ..Correction::default() };
        let decays = Correction { decay: Some(0.5), ..Correction::default() };
        let spardl = Method::spardl;
        for (method, named) in [
            (spardl().whole_steps(every), "steps, or parameters, of which every entry is delivered"),
            (spardl().dense_below(10), "steps, or parameters, of which every entry is delivered"),
            (spardl().complete_sums(), "completed sums were asked for with parameter servers"),
            (spardl().corrected(decays), "a decay of the residual was asked for with parameter servers"),
            (spardl().norm_share(0.5), "a share of the norm was asked for with parameter servers"),
            (spardl().corrected(changes), "EF21 was asked for with parameter servers"),
        ] {
            let refusal = Pushing::of(&method).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refusal.contains(named), "{method}: {refusal}");
        }
        assert!(Pushing::of(&spardl()).is_ok());
    }
}
