//! Which residuals are collected, and what is done with a step that is not finite.

use std::str::FromStr;

use crate::sentence::did_you_mean;

/// Which dropped entries are collected (SparDL, §3.2 and §4.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collection {
    /// All of them: local, in-procedure and end-procedure residuals. Nothing is lost.
    #[default]
    Global,
    /// Local and end-procedure residuals; what a worker drops of the others' contributions at indices of the
    /// final update is lost.
    Partial,
    /// Local residuals only; whatever is dropped after it was first sent is lost.
    Local,
}

impl Collection {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Collection::Global => "global",
            Collection::Partial => "partial",
            Collection::Local => "local",
        }
    }
}

impl FromStr for Collection {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Collection::Global, Collection::Partial, Collection::Local];
        all.into_iter().find(|c| c.name() == name).ok_or_else(|| {
            let meant = did_you_mean(name, &all.map(Collection::name).join(", "));
            format!("'{name}' is not a residual collection{meant}; expected global, partial or local")
        })
    }
}

/// How a step is treated in which a worker's gradient has NaN or infinite entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNonFinite {
    /// The job fails, on every worker, with a sentence that names the rank and the parameter.
    #[default]
    Refuse,
    /// Every worker leaves the step out: nothing is delivered, and the residuals are what they were before it. Takes as
    /// much memory again as the residual, which is copied in each step.
    Skip,
}

impl OnNonFinite {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            OnNonFinite::Refuse => "refuse",
            OnNonFinite::Skip => "skip",
        }
    }
}

impl FromStr for OnNonFinite {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [OnNonFinite::Refuse, OnNonFinite::Skip].into_iter().find(|o| o.name() == name).ok_or_else(|| {
            format!("'{name}' is nothing to do with values that are not finite; expected refuse or skip")
        })
    }
}
