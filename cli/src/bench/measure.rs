//! Steps of several methods in turns, on the same gradients.

use std::hint::black_box;
use std::time::Instant;

use gleaner_runtime::{self as runtime, Config, Error, Failure, Gradients, Layout, Session, Update};
use gleaner_statistics::median;
use gleaner_units::Rate;
use sha2::{Digest, Sha256};

use super::gradient::Gradient;
use super::mass::Mass;
use super::summary::{AutoReport, Record, Report, Sample, Summary};
use super::{Bench, Entrant, enlist};
use crate::crew::{Display, Progress, gather};
use crate::report::{self, CommandError};

/// The name of the one parameter that is synchronised.
pub const PARAMETER: &str = "gradient";

/// A method in the middle of its steps.
struct Runner {
    entrant: Entrant,
    /// With a channel and residuals of its own.
    gradients: Gradients,
    digest: Sha256,
    records: Vec<Record>,
    lost: f64,
}

/// What every rank does; rank 0 gets the report.
pub fn measure(bench: &Bench) -> Result<Option<Report>, CommandError> {
    let mut config = Config::from_environment()?;
    config.timeout = bench.timeout.unwrap_or(config.timeout);
    let session = Session::join_as(config)?;
    if let Some((rank, reason)) = differing(&session, bench)? {
        // All ranks see it together, and name the same one.
        runtime::report::failed(&Failure { rank, step: None, reason: reason.clone() });
        return Err(reason.into());
    }
    run(&session, bench).inspect_err(|error| {
        // All ranks are to know why; where the job had failed before, they do.
        session.abort(error);
    })
}

fn run(session: &Session, bench: &Bench) -> Result<Option<Report>, CommandError> {
    let (rank, workers, n) = (session.rank(), session.world_size(), bench.params);
    let (entrants, refused) = enlist(&bench.choice, |method| bench.set(method), workers as u32, n)?;
    if let Some(path) = bench.svg.as_deref().filter(|_| rank == 0) {
        report::probe(path)?;
    }
    let mut runners = start(session, entrants, n)?;

    let (mut gradient, mut given) = (vec![0.0; n], Vec::new());
    let mut mass = (rank == 0).then(|| Mass::new(bench.seed, workers, n));
    let mut floor = bench.bandwidth.map(|rate| Floor::new(rate, n));
    let display = (rank == 0).then(Display::new);
    let (rounds, turns) = (bench.warmup + bench.steps, runners.len());
    for round in 0..rounds {
        let is_measured = round >= bench.warmup;
        Gradient::of(bench.seed, rank as u64, u64::from(round)).fill(&mut gradient);
        if let Some(mass) = mass.as_mut().filter(|_| is_measured) {
            mass.begin(u64::from(round));
        }
        if let Some(floor) = floor.as_mut().filter(|_| is_measured) {
            floor.passes(session, &gradient)?;
        }
        for turn in 0..turns {
            // No method always comes first, or after the same one.
            let runner = &mut runners[(round as usize + turn) % turns];
            given.clone_from(&gradient);
            let (sample, update) = runner.step(session, &mut given)?;
            let samples = gather(session, &sample)?;
            if is_measured {
                let share = mass.as_mut().map(|mass| mass.share(&update)).transpose()?;
                runner.records.push(Record::of(&samples, update.entries(), share.unwrap_or_default()));
                runner.lost += runner.gradients.lost();
            }
            if let Some(display) = &display {
                let (done, of) = (u64::from(round) * turns as u64 + turn as u64 + 1, u64::from(rounds));
                let name = runner.entrant.method.label();
                let note = format!("{name}: {:.1} ms a step", sample.seconds * 1e3);
                display.show(&Progress { done, of: of * turns as u64, note });
            }
        }
    }
    let mut methods = finish(session, bench, runners, floor.as_ref())?;
    if bench.choice.is_all() {
        methods.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    }
    Ok((rank == 0).then_some(Report { methods, refused }))
}

fn start(session: &Session, entrants: Vec<Entrant>, n: usize) -> Result<Vec<Runner>, Error> {
    let layout = Layout::new().parameter(PARAMETER, n);
    let runner = |entrant: Entrant| {
        let gradients = session.gradients(&layout, entrant.method.clone())?;
        Ok(Runner { entrant, gradients, digest: Sha256::new(), records: Vec::new(), lost: 0.0 })
    };
    entrants.into_iter().map(runner).collect()
}

impl Runner {
    /// A step, and what it cost this rank. Dense methods take the gradient over, as other libraries reduce it in place.
    fn step(&mut self, session: &Session, gradient: &mut Vec<f32>) -> Result<(Sample, Update), Error> {
        // Before the barrier: who has passed it sends at once, and that is to be counted.
        let received = session.traffic().bytes_received;
        session.barrier()?;
        let clock = Instant::now();
        self.gradients.ready_in_place(PARAMETER, gradient)?;
        let update = self.gradients.wait()?;
        let seconds = clock.elapsed().as_secs_f64();
        let times = self.gradients.times();
        let sample = Sample {
            seconds,
            select: times.select.as_secs_f64(),
            exchange: times.exchange.as_secs_f64(),
            merge: times.merge.as_secs_f64(),
            bytes: (session.traffic().bytes_received - received) as f64,
        };
        // The digest would take processors from ranks on the same machine whose step is not over.
        session.barrier()?;
        update.digest(|bytes| self.digest.update(bytes));
        Ok((sample, update))
    }
}

/// Compares all updates between the ranks, and sums up.
fn finish(
    session: &Session,
    bench: &Bench,
    runners: Vec<Runner>,
    floor: Option<&Floor>,
) -> Result<Vec<Summary>, CommandError> {
    let (mut methods, workers) = (Vec::new(), session.world_size());
    for Runner { entrant, gradients, digest, records, lost } in runners {
        let digest: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
        let all: Vec<(String, f64)> = gather(session, &(digest, lost))?;
        let ours = &all[0].0;
        if let Some(rank) = all.iter().position(|(theirs, _)| theirs != ours) {
            let method = entrant.method.collective().name();
            let theirs = &all[rank].0;
            return Err(format!(
                "the updates of {method} differ between the ranks: rank {rank} has digest {theirs}, rank 0 has {ours}"
            )
            .into());
        }
        methods.push(Summary {
            rounds: gradients.rounds(),
            lost: all.iter().map(|(_, lost)| lost).sum::<f64>() / f64::from(bench.steps),
            digest: ours.clone(),
            // There is one parameter, so there is one group.
            auto: gradients.chosen().first().map(AutoReport::from),
            ..Summary::of(&entrant, &records, floor, (workers, bench.params))
        });
    }
    Ok(methods)
}

/// The first rank that measures something else than rank 0, and what: compared is everything that decides what a rank does, a line each, so
/// that the ranks take the same turns.
fn differing(session: &Session, bench: &Bench) -> Result<Option<(u32, String)>, Error> {
    let methods = bench.choice.methods();
    let names: Vec<&str> = methods.iter().map(|(name, _)| &**name).collect();
    let (names, Bench { params, steps, warmup, seed, bandwidth, .. }) = (names.join(","), bench);
    let mut options = format!(
        "--method {names}\n{params} entries\n--steps {steps}\n--warmup {warmup}\n--seed {seed}\n--bandwidth {bandwidth:?}"
    );
    for (_, method) in methods {
        options += &match method {
            Ok(method) => format!("\n{}", bench.set(method)),
            Err(reason) => format!("\n{reason}"),
        };
    }
    let notes = session.all_gather(options.as_bytes())?;
    let texts: Vec<_> = notes.iter().map(|note| String::from_utf8_lossy(note)).collect();
    Ok((0..).zip(&texts).find_map(|(rank, text)| {
        let (theirs, ours) = text.lines().zip(texts[0].lines()).find(|(theirs, ours)| theirs != ours)?;
        let advice = "start all ranks with the same command line";
        Some((rank, format!("rank {rank} runs with {theirs}, rank 0 with {ours}; {advice}")))
    }))
}

/// The least that a step can take: the memory traffic of the pass that no selection can do without, which all ranks do at once, and the
/// bytes at the rate of the link.
pub struct Floor {
    rate: Rate,
    /// What stands for a residual, and for a sum that is written elsewhere.
    residual: Vec<f32>,
    sum: Vec<f32>,
    /// Of each pass, the slowest rank's time.
    apart: Vec<f64>,
    in_place: Vec<f64>,
}

impl Floor {
    /// For gradients of `n` entries, over links of this rate.
    fn new(rate: Rate, n: usize) -> Self {
        let (residual, sum) = (vec![0.5; n], vec![0.25; n]);
        Self { rate, residual, sum, apart: Vec::new(), in_place: Vec::new() }
    }

    /// All ranks at once read two arrays and write a third, and then read two and write one of them.
    fn passes(&mut self, session: &Session, gradient: &[f32]) -> Result<(), Error> {
        let Self { residual, sum, .. } = self;
        let apart = slowest(session, || {
            let entries = black_box(&*residual).iter().zip(black_box(gradient));
            black_box(&mut *sum).iter_mut().zip(entries).for_each(|(sum, (a, b))| *sum = a + b);
        })?;
        let in_place = slowest(session, || {
            let entries = black_box(&mut *residual).iter_mut().zip(black_box(gradient));
            entries.for_each(|(sum, value)| *sum += value);
        })?;
        self.apart.push(apart);
        self.in_place.push(in_place);
        Ok(())
    }

    /// The least time in seconds for a step in which a worker receives so many bytes: the median pass, and these. First
    /// with the sum written elsewhere, then with the sum written in place.
    pub fn seconds(&self, bytes: f64) -> (f64, f64) {
        let sent = bytes / self.rate.bytes_per_second();
        (median(self.apart.iter().copied()) + sent, median(self.in_place.iter().copied()) + sent)
    }
}

/// How long the slowest rank needs if all begin at once.
fn slowest(session: &Session, pass: impl FnOnce()) -> Result<f64, Error> {
    session.barrier()?;
    let clock = Instant::now();
    pass();
    let all: Vec<f64> = gather(session, &clock.elapsed().as_secs_f64())?;
    Ok(all.into_iter().fold(0.0, f64::max))
}
