//! What is recorded, and how it is written down.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Clock;
use crate::tag::StepId;

/// Characters of an event as they are expected; few have more.
pub(super) const LINE: usize = 128;

/// How the program's waiting for an update is called: that of an all-reduce, and a whole step of a replica.
pub(crate) const WAIT: &str = "wait";
pub(crate) const SYNCHRONISE: &str = "synchronise";

/// What a worker does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Chooses entries and prepares messages.
    Select,
    /// Needs a payload of this rank in this latency round.
    Receive { from: u32, round: u64, bytes: usize },
    /// Hands a payload to the link.
    Send { to: u32, bytes: usize },
    /// Takes received entries in.
    Merge,
    /// Takes what was delivered out of the residual of a group of this many entries.
    Commit { entries: usize },
    /// The program says what.
    Program(Cow<'static, str>),
}

/// On which track an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    Program,
    /// The exchange of a group, by its number in the session.
    Group(u32),
    /// What travels while the program goes on.
    Background,
    /// What the program had enqueued on a device, while that was under way.
    Device,
}

#[derive(Clone, Debug)]
struct Event {
    track: Track,
    step: u64,
    what: What,
    began: Instant,
    took: Duration,
}

/// Where all threads of a worker record what they do, while a timeline is recorded.
#[derive(Default)]
pub(crate) struct Recorder {
    is_on: AtomicBool,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    newest: VecDeque<Event>,
    /// How many are kept.
    most: usize,
    /// How many older ones were not.
    dropped: u64,
    /// The rank that the program waited for in a step, as far as it is known.
    awaited: BTreeMap<u64, u32>,
}

impl Recorder {
    /// Records from now on, and keeps the newest events, this many at most.
    pub(super) fn start(&self, most: usize) {
        *self.events() = Events { most, ..Events::default() };
        self.is_on.store(true, Ordering::Release);
    }

    /// A group's exchange did this from `began` until now.
    pub(crate) fn group(&self, id: StepId, step: u64, what: What, began: Instant) {
        self.add(Track::Group(id.gradient), step, what, began..Instant::now());
    }

    /// The program did this.
    pub(crate) fn program(&self, step: u64, what: impl Into<Cow<'static, str>>, during: Range<Instant>) {
        if self.is_on() {
            self.add(Track::Program, step, What::Program(what.into()), during);
        }
    }

    /// A device did this for the program.
    pub(crate) fn device(&self, step: u64, what: impl Into<Cow<'static, str>>, during: Range<Instant>) {
        if self.is_on() {
            self.add(Track::Device, step, What::Program(what.into()), during);
        }
    }

    /// Something of a step travelled in the background.
    pub(crate) fn background(&self, step: u64, what: impl Into<Cow<'static, str>>, during: Range<Instant>) {
        if self.is_on() {
            self.add(Track::Background, step, What::Program(what.into()), during);
        }
    }

    /// The program waited for this rank in a step: its waiting there says so.
    pub(crate) fn awaited(&self, step: u64, rank: u32) {
        if self.is_on() {
            let mut events = self.events();
            let most = events.most;
            events.awaited.insert(step, rank);
            if events.awaited.len() > most {
                events.awaited.pop_first();
            }
        }
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    fn add(&self, track: Track, step: u64, what: What, during: Range<Instant>) {
        if !self.is_on() {
            return;
        }
        let event =
            Event { track, step, what, began: during.start, took: during.end.duration_since(during.start) };
        let mut events = self.events();
        if events.newest.len() == events.most {
            events.newest.pop_front();
            events.dropped += 1;
        }
        events.newest.push_back(event);
    }

    /// Records no more. All events of a rank in trace-event JSON, one a line with a comma behind it, in at most so many
    /// bytes: of more, the newest.
    pub(super) fn stop(&self, rank: u32, clock: &Clock, most: usize) -> String {
        self.is_on.store(false, Ordering::Release);
        let Events { newest, mut dropped, awaited, .. } = std::mem::take(&mut *self.events());
        let mut tracks: Vec<Track> = Vec::new();
        let (mut lines, mut bytes) = (Vec::new(), 0);
        // Of a replica's step, in which several updates are waited for, the whole.
        let is_whole = |event: &Event| event.what == What::Program(SYNCHRONISE.into());
        let waiting = if newest.iter().any(is_whole) { SYNCHRONISE } else { WAIT };
        for event in newest.iter().rev() {
            let awaited = awaited.get(&event.step).filter(|_| event.what == What::Program(waiting.into()));
            let line = event.line(rank, clock, awaited.copied());
            bytes += line.len();
            if bytes > most {
                dropped += (newest.len() - lines.len()) as u64;
                break;
            }
            lines.push(line);
            if !tracks.contains(&event.track) {
                tracks.push(event.track);
            }
        }
        let mut text = named("process_name", rank, 0, &process(rank, dropped));
        text += &tracks
            .iter()
            .map(|track| named("thread_name", rank, track.number(), &track.name()))
            .collect::<String>();
        lines.iter().rev().for_each(|line| text += line);
        text
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn process(rank: u32, dropped: u64) -> String {
    match dropped {
        0 => format!("rank {rank}"),
        _ => format!("rank {rank} ({dropped} earlier events left out)"),
    }
}

/// A line that gives a process or a thread its name.
fn named(kind: &str, rank: u32, track: u64, name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!(
        "{{\"ph\":\"M\",\"name\":\"{kind}\",\"pid\":{rank},\"tid\":{track},\"args\":{{\"name\":{name}}}}},\n"
    )
}

impl Track {
    fn number(self) -> u64 {
        match self {
            Self::Program => 0,
            Self::Group(number) => 1 + u64::from(number),
            // After all groups that there can be.
            Self::Background => 2 + u64::from(u32::MAX),
            Self::Device => 3 + u64::from(u32::MAX),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Program => "program".to_owned(),
            Self::Group(number) => format!("exchange {number}"),
            Self::Background => "in the background".to_owned(),
            Self::Device => "device".to_owned(),
        }
    }
}

impl Event {
    /// `awaited`: the rank that the program waited for in this event.
    fn line(&self, rank: u32, clock: &Clock, awaited: Option<u32>) -> String {
        let name = match &self.what {
            What::Select => "select".into(),
            What::Receive { from, .. } => format!("receive from {from}").into(),
            What::Send { to, .. } => format!("send to {to}").into(),
            What::Merge => "merge".into(),
            What::Commit { .. } => "commit".into(),
            What::Program(name) => name.clone(),
        };
        let name = serde_json::Value::from(&*name);
        let (at, took) = (clock.microseconds(self.began), self.took.as_secs_f64() * 1e6);
        let mut line = String::with_capacity(LINE);
        // Writing to a string cannot fail.
        let _ = match self.what {
            What::Send { .. } => write!(line, "{{\"ph\":\"i\",\"s\":\"t\",\"name\":{name},\"ts\":{at:.3}"),
            _ => write!(line, "{{\"ph\":\"X\",\"name\":{name},\"ts\":{at:.3},\"dur\":{took:.3}"),
        };
        let track = self.track.number();
        let _ = write!(line, ",\"pid\":{rank},\"tid\":{track},\"args\":{{\"step\":{}", self.step);
        let _ = match self.what {
            What::Receive { from, round, bytes } => {
                write!(line, ",\"from\":{from},\"round\":{round},\"bytes\":{bytes}")
            }
            What::Send { to, bytes } => write!(line, ",\"to\":{to},\"bytes\":{bytes}"),
            What::Commit { entries } => write!(line, ",\"entries\":{entries}"),
            _ => Ok(()),
        };
        if let Some(awaited) = awaited {
            let _ = write!(line, ",\"for\":{awaited}");
        }
        line + "}},\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only waiting names a rank, where it is known.
    #[test]
    fn waiting_names_the_rank() {
        let recorder = Recorder::default();
        let (clock, began) = (Clock::own(), Instant::now());
        for name in [WAIT, SYNCHRONISE] {
            recorder.awaited(0, 9);
            recorder.start(99);
            for step in 0..3 {
                recorder.program(step, WAIT, began..began);
                recorder.program(step, name, began..began);
                recorder.program(step, "forward", began..began);
                recorder.background(step, "in-computation synchronisation", began..began);
            }
            recorder.awaited(1, 3);
            let text = recorder.stop(1, &clock, 1 << 20);
            let awaited: Vec<&str> = text.lines().filter(|line| line.contains("\"for\":3")).collect();
            // Where the whole of a step is there, its parts do not say it once more.
            assert_eq!(awaited.len(), if name == WAIT { 2 } else { 1 }, "{text}");
            assert!(awaited.iter().all(|line| line.contains(name) && line.contains("\"step\":1")), "{text}");
            assert!(!text.contains("\"for\":9") && text.contains("in the background"), "{text}");
        }
    }

    /// The newest are kept, and the track says how many are not there.
    #[test]
    fn it_keeps_the_newest_events() {
        let recorder = Recorder::default();
        let (clock, began) = (Clock::own(), Instant::now());
        let program =
            |steps: std::ops::Range<u64>| steps.for_each(|step| recorder.program(step, "p", began..began));
        program(0..9);
        assert!(!recorder.stop(1, &clock, 1000).contains("step"), "it was not on");
        recorder.start(4);
        program(0..9);
        let text = recorder.stop(1, &clock, 1000);
        let steps: Vec<&str> = text.matches("\"step\":").collect();
        assert_eq!(steps.len(), 4);
        assert!(text.contains("\"step\":5") && text.contains("rank 1 (5 earlier events left out)"), "{text}");
        recorder.start(9);
        program(0..9);
        let text = recorder.stop(0, &clock, 200);
        assert!(text.contains("\"step\":8") && !text.contains("\"step\":6"), "{text}");
        assert!(text.contains("earlier events left out"), "{text}");
    }
}
