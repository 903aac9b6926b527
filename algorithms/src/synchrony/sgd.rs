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

/// An option that is out of its range.
#[derive(Clone, Copy, PartialEq, thiserror::Error)]
#[error("{option}: expected {expected}, found {found}")]
pub struct SgdError {
    option: &'static str,
    expected: &'static str,
    found: f32,
}

crate::sentence::debug_as_sentence!(SgdError);

impl Sgd {
    /// Refuses options, and a rate, that no training has.
    ///
    /// # Errors
    /// A rate or a weight decay that is below 0, infinite or no number; a momentum outside [0, 1).
    pub fn check(&self, rate: f32) -> Result<(), SgdError> {
        let options = [
            ("rate", rate, 0.0..f32::INFINITY, "a number from 0 on"),
            ("momentum", self.momentum, 0.0..1.0, "a number from 0 to below 1"),
            ("weight_decay", self.weight_decay, 0.0..f32::INFINITY, "a number from 0 on"),
        ];
        match options.into_iter().find(|(_, found, range, _)| !range.contains(found)) {
            None => Ok(()),
            Some((option, found, _, expected)) => Err(SgdError { option, expected, found }),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::Sgd;

    #[test]
    fn options_out_of_their_ranges_are_refused() {
        let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
        assert_eq!(sgd.check(0.0), Ok(()));
        for (sgd, rate, sentence) in [
            (sgd, -0.5, "rate: expected a number from 0 on, found -0.5"),
            (sgd, f32::NAN, "rate: expected a number from 0 on, found NaN"),
            (Sgd { momentum: 1.0, ..sgd }, 0.1, "momentum: expected a number from 0 to below 1, found 1"),
            (
                Sgd { weight_decay: f32::INFINITY, ..sgd },
                0.1,
                "weight_decay: expected a number from 0 on, found inf",
            ),
        ] {
            assert_eq!(sgd.check(rate).unwrap_err().to_string(), sentence);
        }
    }
}
