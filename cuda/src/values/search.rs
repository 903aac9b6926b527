//! The largest entries of a block: read off the candidates where they suffice, and searched for where not.

use gleaner_algorithms::device::{DeviceError, Largest};

use super::collected::limit;
use super::output::Output;
use super::selection::{Selection, Source, Written, smallest};
use super::{CudaValues, State};

/// What the k-th largest magnitude is multiplied by to see how many entries are just below it.
const BELOW: f32 = 0.8;

impl CudaValues {
    /// What was begun, if it is a choice of the k largest and nothing was missing.
    pub(super) fn chosen(
        &self,
        state: &State,
        block: usize,
        k: usize,
    ) -> Result<Option<Largest<f32>>, DeviceError> {
        let block = &state.blocks.blocks[block];
        let begun = block.candidates.as_ref().filter(|candidates| candidates.begun);
        let Some(candidates) = begun.filter(|_| block.collected.holds() && block.asked() == k) else {
            return Ok(None);
        };
        let cut = candidates.output.receive()?;
        let (reached, collected) = (cut.reached as usize, &block.collected);
        // Where all that is not zero is a candidate, there are no others.
        if reached > candidates.capacity || (reached < k && collected.limit() > 1) {
            return Ok(None);
        }
        let entries = candidates.output.entries(k, cut.kept as usize);
        Ok(Some(Largest { entries, smallest: smallest(&cut), threshold: collected.threshold(), reached }))
    }

    /// The k largest of all values of a block, 0 < k <= its length.
    pub(super) fn search(
        &self,
        state: &mut State,
        block: usize,
        k: usize,
    ) -> Result<Largest<f32>, DeviceError> {
        let (context, blocks) = (&*self.context, &state.blocks);
        let output = Output::with_room(&mut state.spare, &self.context, k)?;
        let searched = &blocks.blocks[block];
        let (source, stream) =
            (Source::All(searched, self.at(searched.range.start)), context.streams().asked.selections);
        let selection = Selection { context, blocks, source, stream };
        selection.find_cut(output.cut(), k)?;
        selection.count(output.cut())?;
        let into = Written { indices: output.indices(), values: output.values(k), most: k };
        selection.emit(output.cut(), into)?;
        output.send(k)?;
        let cut = output.receive()?;
        let entries = output.entries(k, cut.kept as usize);
        let smallest = smallest(&cut);
        if entries.len() < k || !smallest.is_finite() {
            return Ok(Largest { reached: entries.len(), entries, smallest, threshold: smallest });
        }
        // How many entries are just below says what threshold so many will reach in the next step.
        let threshold = BELOW * smallest;
        selection.fix_cut(output.cut(), limit(threshold))?;
        selection.count(output.cut())?;
        output.send(0)?;
        let reached = output.receive()?.kept as usize;
        Ok(Largest { entries, smallest, threshold, reached })
    }

    /// The candidates of a block, if they were all collected and those that reach a limit are among them.
    pub(super) fn found(&self, state: &State, block: usize, limit: u32) -> Result<bool, DeviceError> {
        let block = &state.blocks.blocks[block];
        let begun = block.candidates.as_ref().filter(|candidates| candidates.begun);
        match begun.filter(|_| block.collected.holds() && block.collected.limit() <= limit) {
            Some(candidates) => Ok(candidates.output.receive()?.reached as usize <= candidates.capacity),
            None => Ok(false),
        }
    }
}
