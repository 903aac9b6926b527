//! What a method has learnt, as a file beside the residuals.

use std::path::Path;

use gleaner_algorithms::Method;
use gleaner_algorithms::schedule::Memory;
use serde::{Deserialize, Serialize};

use crate::report::{self, CommandError};

pub const NAME: &str = "memory.json";

/// Numbers are stored by their bits, so that they come back as they were.
#[derive(Serialize, Deserialize)]
struct Learnt {
    method: String,
    steps: u64,
    agreed: Vec<u64>,
    /// By rank.
    own: Vec<Vec<u64>>,
}

/// What is written. Of a method that learns nothing it is the number of steps, from which chance takes its seed.
pub fn text(method: &Method, memories: &[Memory]) -> String {
    let bits = |numbers: &[f64]| numbers.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let (steps, agreed) =
        memories.first().map_or((0, Vec::new()), |first| (first.steps, bits(&first.agreed)));
    let own = memories.iter().map(|memory| bits(&memory.own)).collect();
    let learnt = Learnt { method: method.collective().name().into(), steps, agreed, own };
    report::json(&learnt)
}

/// Why such a file cannot be used.
pub fn refused(path: &Path, what: &str) -> CommandError {
    let expected = "expected what an earlier step of the same method and as many workers wrote";
    format!("{}: {what}; {expected}", path.display()).into()
}

/// Reads it for so many workers; None if there is no such file.
pub fn read(folder: &Path, method: &Method, workers: usize) -> Result<Option<Vec<Memory>>, CommandError> {
    let path = folder.join(NAME);
    let refused = |what: String| refused(&path, &what);
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path).map_err(|e| refused(e.to_string()))?;
    let learnt: Learnt = serde_json::from_str(&text).map_err(|e| refused(e.to_string()))?;
    let name = method.collective().name();
    if learnt.method != name {
        return Err(refused(format!(
            "it is what {} has learnt, and the method is {name}; remove it to start {name} on these residuals afresh",
            learnt.method
        )));
    }
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
