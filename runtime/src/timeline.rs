//! A timeline of all ranks: what each did when, on one clock.

mod recorder;

use std::sync::Arc;
use std::time::Instant;

pub(crate) use recorder::{Recorder, SYNCHRONISE, WAIT, What};

use crate::failure::{Error, Failure};
use crate::notes::{LONGEST, Purpose};
use crate::probe::{bytes, numbers};
use crate::session::Inner;
use recorder::LINE;

/// Characters of all ranks' events together, at most.
const LARGEST: usize = 64 << 20;

/// Events of a rank that are kept, at most.
const EVENTS: usize = 1 << 16;

/// How often the ranks exchange the times of their clocks.
const ROUNDS: usize = 16;

/// Records what this worker does in each step, until it is [gathered](Self::gather): selecting, waiting for each payload,
/// merging and committing for each group, and, on the program's own track, adding gradients to the residuals, waiting for
/// updates, and what the program [records](crate::Session::record) itself. What travels while the program goes on has a track of its own,
/// and waiting says for which rank once workers have [informed each other](crate::Waits::share).
///
/// ```
/// use std::time::Instant;
/// # use gleaner_runtime::Session;
/// let session = Session::join()?;
/// let timeline = session.timeline()?;
/// let began = Instant::now();
/// // … the forward pass of step 0 …
/// session.record(0, "forward", began..Instant::now());
/// let trace = timeline.gather()?.expect("this is rank 0");
/// std::fs::write(std::env::temp_dir().join("timeline.json"), trace)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Timeline {
    session: Arc<Inner>,
    origin: Instant,
    begun: Offset,
}

/// By how much this rank's clock is ahead of rank 0's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Offset {
    /// When it was measured, in seconds since this rank's origin.
    at: f64,
    /// In seconds.
    ahead: f64,
    /// The error is at most this, in seconds.
    within: f64,
}

/// This rank's clock as rank 0's would show it: straight between two measurements, and on from there.
pub(crate) struct Clock {
    origin: Instant,
    begun: Offset,
    ended: Offset,
}

impl Clock {
    #[cfg(test)]
    fn own() -> Self {
        Self { origin: Instant::now(), begun: Offset::default(), ended: Offset::default() }
    }

    /// Microseconds since rank 0's origin.
    fn microseconds(&self, at: Instant) -> f64 {
        let own = match at.checked_duration_since(self.origin) {
            Some(after) => after.as_secs_f64(),
            None => -self.origin.duration_since(at).as_secs_f64(),
        };
        let between = self.ended.at - self.begun.at;
        let share = if between > 0.0 { (own - self.begun.at) / between } else { 0.0 };
        (own - self.begun.ahead - share * (self.ended.ahead - self.begun.ahead)) * 1e6
    }
}

impl Timeline {
    /// Begins to record; all ranks together.
    pub(crate) fn start(session: Arc<Inner>) -> Result<Self, Error> {
        let origin = Instant::now();
        let begun = offset(&session, origin)?;
        session.recorder.start((LARGEST / session.workers as usize / LINE).clamp(1, EVENTS));
        Ok(Self { session, origin, begun })
    }

    /// Ends recording; all ranks call it together. Rank 0 gets the trace: JSON in the trace-event format, which Perfetto
    /// (<https://ui.perfetto.dev>) and `chrome://tracing` open. A process is a rank and a thread a track; times are in
    /// microseconds by rank 0's clock, and `otherData` says how far the others' may be off. Of more than 65,536 events of a
    /// rank, or 64 MiB of all of them, the newest are in it.
    ///
    /// # Errors
    /// The job has failed.
    pub fn gather(self) -> Result<Option<String>, Error> {
        let Self { session, origin, begun } = self;
        let ended = offset(&session, origin)?;
        let most = LARGEST / session.workers as usize;
        let own = session.recorder.stop(session.rank.0, &Clock { origin, begun, ended }, most);
        let own = own.as_bytes();
        let (within, length) = (begun.within.max(ended.within), own.len() as f64);
        let notes = session.gather(Purpose::Timeline, &bytes(&[within, length]))?;
        let mut rows = numbers(&notes, 2);
        // Without these the others go on.
        rows.iter_mut().zip(&notes).filter(|(_, note)| note.is_empty()).for_each(|(row, _)| row.fill(0.0));
        // Names of tracks come on top of the events.
        if let Some(rank) = rows.iter().position(|row| row[1] > (2 * LARGEST) as f64) {
            let reason = "its part of the timeline is too long".into();
            return Err(session.fail(Failure { rank: rank as u32, step: None, reason }));
        }
        let longest = rows.iter().map(|row| row[1] as usize).max().unwrap_or(0);
        let mut parts = vec![Vec::new(); rows.len()];
        for piece in 0..longest.div_ceil(LONGEST) {
            let cut = |at: usize| (at * LONGEST).min(own.len());
            let pieces = session.gather(Purpose::Timeline, &own[cut(piece)..cut(piece + 1)])?;
            if session.coordinates() {
                parts.iter_mut().zip(pieces).for_each(|(part, piece)| part.extend_from_slice(&piece));
            }
        }
        if session.rank.0 != 0 {
            return Ok(None);
        }
        let within = rows.iter().map(|row| row[0]).fold(0.0, f64::max) * 1e6;
        let about = format!("{{\"clocks of the ranks agree within, in microseconds\":\"{within:.0}\"}}");
        let mut trace = format!("{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n");
        parts.iter().for_each(|part| trace += &String::from_utf8_lossy(part));
        let events = trace.trim_end_matches([',', '\n']).len();
        trace.truncate(events);
        Ok(Some(trace + "\n]}\n"))
    }
}

/// Measures by how much this rank's clock is ahead of rank 0's. All ranks exchange the times of their clocks, repeatedly.
/// No rank has all of a round before all have begun it: that bounds the offset from both sides, and the closest bounds count.
fn offset(session: &Inner, origin: Instant) -> Result<Offset, Error> {
    let now = || origin.elapsed().as_secs_f64();
    let (mut least, mut most) = (f64::NEG_INFINITY, f64::INFINITY);
    // When this rank began and ended the round before.
    let (mut begun, mut ended) = (f64::NEG_INFINITY, f64::INFINITY);
    for _ in 0..=ROUNDS {
        let begins = now();
        let rows = numbers(&session.gather(Purpose::Timeline, &bytes(&[begins, ended]))?, 2);
        let (zero_began, zero_ended) = (rows[0][0], rows[0][1]);
        // Rank 0 had not all of the last round before this rank began it.
        least = least.max(begun - zero_ended);
        (begun, ended) = (begins, now());
        most = most.min(ended - zero_began);
    }
    match session.rank.0 {
        0 => Ok(Offset { at: now(), ..Offset::default() }),
        _ => Ok(Offset { at: now(), ahead: f64::midpoint(least, most), within: (most - least) / 2.0 }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let origin = Instant::now();
        let begun = Offset { at: 1.0, ahead: 5.0, within: 0.0 };
        let ended = Offset { at: 3.0, ahead: 5.5, within: 0.0 };
        let clock = Clock { origin, begun, ended };
        let at = |seconds| clock.microseconds(origin + Duration::from_secs(seconds));
        assert!((at(1) + 4e6).abs() < 1.0 && (at(2) + 3.25e6).abs() < 1.0 && (at(5) + 1e6).abs() < 1.0);
        let still = Clock { origin, begun, ended: begun };
        assert!((still.microseconds(origin + Duration::from_secs(9)) - 4e6).abs() < 1.0);
    }
}
