//! Adam (Kingma and Ba, ICLR 2015) with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).
//!
//! An entry that was not delivered in a step has the gradient 0 in it: both of its moments decay, and it goes on moving with what is
//! left of the first.

use candle_core::{Result, Tensor, Var};

use super::{Descent, times};

/// Options of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How much of the last mean gradient the next one keeps, β₁.
    pub momentum: f32,
    /// How much of the last mean square the next one keeps, β₂.
    pub second: f32,
    /// Added to the root of the mean square, ε.
    pub epsilon: f32,
    /// How strongly parameters are pulled towards zero.
    pub weight_decay: f32,
}

impl Default for Adam {
    fn default() -> Self {
        Self { momentum: 0.9, second: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// β₁ᵗ and β₂ᵗ after t updates: products in order, the same bits on every worker and after a restart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decays([f64; 2]);

impl Default for Decays {
    fn default() -> Self {
        Self([1.0; 2])
    }
}

impl Decays {
    pub(super) fn after(updates: u64, descent: &Descent) -> Self {
        let mut decays = Self::default();
        if let Descent::Adam(_) = descent {
            (0..updates).for_each(|_| decays.advance(descent));
        }
        decays
    }

    pub(super) fn advance(&mut self, descent: &Descent) {
        if let Descent::Adam(adam) = descent {
            self.0[0] *= f64::from(adam.momentum);
            self.0[1] *= f64::from(adam.second);
        }
    }

    /// By what the moments are multiplied, since they began at zero.
    fn corrections(self) -> [f32; 2] {
        self.0.map(|decay| (1.0 / (1.0 - decay)) as f32)
    }
}

impl Adam {
    /// One step of values with their two moments. All slices have the same length.
    pub(super) fn step(
        &self,
        parameters: &mut [f32],
        [first, second]: [&mut [f32]; 2],
        gradient: &[f32],
        rate: f32,
        decays: Decays,
    ) {
        let [first_by, second_by] = decays.corrections();
        let moments = first.iter_mut().zip(second);
        for ((value, (first, second)), gradient) in parameters.iter_mut().zip(moments).zip(gradient) {
            *first = self.momentum * *first + (1.0 - self.momentum) * gradient;
            *second = self.second * *second + (1.0 - self.second) * (gradient * gradient);
            let ahead = first_by * *first / ((second_by * *second).sqrt() + self.epsilon);
            *value -= rate * (ahead + self.weight_decay * *value);
        }
    }

    /// The same on a device, with the same roundings. Gives the next moments.
    pub(super) fn step_there(
        &self,
        parameter: &Var,
        [first, second]: [&Tensor; 2],
        gradient: &Tensor,
        rate: f32,
        decays: Decays,
    ) -> Result<Vec<Tensor>> {
        let [first_by, second_by] = decays.corrections();
        let first = (times(first, self.momentum)? + times(gradient, 1.0 - self.momentum)?)?;
        let second = (times(second, self.second)? + times(&(gradient * gradient)?, 1.0 - self.second)?)?;
        let epsilon = Tensor::new(self.epsilon, parameter.device())?;
        let divisor = times(&second, second_by)?.sqrt()?.broadcast_add(&epsilon)?;
        let ahead = (times(&first, first_by)? / divisor)?;
        let change = times(&(ahead + times(parameter, self.weight_decay)?)?, rate)?;
        parameter.set(&(parameter.as_tensor() - change)?.detach())?;
        Ok(vec![first.detach(), second.detach()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Algorithm 1 by hand: the first step is as long as the rate, whatever the gradient.
    #[test]
    fn steps_are_those_of_the_paper() {
        let (adam, mut decays) = (Adam::default(), Decays::default());
        let (mut value, mut first, mut second) = ([1.0_f32], [0.0], [0.0]);
        let (mut m, mut v, mut w) = (0.0_f64, 0.0_f64, 1.0_f64);
        for (t, g) in [(1, 0.3_f64), (2, -0.1), (3, 0.0)] {
            decays.advance(&Descent::Adam(adam));
            adam.step(&mut value, [&mut first, &mut second], &[g as f32], 0.01, decays);
            (m, v) = (0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g);
            let (mean, square) = (m / (1.0 - 0.9_f64.powi(t)), v / (1.0 - 0.999_f64.powi(t)));
            w -= 0.01 * mean / (square.sqrt() + 1e-8);
            assert!((f64::from(value[0]) - w).abs() < 1e-6, "step {t}: {} and {w}", value[0]);
        }
    }
}
