//! The least that a step can take: the memory traffic of the pass that no selection can do without, and the bytes at the
//! rate of the link.

use std::hint::black_box;
use std::time::Instant;

use gleaner_runtime::{Error, Session};
use gleaner_statistics::median;

use gleaner_units::Rate;

use crate::crew::gather;

/// Times bare passes of all ranks at once.
pub struct Floor {
    rate: Rate,
    /// What stands for a residual, and for a sum that is written elsewhere.
    residual: Vec<f32>,
    sum: Vec<f32>,
    /// Of each pass, the slowest rank's time.
    apart: Vec<f64>,
    in_place: Vec<f64>,
}

impl Floor {
    /// For gradients of `n` entries, over links of this rate.
    pub fn new(rate: Rate, n: usize) -> Self {
        let (residual, sum) = (vec![0.5; n], vec![0.25; n]);
        Self { rate, residual, sum, apart: Vec::new(), in_place: Vec::new() }
    }

    /// All ranks at once read two arrays and write a third, and then read two and write one of them.
    pub fn passes(&mut self, session: &Session, gradient: &[f32]) -> Result<(), Error> {
        let Self { residual, sum, .. } = self;
        let apart = slowest(session, || {
            let entries = black_box(&*residual).iter().zip(black_box(gradient));
            black_box(&mut *sum).iter_mut().zip(entries).for_each(|(sum, (a, b))| *sum = a + b);
        })?;
        let in_place = slowest(session, || {
            let entries = black_box(&mut *residual).iter_mut().zip(black_box(gradient));
            entries.for_each(|(sum, value)| *sum += value);
        })?;
        self.apart.push(apart);
        self.in_place.push(in_place);
        Ok(())
    }

    /// The least time in seconds for a step in which a worker receives so many bytes: the median pass, and these. First
    /// with the sum written elsewhere, then with the sum written in place.
    pub fn seconds(&self, bytes: f64) -> (f64, f64) {
        let sent = bytes / self.rate.bytes_per_second();
        (median(self.apart.iter().copied()) + sent, median(self.in_place.iter().copied()) + sent)
    }
}

/// How long the slowest rank needs if all begin at once.
fn slowest(session: &Session, pass: impl FnOnce()) -> Result<f64, Error> {
    session.barrier()?;
    let clock = Instant::now();
    pass();
    let all: Vec<f64> = gather(session, &clock.elapsed().as_secs_f64())?;
    Ok(all.into_iter().fold(0.0, f64::max))
}
