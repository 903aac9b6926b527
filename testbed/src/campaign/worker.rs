//! A worker of a campaign's jobs, which writes into a file where it is.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Config, Error, Gradients, Layout, Session};
use gleaner_statistics::random;

use super::fault::Phase;
use super::marks::{DIGEST, LEFT, PROCESS};

/// Entries of the gradient.
const ENTRIES: usize = 20_000;

/// Steps before the checkpoint, besides the first, and behind it.
const STEPS: [u64; 2] = [12, 6];

/// What a checkpoint is called.
pub const CHECKPOINT: &str = "residual.safetensors";

/// What a step takes besides the exchange.
const COMPUTING: Duration = Duration::from_millis(15);

/// Where a worker's checkpoints go.
pub fn disk(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("disk-{rank}"))
}

/// Says that a worker leaves early: after so many steps besides the first, as `extent` from 0 to 1 is a share of all.
pub fn shorten(folder: &Path, rank: u32, extent: f64) -> io::Result<()> {
    let steps = (extent * STEPS.iter().sum::<u64>() as f64) as u64;
    fs::write(shortened(folder, rank), steps.to_string())
}

fn shortened(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("steps-{rank}"))
}

/// Runs it to its end.
pub fn run(folder: &Path) -> Result<(), crate::Error> {
    let config = Config::from_environment()?;
    let rank = config.rank;
    let marks = OpenOptions::new().create(true).append(true).open(super::marks::path(folder, rank));
    let mut marks = marks.map_err(unwritten)?;
    mark(&mut marks, PROCESS, &std::process::id().to_string())?;
    begin(&mut marks, Phase::Joining)?;
    let session = Session::join_as(config)?;
    if let Err(error) = work(&session, folder, &mut marks) {
        session.abort(&error);
        return Err(error);
    }
    drop(session);
    mark(&mut marks, LEFT, &micros())
}

/// From joining to leaving.
fn work(session: &Session, folder: &Path, marks: &mut File) -> Result<(), crate::Error> {
    begin(marks, Phase::Agreeing)?;
    let layout = Layout::new().parameter("output", ENTRIES / 4).group().parameter("input", ENTRIES / 4 * 3);
    let mut gradients = session.gradients(&layout, Method::spardl().density(0.05))?;
    session.barrier()?;
    let mut digest = DefaultHasher::new();
    begin(marks, Phase::FirstStep)?;
    step(session, &mut gradients, &mut digest)?;
    let rank = session.rank() as u32;
    let fewer = fs::read_to_string(shortened(folder, rank)).ok().and_then(|steps| steps.parse().ok());
    begin(marks, Phase::Steps)?;
    for number in 0..STEPS.iter().sum() {
        if fewer == Some(number) {
            return Ok(());
        }
        if number == STEPS[0] {
            begin(marks, Phase::Checkpoint)?;
            gradients.save(disk(folder, rank).join(CHECKPOINT))?;
            begin(marks, Phase::LastSteps)?;
        }
        step(session, &mut gradients, &mut digest)?;
    }
    mark(marks, DIGEST, &format!("{:016x}", digest.finish()))?;
    begin(marks, Phase::Leaving)
}

fn step(session: &Session, gradients: &mut Gradients, digest: &mut DefaultHasher) -> Result<(), Error> {
    std::thread::sleep(COMPUTING);
    let seed = gradients.step() << 8 | session.rank() as u64;
    let noise = |i: usize| random::symmetric(random::at(seed, i as u64)).powi(3);
    let gradient: Vec<f32> = (0..ENTRIES).map(noise).collect();
    gradients.ready("output", &gradient[..ENTRIES / 4])?;
    gradients.ready("input", &gradient[ENTRIES / 4..])?;
    gradients.wait()?.digest(|bytes| digest.write(bytes));
    Ok(())
}

fn begin(marks: &mut File, phase: Phase) -> Result<(), crate::Error> {
    mark(marks, &phase.to_string(), &micros())
}

/// One write, so that a line is there whole or not at all.
fn mark(marks: &mut File, name: &str, value: &str) -> Result<(), crate::Error> {
    Ok(marks.write_all(format!("{name} {value}\n").as_bytes()).map_err(unwritten)?)
}

fn unwritten(error: io::Error) -> String {
    format!("the worker cannot write where it is: {error}; make sure that its folder is there and has room")
}

fn micros() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_micros().to_string()
}
