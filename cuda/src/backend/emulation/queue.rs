//! What is put into emulated streams, and when it is done: late, and in any order that the events allow, so that an order that is missing
//! shows in what comes out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::CStr;
use std::time::Instant;

use gleaner_statistics::random::Generator;

/// An operation of a stream.
#[derive(Debug)]
pub(super) enum Task {
    Copy { to: u64, from: u64, bytes: usize },
    Fill { at: u64, byte: u8, bytes: usize },
    Launch { kernel: &'static CStr, grid: u32, block: u32, arguments: Vec<u64> },
    Record { event: u64, version: u64 },
    Await { event: u64, version: u64, stream: u64 },
}

/// The stream of events that the program records by itself: nothing that is put into a stream is in the way of them.
const GATES: u64 = u64::MAX;

/// What is in the way of an event, or of all of a stream.
#[derive(Debug)]
pub(super) enum Next {
    /// An operation that is to be done.
    Task(Task),
    /// A gate that is to be opened.
    Gate,
    /// Nothing.
    Nothing,
}

/// An event: each recording is a version of it, and one may be done before another of an older version in another stream.
#[derive(Debug)]
struct Recorded {
    version: u64,
    stream: u64,
    /// Versions that are not done.
    pending: BTreeSet<u64>,
    at: Instant,
}

/// All streams of a device, and its events.
#[derive(Debug)]
pub(super) struct Queue {
    streams: BTreeMap<u64, VecDeque<Task>>,
    events: BTreeMap<u64, Recorded>,
    /// Names of the kernels that were executed, and of copies.
    pub(super) executed: Vec<String>,
    random: Generator,
}

/// Of this many operations that are put into streams, about this many are done without being waited for.
const EARLY: [u32; 2] = [4, 3];

impl Queue {
    /// One that does other things early than one of another seed.
    pub(super) fn new(seed: u64) -> Self {
        let random = Generator::new(seed, "order", 0);
        Self { streams: BTreeMap::new(), events: BTreeMap::new(), executed: Vec::new(), random }
    }

    /// An operation is put into a stream.
    pub(super) fn put(&mut self, stream: u64, task: Task) {
        self.streams.entry(stream).or_default().push_back(task);
    }

    pub(super) fn record(&mut self, event: u64, stream: u64) {
        self.make(event);
        let Some(recorded) = self.events.get_mut(&event) else { return };
        (recorded.version, recorded.stream) = (recorded.version + 1, stream);
        let version = recorded.version;
        recorded.pending.insert(version);
        self.put(stream, Task::Record { event, version });
    }

    /// What comes next in the stream waits for the event as it is now.
    pub(super) fn order(&mut self, stream: u64, event: u64) {
        if let Some(&Recorded { version, stream: of, .. }) = self.events.get(&event) {
            self.put(stream, Task::Await { event, version, stream: of });
        }
    }

    /// What comes next in the stream waits until the gate is opened.
    pub(super) fn gate(&mut self, gate: u64, stream: u64) {
        let pending = BTreeSet::from([1]);
        self.events.insert(gate, Recorded { version: 1, stream: GATES, pending, at: Instant::now() });
        self.order(stream, gate);
    }

    /// Opens a gate.
    pub(super) fn open(&mut self, gate: u64) {
        self.events.remove(&gate);
    }

    pub(super) fn is_done(&self, event: u64) -> bool {
        self.events.get(&event).is_none_or(|event| !event.pending.contains(&event.version))
    }

    pub(super) fn knows(&self, event: u64) -> bool {
        self.events.contains_key(&event)
    }

    pub(super) fn make(&mut self, event: u64) {
        let nothing = || Recorded { version: 0, stream: 0, pending: BTreeSet::new(), at: Instant::now() };
        self.events.entry(event).or_insert_with(nothing);
    }

    /// When the event was done.
    pub(super) fn at(&self, event: u64) -> Option<Instant> {
        self.events.get(&event).map(|event| event.at)
    }

    /// Streams that wait for it still do.
    pub(super) fn destroy(&mut self, event: u64) {
        if self.events.get(&event).is_some_and(|event| event.pending.is_empty()) {
            self.events.remove(&event);
        }
    }

    /// Ends a stream. Says whether all was done.
    pub(super) fn end(&mut self, stream: u64) -> bool {
        self.streams.remove(&stream).is_none_or(|tasks| tasks.is_empty())
    }

    /// Something that uses memory, if anything does that is not done.
    pub(super) fn user(&self, address: u64, bytes: usize) -> Option<String> {
        let is_within = |at: u64, len: usize| at < address + bytes as u64 && address < at + len.max(1) as u64;
        let uses = |task: &&Task| match task {
            Task::Copy { to, from, bytes } => is_within(*to, *bytes) || is_within(*from, *bytes),
            Task::Fill { at, bytes, .. } => is_within(*at, *bytes),
            Task::Launch { arguments, .. } => arguments.iter().any(|&argument| is_within(argument, 1)),
            Task::Record { .. } | Task::Await { .. } => false,
        };
        self.streams.values().flatten().find(uses).map(name)
    }

    /// What has to be done next so that the event, or all of a stream, is done.
    pub(super) fn next_for(&mut self, stream: u64, event: Option<(u64, u64)>) -> Next {
        let mut stream = stream;
        let mut wanted = event;
        loop {
            if wanted.is_some_and(|(event, version)| self.has(event, version)) {
                return Next::Nothing;
            }
            match self.streams.get(&stream).and_then(VecDeque::front) {
                None => return Next::Nothing,
                Some(&Task::Await { event, version, stream: GATES }) if !self.has(event, version) => {
                    return Next::Gate;
                }
                Some(&Task::Await { event, version, stream: of }) if !self.has(event, version) => {
                    (stream, wanted) = (of, Some((event, version)));
                }
                Some(_) => return self.pop(stream).map_or(Next::Nothing, Next::Task),
            }
        }
    }

    /// What was last recorded of an event, and in which stream.
    pub(super) fn latest(&self, event: u64) -> Option<(u64, u64)> {
        self.events.get(&event).map(|event| (event.stream, event.version))
    }

    /// An operation of any stream that waits for nothing, now and then.
    pub(super) fn early(&mut self) -> Option<Task> {
        if self.random.below(EARLY[0]) >= EARLY[1] {
            return None;
        }
        let mut streams: Vec<u64> = self.streams.keys().copied().collect();
        while !streams.is_empty() {
            let stream = streams.swap_remove(self.random.below(streams.len() as u32) as usize);
            let waits = match self.streams.get(&stream).and_then(VecDeque::front) {
                None => true,
                Some(&Task::Await { event, version, .. }) => !self.has(event, version),
                Some(_) => false,
            };
            if !waits {
                return self.pop(stream);
            }
        }
        None
    }

    fn has(&self, event: u64, version: u64) -> bool {
        self.events.get(&event).is_none_or(|event| !event.pending.contains(&version))
    }

    fn pop(&mut self, stream: u64) -> Option<Task> {
        let task = self.streams.get_mut(&stream)?.pop_front()?;
        match task {
            Task::Record { event, version } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.pending.remove(&version);
                    event.at = Instant::now();
                }
            }
            Task::Await { .. } => {}
            _ => self.executed.push(name(&task)),
        }
        Some(task)
    }
}

fn name(task: &Task) -> String {
    match task {
        Task::Launch { kernel, .. } => kernel.to_string_lossy().into_owned(),
        Task::Copy { .. } => "copy".to_owned(),
        Task::Fill { .. } => "fill".to_owned(),
        Task::Record { .. } | Task::Await { .. } => "order".to_owned(),
    }
}
