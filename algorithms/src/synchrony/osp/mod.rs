//! Overlapped synchronisation parallel (Chen et al., ICPP 2023): important layers now, the others during the next pass.
//!
//! | part of the paper | here |
//! |---|---|
//! | importance of a layer, equation 4 | [`importance`] |
//! | the gradient importance bitmap (GIB) | [`split`] |
//! | U_max, equation 5 | [`most`], with [`Cluster`] for servers |
//! | S(G^u), Algorithm 1 | [`Tuning`] and [`Osp::entries`] |
//! | LGP, equations 6 and 7, and EMA-LGP | [`Lgp`] |

mod bound;
mod correction;
mod importance;
mod tuning;

use std::fmt::Write;

use gleaner_units as units;

pub use bound::{Cluster, Link, most};
pub use correction::Lgp;
pub use importance::{importance, split};
pub use tuning::Tuning;

use super::bsp::Barrier;
use super::{Policy, Synchrony};

/// Two stages: a barrier over the important layers, and one over the others that is passed during the next pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Osp {
    /// What stands in for the global gradient of layers that are still under way.
    pub lgp: StandIn,
    /// The largest share of the model that goes to the background.
    pub cap: f64,
    /// How much of that does.
    pub budget: Budget,
}

/// What stands in for the global gradient of a layer that is still under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StandIn {
    /// Nothing: the next pass has these layers as they were before.
    Off,
    /// The worker's own gradient (LGP).
    Local,
    /// So much of the average of past global gradients, and for the rest the worker's own gradient (EMA-LGP). The average keeps
    /// as much of itself in every step.
    Average(f32),
}

/// How much goes to the background, S(G^u).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// More of U_max the further the loss has fallen (Algorithm 1).
    Tuned,
    /// U_max from the first step on.
    Bound,
    /// This share of the model, whatever the network and the loss.
    Share(f64),
}

impl Default for Osp {
    /// The paper's.
    fn default() -> Self {
        Self { lgp: StandIn::Local, cap: 0.8, budget: Budget::Tuned }
    }
}

impl Osp {
    /// U_max: what the [time allows](most), and of the model no more than the cap; in entries.
    pub fn most(&self, model: usize, allowed: usize) -> usize {
        allowed.min(share(model, self.cap))
    }

    /// S(G^u): how many entries of a model go to the background in the next step, where time allows so many.
    pub fn entries(&self, model: usize, allowed: usize, tuning: &Tuning) -> usize {
        match self.budget {
            Budget::Tuned => share(self.most(model, allowed), tuning.share()),
            Budget::Bound => self.most(model, allowed),
            Budget::Share(part) => self.most(model, share(model, part)),
        }
    }

    /// Sets one option; none where it has no such option, or not this value.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let share = |value: &str| units::share(value).ok().filter(|share| (0.0..=1.0).contains(share));
        match (key, value) {
            ("lgp", "off") => self.lgp = StandIn::Off,
            ("lgp", "on") => self.lgp = StandIn::Local,
            ("lgp", value) => {
                let keeps = units::single_share(value.strip_prefix("ema:")?).ok();
                self.lgp = StandIn::Average(keeps.filter(|keeps| (0.0..1.0).contains(keeps))?);
            }
            ("cap", value) => self.cap = share(value)?,
            ("budget", "tuned") => self.budget = Budget::Tuned,
            ("budget", "bound") => self.budget = Budget::Bound,
            ("budget", value) => self.budget = Budget::Share(share(value)?),
            _ => return None,
        }
        Some(())
    }
}

/// So much of so many, rounded down.
fn share(entries: usize, share: f64) -> usize {
    (entries as f64 * share) as usize
}

impl Synchrony for Osp {
    fn name(&self) -> String {
        let mut options = String::new();
        let default = Self::default();
        // Writing to a string does not fail.
        if self.lgp != default.lgp {
            let _ = match self.lgp {
                StandIn::Off => write!(options, ",lgp=off"),
                StandIn::Local => write!(options, ",lgp=on"),
                StandIn::Average(keeps) => write!(options, ",lgp=ema:{keeps}"),
            };
        }
        if self.cap != default.cap {
            let _ = write!(options, ",cap={}", self.cap);
        }
        if self.budget != default.budget {
            let _ = match self.budget {
                Budget::Tuned => write!(options, ",budget=tuned"),
                Budget::Bound => write!(options, ",budget=bound"),
                Budget::Share(share) => write!(options, ",budget={share}"),
            };
        }
        options.strip_prefix(',').map_or_else(|| "osp".into(), |options| format!("osp/{options}"))
    }

    fn summary(&self) -> &'static str {
        "overlapped: important layers now, the others during the next pass (Chen et al., 2023)"
    }

    fn guarantee(&self) -> &'static str {
        "In step t every worker sees all gradients of the steps before t - 1, and those of step t - 1 of the layers that were pushed in the routine \
         stage; of the other layers its own gradient of step t - 1 in their place, or nothing with lgp=off. After a flush the parameters have the same bits \
         on all workers; so have at any time the true values that the prediction started from."
    }

    fn takes(&self) -> &'static str {
        "options with commas between them: lgp=on, lgp=off or lgp=ema:0.9 (at least 0 and below 1), cap=0.8 for the largest share of the model in the \
         background (0 to 1), budget=tuned, budget=bound or budget=0.5 for a share (0 to 1), each once, such as osp/lgp=off,cap=1"
    }

    fn with(&self, value: &str) -> Option<Box<dyn Synchrony>> {
        let mut osp = Self::default();
        let mut seen = Vec::new();
        for option in value.split(',') {
            let (key, value) = option.split_once('=')?;
            if seen.contains(&key) {
                return None;
            }
            seen.push(key);
            osp.set(key, value)?;
        }
        Some(Box::new(osp))
    }

    fn policy(&self, first: &[u64]) -> Box<dyn Policy> {
        Box::new(Barrier::new(first, true))
    }

    fn needs_servers(&self) -> bool {
        false
    }

    fn osp(&self) -> Option<&Osp> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_goes_to_the_background() {
        let (osp, begun) = (Osp::default(), Tuning::default());
        assert_eq!((osp.most(1000, 5000), osp.most(1000, 300)), (800, 300));
        assert_eq!(osp.entries(1000, 5000, &begun), 0);
        let mut fell = begun;
        fell.record(2.0);
        fell.record(0.5);
        assert_eq!(osp.entries(1000, 5000, &fell), 600);
        let bound = Osp { budget: Budget::Bound, ..osp };
        assert_eq!(bound.entries(1000, 700, &begun), 700);
        let half = Osp { budget: Budget::Share(0.5), ..osp };
        assert_eq!((half.entries(1000, 0, &begun), half.entries(1001, 0, &fell)), (500, 500));
        let all = Osp { budget: Budget::Share(1.0), ..osp };
        assert_eq!(all.entries(1000, 0, &begun), 800);
        assert_eq!(Osp { cap: 1.0, ..all }.entries(1000, 0, &begun), 1000);
    }
}
