//! One direction of a link, carried by a thread of its own.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::course::Course;
use super::packet::{Segments, on_wire, without};
use super::tap::{HEAD, MOST, Tap};
use crate::topology::Shape;
use gleaner_statistics::random::Generator;

/// Packets that are read before what is due is looked at again.
const BATCH: usize = 64;

/// A packet that is read or arrives later than this after its time was late: the processors had too much to do.
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
    /// Of those that arrived, frames more than a millisecond after their time, or read after so long without a processor.
    pub late: u64,
}

impl Crossed {
    /// Whether so much was late, more than a frame of a hundred, that the processors have carried less than the links would.
    pub fn is_late(self) -> bool {
        100 * self.late > self.carried
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, |one, other| one + other)
    }

    /// What has crossed since an earlier look.
    pub fn since(self, before: Self) -> Self {
        self.each(before, |now, before| now - before)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            carried: of(self.carried, other.carried),
            lost: of(self.lost, other.lost),
            dropped: of(self.dropped, other.dropped),
            late: of(self.late, other.late),
        }
    }
}

/// One direction of a link, as others see it.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// What it is like from now on, until its thread knows.
    change: Mutex<Option<Shape>>,
    crossed: Mutex<Crossed>,
}

impl Line {
    pub(super) fn change(&self, shape: Shape) {
        *held(&self.change) = Some(shape);
    }

    pub(super) fn crossed(&self) -> Crossed {
        *held(&self.crossed)
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread has under way.
struct Carrier {
    line: Arc<Line>,
    course: Course,
    under_way: VecDeque<Packet>,
    /// Whether what is read now may have waited too long to be read.
    reads_late: bool,
}

struct Packet {
    arrives: Duration,
    frames: u64,
    was_late: bool,
    bytes: Vec<u8>,
}

/// How long this thread could have run and had no processor.
struct Starved {
    file: Option<File>,
    before: u64,
}

impl Starved {
    fn begin() -> Self {
        // A kernel that does not count it has none.
        let mut starved = Self { file: File::open("/proc/thread-self/schedstat").ok(), before: 0 };
        starved.since_last();
        starved
    }

    /// Since this was asked last.
    fn since_last(&mut self) -> Duration {
        let mut text = [0; 96];
        let length = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or_default();
        // Nanoseconds on a processor, nanoseconds of waiting for one, and how often it got one.
        let words = std::str::from_utf8(&text[..length]).unwrap_or_default().split_whitespace();
        let waited = words.skip(1).find_map(|word| word.parse().ok()).unwrap_or(self.before);
        let since = Duration::from_nanos(waited.saturating_sub(self.before));
        self.before = waited;
        since
    }
}

/// Carries packets from one interface to another, until the first can be read no more: says why.
pub(super) fn carry(from: &Tap, to: &Tap, line: &Arc<Line>, random: Generator) -> io::Error {
    let since = Instant::now();
    let mut carrier = Carrier {
        line: Arc::clone(line),
        course: Course::new(random),
        under_way: VecDeque::new(),
        reads_late: false,
    };
    let mut starved = Starved::begin();
    let mut room = Box::new([0; MOST]);
    loop {
        // The link may be another now.
        if let Some(shape) = held(&line.change).take() {
            carrier.course.change(shape, since.elapsed());
        }
        let next = carrier.deliver(to, since.elapsed());
        carrier.reads_late = starved.since_last() > LATE;
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
    /// Takes a packet, all of it or what is not lost.
    fn take(&mut self, packet: &[u8], now: Duration) {
        let segments = Segments::of(packet);
        let count = segments.map_or(1, |segments| segments.count);
        if !self.course.loses() {
            return self.admit(packet.to_vec(), count as u64, now);
        }
        let is_lost: Vec<bool> = (0..count).map(|_| self.course.is_lost()).collect();
        let lost = is_lost.iter().filter(|is_lost| **is_lost).count();
        held(&self.line.crossed).lost += lost as u64;
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
            Some(arrives) => {
                let was_late = self.reads_late;
                self.under_way.push_back(Packet { arrives, frames, was_late, bytes: packet });
            }
            None => held(&self.line.crossed).dropped += frames,
        }
    }

    /// Delivers what has arrived. Says when the next does.
    fn deliver(&mut self, to: &Tap, now: Duration) -> Option<Duration> {
        while self.under_way.front().is_some_and(|packet| packet.arrives <= now)
            && let Some(packet) = self.under_way.pop_front()
        {
            to.write(&packet.bytes);
            let mut crossed = held(&self.line.crossed);
            crossed.carried += packet.frames;
            if packet.was_late || now - packet.arrives > LATE {
                crossed.late += packet.frames;
            }
        }
        self.under_way.front().map(|packet| packet.arrives)
    }
}
