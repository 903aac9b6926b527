//! The name for "whichever is cheapest": no all-reduce itself, but a choice among those that are listed, which takes a
//! network and a machine to be made. See [`forecast`](crate::forecast).

use super::{COLLECTIVES, Collective, MethodError, Setting, Shape, Structure};
use crate::Rank;
use crate::schedule::Step;

/// Accepts no shape: the owner of a method named `auto` resolves it first.
#[derive(Clone, Debug, Default)]
pub(super) struct Auto {
    /// What was asked for.
    asked: Vec<Setting>,
}

/// The name on the command line.
pub(super) const NAME: &str = "auto";

impl Collective for Auto {
    type State = ();

    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "whichever of the others is expected to take the least time: a job measures its network and workers first"
    }

    fn competes(&self) -> bool {
        false
    }

    fn takes_selector(&self) -> bool {
        true
    }

    fn options(&self) -> Vec<Setting> {
        self.asked.clone()
    }

    /// Any option that some method has.
    fn with(&self, option: &str, value: &str) -> Option<Self> {
        let known = COLLECTIVES.iter().flat_map(|method| method().collective().options());
        let setting = Setting { value: value.into(), ..known.into_iter().find(|o| o.name == option)? };
        let mut asked = self.asked.clone();
        asked.retain(|other| other.name != setting.name);
        asked.push(setting);
        Some(Self { asked })
    }

    fn accepts(&self, _: &Shape) -> Result<(), MethodError> {
        Err(MethodError::Unresolved)
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn steps(&self, _: Rank, _: &Shape, _: &Structure) -> Vec<Step> {
        Vec::new()
    }
}
