//! Steps that deliver everything: what waits is delivered together with what comes, as by a dense method.
//!
//! A residual that is not small when the learning rate drops, or when a model is evaluated, is a part of the training that is missing
//! there. A step that delivers it costs what a dense step costs.

use std::fmt;
use std::num::NonZeroU64;

/// The steps of a sparse method in which every entry is delivered by a dense ring. None, by default. Steps are counted from 0, and one that was
/// left out because of values that are not finite does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholeSteps {
    /// In every n-th step.
    pub every: Option<NonZeroU64>,
    /// In these.
    pub at: Vec<u64>,
}

impl WholeSteps {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.every.is_none() && self.at.is_empty()
    }

    /// Whether a step, counted from 0, is one.
    pub fn contains(&self, step: u64) -> bool {
        self.every.is_some_and(|every| (step + 1).is_multiple_of(every.get())) || self.at.contains(&step)
    }
}

/// After a comma; nothing if there are none.
impl fmt::Display for WholeSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(every) = self.every {
            write!(f, ", all entries every {every} steps")?;
        }
        match &self.at[..] {
            [] => Ok(()),
            [step] => write!(f, ", all entries in step {step}"),
            steps => {
                let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
                write!(f, ", all entries in steps {}", steps.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_zero() {
        let whole = WholeSteps { every: NonZeroU64::new(4), at: vec![1] };
        let steps: Vec<u64> = (0..12).filter(|&step| whole.contains(step)).collect();
        assert_eq!(steps, [1, 3, 7, 11]);
        assert_eq!(whole.to_string(), ", all entries every 4 steps, all entries in step 1");
        assert!(WholeSteps::default().is_none() && !WholeSteps::default().contains(0));
        assert_eq!(WholeSteps::default().to_string(), "");
    }
}
