//! The device that a worker computes on.

use candle_core::Device;

use crate::train::error::TrainError;
use gleaner_trainer::device::Place;

/// What launchers call a worker's number among those of its host.
const LOCAL_RANKS: [&str; 4] =
    ["GLEANER_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"];

/// Of several devices, the workers of a host take one each in turn.
pub fn open(place: Place) -> Result<Device, TrainError> {
    let told = LOCAL_RANKS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    Ok(place.open(told.unwrap_or(0))?)
}
