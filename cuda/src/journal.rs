//! What was put into the streams, and how much of it is known to be done: an error that a device reports later is of something else.
//!
//! Each stream counts what is put into it. What is known to be before an event, in all streams, is a count for each: that of the
//! event's stream, and whatever that stream has waited for. Once the event was waited for, so much is done.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::fmt;

use crate::backend::{Event, Stream};

/// Something that was asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A kernel.
    Kernel(&'static CStr),
    /// A copy, or a fill, and what it is of.
    Copy(&'static str),
    /// A call that puts nothing into a stream.
    Call(&'static str),
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Kernel(name) => write!(f, "the kernel {}", name.to_string_lossy()),
            Operation::Copy(what) | Operation::Call(what) => write!(f, "{what}"),
        }
    }
}

/// Streams that are ours.
pub(crate) const STREAMS: usize = 6;

/// This many operations of each stream are before something.
type Clock = [u64; STREAMS];

/// Operations of a stream that are remembered, the newest.
const REMEMBERED: usize = 256;

/// Operations that a sentence names.
const NAMED: usize = 8;

#[derive(Debug)]
struct Lane {
    stream: Stream,
    /// What was put into it.
    put: u64,
    /// What comes next waits for so much.
    behind: Clock,
    /// What is not known to be done, with its number.
    open: VecDeque<(u64, Operation)>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    lanes: [Lane; STREAMS],
    events: HashMap<Event, Clock>,
    done: Clock,
}

impl Journal {
    /// Nothing, in these streams.
    pub(crate) fn new(streams: [Stream; STREAMS]) -> Self {
        let lane = |stream| Lane { stream, put: 0, behind: [0; STREAMS], open: VecDeque::new() };
        Self { lanes: streams.map(lane), events: HashMap::new(), done: [0; STREAMS] }
    }

    /// The number of a stream of ours.
    fn number(&self, stream: Stream) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.stream == stream)
    }

    /// Something was put into a stream of ours.
    pub(crate) fn put(&mut self, operation: Operation, stream: Stream) {
        let Some(number) = self.number(stream) else { return };
        let lane = &mut self.lanes[number];
        lane.put += 1;
        lane.behind[number] = lane.put;
        lane.open.push_back((lane.put, operation));
        if lane.open.len() > REMEMBERED {
            lane.open.pop_front();
        }
    }

    /// An event was recorded. What the program has put into a stream of its own is not known.
    pub(crate) fn recorded(&mut self, event: Event, stream: Stream) {
        let clock = self.number(stream).map_or([0; STREAMS], |number| self.lanes[number].behind);
        self.events.insert(event, clock);
    }

    /// What comes next in a stream waits for an event.
    pub(crate) fn awaited(&mut self, stream: Stream, event: Event) {
        let (Some(number), Some(clock)) = (self.number(stream), self.events.get(&event)) else { return };
        let behind = &mut self.lanes[number].behind;
        behind.iter_mut().zip(clock).for_each(|(behind, before)| *behind = (*behind).max(*before));
    }

    /// What precedes an event is done.
    pub(crate) fn is_done(&mut self, event: Event) {
        let Some(clock) = self.events.get(&event) else { return };
        for ((lane, done), before) in self.lanes.iter_mut().zip(&mut self.done).zip(clock) {
            *done = (*done).max(*before);
            while lane.open.front().is_some_and(|(number, _)| *number <= *done) {
                lane.open.pop_front();
            }
        }
    }

    /// An event is destroyed.
    pub(crate) fn forget(&mut self, event: Event) {
        self.events.remove(&event);
    }

    /// What may be under way, each name once, the oldest first; None if nothing is.
    pub(crate) fn under_way(&self) -> Option<String> {
        let mut names: Vec<(Operation, u64)> = Vec::new();
        for (_, operation) in self.lanes.iter().flat_map(|lane| &lane.open) {
            match names.iter_mut().find(|(known, _)| known == operation) {
                Some((_, times)) => *times += 1,
                None => names.push((*operation, 1)),
            }
        }
        // As many of a stream are unknown as were put into it and neither done nor remembered.
        let put: u64 = self.lanes.iter().zip(&self.done).map(|(lane, done)| lane.put - done).sum();
        let named: u64 = names.iter().take(NAMED).map(|(_, times)| times).sum();
        let mut said: Vec<String> = names
            .iter()
            .take(NAMED)
            .map(|(operation, times)| match times {
                1 => operation.to_string(),
                _ => format!("{operation} ({times} times)"),
            })
            .collect();
        if put > named {
            said.push(format!("and {} others", put - named));
        }
        (!said.is_empty()).then(|| said.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: [Stream; STREAMS] = [Stream(10), Stream(11), Stream(12), Stream(13), Stream(14), Stream(15)];
    const A: Operation = Operation::Kernel(c"a");
    const B: Operation = Operation::Kernel(c"b");
    const C: Operation = Operation::Copy("a copy");

    #[test]
    fn what_is_before_an_event_that_was_waited_for_is_done() {
        let mut journal = Journal::new(S);
        assert_eq!(journal.under_way(), None);
        let [first, second] = [Event(1), Event(2)];
        journal.put(A, S[0]);
        journal.put(A, S[0]);
        journal.recorded(first, S[0]);
        journal.put(B, S[0]);
        assert_eq!(journal.under_way().unwrap(), "the kernel a (2 times), the kernel b");
        journal.is_done(first);
        assert_eq!(journal.under_way().unwrap(), "the kernel b");
        // The copy is behind all that is in the other stream.
        journal.recorded(first, S[0]);
        journal.awaited(S[3], first);
        journal.put(C, S[3]);
        journal.recorded(second, S[3]);
        journal.put(A, S[1]);
        assert_eq!(journal.under_way().unwrap(), "the kernel b, the kernel a, a copy");
        journal.is_done(second);
        assert_eq!(journal.under_way().unwrap(), "the kernel a");
    }

    #[test]
    fn an_event_of_the_program_says_nothing_of_ours() {
        let mut journal = Journal::new(S);
        journal.put(A, S[2]);
        journal.recorded(Event(1), Stream(99));
        journal.awaited(S[2], Event(1));
        journal.is_done(Event(1));
        journal.is_done(Event(7));
        assert_eq!(journal.under_way().unwrap(), "the kernel a");
    }

    #[test]
    fn what_is_too_much_to_name_is_counted() {
        let mut journal = Journal::new(S);
        (0..1000).for_each(|_| journal.put(A, S[0]));
        assert_eq!(journal.under_way().unwrap(), "the kernel a (256 times), and 744 others");
        journal.recorded(Event(1), S[0]);
        journal.is_done(Event(1));
        assert_eq!(journal.under_way(), None);
    }
}
