//! A thread that writes lines, and those who do not wait for it.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long the writing of one line is waited for.
const PATIENCE: Duration = Duration::from_millis(100);

/// How many lines may wait.
const WAITING: usize = 1024;

/// After this long in which nothing could be written, there is no reader.
const UNREAD: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Writer {
    state: Mutex<State>,
    /// Something was handed over or written.
    changed: Condvar,
}

struct State {
    is_started: bool,
    lines: VecDeque<Vec<u8>>,
    /// How many lines were ever taken in, and how many of them are dealt with.
    taken: u64,
    done: u64,
    /// Since when a line is being written.
    since: Option<Instant>,
    /// Lines that were lost and whose loss was not reported yet.
    lost: u64,
}

impl Writer {
    /// Not started yet.
    pub(super) const fn new() -> Self {
        let state =
            State { is_started: false, lines: VecDeque::new(), taken: 0, done: 0, since: None, lost: 0 };
        Writer { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, if there is none yet. Without it lines wait until it can be started, and are lost at the end.
    pub(super) fn start<W: Write>(&'static self, sink: impl FnOnce() -> W + Send + 'static) {
        let mut state = self.lock();
        if !state.is_started {
            let thread = thread::Builder::new().name("gleaner-report".to_owned());
            state.is_started = thread.spawn(move || self.write(sink())).is_ok();
        }
    }

    /// Takes a line in, and waits until it is written, but not where writing takes long.
    pub(super) fn hand(&self, line: Vec<u8>) {
        let mut state = self.lock();
        if state.lines.len() >= WAITING {
            state.lost += 1;
            return;
        }
        state.take(line);
        self.changed.notify_all();
        let own = state.taken;
        self.wait(state, own, PATIENCE);
    }

    /// Waits until all lines are written, or there is no reader.
    pub(super) fn finish(&self) {
        let state = self.lock();
        let all = state.taken;
        self.wait(state, all, UNREAD);
    }

    /// Waits until so many lines are dealt with, but not while one of them takes longer than that. A caller that finds the writer
    /// held up does not wait as well; a writer that has not had its turn yet on a busy machine is waited for.
    fn wait(&self, mut state: MutexGuard<'_, State>, lines: u64, patience: Duration) {
        let last = Instant::now() + UNREAD;
        while state.done < lines && state.is_started {
            let until = state.since.map_or(last, |since| last.min(since + patience));
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes a line in without waiting. It comes back when there is no room; it is lost when there is no reader.
    pub(super) fn offer(&self, line: Vec<u8>) -> Result<(), Vec<u8>> {
        let mut state = self.lock();
        if state.lines.len() < WAITING {
            state.take(line);
            self.changed.notify_all();
        } else if state.is_unread() {
            state.lost += 1;
        } else {
            return Err(line);
        }
        Ok(())
    }

    /// Whether all lines are written, or there is no reader.
    pub(super) fn is_done(&self) -> bool {
        let state = self.lock();
        state.done == state.taken || state.is_unread()
    }

    fn write(&self, mut sink: impl Write) {
        let mut state = self.lock();
        loop {
            let Some(line) = state.lines.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.since = Some(Instant::now());
            drop(state);
            let is_written = sink.write_all(&line).is_ok();
            state = self.lock();
            if !is_written {
                state.lost += 1;
            } else if state.lost > 0 && state.lines.is_empty() {
                let lost = state.lost;
                drop(state);
                let count =
                    writeln!(sink, "gleaner: {lost} lines are missing here: they were not read in time");
                state = self.lock();
                state.lost -= if count.is_ok() { lost } else { 0 };
            }
            state.done += 1;
            state.since = None;
            self.changed.notify_all();
        }
    }
}

impl State {
    fn take(&mut self, line: Vec<u8>) {
        self.taken += 1;
        self.lines.push_back(line);
    }

    fn is_unread(&self) -> bool {
        !self.is_started || self.since.is_some_and(|since| since.elapsed() >= UNREAD)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::*;

    fn writer(sink: impl Write + Send + 'static) -> &'static Writer {
        let writer: &'static Writer = Box::leak(Box::new(Writer::new()));
        writer.start(move || sink);
        writer
    }

    fn line(number: u64) -> Vec<u8> {
        format!("line {number:0100}\n").into_bytes()
    }

    /// A pipe that is not read delays the first caller by a tenth of a second and no other; when it is read, all is
    /// there that was kept, in order, and the number of what was not.
    #[test]
    fn a_pipe_that_is_not_read_delays_no_caller() {
        const LINES: u64 = 10_000;
        let (mut read, write) = io::pipe().unwrap();
        let writer = writer(write);
        let start = Instant::now();
        (0..LINES).for_each(|number| writer.hand(line(number)));
        let took = start.elapsed();
        // Some are written one by one, on a busy machine perhaps slowly; thousands are not.
        assert!((PATIENCE..200 * PATIENCE).contains(&took), "{took:?}");

        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while !text.contains("missing") || !text.ends_with('\n') {
            let length = read.read(&mut buffer).unwrap();
            text.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        let kept = text.lines().count() as u64 - 1;
        assert!(kept as usize > WAITING && kept < LINES, "{kept}");
        let lost = LINES - kept;
        let expected = (0..kept).map(|number| String::from_utf8(line(number)).unwrap()).collect::<String>();
        assert_eq!(
            text,
            format!("{expected}gleaner: {lost} lines are missing here: they were not read in time\n")
        );
    }

    #[test]
    fn what_is_offered_comes_back_until_nothing_was_read_for_a_second() {
        let (read, write) = io::pipe().unwrap();
        let writer = writer(write);
        let (start, mut accepted, mut refused) = (Instant::now(), 0, 0);
        while start.elapsed() < UNREAD || !writer.is_done() {
            match writer.offer(line(1)) {
                Ok(()) => accepted += usize::from(start.elapsed() < UNREAD),
                Err(back) => {
                    assert_eq!(back, line(1));
                    refused += 1;
                    thread::sleep(Duration::from_millis(5));
                }
            }
        }
        // Until then no more was taken in than waits here, is being written, and is in the pipe.
        let most = WAITING + 1 + (64 << 10) / line(1).len();
        assert!(refused > 0 && accepted <= most, "{refused} came back, {accepted} did not");
        assert_eq!(writer.offer(line(2)), Ok(()));
        drop(read);
    }

    /// Fails until it is set otherwise.
    struct Full(&'static Mutex<(bool, Vec<u8>)>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut sink = self.0.lock().unwrap();
            if sink.0 { Err(io::ErrorKind::StorageFull.into()) } else { sink.1.write(bytes) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_no_reason_to_fail_and_what_it_swallowed_is_counted() {
        let sink: &'static Mutex<(bool, Vec<u8>)> = Box::leak(Box::new(Mutex::new((true, Vec::new()))));
        let writer = writer(Full(sink));
        writer.hand(b"one\n".to_vec());
        writer.hand(b"two\n".to_vec());
        assert!(writer.is_done());
        sink.lock().unwrap().0 = false;
        writer.hand(b"three\n".to_vec());
        let expected = b"three\ngleaner: 2 lines are missing here: they were not read in time\n";
        assert_eq!(sink.lock().unwrap().1, expected);
    }
}
