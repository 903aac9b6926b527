//! Taking in the gradients of a step, one parameter after the other.

use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::residual::{NonFinite, norm};

use super::{Gradients, StepTimes};
use crate::failure::{Error, Failure};
use crate::group::{Group, Refused, Unfit, refusal_there};
use crate::layout::{LayoutError, Parameter};

impl Gradients {
    /// A gradient of this many entries has come. Says which parameter's.
    pub(super) fn receive(&mut self, parameter: &str, len: usize) -> Result<usize, Error> {
        self.receive_of_kind(parameter, false, |p| p.expect(len))
    }

    /// A gradient of these entries has come. Says which parameter's.
    pub(super) fn receive_entries(&mut self, parameter: &str, gradient: &Entries) -> Result<usize, Error> {
        self.receive_of_kind(parameter, true, |p| p.expect_entries(gradient))
    }

    fn receive_of_kind(
        &mut self,
        parameter: &str,
        is_sparse: bool,
        expect: impl FnOnce(&Parameter) -> Result<(), LayoutError>,
    ) -> Result<usize, Error> {
        self.alive()?;
        let position = *self.by_name.get(parameter).ok_or_else(|| LayoutError::Unknown(parameter.into()))?;
        let p = &self.layout.parameters[position];
        if p.is_sparse != is_sparse {
            return Err(LayoutError::Kind { name: p.name.clone(), is_sparse: p.is_sparse }.into());
        }
        expect(p)?;
        if self.ready[position] {
            return Err(LayoutError::Again(p.name.clone()).into());
        }
        if self.given == 0 {
            self.times = StepTimes::default();
            // The update was dropped before it was there: nothing waited for it.
            self.exchange.rest();
            // Of a step before that was left out for another reason.
            self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        self.ready[position] = true;
        self.given += 1;
        Ok(position)
    }

    /// Keeps a gradient until all are there, since the norm of all of them decides.
    pub(super) fn hold(&mut self, position: usize, indices: &[u32], gradient: &[f32]) -> Result<(), Error> {
        let clock = Instant::now();
        let held = &mut self.held[position];
        held.clear();
        held.indices.extend_from_slice(indices);
        held.values.extend_from_slice(gradient);
        self.times.select += clock.elapsed();
        if self.given == self.ready.len() { self.clip() } else { Ok(()) }
    }

    /// Takes in the gradients of all parameters, shortened together where they are too long.
    fn clip(&mut self) -> Result<(), Error> {
        let clock = Instant::now();
        // Of all parameters together: the norm of their norms.
        let norms: Vec<f64> = self.held.iter().map(|held| norm(&held.values)).collect();
        let factor = self.method.correction().shortening(norm(&norms), self.session.workers);
        if let Some(factor) = factor {
            let values = self.held.iter_mut().flat_map(|held| &mut held.values);
            values.for_each(|value| *value *= factor as f32);
        }
        self.times.select += clock.elapsed();
        let held = std::mem::take(&mut self.held);
        let taken = held.iter().enumerate().try_for_each(|(i, held)| {
            let is_sparse = self.layout.parameters[i].is_sparse;
            self.take_in(i, |group, name, offset| match is_sparse {
                true => group.accumulate_entries(name, held),
                false => group.accumulate(name, offset, &held.values),
            })
        });
        self.held = held;
        taken
    }

    /// Adds a parameter's gradient to its residual, and begins its group's exchange with the last.
    pub(super) fn take_in(
        &mut self,
        position: usize,
        accumulate: impl FnOnce(&mut Group<f32>, &str, usize) -> Result<(), Refused>,
    ) -> Result<(), Error> {
        let clock = Instant::now();
        let (number, offset) =
            (self.layout.parameters[position].group, self.layout.parameters[position].offset);
        let name = &self.layout.parameters[position].name;
        let accumulated = accumulate(&mut self.exchange.group(number), name, offset);
        self.session.recorder.program(self.exchange.step, "accumulate", clock..Instant::now());
        if let Err(refused) = accumulated {
            if let Some(error) = refused.added_nothing() {
                // The gradient is as if it had not been given.
                (self.ready[position], self.given) = (false, self.given - 1);
                self.not_taken = Some((position, error.to_string()));
                return Err(error.clone().into());
            }
            let reason = match refused.skipped(self.method.nonfinite()) {
                Ok(reason) => reason,
                Err(reason) => {
                    let (rank, step) = (self.session.rank.0, Some(self.exchange.step));
                    return Err(self.fail(Failure { rank, step, reason }));
                }
            };
            self.refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
            self.gathering[number].is_refused = true;
        }
        self.not_taken.take_if(|(other, _)| *other == position);
        // The clock stops first: the exchange may take the processor at once.
        self.count(position, clock.elapsed());
        let gathering = &mut self.gathering[number];
        if gathering.missing > 0 {
            return Ok(());
        }
        if gathering.is_refused {
            // Not before the whole gradient was given: the step may be undone at once, and what comes after that is the next one's.
            self.exchange.leave_out(number);
        } else {
            gathering.began = Some(Instant::now());
            let keeps = self.keeps || self.counts_entries();
            let refuse = self.refusal(number);
            let begun =
                self.exchange.begin(number, keeps, refuse).map_err(|error| self.cannot_follow(error))?;
            self.times.blocked += begun.blocked;
            self.kept.extend(begun.kept.map(|kept| (number, kept)));
        }
        Ok(())
    }

    /// Says which parameter of a group has sums on a device that are not finite, or how much memory is missing there, and remembers it.
    fn refusal(&self, group: usize) -> impl FnOnce(Unfit) -> String + Send + 'static {
        let (layout, refused) = (Arc::clone(&self.layout), Arc::clone(&self.refused));
        let not_finite = move |found: NonFinite| {
            let has_it =
                |p: &&Parameter| p.group == group && (p.offset..p.offset + p.len).contains(&found.entry);
            match layout.parameters.iter().find(has_it) {
                Some(p) => refusal_there(&p.name, p.offset, found),
                None => found.to_string(),
            }
        };
        move |unfit| {
            let sentence = match unfit {
                Unfit::NonFinite(found) => not_finite(found),
                Unfit::Memory(sentence) => sentence,
            };
            refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(sentence).clone()
        }
    }

    /// A parameter's gradient was taken in, which took so long.
    fn count(&mut self, position: usize, took: Duration) {
        let gathering = &mut self.gathering[self.layout.parameters[position].group];
        gathering.missing -= 1;
        gathering.accumulating += took;
        self.times.select += took;
    }
}

/// A step that cannot be completed any more ends the job at once: its groups that are in flight would keep all ranks waiting. So does one
/// whose gradient was not taken in and not given again: all ranks report why.
impl Drop for Gradients {
    fn drop(&mut self) {
        // A panic is reported with its message.
        if thread::panicking() || self.alive().is_err() {
            return;
        }
        if let Some((_, why)) = self.not_taken.take() {
            self.abort(&why);
        } else if self.given > 0 && self.given < self.ready.len() {
            let missing = self.missing();
            self.abort(&format_args!(
                "its program gave a step up before the gradients of {missing} were ready"
            ));
        }
    }
}
