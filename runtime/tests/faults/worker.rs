//! One worker of a job, as a process of its own.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::{Sag, SparDl};
use gleaner_algorithms::synchrony::{self, Sgd};
use gleaner_runtime::{Error, Failure, Layout, Options, Pass, Session};
use gleaner_transport::{JoinConfig, Peer, Preference, Secret, Transport, TransportChoice};
use serde::{Deserialize, Serialize};

use super::network::{Injection, Kind, Watch, watched};

pub const JOB: &str = "FAULT_TEST_JOB";

/// A worker's part in a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    pub rank: u32,
    pub workers: u32,
    pub rendezvous: String,
    pub secret: String,
    /// The name of what carries links.
    pub transport: String,
    pub method: String,
    /// What is counted. If that is what is said about cancelling, every step is cancelled.
    pub kind: Kind,
    pub timeout: Duration,
    /// What happens to this worker. Without it, and without `endless`, the worker counts the messages of step 2.
    pub injection: Option<Injection>,
    pub endless: bool,
    /// Whether others leave before this worker does, where leaving is what is counted.
    pub leaves_late: bool,
}

/// What a worker says at its end, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// Messages of step 2, sent and received.
    Counted(u32, u32),
    /// It ended with this error, so long after it had begun the step.
    Failed(Failure, Duration),
}

const ENTRIES: usize = 400;

/// How much later than the others a rank leaves that leaves late.
const LATER: Duration = Duration::from_millis(300);

/// So many that blocks travel in pieces: dense ones are passed on while they come, and one lends to several peers.
const MANY: usize = 120_000;

/// The rank that cancels every step, and the one that begins it when that has been asked for.
const ASKS: u32 = 2;
const LATE: u32 = 3;

/// SparDL with two teams, by R-SAG and by B-SAG.
pub const R_SAG: &str = "spardl, two teams by R-SAG";
pub const B_SAG: &str = "spardl, two teams by B-SAG";
/// Ok-Topk with all that is chosen in one region from step 1 on, so that it balances from step 2 on.
pub const BALANCING: &str = "oktopk, balancing";

/// Methods with [`MANY`] entries.
pub const LARGE: [&str; 4] = ["ring, large", "rabenseifner, large", "topka, large", "spardl, large"];

/// OSP, half of the model in the background, by these methods.
pub const OVERLAPPED: [&str; 2] = ["ring, osp", "spardl, osp"];

/// How many entries a step of a method has.
fn entries(name: &str) -> usize {
    if LARGE.contains(&name) { MANY } else { ENTRIES }
}

/// The method of a part: a listed one, or one of those above.
fn method(name: &str) -> Method {
    let method = match name {
        R_SAG => Method::of(SparDl { teams: 2, sag: Sag::Recursive }),
        B_SAG => Method::of(SparDl { teams: 2, sag: Sag::Bruck }),
        BALANCING => Method::named("oktopk").unwrap(),
        name => Method::named(name.trim_end_matches(", large").trim_end_matches(", osp")).unwrap(),
    };
    method.density(if LARGE.contains(&name) { 0.5 } else { 0.05 })
}

/// The gradient of one step.
fn gradient(part: &Part, step: u64) -> Vec<f32> {
    let value = |i: u64| match (part.method.as_str(), step) {
        // As many entries as are selected, spread evenly at first and close together afterwards.
        (BALANCING, 0) => f32::from(u8::from(i.is_multiple_of(20))),
        (BALANCING, _) => f32::from(u8::from((100..120).contains(&i))),
        _ => ((i * 37 + step * 11 + u64::from(part.rank) * 5) % 101) as f32,
    };
    (0..entries(&part.method) as u64).map(value).collect()
}

type Step<'a> = Box<dyn FnMut(&[f32]) -> Result<(), Error> + 'a>;

/// A step after the other as a trainer does them; or whatever else is counted, again and again.
fn steps<'a>(session: &'a Session, part: &Part, watch: &'a Watch) -> Result<Step<'a>, Error> {
    let (rank, method, n) = (part.rank, method(&part.method), entries(&part.method));
    if OVERLAPPED.contains(&part.method.as_str()) {
        let layout = Layout::new().parameter("first", n / 2).group().parameter("second", n / 2);
        let options = Options {
            method,
            synchrony: Arc::from(synchrony::named("osp/budget=0.5").unwrap()),
            sgd: Sgd::default(),
            samples: 1,
            epoch: 10,
        };
        let mut replica = session.replica(&layout, &vec![0.0; n], options)?;
        return Ok(Box::new(move |values| {
            replica.ready("first", &values[..n / 2])?;
            replica.ready("second", &values[n / 2..])?;
            let stepped = replica.step(Pass { rate: 0.1, samples: 1, loss: 1.0 })?;
            assert_eq!(stepped.deferred, n as u64 / 2);
            Ok(())
        }));
    }
    let mut reducer = match part.kind {
        Kind::Bags | Kind::Bye => {
            let mut gradients = session.gradients(&Layout::new().parameter("w", n), method)?;
            return Ok(Box::new(move |values| {
                gradients.ready("w", values)?;
                gradients.wait().map(drop)
            }));
        }
        // Calls 0 and 1 come together on the layout.
        Kind::Note => {
            let _gradients = session.gradients(&Layout::new().parameter("w", n), method)?;
            return Ok(Box::new(|_| session.all_gather(&[7; 100]).map(drop)));
        }
        // Once is enough for a session, and has more than two rounds.
        Kind::Probe => return Ok(Box::new(|_| session.probe(1 << 16).and_then(|_| session.barrier()))),
        Kind::Cancel => session.reducer("w", n, method)?,
    };
    let mut number = 0;
    Ok(Box::new(move |values| {
        let begun = Instant::now();
        // A rank with a fault may never ask.
        while rank == LATE && !watch.was_asked(number) && begun.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        number += 1;
        let handle = reducer.start(values)?;
        if rank == ASKS {
            handle.cancel();
        }
        match handle.wait() {
            Err(Error::Cancelled(cancelled)) if cancelled.rank == ASKS => Ok(()),
            other => other.map(drop),
        }
    }))
}

pub fn main(part: &Part) -> ! {
    let limit = 20 * part.timeout;
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        println!("it hangs");
        std::process::exit(2);
    });
    let said = match work(part) {
        Ok(counted) => counted,
        Err((Error::Failed(failure), took)) => Said::Failed(failure, took),
        Err((other, _)) => panic!("another error: {other}"),
    };
    println!("{}", serde_json::to_string(&said).unwrap());
    std::process::exit(0)
}

fn work(part: &Part) -> Result<Said, (Error, Duration)> {
    let watch = Watch::new(part.kind, part.injection);
    let listener = (part.rank == 0).then(|| std::io::stdin().as_fd().try_clone_to_owned().unwrap().into());
    let transport = part.transport.parse().unwrap();
    let config = JoinConfig {
        peer: Peer(part.rank),
        workers: part.workers,
        epoch: 0,
        card: bytes::Bytes::new(),
        rendezvous: part.rendezvous.clone(),
        secret: Secret::from_hex(&part.secret).unwrap(),
        job: String::new(),
        // Verbs have no other links.
        is_plain: transport == Preference::Named(Transport::Verbs),
        choice: TransportChoice { transport, ..TransportChoice::default() },
        timeout: Duration::from_secs(30),
        listener,
    };
    let watching = watch.clone();
    let network = async move { Ok(watched(gleaner_transport::join(config).await?, watching)) };
    let session = Session::over(network, part.timeout).unwrap();
    let mut step = steps(&session, part, &watch).map_err(|error| (error, Duration::ZERO))?;
    // One more than is counted, at whose end all of its messages have left. A rank that fails when it leaves has to leave.
    let steps = if part.endless && part.kind != Kind::Bye { u64::MAX } else { 4 };
    for number in 0..steps {
        let (values, clock) = (gradient(part, number), Instant::now());
        step(&values).map_err(|error| (error, clock.elapsed()))?;
    }
    drop(step);
    if part.kind == Kind::Bye {
        if part.leaves_late {
            std::thread::sleep(LATER);
        }
        drop(session);
    }
    let (sent, received) = watch.counted();
    Ok(Said::Counted(sent, received))
}
