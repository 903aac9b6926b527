//! The optimiser that servers have, and workers that do without a server: stochastic gradient descent with momentum.

/// Options of stochastic gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// How much of the last velocity the next one keeps.
    pub momentum: f32,
    /// How strongly parameters are pulled towards zero.
    pub weight_decay: f32,
    /// Whether the step looks ahead along the new velocity (Nesterov).
    pub nesterov: bool,
}

impl Sgd {
    /// For every parameter w with gradient g and velocity v: v ← momentum·v + g + decay·w, then w ← w − rate·v; with Nesterov
    /// w ← w − rate·(g + decay·w + momentum·v). All three slices have the same length.
    pub fn step(&self, parameters: &mut [f32], velocities: &mut [f32], gradient: &[f32], rate: f32) {
        for ((value, velocity), gradient) in parameters.iter_mut().zip(velocities).zip(gradient) {
            let decay = self.weight_decay * *value;
            *velocity = self.momentum * *velocity + gradient + decay;
            let ahead = gradient + decay + self.momentum * *velocity;
            *value -= rate * if self.nesterov { ahead } else { *velocity };
        }
    }
}
