//! Options by their names, as programs in other languages and command lines give them.

use std::fmt::Display;
use std::str::FromStr;

use gleaner_units::{self as units, QuantityError};

use super::{Method, Setting};
use crate::collectives::MethodError;

const NUMBER: &str = "a number";
const SHARE: &str = "a share, such as 0.9 or 90%";
const WHOLE: &str = "a whole number";
const SWITCH: &str = "true or false";
const STEPS: &str = "numbers of steps, counted from 0, with commas between them";

impl Method {
    /// Sets an option by its name: one of the method's own, such as `teams` of SparDL, or one that every method has, with `-` or `_` between words:
    ///
    /// | name | value | sets |
    /// |---|---|---|
    /// | `k` | a number of entries | [`Method::k`] |
    /// | `values` | `exact`, `bf16`, `f16`, `qsgd8`, `qsgd4`, `qsgd2` | [`Method::coding`] |
    /// | `selector`, `residual`, `select_over`, `on_nonfinite` | a name | the function of that name |
    /// | `momentum_correction`, `mask_momentum`, `ef21`, `residual_decay`, `clip_local`, `warmup_density` | a number, `true` or `false` | `momentum`, `mask`, `ef21`, `decay`, `clip` and `warm_up` of the [`Correction`](crate::residual::Correction) |
    /// | `dense_below` | a number of entries | [`Method::dense_below`] |
    /// | `deliver_all_every`, `deliver_all_at` | a number of steps; steps with commas between them | [`Method::whole_steps`] |
    /// | `complete_sums` | `true` or `false` | [`Method::complete_sums`] |
    /// | `norm_share` | a share | [`Method::norm_share`] |
    ///
    /// Numbers are written as on the command line: `25.6M` or `1e6` entries or steps, and shares such as `0.9` or `90%`.
    ///
    /// # Errors
    /// An option that there is not, or a value that the option does not have. How corrections go with each other is checked when a job begins.
    pub fn with(self, option: &str, value: &str) -> Result<Self, MethodError> {
        let name = option.replace('_', "-");
        let with = |name| self.collective.with_option(name, value);
        if let Some(collective) = with(option).or_else(|| with(&name)) {
            return Ok(Self { collective, ..self });
        }
        if let Some(&Setting { name: option, expects, .. }) =
            self.collective.options().iter().find(|own| own.name == option || own.name == name)
        {
            return Err(no_value(self.collective.name(), option, value, expects));
        }
        self.with_common(option, &name, value)
    }

    fn with_common(mut self, option: &str, name: &str, value: &str) -> Result<Self, MethodError> {
        let method = self.collective.name();
        match name {
            "k" => self = self.k(parsed(method, "k", value, WHOLE, units::count)?),
            "values" => self = self.coding(named(value)?),
            "selector" => self = self.selector(named(value)?),
            "residual" => self = self.residual(named(value)?),
            "select-over" => self = self.select_over(named(value)?),
            "on-nonfinite" => self = self.on_nonfinite(named(value)?),
            "momentum-correction" => {
                self.correction.momentum =
                    parsed(method, "momentum_correction", value, SHARE, units::single_share)?;
            }
            "mask-momentum" => self.correction.mask = switch(method, "mask_momentum", value)?,
            "ef21" => self.correction.ef21 = switch(method, "ef21", value)?,
            "residual-decay" => {
                self.correction.decay =
                    Some(parsed(method, "residual_decay", value, SHARE, units::single_share)?);
            }
            "clip-local" => {
                self.correction.clip = Some(parsed(method, "clip_local", value, NUMBER, units::number)?)
            }
            "warmup-density" => {
                self.correction.warm_up = parsed(method, "warmup_density", value, WHOLE, units::within(..))?
            }
            "dense-below" => self.dense_below = parsed(method, "dense_below", value, WHOLE, units::count)?,
            "deliver-all-every" => {
                let above = "a number above 0";
                self.whole.every =
                    Some(parsed(method, "deliver_all_every", value, above, units::within(1..))?);
            }
            "deliver-all-at" => {
                let step = |step| parsed(method, "deliver_all_at", step, STEPS, units::within(..));
                self.whole.at = value.split(',').map(step).collect::<Result<_, _>>()?;
            }
            "complete-sums" => self.complete = switch(method, "complete_sums", value)?,
            "norm-share" => self.norm_share = Some(parsed(method, "norm_share", value, SHARE, units::share)?),
            _ => return Err(unknown(method, option, name, value)),
        }
        Ok(self)
    }
}

fn parsed<T>(
    method: &'static str,
    option: &'static str,
    value: &str,
    expects: &'static str,
    read: impl Fn(&str) -> Result<T, QuantityError>,
) -> Result<T, MethodError> {
    read(value.trim()).map_err(|_| no_value(method, option, value, expects))
}

/// What is said of an option that no method has. The corrections had the names of their fields, of which one is an optimiser's as well.
fn unknown(method: &'static str, option: &str, name: &str, value: &str) -> MethodError {
    let meant = match name {
        "momentum" => "momentum_correction",
        "mask" => "mask_momentum",
        "decay" => "residual_decay",
        "clip" => "clip_local",
        "warm-up" => "warmup_density",
        _ => return MethodError::NoOption { method, option: option.into(), value: value.into() },
    };
    MethodError::Refused(format!(
        "{method} has no {option}, and {value} was asked for (did you mean {meant}?)"
    ))
}

/// As Rust, Python and C write it.
fn switch(method: &'static str, option: &'static str, value: &str) -> Result<bool, MethodError> {
    match value.trim() {
        "true" | "True" | "1" => Ok(true),
        "false" | "False" | "0" => Ok(false),
        _ => Err(no_value(method, option, value, SWITCH)),
    }
}

fn no_value(method: &'static str, option: &'static str, value: &str, expects: &'static str) -> MethodError {
    MethodError::NoValue { method, option, value: value.into(), expects }
}

/// What a name says, or the sentence of what refuses it.
fn named<T: FromStr<Err: Display>>(name: &str) -> Result<T, MethodError> {
    name.trim().parse().map_err(|error: T::Err| MethodError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::residual::{Collection, Correction, OnNonFinite, WholeSteps};
    use crate::{SelectOver, Sparsity};

    #[test]
    fn an_option_by_its_name_is_what_its_function_sets() {
        let by_name = |options: &[(&str, &str)]| {
            let set = |method: Method, (option, value): &(&str, &str)| method.with(option, value).unwrap();
            options.iter().fold(Method::spardl(), set)
        };
        let correction =
            Correction { momentum: 0.9, mask: true, clip: Some(5.0), warm_up: 400, ..Correction::default() };
        let whole = WholeSteps { every: NonZeroU64::new(100), at: vec![7, 9] };
        for (named, set) in [
            (
                by_name(&[("k", "30"), ("values", "qsgd4")]),
                Method::spardl().selecting(Sparsity::K(30)).coding("qsgd4".parse().unwrap()),
            ),
            (by_name(&[("selector", "sampled")]), Method::spardl().selector("sampled".parse().unwrap())),
            (by_name(&[("residual", "partial")]), Method::spardl().residual(Collection::Partial)),
            (by_name(&[("select_over", "gradient")]), Method::spardl().select_over(SelectOver::Gradient)),
            (by_name(&[("select-over", "gradient")]), Method::spardl().select_over(SelectOver::Gradient)),
            (by_name(&[("on_nonfinite", "skip")]), Method::spardl().on_nonfinite(OnNonFinite::Skip)),
            (
                by_name(&[
                    ("momentum_correction", "0.9"),
                    ("mask_momentum", "True"),
                    ("clip_local", "5.0"),
                    ("warmup-density", "400"),
                ]),
                Method::spardl().corrected(correction),
            ),
            (
                by_name(&[("momentum_correction", "0.9"), ("ef21", "1")]),
                Method::spardl().corrected(Correction { momentum: 0.9, ef21: true, ..Correction::default() }),
            ),
            (
                by_name(&[("residual_decay", "0.999")]),
                Method::spardl().corrected(Correction { decay: Some(0.999), ..Correction::default() }),
            ),
            (by_name(&[("dense_below", "300")]), Method::spardl().dense_below(300)),
            (
                by_name(&[("dense_below", "0.3k"), ("warmup_density", "1e3"), ("k", "25.6M")]),
                Method::spardl()
                    .dense_below(300)
                    .corrected(Correction { warm_up: 1000, ..Correction::default() })
                    .k(25_600_000),
            ),
            (
                by_name(&[("momentum_correction", "90%"), ("norm_share", "50%")]),
                Method::spardl()
                    .corrected(Correction { momentum: 0.9, ..Correction::default() })
                    .norm_share(0.5),
            ),
            (
                by_name(&[("deliver_all_every", "100"), ("deliver_all_at", "7, 9")]),
                Method::spardl().whole_steps(whole.clone()),
            ),
            (
                by_name(&[("deliver_all_every", "0.1k"), ("deliver_all_at", "7,9")]),
                Method::spardl().whole_steps(whole),
            ),
            (by_name(&[("teams", "1k")]), Method::named("spardl/1000").unwrap()),
            (by_name(&[("complete_sums", "true")]), Method::spardl().complete_sums()),
            (by_name(&[("complete_sums", "false"), ("mask_momentum", "0")]), Method::spardl()),
            (by_name(&[("norm_share", "0.5")]), Method::spardl().norm_share(0.5)),
            (
                by_name(&[("teams", "2"), ("sag", "bruck")]),
                Method::named("spardl/2").unwrap().with("sag", "bruck").unwrap(),
            ),
        ] {
            assert_eq!(format!("{named:?}"), format!("{set:?}"));
        }
    }

    #[test]
    fn what_is_no_value_is_refused_with_what_is_expected() {
        for (option, value, expected) in [
            ("k", "many", "spardl has no k of 'many'; expected a whole number"),
            ("mask_momentum", "yes", "spardl has no mask_momentum of 'yes'; expected true or false"),
            ("deliver_all_every", "0", "spardl has no deliver_all_every of '0'; expected a number above 0"),
            ("deliver_all_at", "1,x", "spardl has no deliver_all_at of 'x'; expected numbers of steps"),
            ("residual", "globl", "'globl' is not a residual collection (did you mean global?)"),
            ("sag", "x", "spardl has no sag of 'x'"),
            ("densty", "0.1", "spardl has no densty, and 0.1 was asked for; no method has densty"),
            (
                "momentum",
                "0.9",
                "spardl has no momentum, and 0.9 was asked for (did you mean momentum_correction?)",
            ),
            ("warm_up", "4", "spardl has no warm_up, and 4 was asked for (did you mean warmup_density?)"),
        ] {
            let refusal = Method::spardl().with(option, value).unwrap_err().to_string();
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }
}
