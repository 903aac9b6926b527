//! What is refused once, by the process that starts the workers, before there are workers that all say it.

use super::checkpoint::Checkpoints;
use super::error::TrainResult;
use super::record::Record;
use super::settings::Settings;
use super::worker::metrics::Metrics;
use crate::report;
use gleaner_trainer::data::Order;

/// Sees whether the workers that are asked for can begin on this machine: the data are there, the model reads them and there are enough,
/// options fit the number of workers, and files can be written.
pub fn expect_start(settings: &Settings) -> TrainResult<()> {
    let options = &settings.options;
    let workers = options.workers as usize;
    options.uneven.expect_fit(workers, settings.batch)?;
    let (input, examples) = settings.source.outline(options.seed)?;
    settings.model.expect_reads(input)?;
    Order::new(options.seed, examples, 0, &vec![settings.batch; workers])?;
    // What makes directories comes last: a run that is refused for something else leaves none behind.
    for file in [&options.timeline, &options.layer_times].into_iter().flatten() {
        report::probe(file)?;
    }
    if let Some(file) = &options.metrics {
        Metrics::probe(file)?;
    }
    if let Some(directory) = &options.record {
        Record::open(directory, 0)?;
    }
    if let Some(directory) = &options.checkpoint {
        Checkpoints::probe(directory)?;
    }
    Ok(())
}
