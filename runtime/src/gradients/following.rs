//! A density that follows the share of the norm which a step delivers: all ranks add up what their norms were, and take the same density.

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::MethodError;
use gleaner_algorithms::density::{AdaptiveDensity, NormShareError};
use gleaner_algorithms::device::Device;

use super::Gradients;
use crate::failure::{Error, Failure};
use crate::layout::Layout;
use crate::notes::Purpose;

/// A rank's squared norms: before a step and after it.
const BYTES: usize = 16;

impl Gradients {
    /// The mean share of the entries that steps were to select so far, those before a checkpoint included, where the density
    /// [follows](Method::norm_share) the share of the norm. Of parameters that are delivered whole, nothing is counted.
    pub fn mean_density(&self) -> Option<f64> {
        self.density.as_ref().map(AdaptiveDensity::mean_density)
    }

    /// The share of the squared norm that was delivered in the last of each 20 steps, as it was the last time, on all workers together. None where
    /// the density does not follow it, and before it was looked at.
    pub fn delivered_norm_share(&self) -> Option<f64> {
        self.delivered
    }

    /// Counts a step that was delivered, and takes another density if the norm was looked at in it and that says so. All ranks call it
    /// together, between two steps.
    pub(super) fn follow_share(&mut self) -> Result<(), Error> {
        // The present step is the next one.
        let step = (self.exchange.step - self.skipped).saturating_sub(1);
        let Some(density) = &mut self.density else { return Ok(()) };
        if self.method.delivers_whole().contains(step) {
            return Ok(());
        }
        density.passed(1);
        if !self.method.looks_at_norm_in(step) {
            return Ok(());
        }
        let own = self.exchange.groups().filter_map(|mut group| group.squares.take());
        let [before, left] = own.fold([0.0, 0.0], |[a, b], (before, left)| [a + before, b + left]);
        let [before, left] = self.sum_of_norms([before, left])?;
        let delivered = (before > 0.0).then(|| ((before - left) / before).clamp(0.0, 1.0));
        self.delivered = delivered;
        let Some(density) = &mut self.density else { return Ok(()) };
        if density.follow(delivered) {
            self.aim()?;
            self.exchange.widen();
        }
        Ok(())
    }

    /// What all ranks have together, added up in the same order on each.
    fn sum_of_norms(&mut self, own: [f64; 2]) -> Result<[f64; 2], Error> {
        let note = own.map(f64::to_le_bytes).concat();
        let mut sums = [0.0; 2];
        for (rank, note) in (0..).zip(self.session.gather(Purpose::Norms, &note)?) {
            let (words, rest) = note.as_chunks::<8>();
            let norms: Vec<f64> = words.iter().map(|word| f64::from_le_bytes(*word)).collect();
            if norms.len() != sums.len()
                || !rest.is_empty()
                || norms.iter().any(|norm| !(norm.is_finite() && *norm >= 0.0))
            {
                let reason = format!(
                    "it sent {} bytes of norms, expected {BYTES}, of two finite numbers from 0 on; start every rank with the same program",
                    note.len()
                );
                return Err(self.session.fail(Failure { rank, step: None, reason }));
            }
            sums.iter_mut().zip(norms).for_each(|(sum, norm)| *sum += norm);
        }
        Ok(sums)
    }
}

/// The density before the first step, if it follows the share of the norm.
pub(super) fn begin(
    layout: &Layout,
    method: &Method,
    device: Option<&dyn Device>,
) -> Result<Option<AdaptiveDensity>, Error> {
    let Some(share) = method.follows_norm_share() else { return Ok(None) };
    method.share_fits().map_err(MethodError::from)?;
    if device.is_some() {
        let there = "residuals on a device, whose norm is not looked at; hand the gradients over in main memory, or leave the share out";
        return Err(MethodError::from(NormShareError::Beside(there)).into());
    }
    let n = layout.selected_from();
    let budget = method.sparsity().k(n).map_err(MethodError::from)?;
    Ok(Some(AdaptiveDensity::new(share, budget, n)))
}
