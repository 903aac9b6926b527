//! One worker of a job, as a process of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Failure, Gradients, Layout, Session, Update};
use gleaner_transport::{Peer, Secret, tcp};
use serde::{Deserialize, Serialize};

use crate::network::{Strike, Watch, watched};

pub const JOB: &str = "STRIKE_TEST_JOB";

/// A worker's part in a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    pub rank: u32,
    pub workers: u32,
    pub rendezvous: String,
    pub secret: String,
    pub method: String,
    pub timeout: Duration,
    /// What happens to this worker. Without it, and without `endless`, the worker counts the messages of one step.
    pub strike: Option<Strike>,
    pub endless: bool,
}

/// What a worker says at its end, as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// Messages of one step, sent and received.
    Counted(u32, u32),
    /// It ended with this error, so long after it had begun the step.
    Failed(Failure, Duration),
}

const ENTRIES: usize = 400;

fn step(gradients: &mut Gradients, rank: u32, step: u64) -> Result<Update, Error> {
    let gradient: Vec<f32> = (0..ENTRIES as u64)
        .map(|i| ((i * 37 + step * 11 + u64::from(rank) * 5) % 101) as f32 - 50.0)
        .collect();
    gradients.ready("w", &gradient)?;
    gradients.wait()
}

pub fn main(part: &Part) -> ! {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let watch = Watch::new(part.strike);
    let (network, events) = runtime.block_on(async {
        let config = tcp::TcpConfig {
            peer: Peer(part.rank),
            workers: part.workers,
            rendezvous: part.rendezvous.clone(),
            secret: Secret::from_hex(&part.secret).unwrap(),
            timeout: Duration::from_secs(30),
            listener: None,
        };
        let (network, events) = tcp::join(config).await.unwrap();
        watched(network, events, watch.clone())
    });
    let session = Session::over(Arc::new(network), events, part.timeout).unwrap();
    let method = Method::named(&part.method).unwrap().density(0.05);
    let layout = Layout::new().parameter("w", ENTRIES);
    let mut gradients = session.gradients(&layout, method).map_err(|error| (error, Duration::ZERO))?;
    let steps = if part.endless { u64::MAX } else { 3 };
    for number in 0..steps {
        let clock = Instant::now();
        step(&mut gradients, part.rank, number).map_err(|error| (error, clock.elapsed()))?;
    }
    let (sent, received) = watch.counted();
    Ok(Said::Counted(sent, received))
}
