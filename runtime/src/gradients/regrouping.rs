//! Going over to other groups or other methods, between two steps.

use super::{Gradients, describe, stream};
use crate::failure::{Error, Failure};
use crate::layout::{Layout, LayoutError};
use crate::notes::Purpose;

impl Gradients {
    /// Goes over to a layout of the same parameters in other groups or in another order. All ranks call it together, between
    /// the same two steps.
    ///
    /// Nothing is lost: residuals and velocities go with their parameters, and steps are counted on. What the method has
    /// learnt is kept for a group that keeps its parameters and their order; any other group begins as a method does, but in
    /// the present step as far as a warm-up is concerned. It is as if the checkpoint of this step were loaded by a job with
    /// that layout.
    ///
    /// Tags of the old groups are of earlier steps, so their messages are never taken for those of new groups.
    ///
    /// # Errors
    /// A layout that has not the same parameters, or a call in the middle of a step: nothing changes then. Ranks whose step or
    /// layout differs, and a job that has failed.
    pub fn regroup(&mut self, layout: &Layout) -> Result<(), Error> {
        self.between_steps(LayoutError::MidStep)?;
        layout.by_name()?;
        self.layout.is_regrouped_by(layout)?;
        let lines = format!("regrouped before step {}\n{}", self.step, describe(layout, &self.method));
        self.session.agree(Purpose::Regroup, &lines)?;
        // The others go on now, so a rank that cannot ends the job.
        self.regroup_as_agreed(layout).map_err(|error| match error {
            Error::Failed(_) => error,
            error => {
                let (rank, step) = (self.session.post.rank.0, Some(self.step));
                self.fail(Failure { rank, step, reason: error.to_string() })
            }
        })
    }

    fn regroup_as_agreed(&mut self, layout: &Layout) -> Result<(), Error> {
        let mut regrouped = Self::make(self.session.clone(), self.channel, layout, self.method.clone())?;
        let state = self.state();
        regrouped.resume(&state)?;
        if let (Some(auto), Some(before)) = (&mut regrouped.auto, &mut self.auto) {
            for number in 0..regrouped.groups.len() {
                if let Some(was) = state.carried_over(&layout.names(number)) {
                    auto.keep(number, before, was);
                }
            }
        }
        regrouped.go_on_from(state)?;
        // Nobody sends before all have granted, nor then to groups that are gone.
        self.session.gather(Purpose::Regroup, &[])?;
        self.groups.iter().for_each(|gathering| gathering.group.revoke(&self.session.post));
        (regrouped.times, regrouped.lost) = (self.times, self.lost);
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
            let stream = stream(self.channel, number);
            self.groups[number].group.take_up(&self.session, auto.method(number), stream)?;
        }
        if !groups.is_empty() {
            // Nobody sends before all have granted.
            self.session.gather(Purpose::Revise, &[])?;
        }
        Ok(())
    }
}
