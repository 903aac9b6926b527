//! Which method, and how many entries it selects: the same options for every command.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::{MethodError, Setting};
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Method, Sparsity};

use gleaner_units as units;
use serde::Serialize;

use crate::report::CommandError;

/// A method and its sparsity.
#[derive(clap::Args, Clone, Debug)]
pub struct Choice {
    #[arg(long, value_name = "METHOD", default_value = "spardl", help = names(), long_help = summaries())]
    method: String,
    /// The share of all entries that a sparse method selects in a step, above 0 and at most 1, such as 0.01 or 1% [default: 0.05]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = units::share, conflicts_with = "k")]
    density: Option<f64>,
    /// The number of entries that a sparse method selects in a step, instead of a share
    #[arg(long, value_name = "ENTRIES", value_parser = units::count)]
    k: Option<usize>,
    #[command(flatten)]
    options: Options,
    /// How a sparse method encodes values: exact (float32), bf16, f16, qsgd8, qsgd4 or qsgd2; what is rounded away goes to
    /// the residuals [default: qsgd4, or exact with --density or --k]
    #[arg(long, value_name = "CODING")]
    values: Option<Coding>,
    #[arg(long, value_name = "NAME[=NUMBER]", default_value = "top", help = selectors())]
    selector: Selector,
}

/// What the options that methods state are set to: each has a flag of its name.
#[derive(Clone, Debug, Default)]
struct Options(Vec<(&'static str, String)>);

impl Options {
    /// The options of all methods, each once, with the methods that have it.
    fn stated() -> BTreeMap<&'static str, (Setting, Vec<&'static str>)> {
        let mut stated = BTreeMap::new();
        for method in all() {
            let collective = method.collective();
            for option in collective.options() {
                stated.entry(option.name).or_insert((option, Vec::new())).1.push(collective.name());
            }
        }
        stated
    }

    /// Those that a method has.
    fn of(&self, method: &Method) -> Self {
        Self(self.0.iter().filter(|(name, _)| method.option(name).is_some()).cloned().collect())
    }
}

impl clap::Args for Options {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag = |(name, (option, methods)): (&'static str, (Setting, Vec<&str>))| {
            let Setting { value, expects, .. } = option;
            let help = format!("An option of {}: {expects} [default: {value}]", methods.join(", "));
            clap::Arg::new(name).long(name).value_name("VALUE").help(help)
        };
        command.args(Self::stated().into_iter().map(flag))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Options {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let set = |name: &'static str| Some((name, matches.get_one::<String>(name)?.clone()));
        Ok(Self(Self::stated().into_keys().filter_map(set).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Methods of the program's own.
static OWN: OnceLock<Vec<Method>> = OnceLock::new();

/// Puts methods beside the listed ones, once in a process.
pub fn add(own: impl IntoIterator<Item = Method>) {
    let _ = OWN.set(own.into_iter().collect());
}

/// The listed methods and the program's own.
pub fn all() -> impl Iterator<Item = Method> {
    Method::all().chain(OWN.get().into_iter().flatten().cloned())
}

/// The flags of the options that methods state.
pub fn options() -> impl Iterator<Item = &'static str> {
    Options::stated().into_keys()
}

pub fn named(name: &str) -> Result<Method, MethodError> {
    Method::among(all().chain([Method::auto()]), name)
}

fn names() -> String {
    format!("{}, or auto for the one that is expected to be fastest", listed())
}

fn listed() -> String {
    let names: Vec<&str> = all().map(|m| m.collective().name()).collect();
    format!("The all-reduce: {}", names.join(", "))
}

/// Where no job measures a network to choose by.
pub fn without_auto(method: clap::Arg) -> clap::Arg {
    method.help(listed()).long_help(described(all()))
}

fn selectors() -> String {
    let names = Selector::names().join(", ");
    format!(
        "How a worker chooses from its own gradient, where the method looks at all of it at once: {names}"
    )
}

fn summaries() -> String {
    described(all().chain([Method::auto()]))
}

fn described(methods: impl Iterator<Item = Method>) -> String {
    let lines = methods.map(|m| format!("\n  {:23}{}", m.collective().name(), m.collective().summary()));
    format!("The all-reduce:{}", lines.collect::<String>())
}

/// The options of a method with their values, by name: as reports have them.
pub type Stated = BTreeMap<&'static str, String>;

pub fn stated(method: &Method) -> Stated {
    method.collective().options().into_iter().map(|option| (option.name, option.value)).collect()
}

#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    #[error(transparent)]
    Method(#[from] MethodError),
    #[error("the density is {0}; expected a number above 0 and at most 1, such as 0.01 or 1%")]
    Density(f64),
    #[error("k is {k}, but the gradient has {n} entries: choose k from 1 to {n}")]
    K { k: usize, n: usize },
}

impl Choice {
    /// The method, as far as it can be checked without knowing the gradient.
    pub fn method(&self) -> Result<Method, ChoiceError> {
        let mut method = named(&self.method)?;
        // What stands in the name is nearer to it: a value of the first option.
        let in_name = self
            .method
            .contains('/')
            .then(|| method.collective().options().first().map(|o| o.name))
            .flatten();
        for (option, value) in self.options.0.iter().filter(|(option, _)| Some(*option) != in_name) {
            method = method.with(option, value)?;
        }
        if let Some(values) = self.values {
            method = method.coding(values);
        }
        let method = method.selector(self.selector);
        Ok(match (self.density, self.k) {
            (Some(density), _) if !(density > 0.0 && density <= 1.0) => {
                return Err(ChoiceError::Density(density));
            }
            (Some(density), _) => method.density(density),
            (None, Some(k)) => method.k(k),
            (None, None) => method,
        })
    }

    /// The choice among all methods, with the same options.
    pub fn auto(&self) -> Result<Method, ChoiceError> {
        Self { method: "auto".into(), ..self.clone() }.method()
    }

    /// Whether all methods are asked for: then one that does not fit is passed over.
    pub fn is_all(&self) -> bool {
        self.method == "all"
    }

    /// Where several may be named, with commas between them or as `all`: each with its name, checked as by
    /// [`method`](Self::method).
    pub fn methods(&self) -> Vec<(String, Result<Method, ChoiceError>)> {
        let names: Vec<&str> = match self.is_all() {
            true => all().map(|method| method.collective().name()).collect(),
            false => self.method.split(',').map(str::trim).collect(),
        };
        // Where several methods are named, each takes the options that it has.
        let several = names.len() > 1;
        let options = |name: &str| match named(name) {
            Ok(method) if several => self.options.of(&method),
            _ => self.options.clone(),
        };
        let alone = |name: &str| Self { method: name.to_owned(), options: options(name), ..self.clone() };
        names.into_iter().map(|name| (name.to_owned(), alone(name).method())).collect()
    }

    /// What `of` makes of each of these methods. Where all are asked for, those that cannot run are passed over.
    ///
    /// # Errors
    /// A method that was named and cannot run. Where all are asked for, the first one's reason if none of them can.
    pub fn each<R>(
        &self,
        mut of: impl FnMut(&str, Method) -> Result<R, CommandError>,
    ) -> Result<(Vec<R>, Vec<Refusal>), CommandError> {
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        let mut first: Option<CommandError> = None;
        for (name, method) in self.methods() {
            match method.map_err(CommandError::from).and_then(|method| of(&name, method)) {
                Ok(one) => found.push(one),
                Err(reason) if self.is_all() => {
                    refused.push(Refusal { method: name, reason: reason.to_string() });
                    first = first.or(Some(reason));
                }
                Err(reason) => return Err(reason),
            }
        }
        match first {
            Some(first) if found.is_empty() => Err(first),
            _ => Ok((found, refused)),
        }
    }
}

/// A method that cannot run, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Refusal {
    pub method: String,
    pub reason: String,
}

impl Refusal {
    /// What is said of all of them below a table.
    pub fn all(refused: &[Self]) -> String {
        let line = |Self { method, reason }: &Self| format!("\n{method} cannot run: {reason}");
        let end = if refused.is_empty() { "" } else { "\n" };
        refused.iter().map(line).collect::<String>() + end
    }
}

/// How many of n entries a method selects among so many workers; a command that is asked for none refuses.
pub fn k(method: &Method, workers: u32, n: usize) -> Result<usize, ChoiceError> {
    match method.sparsity() {
        Sparsity::K(k) if k == 0 || k > n => Err(ChoiceError::K { k, n }),
        // What the choice will be is not known yet.
        sparsity if method.is_auto() => Ok(sparsity.k(n).map_err(MethodError::from)?),
        _ => Ok(method.delivered(workers, n)?),
    }
}
