//! One direction of a link, carried by a thread of its own.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::course::Course;
use super::packet::{Segments, on_wire, without};
use super::tap::{HEAD, MOST, Tap};
use crate::random::Random;
use crate::topology::Shape;

/// Packets that are read before what is due is looked at again.
const BATCH: usize = 64;

/// A packet that arrives later than this after its time was late: the processors had too much to do.
const LATE: Duration = Duration::from_millis(1);

/// What has crossed one direction of a link, in frames as they would be on a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossed {
    /// Frames that arrived.
    pub carried: u64,
    /// Frames that were lost as asked for.
    pub lost: u64,
    /// Frames for which the queue before the link was full.
    pub dropped: u64,
    /// Of those that arrived, frames more than a millisecond after their time.
    pub late: u64,
}

impl Crossed {
    /// Whether so much was late, more than a frame of a hundred, that the processors have carried less than the links would.
    pub fn is_late(self) -> bool {
        100 * self.late > self.carried
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            carried: self.carried + other.carried,
            lost: self.lost + other.lost,
            dropped: self.dropped + other.dropped,
            late: self.late + other.late,
        }
    }

    /// What has crossed since an earlier look.
    pub fn since(self, before: Self) -> Self {
        Self {
            carried: self.carried - before.carried,
            lost: self.lost - before.lost,
            dropped: self.dropped - before.dropped,
            late: self.late - before.late,
        }
    }
}

/// One direction of a link, as others see it.
#[derive(Debug, Default)]
pub(super) struct Line {
    shape: Mutex<Shape>,
    changes: AtomicU64,
    carried: AtomicU64,
    lost: AtomicU64,
    dropped: AtomicU64,
    late: AtomicU64,
}

impl Line {
    pub(super) fn change(&self, shape: Shape) {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = shape;
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn crossed(&self) -> Crossed {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Crossed {
            carried: read(&self.carried),
            lost: read(&self.lost),
            dropped: read(&self.dropped),
            late: read(&self.late),
        }
    }
}

/// What a thread has under way.
struct Carrier {
    line: Arc<Line>,
    course: Course,
    changes: u64,
    /// Packets by the time at which they arrive, and how many frames each is.
    under_way: VecDeque<(Duration, u64, Vec<u8>)>,
}

/// Carries packets from one interface to another, until the first can be read no more: says why.
pub(super) fn carry(from: &Tap, to: &Tap, line: &Arc<Line>, random: Random) -> io::Error {
    let since = Instant::now();
    let mut carrier = Carrier {
        line: Arc::clone(line),
        course: Course::new(random),
        changes: 0,
        under_way: VecDeque::new(),
    };
    let mut room = Box::new([0; MOST]);
    loop {
        carrier.follow(since.elapsed());
        let next = carrier.deliver(to, since.elapsed());
        let mut has_read = false;
        for _ in 0..BATCH {
            match from.read(&mut room) {
                Ok(length) if length > HEAD => {
                    has_read = true;
                    carrier.take(&room[..length], since.elapsed());
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
        }
        if !has_read {
            from.wait(next.map(|next| next.saturating_sub(since.elapsed())));
        }
    }
}

impl Carrier {
    /// Looks whether the link is another now.
    fn follow(&mut self, now: Duration) {
        let changes = self.line.changes.load(Ordering::Acquire);
        if changes != self.changes {
            self.changes = changes;
            let shape = *self.line.shape.lock().unwrap_or_else(PoisonError::into_inner);
            self.course.change(shape, now);
        }
    }

    /// Takes a packet, all of it or what is not lost.
    fn take(&mut self, packet: &[u8], now: Duration) {
        let segments = Segments::of(packet);
        let count = segments.map_or(1, |segments| segments.count);
        if !self.course.loses() {
            return self.admit(packet.to_vec(), count as u64, now);
        }
        let is_lost: Vec<bool> = (0..count).map(|_| self.course.is_lost()).collect();
        let lost = is_lost.iter().filter(|is_lost| **is_lost).count();
        self.line.lost.fetch_add(lost as u64, Ordering::Relaxed);
        match segments {
            _ if lost == 0 => self.admit(packet.to_vec(), count as u64, now),
            None => {}
            Some(segments) => {
                for left in without(packet, &segments, &is_lost) {
                    let count = Segments::of(&left).map_or(1, |segments| segments.count);
                    self.admit(left, count as u64, now);
                }
            }
        }
    }

    fn admit(&mut self, packet: Vec<u8>, frames: u64, now: Duration) {
        match self.course.admit(now, on_wire(&packet)) {
            Some(arrives) => self.under_way.push_back((arrives, frames, packet)),
            None => drop(self.line.dropped.fetch_add(frames, Ordering::Relaxed)),
        }
    }

    /// Delivers what has arrived. Says when the next does.
    fn deliver(&mut self, to: &Tap, now: Duration) -> Option<Duration> {
        while let Some((arrives, ..)) = self.under_way.front()
            && *arrives <= now
            && let Some((arrives, frames, packet)) = self.under_way.pop_front()
        {
            to.write(&packet);
            self.line.carried.fetch_add(frames, Ordering::Relaxed);
            if now - arrives > LATE {
                self.line.late.fetch_add(frames, Ordering::Relaxed);
            }
        }
        self.under_way.front().map(|(arrives, ..)| *arrives)
    }
}
