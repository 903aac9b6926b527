//! What the network and the workers of a job are like, measured before the first step.
//!
//! All ranks measure at the same time, as they exchange at the same time: every rank sends to the one at distance 2^i and
//! receives from the one at the other side, for all i. A link that is shaped by a token bucket carries a burst at the speed of
//! the machine and shows its true rate only when the bucket is empty. So the rate is that of the second half of a burst,
//! and bursts grow twofold until two in succession agree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gleaner_algorithms::collectives::Routine;
use gleaner_algorithms::forecast::{Network, Speed};
use gleaner_algorithms::residual::{Collection, Lent, Residual};
use gleaner_algorithms::schedule::{Execution, ExecutionError, Outgoing};
use gleaner_algorithms::{Membership, Method, Rank};
use gleaner_statistics::{median, random};
use gleaner_transport::{Message, Peer};
use tokio::sync::oneshot;

use crate::algorithm::left;
use crate::failure::{Error, Failure};
use crate::io::Io;
use crate::link::{Broken, OVERHEAD};
use crate::mailbox::Command;
use crate::notes::Purpose;
use crate::session::Inner;
use crate::tag::{PROBE, Topic};

/// What was measured: the same on every rank but for the time that it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probed {
    /// The slowest distance, of each the median of the workers.
    pub network: Network,
    /// Bytes per second of the worker that received slowest, at the slowest distance: where links differ, what all workers wait for in the end.
    pub slowest: f64,
    /// The median of the workers, with all of them at work.
    pub speed: Speed,
    /// What a byte that is sent while another is received takes of a worker's cores, in seconds: sealing, copying, and the kernel's
    /// part of it. The median of the workers; 0 on systems that do not report it.
    pub handling: f64,
    /// How long measuring took on this rank.
    pub took: Duration,
}

#[cfg(test)]
impl Probed {
    /// Of workers that are all alike, on such a network, and take a nanosecond for each entry.
    pub(crate) fn alike(network: Network) -> Self {
        let (slowest, speed) = (network.bytes_per_second, Speed::of([1.0; 5]));
        Self { network, slowest, speed, handling: 0.0, took: Duration::ZERO }
    }
}

/// How long all bursts together may take.
const BUDGET: Duration = Duration::from_millis(1200);

/// Rounds of small messages whose mean is the latency.
const ROUNDS: u32 = 16;

/// Small messages in a row that show what one of them costs.
const VOLLEY: u32 = 64;

/// Bytes of a small message.
const SMALL: usize = 64;

/// The first burst: twice what the bucket of a shaped link usually holds.
const FIRST: usize = 256 << 10;

/// The longest burst.
const LAST: usize = 32 << 20;

/// Payloads of a burst, as large as those of a bag.
const PIECE: usize = gleaner_algorithms::bag::wire::PIECE;

/// In less time than this a reader may not even have had its turn: such a burst shows nothing.
const SHORT: Duration = Duration::from_millis(5);

/// A burst that took so long needs no longer one.
const LONG: Duration = Duration::from_millis(80);

/// Two rates that differ by less than this share agree.
const AGREE: f64 = 0.05;

/// Entries that kernels are measured on, at least and at most.
const ENTRIES: (usize, usize) = (1 << 16, 1 << 20);

/// Measures once in a session; all ranks call it together. `n` is the length of the gradient that it is for.
pub(crate) fn probe(session: &Inner, n: usize) -> Result<Probed, Error> {
    if let Some(known) = session.probed.get() {
        return Ok(*known);
    }
    let started = Instant::now();
    let mut prober = Prober { session, round: 0, volleys: (0.0, 0.0) };
    let (latency, [rate, least], message) = prober.network()?;
    session.agree(Purpose::Probe, "")?;
    let own = kernels(n.clamp(ENTRIES.0, ENTRIES.1)).map_err(|error| {
        let rank = session.rank.0;
        session.fail(Failure { rank, step: None, reason: format!("measuring its speed failed: {error}") })
    })?;
    let own = [&own[..], &[prober.volleys.0 / prober.volleys.1.max(1.0)]].concat();
    let rows = numbers(&session.gather(Purpose::Probe, &bytes(&own))?, own.len());
    let part = |i: usize| median(rows.iter().map(|row| row[i]));
    let speed = Speed::of([part(0), part(1), part(2), part(3), message * 1e9]);
    let network = Network { latency: Duration::from_secs_f64(latency), bytes_per_second: rate };
    let probed = Probed { network, slowest: least, speed, handling: part(4), took: started.elapsed() };
    Ok(*session.probed.get_or_init(|| probed))
}

struct Prober<'a> {
    session: &'a Inner,
    round: u32,
    /// The bursts so far: seconds of this worker's cores, and bytes that were sent and as many received.
    volleys: (f64, f64),
}

impl Prober<'_> {
    /// The latency of a round in seconds, the bytes per second of the median worker and of the slowest, and the work of a message in seconds.
    fn network(&mut self) -> Result<(f64, [f64; 2], f64), Error> {
        let workers = self.session.workers;
        let distances: Vec<u32> =
            (0..).map(|i| 1 << i).take_while(|&d: &u32| u64::from(d) < u64::from(workers)).collect();
        if distances.is_empty() {
            return Ok((0.0, [f64::INFINITY; 2], 0.0));
        }
        let budget = BUDGET / distances.len() as u32;
        let (mut latencies, mut messages, mut slowest) = (Vec::new(), Vec::new(), [f64::INFINITY; 2]);
        for distance in distances {
            // Opens the links.
            self.beat(distance, 1, SMALL)?;
            let (latency, _) = self.beat(distance, ROUNDS, SMALL)?;
            let (volley, _) = self.volley(distance, VOLLEY as usize * SMALL, SMALL)?;
            let [latency, volley] = medians(&self.rows([latency.as_secs_f64(), volley.as_secs_f64()])?);
            latencies.push(latency / f64::from(ROUNDS));
            messages.push((volley / f64::from(VOLLEY)).max(0.0));
            let rates = self.rate(distance, budget)?;
            slowest.iter_mut().zip(rates).for_each(|(slowest, rate)| *slowest = slowest.min(rate));
        }
        let most = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
        Ok((most(latencies), slowest, most(messages)))
    }

    /// The bytes per second at this distance: of the median worker, and of the slowest in the better of the last two bursts, since any worker
    /// may be held up once.
    fn rate(&mut self, distance: u32, budget: Duration) -> Result<[f64; 2], Error> {
        let started = Instant::now();
        let (mut size, mut before, mut least_before) = (FIRST, None, 0.0);
        loop {
            let before_it = processor();
            let (whole, second_half) = self.volley(distance, size, PIECE.min(size / 4))?;
            self.volleys.0 += (processor() - before_it).max(0.0);
            self.volleys.1 += size as f64;
            let half = (size / 2) as f64;
            let rows = [whole.as_secs_f64(), second_half.as_secs_f64(), started.elapsed().as_secs_f64()];
            let rows = self.rows(rows)?;
            let [whole, second_half, spent] = medians(&rows);
            let longest = rows.iter().map(|row| row[1]).fold(0.0, f64::max);
            let [rate, least] = [second_half, longest].map(|seconds: f64| half / seconds.max(1e-9));
            let agrees = before.is_some_and(|before: f64| (rate - before).abs() <= AGREE * before);
            let long = whole >= LONG.as_secs_f64();
            // The next one takes twice as long as this one.
            let late = spent + 2.0 * whole > budget.as_secs_f64();
            if (agrees && whole >= SHORT.as_secs_f64()) || long || late || size >= LAST {
                return Ok([rate, rate.min(least.max(least_before))]);
            }
            (before, least_before, size) = (Some(rate), least, 2 * size);
        }
    }

    /// Sends small messages and receives as many, one after another, each after the one before has come: how long that
    /// takes, and how long the later half of it.
    fn beat(&mut self, distance: u32, count: u32, size: usize) -> Result<(Duration, Duration), Error> {
        self.measure(distance, count as usize * size, size, true)
    }

    /// Sends this many bytes at once, in pieces, and receives as many.
    fn volley(&mut self, distance: u32, bytes: usize, piece: usize) -> Result<(Duration, Duration), Error> {
        self.measure(distance, bytes, piece, false)
    }

    fn measure(
        &mut self,
        distance: u32,
        bytes: usize,
        piece: usize,
        in_turns: bool,
    ) -> Result<(Duration, Duration), Error> {
        let session = self.session;
        let workers = session.workers;
        let from = Peer((session.rank.0 + workers - distance) % workers);
        let to = Peer((session.rank.0 + distance) % workers);
        let pieces = bytes / piece;
        // All of it may come before it is looked at.
        let window = 2 * (pieces * (piece + OVERHEAD as usize)) as u64;
        session.mailbox.send(Command::Widen(vec![(from, PROBE, window)]));
        session.agree(Purpose::Probe, "")?;
        let (done, measured) = oneshot::channel();
        let (round, piece) = (self.round, Bytes::from(vec![0; piece]));
        self.round += 1;
        session.mailbox.send(Command::Volley(Volley { from, to, round, pieces, piece, in_turns, done }));
        session.answer(measured)
    }

    /// What all ranks have measured.
    fn rows<const N: usize>(&self, own: [f64; N]) -> Result<Vec<Vec<f64>>, Error> {
        Ok(numbers(&self.session.gather(Purpose::Probe, &self::bytes(&own))?, N))
    }
}

/// For how long the threads of this process have had a core, in seconds. 0 where the system does not report it.
fn processor() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    nanoseconds.sum::<u64>() as f64 * 1e-9
}

/// The medians over the ranks.
fn medians<const N: usize>(rows: &[Vec<f64>]) -> [f64; N] {
    std::array::from_fn(|i| median(rows.iter().map(|row| row[i])))
}

/// Payloads that go to one peer while as many come from another.
pub(crate) struct Volley {
    from: Peer,
    to: Peer,
    round: u32,
    pieces: usize,
    piece: Bytes,
    /// Each is sent after the one before has come.
    in_turns: bool,
    /// How long it takes until all is received, and how long the later half of it.
    done: oneshot::Sender<(Duration, Duration)>,
}

/// The actor of volleys: one at a time.
#[derive(Default)]
pub(crate) struct Volleys {
    /// The round that is under way, or the next one. All ranks come together before each.
    round: u32,
    /// Payloads of it that have come from each peer. Other ranks may begin before this one.
    came: BTreeMap<Peer, usize>,
    present: Option<(Volley, Instant, Instant)>,
}

impl Volleys {
    /// Sends the first payload, or all.
    pub(crate) fn begin(&mut self, volley: Volley, io: &mut Io) {
        let at_once = if volley.in_turns { 1 } else { volley.pieces };
        (0..at_once).for_each(|_| volley.send(io));
        let now = Instant::now();
        let from = volley.from;
        if io.worker.has_left(from) {
            io.fail(left(from.0));
        }
        self.round = volley.round;
        self.present = Some((volley, now, now));
        let early = self.came.remove(&from).unwrap_or(0);
        (0..early).for_each(|_| self.came(from, io));
    }

    /// A payload has come.
    pub(crate) fn arrived(&mut self, peer: Peer, round: u32, io: &mut Io) -> Result<(), Broken> {
        if round != self.round {
            return Err("it measures the network in a round that is not the present one");
        }
        self.came(peer, io);
        Ok(())
    }

    fn came(&mut self, peer: Peer, io: &mut Io) {
        let came = self.came.entry(peer).or_default();
        *came += 1;
        let Some((volley, started, middle)) = &mut self.present else { return };
        if volley.from != peer {
            return;
        }
        if *came == volley.pieces / 2 {
            *middle = Instant::now();
        }
        if *came < volley.pieces {
            if volley.in_turns {
                volley.send(io);
            }
            return;
        }
        let times = (started.elapsed(), middle.elapsed());
        self.came.clear();
        self.round += 1;
        if let Some((volley, ..)) = self.present.take() {
            // The caller has perhaps given up.
            let _ = volley.done.send(times);
        }
    }

    /// Nothing more comes from this peer.
    pub(crate) fn left(&self, peer: Peer, io: &mut Io) {
        if self.present.as_ref().is_some_and(|(volley, ..)| volley.from == peer) {
            io.fail(left(peer.0));
        }
    }

    /// The job has failed.
    pub(crate) fn fail(&mut self) {
        self.present = None;
    }
}

impl Volley {
    fn send(&self, io: &mut Io) {
        let tag = Topic::Probe { epoch: io.epoch, round: self.round }.tag();
        io.send(self.to, Message { tag, payload: self.piece.clone() });
    }
}

/// Why kernels could not be measured.
#[derive(Debug, thiserror::Error)]
enum KernelError {
    #[error(transparent)]
    Routine(#[from] gleaner_algorithms::collectives::RoutineError),
    #[error(transparent)]
    Execution(#[from] ExecutionError),
    #[error(transparent)]
    Accumulate(#[from] gleaner_algorithms::residual::AccumulateError),
    #[error(transparent)]
    Version(#[from] gleaner_algorithms::residual::VersionError),
}

/// What a pair of workers in this one thread spends: on accumulating, on sending, and on receiving and committing.
#[derive(Clone, Copy, Default)]
struct Work {
    accumulate: Duration,
    advance: Duration,
    receive: Duration,
}

/// Nanoseconds per entry selected from, sparse entry sent, sparse entry received, and dense entry received: the real steps of
/// two workers, in one thread and without a network.
fn kernels(n: usize) -> Result<[f64; 4], KernelError> {
    let k = n / 100;
    let sparse = pair(Method::spardl().k(k), n)?;
    let dense = pair(Method::ring(), n)?;
    let per = |time: Duration, entries: usize| time.as_secs_f64() * 1e9 / entries as f64;
    // Each of the two sends and receives k entries, or n words.
    Ok([
        per(sparse.accumulate, 2 * n),
        per(sparse.advance, 2 * k),
        per(sparse.receive, 2 * k),
        per(dense.advance + dense.receive, 2 * n),
    ])
}

/// The middle one of three steps of two workers, after one that knows no thresholds.
fn pair(method: Method, n: usize) -> Result<Work, KernelError> {
    let mut routines = Vec::new();
    for rank in 0..2u32 {
        let routine = Routine::new(method.clone(), Membership::first(Rank(rank), 2), n, 0)?;
        let schedule = routine.prepared().program.schedule();
        let residual = Residual::new(schedule.partition.clone(), schedule.quotas());
        routines.push((routine, residual));
    }
    // Every step takes another part of it: repeated, a gradient would drive up what waits in the residual.
    let gradient: Vec<f32> = (0..(n + 3 * SHIFT) as u64).map(tailed).collect();
    let mut steps = Vec::new();
    for step in 0..4 {
        let mut work = Work::default();
        let (mut executions, mut versions) = (Vec::new(), Vec::new());
        for (routine, residual) in &mut routines {
            let clock = Instant::now();
            residual.accumulate(0, &gradient[step * SHIFT..][..n])?;
            work.accumulate += clock.elapsed();
            let Lent { version, accumulator, candidates } = residual.begin().map_err(ExecutionError::from)?;
            executions.push(routine.begin(accumulator, candidates));
            versions.push(version);
        }
        converse(&mut executions, &mut work)?;
        for (((_, residual), execution), version) in routines.iter_mut().zip(executions).zip(versions) {
            let clock = Instant::now();
            let finished = execution.finish().map_err(ExecutionError::from)?;
            residual.commit(version, finished, Collection::Global)?;
            work.receive += clock.elapsed();
        }
        if step > 0 {
            steps.push(work);
        }
    }
    steps.sort_by_key(|work| work.accumulate + work.advance + work.receive);
    Ok(steps[steps.len() / 2])
}

/// By how much the gradient is shifted from step to step.
const SHIFT: usize = 997;

/// Lets two executions run to their ends.
fn converse(executions: &mut [Execution], work: &mut Work) -> Result<(), KernelError> {
    let mut mail = [std::collections::VecDeque::new(), std::collections::VecDeque::new()];
    let mut done = [false; 2];
    let mut outbox: Vec<Outgoing> = Vec::new();
    while done != [true; 2] {
        for (rank, execution) in executions.iter_mut().enumerate() {
            loop {
                let clock = Instant::now();
                let waiting = execution.go_on(&mut outbox)?;
                work.advance += clock.elapsed();
                mail[1 - rank].extend(outbox.drain(..).map(|outgoing| outgoing.payload));
                done[rank] = waiting.is_none();
                let Some(from) = waiting else { break };
                let Some(payload) = mail[rank].pop_front() else { break };
                let clock = Instant::now();
                execution.receive(from, payload, &mut outbox)?;
                work.receive += clock.elapsed();
                mail[1 - rank].extend(outbox.drain(..).map(|outgoing| outgoing.payload));
            }
        }
    }
    Ok(())
}

/// Numbers with a heavy tail, as gradients have.
fn tailed(i: u64) -> f32 {
    random::symmetric(random::at(0, i)).powi(3)
}

/// Numbers as a note.
pub(crate) fn bytes(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// This many numbers of each rank. One that is missing or none counts as infinite: a rank is not believed to be fast that said
/// nothing.
pub(crate) fn numbers(notes: &[Bytes], count: usize) -> Vec<Vec<f64>> {
    let number = |note: &Bytes, i: usize| {
        let bytes = note.get(8 * i..8 * i + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(f64::from_le_bytes).filter(|number| !number.is_nan()).unwrap_or(f64::INFINITY)
    };
    notes.iter().map(|note| (0..count).map(|i| number(note, i)).collect()).collect()
}
