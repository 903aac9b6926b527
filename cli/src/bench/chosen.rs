//! What the method `auto` came to, as the report has it.

use serde::Serialize;

use crate::choice::{Stated, stated};

/// The method that is taken, and whether for good. The field names are documented in `docs/` and stay as they are.
#[derive(Clone, Debug, Serialize)]
pub struct AutoReport {
    decided: bool,
    #[serde(flatten)]
    taken: Tried,
    tried: Vec<Tried>,
}

/// A method with its forecast, and the median of its steps if it was tried, both in seconds.
#[derive(Clone, Debug, Serialize)]
struct Tried {
    method: &'static str,
    options: Stated,
    seconds_expected: f64,
    seconds_measured: Option<f64>,
}

impl From<&gleaner_runtime::AutoChoice> for AutoReport {
    fn from(chosen: &gleaner_runtime::AutoChoice) -> Self {
        let of = |tried: &gleaner_runtime::Tried| Tried {
            method: tried.forecast.method.collective().name(),
            options: stated(&tried.forecast.method),
            seconds_expected: tried.forecast.seconds,
            seconds_measured: tried.measured.map(|median| median.as_secs_f64()),
        };
        Self {
            decided: chosen.decided,
            taken: of(&chosen.taken),
            tried: chosen.tried.iter().map(of).collect(),
        }
    }
}
