//! The device that a worker computes on.

use candle_core::Device;
use gleaner_runtime::local_rank;
use gleaner_trainer::device::Place;

use crate::train::error::TrainError;

/// Of several devices, the workers of a host take one each in turn.
pub fn open(place: Place) -> Result<Device, TrainError> {
    Ok(place.open(local_rank().unwrap_or(0) as usize)?)
}
