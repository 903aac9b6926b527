//! Going over to other groups or other methods, between two steps.

use super::{Gradients, describe};
use crate::failure::Error;
use crate::layout::{Layout, LayoutError};
use crate::notes::Purpose;

impl Gradients {
    /// Goes over to a layout of the same parameters in other groups or in another order. All ranks call it together, between
    /// the same two steps.
    ///
    /// Nothing is lost: residuals and velocities go with their parameters, and steps are counted on. What the method has
    /// learnt is kept for a group that keeps its parameters and their order. Any other group takes over what was learnt of the
    /// one with most entries in common, converted to its own length; with the method `auto` it begins as a method does, but in
    /// the present step as far as a warm-up is concerned. It is as if the checkpoint of this step were loaded by a job with
    /// that layout.
    ///
    /// New groups have numbers of their own, so messages of the old ones are never taken for theirs.
    ///
    /// # Errors
    /// A layout that has not the same parameters, or a call in the middle of a step: nothing changes then. Ranks whose step or
    /// layout differs, and a job that has failed.
    pub fn regroup(&mut self, layout: &Layout) -> Result<(), Error> {
        self.between_steps(LayoutError::MidStep)?;
        layout.by_name()?;
        self.layout.is_regrouped_by(layout)?;
        let lines =
            format!("regrouped before step {}\n{}", self.exchange.step, describe(layout, &self.method));
        self.session.agree(Purpose::Regroup, &lines)?;
        self.regroup_as_agreed(layout).map_err(|error| self.cannot_follow(error))
    }

    fn regroup_as_agreed(&mut self, layout: &Layout) -> Result<(), Error> {
        let (session, device) = (self.session.clone(), self.device.clone());
        let mut regrouped = Self::make(session, self.stream, layout, self.method.clone(), device)?;
        let state = self.state()?;
        regrouped.resume(&state)?;
        if let (Some(auto), Some(before)) = (&mut regrouped.auto, &mut self.auto) {
            for number in 0..regrouped.gathering.len() {
                if let Some(was) = state.carried_over(&layout.names(number)) {
                    auto.keep(number, before, was);
                }
            }
            auto.announce(false, Some(before));
        }
        regrouped.go_on_from(&state)?;
        (regrouped.times, regrouped.lost, regrouped.keeps) = (self.times, self.lost, self.keeps);
        regrouped.delivered = self.delivered;
        regrouped.run = std::mem::take(&mut self.run);
        *self = regrouped;
        Ok(())
    }

    /// Goes over to other methods where the choice is revised. What was not delivered stays.
    pub(super) fn revise(&mut self) -> Result<(), Error> {
        let Some(auto) = &mut self.auto else { return Ok(()) };
        let changed = auto.revise(&self.session)?;
        self.change_methods(&changed)
    }

    /// All ranks call it together, between two steps.
    pub(super) fn change_methods(&mut self, groups: &[usize]) -> Result<(), Error> {
        let Some(auto) = &self.auto else { return Ok(()) };
        for &number in groups {
            let (membership, stream) = (self.session.membership(), self.stream + number as u64);
            self.exchange.group(number).take_up(membership, auto.method(number), stream)?;
        }
        if !groups.is_empty() {
            self.exchange.widen();
        }
        Ok(())
    }
}
