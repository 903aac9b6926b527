//! What a set of schedules costs, in the units of the papers' tables.

use std::time::Duration;

/// Words of a number in a note.
pub(super) const NOTE: u64 = 2;

/// Counts over one step of all workers. A word is 32 bits: an index or a value, or half of a note's number.
///
/// Lengths are the declared bounds, so for a sparse method the counts are reached where every block has as many
/// non-zero entries as its allotment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Latency rounds: the longest chain of messages that wait for each other.
    pub rounds: u64,
    /// Messages that the busiest worker sends or receives, whichever is more; α multiplies these.
    pub messages: u64,
    /// Words that the busiest worker receives.
    pub words_received: u64,
    /// Words along the critical path: the sum over the rounds of the largest receive. β multiplies these; the
    /// bandwidth terms of SparDL's Table 1 are these.
    pub words_critical: u64,
}

impl Cost {
    /// The time of one step in the α-β model: messages · α + words_critical · β, with β the time of one word.
    ///
    /// `bytes_per_second` is a link's rate in one direction.
    pub fn time(&self, latency: Duration, bytes_per_second: f64) -> Duration {
        let transfer = self.words_critical as f64 * 4.0 / bytes_per_second;
        Duration::from_secs_f64(self.messages.max(self.rounds) as f64 * latency.as_secs_f64() + transfer)
    }
}
