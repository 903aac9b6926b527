//! Runs a job: starts all workers, waits for the first failure or for Ctrl-C, and ends those that are left.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::diagnosis::{Bad, Record};
use super::output::Screen;
use super::plan::{self, Seat};
use super::worker::{Gone, News, Stage, Worker};
use super::{Event, Job, LaunchError, OVER_LIMIT, Outcome};
use crate::failure::Failure;
use crate::report;
use crate::roles::RoleMap;

/// How many connections to one host are made at the same time. An ssh server refuses some beyond ten.
const CONNECTING: usize = 8;

/// How often those that still run are looked at when others have ended.
const LOOKING: Duration = Duration::from_secs(1);

/// After this long a worker that is stopped when the others have ended is ended.
const STOPPED: Duration = Duration::from_secs(10);

/// On most machines.
const SIGSTOP: u8 = 19;

/// Runs a job to its end, and shows its output. Blocks; `on_event` gets what the workers report.
///
/// From the first call on, Ctrl-C and SIGTERM end a job rather than this process, for as long as this process lives:
/// who runs several jobs stops at an [`Outcome::exit_code`] of 130 or 143. Not to be called from within an async
/// runtime.
///
/// # Errors
///
/// When the job cannot be started, here or on one of the hosts. What did start has ended by then.
pub fn run(job: Job, on_event: impl FnMut(Event) + Send) -> Result<Outcome, LaunchError> {
    let seats = plan::seats(&job)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("start its runtime"))?
        .block_on(supervise(&job, seats, on_event))
}

fn system(what: &'static str) -> impl Fn(io::Error) -> LaunchError {
    move |source| LaunchError::System { what, source }
}

async fn supervise(
    job: &Job,
    seats: Vec<Seat>,
    on_event: impl FnMut(Event) + Send,
) -> Result<Outcome, LaunchError> {
    let mut interrupts = Interrupts::new().map_err(system("listen to signals"))?;
    let screen = Screen::new().map_err(system("start a thread"))?;
    let (stage, watched) = watch::channel(Stage::Run);
    let (looks, looked_at) = watch::channel(());
    let (news, mut arriving) = mpsc::channel(64);
    let mut workers = JoinSet::new();
    let mut connecting: HashMap<usize, Arc<Semaphore>> = HashMap::new();
    let world = seats.len() as u32;
    for seat in seats {
        let connecting =
            connecting.entry(seat.host_index).or_insert_with(|| Semaphore::new(CONNECTING).into());
        let worker = Worker {
            sheet: screen.sheet(job.output, seat.rank, world, &news),
            connecting: connecting.clone(),
            stage: watched.clone(),
            looks: looked_at.clone(),
            news: news.clone(),
            seat,
        };
        workers.spawn(worker.tend());
    }
    drop((news, watched, looked_at));

    let mut course = Course {
        // Checked with the seats.
        role_map: RoleMap::new(world, job.roles),
        on_event,
        stage,
        looks,
        next_look: None,
        running: (0..world).map(|rank| (rank, None)).collect(),
        grace: job.grace,
        deadline: None,
        record: Record::of(world),
        error: None,
        early: None,
    };
    let mut limit = job.limit.map(|limit| Instant::now() + limit);
    loop {
        let (deadline, next_look) = (course.deadline, course.next_look);
        tokio::select! {
            next = arriving.recv() => match next {
                Some((rank, news)) => course.hear(rank, news),
                // Every worker's task has ended.
                None => break,
            },
            code = interrupts.next() => course.end_early(code),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => course.stop(Stage::Stop),
            () = sleep_until(next_look.unwrap_or_else(Instant::now)), if next_look.is_some() => course.look(),
            () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => {
                limit = None;
                course.end_early(OVER_LIMIT);
            }
        }
    }
    workers.join_all().await;
    course.show_rest(screen, &mut interrupts).await;
    course.outcome()
}

/// A job under way.
struct Course<F> {
    role_map: Option<RoleMap>,
    on_event: F,
    stage: watch::Sender<Stage>,
    /// Asks all workers how they are.
    looks: watch::Sender<()>,
    /// When to ask next, once a worker has ended well.
    next_look: Option<Instant>,
    /// Whose program has not ended; since when it is stopped, and how much processor time it had used by then.
    running: BTreeMap<u32, Option<(u64, Instant)>>,
    grace: Duration,
    /// When the others' grace after a failure is over.
    deadline: Option<Instant>,
    record: Record,
    error: Option<LaunchError>,
    /// The exit code of a job that a signal or its limit ended before any failure.
    early: Option<u8>,
}

impl<F: FnMut(Event)> Course<F> {
    fn hear(&mut self, rank: u32, news: News) {
        match news {
            News::Event(kind, body) => (self.on_event)(Event { rank, kind, body }),
            // A worker that is being ended looks to others as if it had failed.
            News::Blamed(_) if *self.stage.borrow() > Stage::Run => {}
            News::Blamed(failed) => self.record.reported(rank, failed),
            News::Looked { stopped, time } => self.looked(rank, stopped.then_some(time)),
            News::Exited { code, said } => self.ended(rank, (code != 0).then_some(Bad::Exit { code, said })),
            News::Gone(Gone::Lost { code, reason }) => {
                self.ended(rank, Some(Bad::Otherwise { code, reason }));
            }
            News::Gone(Gone::Refused(error)) => {
                self.error.get_or_insert(error);
                self.stop(Stage::Stop);
            }
            News::Gone(Gone::Ended | Gone::Stopped) => {}
        }
    }

    fn ended(&mut self, rank: u32, bad: Option<Bad>) {
        self.running.remove(&rank);
        if *self.stage.borrow() > Stage::Run {
            self.record.stopped(rank);
        } else if let Some(bad) = bad.as_ref().filter(|_| self.goes_on_without(rank)) {
            let failure = Failure { rank, step: None, reason: bad.in_words() };
            report::say(format_args!("gleaner launch: {failure}; the others go on without it"));
        } else if let Some(bad) = bad {
            self.record.ended(rank, bad);
            self.deadline.get_or_insert_with(|| Instant::now() + self.grace);
        } else {
            self.record.ended_well(rank);
            self.next_look.get_or_insert_with(|| Instant::now() + LOOKING);
        }
    }

    /// Whether the others go on without a rank that ended badly: not if it did so because the job cannot go on.
    fn goes_on_without(&self, rank: u32) -> bool {
        let Some(role_map) = self.role_map else { return false };
        role_map.drops(rank) && !self.record.failed() && !self.record.blames(|rank| !role_map.drops(rank))
    }

    /// Asks about those that still run when others have ended well. No worker waits for them any more that would notice
    /// that they are stopped.
    fn look(&mut self) {
        self.next_look = Some(Instant::now() + LOOKING);
        if *self.stage.borrow() == Stage::Run {
            self.looks.send_replace(());
        }
    }

    /// A worker is stopped and has used so much processor time, or it is not stopped.
    fn looked(&mut self, rank: u32, stopped: Option<u64>) {
        let Some(seen) = self.running.get_mut(&rank) else { return };
        match (stopped, &seen) {
            (Some(time), Some((before, _))) if time == *before => {}
            _ => *seen = stopped.map(|time| (time, Instant::now())),
        }
        let is_stuck =
            |seen: &Option<(u64, Instant)>| seen.is_some_and(|(_, since)| since.elapsed() >= STOPPED);
        if *self.stage.borrow() == Stage::Run && !self.record.failed() && self.running.values().all(is_stuck)
        {
            let reason = format!(
                "it was stopped, as by SIGSTOP, when the others had ended, and did not go on within {} s",
                STOPPED.as_secs()
            );
            self.record.ended(rank, Bad::Otherwise { code: 128 + SIGSTOP, reason });
            self.stop(Stage::Stop);
        }
    }

    /// Ends the job with this exit code, unless a worker has failed.
    fn end_early(&mut self, code: u8) {
        if !self.record.failed() {
            self.early.get_or_insert(code);
        }
        self.stop(Stage::StopNow);
    }

    fn stop(&mut self, stage: Stage) {
        self.deadline = None;
        self.stage.send_if_modified(|now| {
            let later = stage > *now;
            *now = stage.max(*now);
            later
        });
    }

    /// Waits until the output is written, unless it is interrupted.
    async fn show_rest(&mut self, screen: Screen, interrupts: &mut Interrupts) {
        let mut finish = std::pin::pin!(screen.finish());
        if *self.stage.borrow() < Stage::StopNow {
            tokio::select! {
                () = &mut finish => return,
                code = interrupts.next() => self.end_early(code),
            }
        }
        // A reader who does not read by now misses the rest.
        let _ = timeout(Duration::from_secs(1), finish).await;
    }

    fn outcome(self) -> Result<Outcome, LaunchError> {
        match (self.early, self.error) {
            (Some(exit_code), _) => Ok(Outcome { exit_code, failure: None }),
            (None, Some(error)) => Err(error),
            (None, None) => {
                let (failure, exit_code) = self.record.diagnosis().unzip();
                let server =
                    |failure: &Failure| self.role_map.and_then(|role_map| role_map.server(failure.rank));
                let failure = failure.map(|failure| (server(&failure), failure));
                let failure = failure.map(|(server, failure)| failure.of_server(server));
                Ok(Outcome { exit_code: exit_code.unwrap_or(0), failure })
            }
        }
    }
}

/// Ctrl-C and SIGTERM. A hang-up is not among them: it ends the launcher, and the lifelines end the rest, unless the
/// launcher was started to survive it (`nohup`).
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn new() -> io::Result<Interrupts> {
        Ok(Interrupts {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The exit code that the next signal asks for.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 130,
            _ = self.terminate.recv() => 143,
        }
    }
}
