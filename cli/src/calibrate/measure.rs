//! Steps of gradients of several sizes, by the method and by a dense ring in turns.

use std::path::PathBuf;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::Model;
use gleaner_runtime::{Config, Error, Gradients, Layout, Session};
use gleaner_statistics::median;
use gleaner_testbed::experiment::this_machine;
use gleaner_units::grouped;

use super::ALONE;
use super::file::{Calibration, Size};
use crate::bench::gradient::Gradient;
use crate::bench::measure::PARAMETER;
use crate::choice::{self, ChoiceError};
use crate::crew::{Display, Progress, gather};
use crate::report::{CommandError, probe};

/// Numbers of entries: OMGS-SGD's range of a thousand to a million, and one more, as layers have some millions.
const SIZES: [usize; 7] = [1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000, 4_000_000];

/// Steps before those that count, in which thresholds become steady, and those.
const WARM_UP: usize = 2;
const COUNTED: usize = 5;

/// Once a step has taken so long, in seconds, larger gradients are left out, so that all takes seconds.
const LONG: f64 = 0.3;

/// So many sizes are measured however long they take.
const FEWEST: usize = 4;

/// Refuses a method that cannot run among so many workers with one of the sizes.
pub fn check(method: &Method, workers: u32) -> Result<(), ChoiceError> {
    SIZES.iter().try_for_each(|&n| choice::k(method, workers, n).map(drop))
}

/// What every rank does; rank 0 gets the calibration.
pub fn measure<'a>(
    method: &Method,
    timeout: Option<Duration>,
    files: impl Iterator<Item = &'a PathBuf>,
) -> Result<Option<Calibration>, CommandError> {
    let mut config = Config::from_environment()?;
    config.timeout = timeout.unwrap_or(config.timeout);
    let (transport, _) = config.transport.clone().resolve(config.is_plain);
    let session = Session::join_as(config)?;
    run(&session, method, &transport.to_string(), files).inspect_err(|error| {
        // All ranks are to know why; where the job had failed before, they do.
        session.abort(error);
    })
}

fn run<'a>(
    session: &Session,
    method: &Method,
    transport: &str,
    mut files: impl Iterator<Item = &'a PathBuf>,
) -> Result<Option<Calibration>, CommandError> {
    let (rank, workers) = (session.rank(), session.world_size() as u32);
    if workers < 2 {
        return Err(ALONE.into());
    }
    check(method, workers)?;
    if rank == 0 {
        files.try_for_each(|path| probe(path))?;
    }
    let probed = session.probe(SIZES[SIZES.len() - 1])?;
    let display = (rank == 0).then(Display::new);
    let mut sizes: Vec<Size> = Vec::new();
    for (i, &n) in SIZES.iter().enumerate() {
        if i >= FEWEST
            && sizes.last().is_some_and(|s| s.seconds_dense.max(s.seconds_select + s.seconds_exchange) > LONG)
        {
            break;
        }
        let layout = Layout::new().parameter(PARAMETER, n);
        let mut both =
            [session.gradients(&layout, method.clone())?, session.gradients(&layout, Method::ring())?];
        let mut taken = [Vec::new(), Vec::new()];
        let mut gradient = vec![0.0; n];
        for step in 0..WARM_UP + COUNTED {
            Gradient::of(1, rank as u64, step as u64).fill(&mut gradient);
            for (gradients, taken) in both.iter_mut().zip(&mut taken) {
                let took = timed(session, gradients, &gradient)?;
                if step >= WARM_UP {
                    taken.push(took);
                }
            }
            if let Some(display) = &display {
                let steps = WARM_UP + COUNTED;
                let (done, of) = ((i * steps + step + 1) as u64, (SIZES.len() * steps) as u64);
                display.show(&Progress { done, of, note: format!("{} entries", grouped(n as u64)) });
            }
        }
        let medians = |taken: &Vec<[f64; 2]>| [0, 1].map(|part| median(taken.iter().map(|took| took[part])));
        let [[seconds_select, seconds_exchange], dense] = taken.each_ref().map(medians);
        let model = Model::new(probed.network, probed.speed, method, n)?;
        let seconds_expected = model.forecast(method.clone(), workers, n)?.seconds;
        let seconds_dense = dense.iter().sum();
        sizes.push(Size { entries: n, seconds_select, seconds_exchange, seconds_dense, seconds_expected });
    }
    let network = (probed.network.latency.as_secs_f64(), probed.network.bytes_per_second);
    if rank > 0 {
        return Ok(None);
    }
    let calibration = Calibration::of(method, workers, this_machine(), transport.to_owned(), network, sizes);
    Ok(Some(calibration.ok_or("a clock that stood still: the fits need times above 0; measure again")?))
}

/// What a step takes on the slowest rank, in seconds: selecting, and the exchange with the merging.
fn timed(session: &Session, gradients: &mut Gradients, gradient: &[f32]) -> Result<[f64; 2], Error> {
    session.barrier()?;
    gradients.ready(PARAMETER, gradient)?;
    drop(gradients.wait()?);
    let times = gradients.times();
    let own = [times.select, times.exchange + times.merge].map(|part| part.as_secs_f64());
    let most = |a: [f64; 2], b: [f64; 2]| [a[0].max(b[0]), a[1].max(b[1])];
    Ok(gather(session, &own)?.into_iter().fold(own, most))
}
