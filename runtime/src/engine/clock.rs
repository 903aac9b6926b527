//! What the I/O thread does periodically: heartbeats, silence, and a check of which rank waits for which.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use gleaner_transport::Peer;

use super::Engine;
use crate::algorithm::Waiting;
use crate::failure::Failure;
use crate::report;

/// After how long the wait for each peer is reported next.
pub(super) type Warnings = HashMap<Peer, Duration>;

impl Engine {
    /// Reads the clock, which leaves out pauses of this process: where it is long after both its timer was due and it was last read, the process was
    /// paused. Perhaps the whole machine was, and the peers with it, so this time does not count as their silence. At most one pause within a timeout
    /// is left out, so that the death of a peer is noticed at most that pause later, even where this thread gets no processor for long again and again.
    pub(super) fn read_clock(&mut self) {
        let now = Instant::now() - self.paused;
        let due = (self.timer.deadline().into_std() - self.paused).max(self.io.now);
        let late = now.saturating_duration_since(due);
        let is_next = self.resumed.is_none_or(|at| due.duration_since(at) >= self.timeout);
        if late < self.timeout / 2 || !is_next {
            self.io.now = now;
            return;
        }
        self.paused += late;
        (self.io.now, self.resumed, self.has_resumed) = (due, Some(due), true);
    }

    /// Does what is due.
    pub(super) fn tick(&mut self) {
        self.read_clock();
        if self.io.moves()
            && let Some((_, Some(until))) = &mut self.leaving
        {
            *until = self.io.now + self.timeout;
        }
        // After a pause of this process, heartbeats may lie here unread.
        for peer in self.io.worker.overdue(self.io.now) {
            self.read(peer);
        }
        self.io.worker.tick(self.io.now);
        // After a pause the peers have not heard from this rank for a while.
        let has_resumed = std::mem::take(&mut self.has_resumed);
        let quiet = if has_resumed { Duration::ZERO } else { self.timeout / 6 };
        let since = self.io.now.checked_sub(quiet);
        let (steps, calls) = (self.io.steps.positions(), self.notes.position());
        for (peer, link) in &mut self.io.links {
            if since.is_some_and(|since| link.live(since, calls, &steps)) {
                self.ready.push(*peer);
            }
        }
        self.look_at_waits();
        self.io.offer();
    }

    /// Reports waits that are longer than the timeout, and ends the job where one would never end.
    fn look_at_waits(&mut self) {
        let Self { io, actors, notes, warnings, timeout, .. } = self;
        let mut waits: Vec<Waiting> = actors.values().flat_map(|actor| actor.waits()).collect();
        waits.retain(|wait| io.now.duration_since(wait.since) >= *timeout);
        warnings.retain(|peer, _| waits.iter().any(|wait| wait.from == *peer));
        for Waiting { id, step, from, since } in waits {
            let waited = io.now.duration_since(since);
            let came = io.link(from).came();
            let Some(seen) = io.positions.seen_from(id, from, came) else { continue };
            let there = step.saturating_add_signed(seen.ahead.into());
            // It waits until this rank makes the call, and this rank's program waits for it.
            let crossed =
                (notes.position().0, true) == seen.calls && !notes.position().1 && io.mailbox.is_blocked();
            let reason = if seen.is_lost() {
                format!("it is past step {step}, in which {} needs more from it", io.rank)
            } else if crossed {
                format!("it waits in a call of all ranks while {} waits for it in step {step}", io.rank)
            } else {
                String::new()
            };
            // By then a rank that cannot be notified of the cancelled step has been named.
            if !reason.is_empty() && waited >= 2 * *timeout {
                let reason = format!(
                    "{reason}: the two can never meet; all ranks must take the same steps and make the same calls"
                );
                return io.fail(Failure { rank: from.0, step: Some(there), reason });
            }
            let next = warnings.entry(from).or_insert(*timeout);
            if waited >= *next && io.worker.hears(from, io.now) {
                *next = 2 * waited;
                report::say(format_args!(
                    "gleaner: {} has waited {:.1} s in step {step} for {from}, which is alive and {} step {there}",
                    io.rank,
                    waited.as_secs_f64(),
                    if seen.has_begun { "in" } else { "before" }
                ));
            }
        }
    }
}
