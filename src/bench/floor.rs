//! The least that a step can take: the memory traffic of the pass that no selection can do without, and the bytes at the
//! rate of the link.

use std::hint::black_box;
use std::time::Instant;

use gleaner_runtime::{Error, Session};

use super::measure::gather;
use crate::quantity::Rate;

/// Times bare passes of all ranks at once.
pub struct Floor {
    rate: Rate,
    /// What stands for a residual.
    residual: Vec<f32>,
    /// Of each pass, the slowest rank's time.
    passes: Vec<f64>,
}

impl Floor {
    /// For gradients of `n` entries, over links of this rate.
    pub fn new(rate: Rate, n: usize) -> Self {
        Self { rate, residual: vec![0.5; n], passes: Vec::new() }
    }

    /// All ranks read two arrays and write one, at once.
    pub fn pass(&mut self, session: &Session, gradient: &[f32]) -> Result<(), Error> {
        session.barrier()?;
        let clock = Instant::now();
        let entries = black_box(&mut self.residual).iter_mut().zip(black_box(gradient));
        entries.for_each(|(sum, value)| *sum += value);
        black_box(&mut self.residual);
        let all: Vec<f64> = gather(session, &clock.elapsed().as_secs_f64())?;
        self.passes.push(all.into_iter().fold(0.0, f64::max));
        Ok(())
    }

    /// The least time in seconds for a step in which a worker receives so many bytes: the median pass, and these.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let mut passes = self.passes.clone();
        passes.sort_by(f64::total_cmp);
        passes.get(passes.len() / 2).copied().unwrap_or(0.0) + bytes / self.rate.bytes_per_second()
    }
}
