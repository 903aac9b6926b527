//! Mini-batch stochastic gradient descent, by sums of sparse gradients.

use std::collections::VecDeque;

use crate::compact::Compact;
use crate::error::RegressError;
use crate::exchange::{Exchange, Pending};
use crate::gradient::Computer;
use crate::objective::{Loss, Penalty};
use crate::order::Order;
use crate::settings::Descent;
use crate::weights::Weights;

/// A worker's descent.
pub(crate) struct Sgd<'a> {
    pub(crate) descent: &'a Descent,
    pub(crate) samples: &'a Compact,
    /// Each sample's y.
    pub(crate) signs: &'a [f32],
    /// The learning rate at first.
    pub(crate) rate: f64,
    order: Order,
    computer: Computer,
    weights: Weights<'a>,
    exchange: Exchange,
    /// Sums that are not applied yet, the oldest first, with what their steps are.
    pending: VecDeque<(Pending, u64, f64)>,
}

impl<'a> Sgd<'a> {
    pub(crate) fn new(
        descent: &'a Descent,
        (samples, signs): (&'a Compact, &'a [f32]),
        (loss, penalty): (Loss, Penalty),
        rate: f64,
        order: Order,
        (n, exchange): (usize, Exchange),
    ) -> Self {
        let computer = Computer::new(loss, descent.threads, samples.features.all.len());
        let weights = Weights::new(n, &samples.features, penalty);
        Self { descent, samples, signs, rate, order, computer, weights, exchange, pending: VecDeque::new() }
    }

    /// Steps of an epoch.
    pub(crate) fn steps(&self) -> u64 {
        self.order.steps()
    }

    /// A pass over the data, which calls `stepped` with the number of steps done. Gives the sum of the losses of this worker's samples, each as
    /// it was when its turn came.
    pub(crate) fn epoch(&mut self, epoch: u64, mut stepped: impl FnMut(u64)) -> Result<f64, RegressError> {
        self.order.begin(epoch);
        let (steps, mut losses) = (self.steps(), 0.0);
        for step in 0..steps {
            let batch = self.order.batch(step);
            let (gradient, loss) = self.computer.gradient(self.samples, self.signs, batch, &self.weights);
            losses += loss;
            let epochs = epoch as f64 + step as f64 / steps as f64;
            let rate = self.rate * self.descent.schedule.share(self.descent.decay, epochs);
            let pending = self.exchange.start(gradient)?;
            self.pending.push_back((pending, self.order.together(step), rate));
            self.apply(self.descent.staleness)?;
            stepped(step + 1);
        }
        self.apply(0)?;
        Ok(losses)
    }

    /// Waits for sums until so many are left, and steps against them.
    fn apply(&mut self, left: usize) -> Result<(), RegressError> {
        while self.pending.len() > left {
            let Some((pending, samples, rate)) = self.pending.pop_front() else { break };
            let gradient = self.exchange.finish(pending)?;
            self.weights.step(&gradient, samples, rate);
        }
        Ok(())
    }

    /// The weights as they are, of all features.
    pub(crate) fn weights(&mut self) -> Vec<f32> {
        self.weights.up_to_date()
    }

    pub(crate) fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }
}
