//! The options of the measured commands that an experiment may set, by their names in a file.

use gleaner_algorithms::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an experiment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// `gleaner bench`.
    Bench,
    /// `gleaner train`.
    Train,
    /// `gleaner regress`.
    Regress,
    /// Any other program, which the key `program` names.
    Program,
}

/// The program of an experiment that runs none of our commands, with its arguments.
pub const PROGRAM: &str = "program";

/// Options of all commands, besides the method.
const ALL: &[&str] = &["timeout", "seed"];

/// Of those that choose entries.
const CHOOSING: &[&str] = &["density", "k", "values", "selector", "residual", "steps"];

/// Options of their launcher.
pub const LAUNCHED: &[&str] = &["transport", "sockets", "plain"];

/// Of `bench` alone.
const BENCH: &str = "params warmup complete_sums";

/// Of `bench` alone: whether the floor of a step is measured as well, with the rate of the links.
pub const FLOOR: &str = "floor";

/// Of `train` alone, besides those that follow a method's name.
const TRAIN: &str = "data model batch lr lr_drops optimizer momentum weight_decay clip on_nonfinite evaluate_every pace slow \
                     target_accuracy target_loss layers";

/// Options of `train` that belong to the method rather than to what surrounds it: they follow its name.
pub const OF_THE_METHOD: &str = "momentum_correction mask_momentum ef21 complete_sums rate_in_residual deliver_all dense_below \
                                 warmup_density clip_local clip_update norm_share select_over residual_decay dct sign_update plain_momentum \
                                 merge synchrony servers colocate balance";

/// Of `regress` alone.
const REGRESS: &str = "data samples held_out features bias loss_function l1 l2 algorithm batch lr schedule decay staleness threads \
                       order coordinates epochs";

/// The axis of faults: which `[[chaos]]` a case has.
pub const FAULTS: &str = "faults";

/// What the axis of faults calls a case without any.
pub const NO_FAULT: &str = "none";

/// What shapes the links rather than the command.
pub const LINK: &[&str] = &["bandwidth", "link_latency", "jitter", "loss", "congestion"];

impl Workload {
    /// The options, those that methods state among them, in the spelling of files: `lr_drops` for `--lr-drops`.
    pub fn options(self) -> impl Iterator<Item = &'static str> + Clone {
        let (own, chooses): (&[&str], bool) = match self {
            Self::Bench => (&[BENCH, FLOOR], true),
            Self::Train => (&[TRAIN, OF_THE_METHOD], true),
            Self::Regress => (&[REGRESS], false),
            Self::Program => (&[], false),
        };
        let choosing = if chooses { CHOOSING } else { &[] };
        let mut stated = Vec::new();
        for option in Method::all().flat_map(|method| method.collective().options()).filter(|_| chooses) {
            if !stated.contains(&option.name) {
                stated.push(option.name);
            }
        }
        let named = [choosing, ALL, LAUNCHED].into_iter().flatten().copied();
        let own = own.iter().flat_map(|words| words.split(' '));
        ["method"].into_iter().chain(named).chain(own).chain(stated)
    }
}

/// An option as words of a command line: none for `false`.
pub fn words(name: &str, value: &Value) -> Vec<String> {
    let option = format!("--{}", name.replace('_', "-"));
    match value {
        Value::Bool(true) => vec![option],
        Value::Bool(false) => Vec::new(),
        value => vec![option, plain(value)],
    }
}

/// A value as one would type it.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
