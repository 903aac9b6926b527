//! What a pass takes here, before the first step.

use std::time::{Duration, Instant};

use candle_core::Device;

use crate::train::error::TrainResult;
use crate::train::settings::Settings;
use crate::train::uneven::Pacer;
use gleaner_trainer::data::Dataset;
use gleaner_trainer::layers::{Mode, cross_entropy};
use gleaner_trainer::models::Model;
use gleaner_trainer::parameters::Parameters;

/// Passes whose median counts; one more before them finds memory that is not there yet.
const PASSES: usize = 3;

/// How long a forward and a backward pass of so many samples take on this worker. What layers learn in them is forgotten.
pub fn measured(
    settings: &Settings,
    rank: usize,
    samples: usize,
    dataset: &Dataset,
    model: &dyn Model,
    parameters: &Parameters,
    device: &Device,
) -> TrainResult<Duration> {
    let examples = dataset.train.len() as u32;
    let numbers: Vec<u32> = (0..samples as u32).map(|number| number % examples.max(1)).collect();
    let batch = dataset.train.batch(&numbers, 0, device)?;
    let buffers = parameters.buffer_values()?;
    let mut pacer = Pacer::new(&settings.options.uneven, rank, samples, settings.batch);
    let mut took = Vec::new();
    for _ in 0..=PASSES {
        let began = Instant::now();
        let loss = cross_entropy(&model.forward(&batch.input, Mode::Training)?, &batch.targets)?;
        pacer.between(began);
        let between = Instant::now();
        loss.backward()?;
        device.synchronize()?;
        pacer.after(began, between.elapsed());
        took.push(began.elapsed());
    }
    parameters.set_buffer_values(&buffers)?;
    let passes = &mut took[1..];
    passes.sort();
    Ok(passes[PASSES / 2])
}
