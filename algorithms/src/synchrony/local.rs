//! Local steps: workers go on by themselves for some steps, then exchange the difference that these made to the parameters.
//!
//! With a plain mean this is local SGD, and with a first part in which every step is exchanged post-local SGD (Lin et al., ICLR
//! 2020). With an outer optimiser that takes the mean difference as its gradient, a Nesterov step, it is DiLoCo (Douillard et
//! al., 2023).

use gleaner_units as units;

use super::bsp::Barrier;
use super::{Policy, Sgd, Synchrony};

/// This many local steps, then an exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// The steps between two exchanges, H; at least 1.
    pub steps: u64,
    /// The rate of the outer optimiser; 1 without momentum is a plain mean.
    pub rate: f32,
    /// The momentum of the outer optimiser, by Nesterov.
    pub momentum: f32,
    /// The steps at the beginning of the job of which each is exchanged.
    pub after: u64,
}

impl Default for Local {
    fn default() -> Self {
        Self { steps: 8, rate: 1.0, momentum: 0.0, after: 0 }
    }
}

impl Local {
    /// What makes an update of the mean of the differences, at [`rate`](Self::rate). A difference is the parameters after the
    /// last exchange less those after the local steps, so that it points where a gradient does.
    pub fn outer(&self) -> Sgd {
        Sgd { momentum: self.momentum, weight_decay: 0.0, nesterov: self.momentum > 0.0 }
    }

    /// Whether this step, counted from 0, ends with an exchange.
    pub fn exchanges(&self, step: u64) -> bool {
        self.exchanges_before(step + 1) > self.exchanges_before(step)
    }

    /// How many exchanges there are in this many steps from the beginning: the number by which policies know the next one.
    pub fn exchanges_before(&self, steps: u64) -> u64 {
        let local = steps.saturating_sub(self.after);
        steps - local + local / self.steps.max(1)
    }
}

impl Synchrony for Local {
    fn name(&self) -> String {
        let mut name = format!("local/{}", self.steps);
        if self.rate != 1.0 || self.momentum != 0.0 {
            name += &format!(",{}", self.rate);
        }
        if self.momentum != 0.0 {
            name += &format!(",{}", self.momentum);
        }
        if self.after != 0 {
            name += &format!(",after={}", self.after);
        }
        name
    }

    fn summary(&self) -> &'static str {
        "local steps, then the difference is exchanged: post-local SGD (Lin et al., 2020) and DiLoCo (Douillard et al., 2023)"
    }

    fn guarantee(&self) -> &'static str {
        "Between two exchanges a worker sees its own gradients alone; of the others' all from before the last exchange, and none after it. \
         After an exchange the parameters have the same bits on all workers."
    }

    fn takes(&self) -> &'static str {
        "the local steps between two exchanges, at least 1, then if wanted the outer optimiser's rate, above 0, and its Nesterov momentum, at least 0 \
         and below 1, and after=N for N steps at the beginning that are all exchanged, such as local/8 or local/500,0.7,0.9,after=1000"
    }

    fn with(&self, value: &str) -> Option<Box<dyn Synchrony>> {
        let mut local = Self { steps: 0, rate: 1.0, momentum: 0.0, after: 0 };
        let (numbers, after) = match value.split_once(",after=") {
            Some((numbers, after)) => (numbers, Some(after)),
            None => (value, None),
        };
        if let Some(after) = after {
            local.after = units::within(..)(after).ok()?;
        }
        for (place, number) in numbers.split(',').enumerate() {
            match place {
                0 => local.steps = units::within(..)(number).ok()?,
                1 => local.rate = units::number(number).ok()?,
                2 => local.momentum = units::single_share(number).ok()?,
                _ => return None,
            }
        }
        let fits = local.steps > 0
            && local.rate > 0.0
            && local.rate.is_finite()
            && (0.0..1.0).contains(&local.momentum);
        fits.then(|| Box::new(local) as Box<dyn Synchrony>)
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        Box::new(Barrier::new(first, false))
    }

    fn needs_servers(&self) -> bool {
        false
    }

    fn local(&self) -> Option<&Local> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hth_step_is_exchanged_and_each_of_the_first() {
        let exchanged = |local: Local| (0..20).filter(|&step| local.exchanges(step)).collect::<Vec<_>>();
        let local = Local { steps: 8, ..Local::default() };
        assert_eq!(exchanged(local), [7, 15]);
        assert_eq!(exchanged(Local { after: 3, ..local }), [0, 1, 2, 10, 18]);
        assert_eq!(exchanged(Local { steps: 1, ..local }), (0..20).collect::<Vec<_>>());
        for after in 0..5 {
            let local = Local { steps: 3, after, ..local };
            let counted = (0..14).filter(|&step| local.exchanges(step)).count() as u64;
            assert_eq!(local.exchanges_before(14), counted, "after {after}");
        }
    }
}
