//! What rank 0 sends to a server in the beginning: what it has, and how it proceeds. It travels in pieces, with the first values behind
//! it.

use std::path::PathBuf;

use bytes::Bytes;
use gleaner_algorithms::bag::wire::PIECE;
use gleaner_algorithms::synchrony::Sgd;
use serde::{Deserialize, Serialize};

use super::programs::Pushing;

/// The longest description, in bytes.
const LONGEST: usize = 1 << 26;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) servers: u32,
    pub(crate) server: u32,
    pub(crate) workers: u32,
    /// Names and lengths.
    pub(crate) units: Vec<(String, usize)>,
    pub(crate) pushing: Pushing,
    pub(crate) synchrony: String,
    /// Steps of an epoch.
    pub(crate) epoch: u64,
    /// Momentum, weight decay, and whether steps look ahead.
    pub(crate) sgd: (f32, f32, bool),
    /// Where its state survives, if it does.
    pub(crate) directory: Option<PathBuf>,
    /// Whether it resumes from the state in that directory.
    pub(crate) resume: bool,
    /// Of which run its state is, unless it resumes.
    pub(crate) run: String,
    /// How many values follow.
    pub(crate) values: usize,
}

impl Plan {
    pub(crate) fn sgd(&self) -> Sgd {
        let (momentum, weight_decay, nesterov) = self.sgd;
        Sgd { momentum, weight_decay, nesterov }
    }

    /// The lengths of the units.
    pub(crate) fn lens(&self) -> Vec<usize> {
        self.units.iter().map(|(_, len)| *len).collect()
    }

    /// As it travels, with the server's first values.
    pub(crate) fn pieces(&self, values: &[f32]) -> Vec<Bytes> {
        // Nothing in it can fail to be written.
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
        bytes.extend(text);
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let bytes = Bytes::from(bytes);
        (0..bytes.len()).step_by(PIECE).map(|at| bytes.slice(at..bytes.len().min(at + PIECE))).collect()
    }
}

/// A plan on its way.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bytes: Vec<u8>,
    plan: Option<(Plan, usize)>,
}

impl Arriving {
    /// Takes the next piece; gives the plan and the values once all is there.
    pub(super) fn take(&mut self, piece: &[u8]) -> Result<Option<(Plan, Vec<f32>)>, String> {
        self.bytes.extend_from_slice(piece);
        if self.plan.is_none() {
            let Some((len, text)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
            let len = u32::from_le_bytes(*len) as usize;
            if len > LONGEST {
                return Err(format!("its plan for a server has {len} bytes; at most {LONGEST} are possible"));
            }
            let Some(text) = text.get(..len) else { return Ok(None) };
            let plan = serde_json::from_slice(text);
            let plan = plan.map_err(|error| format!("its plan for a server makes no sense: {error}"))?;
            self.plan = Some((plan, 4 + len));
        }
        let Some((plan, at)) = self.plan.take_if(|(plan, at)| (self.bytes.len() - *at) / 4 >= plan.values)
        else {
            return Ok(None);
        };
        let bytes = std::mem::take(&mut self.bytes);
        let (values, rest) = bytes[at..].as_chunks::<4>();
        if values.len() != plan.values || !rest.is_empty() {
            return Err("more came behind its plan for a server than it said".to_owned());
        }
        Ok(Some((plan, values.iter().map(|value| f32::from_le_bytes(*value)).collect())))
    }
}
