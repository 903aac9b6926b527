//! Reading an experiment's file.

mod checks;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gleaner_runtime::{Preference, Sockets};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toml::Spanned;

use super::case::{self, AxisValues, Case, Pattern};
use super::chaos;
use super::options::{FAULTS, FLOOR, LINK, PROGRAM, Workload, plain};
use super::{Experiment, Wanted, search};
use crate::Error;
use crate::record::SEED;
use crate::topology::Shape;
use gleaner_units as units;

/// Keys and values with their places.
pub(super) type Keys = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

/// More is a slip of the finger.
const MOST_WORKERS: i64 = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    description: String,
    turns: Option<Spanned<u32>>,
    limit: Option<Spanned<String>>,
    together: Option<Spanned<bool>>,
    network: Option<Spanned<Network>>,
    workload: Spanned<Keys>,
    #[serde(default)]
    matrix: Keys,
    #[serde(default)]
    exclude: Vec<Spanned<Keys>>,
    #[serde(default)]
    only: Vec<Spanned<Keys>>,
    #[serde(default)]
    chaos: Vec<Spanned<chaos::Entry>>,
    search: Option<Spanned<search::Search<Keys>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    hosts: Option<u32>,
    topology: Option<PathBuf>,
    bandwidth: Option<String>,
    link_latency: Option<String>,
    jitter: Option<String>,
    loss: Option<String>,
    congestion: Option<String>,
}

/// What cannot be, in a sentence, and where it stands.
pub(super) type Placed = (Range<usize>, String);

impl Experiment {
    /// Reads an experiment from a file.
    ///
    /// # Errors
    /// A file that cannot be read or says something that cannot be: named with the line, the key, and what was expected.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read = |file: &Path| {
            fs::read_to_string(file).map_err(|source| {
                let advice = "name a file like experiments/first.toml";
                format!("the experiment {} cannot be read: {source}; {advice}", file.display())
            })
        };
        let text = read(path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file: File = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut experiment = checked(&name, &text, file).map_err(|(place, problem)| {
            let before = &text.as_bytes()[..place.start.min(text.len())];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            format!("{}, line {line}: {problem}", path.display())
        })?;
        if let Wanted::Topology(file) = &mut experiment.network {
            // Beside the experiment's file, wherever the command is run.
            *file = path.parent().unwrap_or(Path::new("")).join(&*file);
            experiment.texts.push(("topology.toml".into(), read(file)?));
        }
        Ok(experiment)
    }
}

/// The experiment of a file with this text.
fn checked(name: &str, text: &str, file: File) -> Result<Experiment, Placed> {
    let command = command(&file.workload)?;
    let network = file.network.as_ref().map(Spanned::get_ref);
    let topology = network.and_then(|network| network.topology.clone());

    let mut fixed = fixed(&file, command)?;
    let axes = axes(&file, command, topology.is_some(), &fixed)?;
    let whole = file.workload.span();
    fixed.0.insert("command".to_owned(), json!(command));
    need(&mut fixed, &axes, network, command).map_err(|problem| (whole.clone(), problem))?;

    let mut cases = case::product(&fixed, &axes);
    for (section, patterns, keep) in [("only", &file.only, true), ("exclude", &file.exclude, false)] {
        let mut fits = Vec::new();
        for keys in patterns {
            let pattern = pattern(keys.get_ref())?;
            if !cases.iter().any(|case| pattern.fits(case)) {
                return Err((keys.span(), fits_nothing(section)));
            }
            fits.push(pattern);
        }
        cases.retain(|case| fits.is_empty() || fits.iter().any(|pattern| pattern.fits(case)) == keep);
    }
    let Some(most) = cases.iter().map(Case::hosts).max() else {
        return Err((whole, "no case is left; loosen [[exclude]] and [[only]]".to_owned()));
    };
    let place = file.network.as_ref().map_or(whole, Spanned::span);
    let wanted = match (network, topology) {
        (None, _) => Wanted::Loopback,
        (Some(_), Some(file)) => Wanted::Topology(file),
        (Some(network), None) => Wanted::Uniform(network.hosts.unwrap_or(most)),
    };
    if let Wanted::Uniform(hosts) = wanted
        && hosts < most
    {
        let advice = "raise 'hosts' or leave it out";
        let problem = format!("{most} workers need {most} hosts, and the network has {hosts}; {advice}");
        return Err((place, problem));
    }
    let chaos = checks::events(&file, &cases)?;
    checks::expect_faults(&file, &axes, &chaos)?;
    checks::expect_peers(&file, &cases, command)?;
    checks::expect_floor(&file, &cases)?;
    checks::expect_placeholders(&file, &cases)?;
    let search = checks::searched(&file, &cases, command)?;
    let together = file.together.as_ref().map_or(command == Workload::Bench, |together| *together.get_ref());
    if let Some(asked) = file.together.as_ref().filter(|_| together && command != Workload::Bench) {
        let problem = "only methods of 'bench' take turns in one job; leave 'together' out";
        return Err((asked.span(), problem.to_owned()));
    }
    let turns = file.turns.as_ref().map_or(3, |turns| *turns.get_ref());
    if let Some(asked) = file.turns.as_ref().filter(|_| turns == 0) {
        return Err((asked.span(), "'turns' is 0; expected a whole number from 1 on".to_owned()));
    }
    let limit = file.limit.as_ref().map(|limit| {
        units::limit(limit.get_ref()).map_err(|error| (limit.span(), format!("'limit': {error}")))
    });
    let jobs =
        if together { case::together(&cases) } else { cases.into_iter().map(|case| vec![case]).collect() };
    for (entry, event) in file.chaos.iter().zip(&chaos) {
        let fits = |case: &Case| event.cases.fits(case);
        if jobs.iter().any(|job| job.iter().any(fits) && !job.iter().all(fits)) {
            let problem = "its 'cases' are some methods of a job only, and what is done to a job is done to all of them; \
                           write together = false at the top";
            return Err((entry.span(), problem.to_owned()));
        }
    }
    Ok(Experiment {
        name: name.to_owned(),
        title: file.title,
        description: file.description,
        turns,
        limit: limit.transpose()?,
        network: wanted,
        jobs,
        search,
        chaos,
        texts: vec![("experiment.toml".into(), text.to_owned())],
    })
}

fn command(workload: &Spanned<Keys>) -> Result<Workload, Placed> {
    const EXPECTED: &str = "\"bench\", \"train\" or \"regress\", or a 'program' instead";
    let find = |name: &str| workload.get_ref().iter().find(|(key, _)| key.get_ref() == name);
    match (find("command"), find(PROGRAM)) {
        (None, None) => {
            let advice =
                "write command = \"bench\", command = \"train\" or command = \"regress\", or a 'program'";
            Err((workload.span(), lacking("command", advice)))
        }
        (None, Some(_)) => Ok(Workload::Program),
        (Some(_), Some((key, _))) => {
            Err((key.span(), "'command' and 'program' both say what is run; keep one of them".into()))
        }
        (Some((key, value)), None) => {
            let refuse = || (key.span(), unlike("command", value.get_ref(), EXPECTED));
            let command = value.get_ref().clone().try_into().map_err(|_| refuse())?;
            if command == Workload::Program { Err(refuse()) } else { Ok(command) }
        }
    }
}

/// What is said of a key of the workload that has to be there.
fn lacking(key: &str, advice: &str) -> String {
    format!("[workload] lacks '{key}': {advice}")
}

/// What is said of a value of another kind.
fn unlike(key: &str, found: impl Display, expected: &str) -> String {
    format!("'{key}' is {found}; expected {expected}")
}

/// What is said of a pattern.
fn fits_nothing(section: &str) -> String {
    let advice = "its keys are axes or fixed options, and its values stand there";
    format!("this [[{section}]] fits no case of the matrix; {advice}")
}

/// What is the same in all cases.
fn fixed(file: &File, command: Workload) -> Result<Case, Placed> {
    let mut fixed = Case::default();
    for (key, value) in file.workload.get_ref().iter().filter(|(key, _)| key.get_ref() != "command") {
        let known = command.options().chain(["command", "workers"]);
        known_key(key, "workload", command, known)?;
        let value = scalar(key.get_ref(), value.get_ref()).map_err(|problem| (value.span(), problem))?;
        fixed.0.insert(key.get_ref().clone(), value);
    }
    let Some(network) = &file.network else { return Ok(fixed) };
    let Network { hosts, topology, .. } = network.get_ref();
    let said = json!(network.get_ref());
    for (key, value) in LINK.iter().filter_map(|key| Some((*key, said[*key].as_str()?))) {
        check_link(key, value).map_err(|problem| (network.span(), problem))?;
        fixed.0.insert(key.to_owned(), value.into());
    }
    if let Some(file) = topology {
        fixed.0.insert("topology".to_owned(), file.display().to_string().into());
    }
    if topology.is_some() && (hosts.is_some() || LINK.iter().any(|key| fixed.0.contains_key(*key))) {
        let problem = "a topology says what hosts and links there are; leave the other keys of [network] out";
        return Err((network.span(), problem.to_owned()));
    }
    Ok(fixed)
}

/// The axes in the order in which they stand in the file.
fn axes(file: &File, command: Workload, topology: bool, fixed: &Case) -> Result<Vec<AxisValues>, Placed> {
    let mut keys: Vec<_> = file.matrix.iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    let links = if file.network.is_some() && !topology { LINK } else { &[] };
    let known = command.options().chain(links.iter().copied()).chain(["workers", FAULTS]);
    let mut axes: Vec<AxisValues> = Vec::new();
    for (key, value) in keys {
        let name = key.get_ref();
        let refuse = |problem| (value.span(), problem);
        let fresh = |name: &str, axes: &[AxisValues]| {
            let first = match fixed.0.contains_key(name) {
                true if LINK.contains(&name) => "network",
                true => "workload",
                false if axes.iter().flatten().any(|value| value.contains_key(name)) => "matrix",
                false => return Ok(()),
            };
            Err(refuse(format!("'{name}' stands in [{first}] and in [matrix]; keep one of them")))
        };
        let values = if is_of_tables(value.get_ref()) {
            tables(key, value, command, known.clone(), |name| fresh(name, &axes))?
        } else {
            known_key(key, "matrix", command, known.clone())?;
            fresh(name, &axes)?;
            case::axis(name, list(name, value.get_ref()).map_err(refuse)?)
        };
        let repeated = values.iter().enumerate().any(|(i, value)| values[..i].contains(value));
        if values.is_empty() || repeated {
            return Err(refuse(unlike(name, value.get_ref(), "a list of different values")));
        }
        axes.push(values);
    }
    Ok(axes)
}

fn is_of_tables(value: &toml::Value) -> bool {
    value.as_array().is_some_and(|values| values.iter().any(toml::Value::is_table))
}

/// The values of an axis of tables, each of which sets several options at once: one for each combination of what its lists have.
fn tables(
    key: &Spanned<String>,
    value: &Spanned<toml::Value>,
    command: Workload,
    known: impl Iterator<Item = &'static str> + Clone,
    fresh: impl Fn(&str) -> Result<(), Placed>,
) -> Result<AxisValues, Placed> {
    let refuse = |problem| (value.span(), problem);
    let expects = |expected| refuse(unlike(key.get_ref(), value.get_ref(), expected));
    if known.clone().any(|name| name == key.get_ref()) {
        return Err(expects(
            "values of this option; tables that set several options make an axis of another name",
        ));
    }
    let mut values = Vec::new();
    for table in value.get_ref().as_array().into_iter().flatten() {
        let toml::Value::Table(table) = table else { return Err(expects("tables only")) };
        let mut options = Vec::new();
        for (option, value) in table {
            known_key(&Spanned::new(key.span(), option.clone()), "matrix", command, known.clone())?;
            fresh(option)?;
            options.push(case::axis(option, several(option, value).map_err(refuse)?));
        }
        values.extend(case::product(&Case::default(), &options).into_iter().map(|case| case.0));
    }
    Ok(values)
}

/// What every case needs, filled in where it follows from the rest.
fn need(
    fixed: &mut Case,
    axes: &[AxisValues],
    network: Option<&Network>,
    command: Workload,
) -> Result<(), String> {
    let always_set = |key: &str| axes.iter().any(|axis| axis.iter().all(|value| value.contains_key(key)));
    let lacks = |fixed: &Case, key: &str| !fixed.0.contains_key(key) && !always_set(key);
    if lacks(fixed, "workers") {
        let hosts = network.and_then(|network| network.hosts);
        if let Some(hosts) = hosts.filter(|hosts| !(1..=MOST_WORKERS).contains(&i64::from(*hosts))) {
            return Err(unlike("hosts", hosts, "a whole number from 1 to 1024"));
        }
        let advice = "write workers = 4, or an axis of that name in [matrix]";
        let hosts = hosts.ok_or_else(|| lacking("workers", advice))?;
        fixed.0.insert("workers".to_owned(), hosts.into());
    }
    if command == Workload::Bench && lacks(fixed, "params") {
        return Err(lacking("params", "write params = 100_000, or an axis of that name in [matrix]"));
    }
    if command == Workload::Program {
        return Ok(());
    }
    if lacks(fixed, "method") {
        let method = if command == Workload::Regress { "ssar-split-all-gather" } else { "spardl" };
        fixed.0.insert("method".to_owned(), method.into());
    }
    if lacks(fixed, "seed") {
        fixed.0.insert("seed".to_owned(), SEED.into());
    }
    Ok(())
}

/// Refuses what is no option of a command of ours. Which options another program has is not known, but what an experiment has itself is none of them.
fn known_key(
    key: &Spanned<String>,
    section: &str,
    command: Workload,
    known: impl Iterator<Item = &'static str> + Clone,
) -> Result<(), Placed> {
    let name = key.get_ref();
    let place = match name.as_str() {
        "command" => Some("in [workload], and no 'program' beside it"),
        "topology" => Some("in [network]"),
        FAULTS => Some("as an axis of [matrix]"),
        of_links if LINK.contains(&of_links) => Some("in [network], or in [matrix] beside a [network]"),
        _ => None,
    };
    let is_option = command == Workload::Program && place.is_none();
    if is_option || known.clone().any(|known| known == name) {
        return Ok(());
    }
    if let (Workload::Program, Some(place)) = (command, place) {
        return Err((key.span(), format!("'{name}' is no option of a program; expected it {place}")));
    }
    let known = known.collect::<Vec<_>>().join(", ");
    Err((key.span(), format!("'{name}' is not known in [{section}]; expected one of {known}")))
}

/// A pattern's keys: each with one value or a list of them.
fn pattern(keys: &Keys) -> Result<Pattern, Placed> {
    let mut pattern = Pattern::default();
    for (key, value) in keys {
        let values = several(key.get_ref(), value.get_ref()).map_err(|problem| (value.span(), problem))?;
        pattern.0.insert(key.get_ref().clone(), values);
    }
    Ok(pattern)
}

/// One value or a list of them.
fn several(key: &str, value: &toml::Value) -> Result<Vec<Value>, String> {
    match value {
        toml::Value::Array(_) => list(key, value),
        one => scalar(key, one).map(|value| vec![value]),
    }
}

fn list(key: &str, value: &toml::Value) -> Result<Vec<Value>, String> {
    let values = value.as_array().ok_or_else(|| unlike(key, value, "a list, such as [1, 2]"))?;
    values.iter().map(|value| scalar(key, value)).collect()
}

/// One value, as it is stored, if it can be one of that key.
pub(super) fn scalar(key: &str, value: &toml::Value) -> Result<Value, String> {
    let refuse = |expected: &str| unlike(key, value, expected);
    let stored = match value {
        toml::Value::String(text) => text.clone().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) if number.is_finite() => (*number).into(),
        toml::Value::Boolean(truth) => (*truth).into(),
        _ => return Err(refuse("a text, a number, true or false")),
    };
    let expected = match (key, value) {
        ("workers", toml::Value::Integer(1..=MOST_WORKERS)) => return Ok(stored),
        ("workers", _) => "a whole number from 1 to 1024",
        ("servers", toml::Value::Integer(0..=MOST_WORKERS)) => return Ok(stored),
        ("servers", _) => "a whole number from 0 to 1024",
        ("sockets", _) => return plain(&stored).parse::<Sockets>().map(|_| stored).map_err(refuse),
        ("transport", _) => return plain(&stored).parse::<Preference>().map(|_| stored).map_err(refuse),
        ("colocate" | "plain" | FLOOR, toml::Value::Boolean(_)) | (FAULTS, toml::Value::String(_)) => {
            return Ok(stored);
        }
        ("colocate" | "plain" | FLOOR, _) => "true or false",
        (PROGRAM, toml::Value::String(words))
            if shlex::split(words).is_some_and(|words| !words.is_empty()) =>
        {
            return Ok(stored);
        }
        (PROGRAM, _) => "a program and its arguments, quoted as in a shell",
        (FAULTS, _) => "a text, such as \"none\" or \"cut\"",
        ("method", toml::Value::String(name)) if name != "all" && !name.contains(',') => return Ok(stored),
        ("method", _) => {
            "the name of one method; several make an axis, as in method = [\"spardl\", \"ring\"]"
        }
        (_, toml::Value::String(text)) if LINK.contains(&key) => {
            return check_link(key, text).map(|()| stored);
        }
        _ if LINK.contains(&key) => "a text with a unit, such as \"1gbit\", \"50us\" or \"0.1%\", or a name",
        _ => return Ok(stored),
    };
    Err(refuse(expected))
}

/// Refuses a text that is not what a property of a link is written as. Of the congestion control, the kernel knows which there are.
pub(super) fn check_link(key: &str, text: &str) -> Result<(), String> {
    let shape = Shape::default().with(|property| (property == key).then_some(text));
    shape.map(drop).map_err(|error| format!("'{key}': {error}"))
}

#[cfg(test)]
mod tests;
