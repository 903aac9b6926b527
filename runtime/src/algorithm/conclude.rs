//! The end of a step.

use std::time::Instant;

use gleaner_algorithms::Element;

use super::{End, Outcome, Run, State, look};
use crate::failure::Error;
use crate::mailbox::Window;
use crate::steps::Cause;
use crate::timeline::What;

/// Commits all groups of a step or none. Where the next step has another schedule, peers get the credit that it needs.
pub(super) fn conclude<T: Element>(
    runs: Vec<Run<T>>,
    mut widen: impl FnMut(Vec<Window>),
) -> Result<Outcome<T>, Error> {
    let ended = |run: &Run<T>| match run.state {
        State::Ended(End::Cancelled { by, cause }) => Some((by, cause)),
        _ => None,
    };
    // The result for each group is the same on all ranks, so all name the same rank.
    match runs.iter().find_map(ended) {
        Some((by, Cause::NonFinite)) => {
            let leave_out = |run: &Run<T>| Ok(look(&run.shared).leave_out(run.has_values)?);
            let sums = runs.iter().map(leave_out).collect::<Result<_, Error>>()?;
            Ok(Outcome::LeftOut { by, sums })
        }
        Some((by, cause @ (Cause::Wish | Cause::Memory))) => {
            for run in &runs {
                let mut group = look(&run.shared);
                // Values that are not finite cannot wait for the next step.
                if run.has_values { group.give_back()? } else { drop(group.leave_out(false)?) }
            }
            Ok(match cause {
                Cause::Memory => Outcome::Undone { by },
                _ => Outcome::Cancelled { by },
            })
        }
        None => {
            let (mut sums, mut lost, mut all) = (Vec::new(), 0.0, Vec::new());
            for Run { state, shared, mut noted, .. } in runs {
                let State::Ended(End::Exchanged(execution)) = state else { continue };
                let clock = Instant::now();
                let mut group = look(&shared);
                let delivered = group.commit(execution.finish()?)?;
                if delivered.changed {
                    widen(group.windows());
                }
                sums.push(delivered.sums);
                lost += delivered.lost;
                noted.times.total += clock.elapsed();
                noted.note(What::Commit { entries: group.entries() }, clock);
                all.push(noted.times);
            }
            Ok(Outcome::Delivered { sums, lost, times: all })
        }
    }
}
