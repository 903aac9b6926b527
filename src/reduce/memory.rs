//! What a method has learnt, as a file beside the residuals.

use std::path::Path;

use gleaner_algorithms::schedule::Memory;
use serde::{Deserialize, Serialize};

use super::ReduceError;

/// The file's name.
pub const NAME: &str = "memory.json";

/// Numbers are told by their bits, so that they come back as they were.
#[derive(Serialize, Deserialize)]
struct Learnt {
    steps: u64,
    agreed: Vec<u64>,
    /// By rank.
    own: Vec<Vec<u64>>,
}

/// What is written: nothing for methods that learn nothing.
pub fn text(memories: &[Memory]) -> Option<String> {
    let bits = |numbers: &[f64]| numbers.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let first = memories.first()?;
    if first.agreed.is_empty() && first.own.is_empty() {
        return None;
    }
    let own = memories.iter().map(|memory| bits(&memory.own)).collect();
    let learnt = Learnt { steps: first.steps, agreed: bits(&first.agreed), own };
    serde_json::to_string(&learnt).ok().map(|text| text + "\n")
}

/// Reads it for so many workers; None if there is no such file.
pub fn read(folder: &Path, workers: usize) -> Result<Option<Vec<Memory>>, ReduceError> {
    let path = folder.join(NAME);
    let refused = |what: String| ReduceError::Memory { path: path.clone(), what };
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(|e| refused(e.to_string()))?;
    let learnt: Learnt = serde_json::from_str(&text).map_err(|e| refused(e.to_string()))?;
    if learnt.own.len() != workers {
        return Err(refused(format!("it is of {} workers, and there are {workers}", learnt.own.len())));
    }
    let numbers = |bits: &[u64]| bits.iter().map(|&b| f64::from_bits(b)).collect::<Vec<_>>();
    if learnt.own.iter().chain([&learnt.agreed]).flatten().any(|&b| !f64::from_bits(b).is_finite()) {
        return Err(refused("it holds NaN or infinity".into()));
    }
    let memory =
        |own: &Vec<u64>| Memory { steps: learnt.steps, agreed: numbers(&learnt.agreed), own: numbers(own) };
    Ok(Some(learnt.own.iter().map(memory).collect()))
}
