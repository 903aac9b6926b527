//! What the parts of a file need of each other: chaos, faults, peers and searches.

use serde_json::Value;
use toml::Spanned;

use super::super::case::{AxisValues, Case};
use super::super::chaos;
use super::super::options::{FAULTS, FLOOR, LINK, NO_FAULT, PROGRAM, Workload, plain};
use super::super::search;
use super::{File, Placed, fits_nothing, known_key, pattern, unlike};
use crate::peers::{
    DDP, HOOK_OPTIONS, HOOKS, LINEAR, LINEAR_OPTIONS, MLLIB, MLLIB_OPTIONS, MNIST, MOST_ENTRIES, TORCH_SPARDL,
};

pub fn events(file: &File, cases: &[Case]) -> Result<Vec<chaos::Event>, Placed> {
    let mut events = Vec::new();
    for entry in &file.chaos {
        let refuse = |problem| (entry.span(), problem);
        let pattern = entry.get_ref().cases.as_ref().map(pattern).transpose()?.unwrap_or_default();
        let fewest = cases.iter().filter(|case| pattern.fits(case)).map(Case::workers).min();
        let fewest = fewest.ok_or_else(|| refuse(fits_nothing("chaos")))?;
        let event = entry.get_ref().event(pattern, fewest).map_err(refuse)?;
        if file.network.is_none() && event.act.is_of_network() {
            return Err(refuse("cut, mend and reshape need an emulated network: write a [network]".into()));
        }
        events.push(event);
    }
    Ok(events)
}

/// Each value of the axis of faults needs a `[[chaos]]` whose `cases` have it.
pub fn expect_faults(file: &File, axes: &[AxisValues], chaos: &[chaos::Event]) -> Result<(), Placed> {
    let mut faults = axes.iter().flatten().filter_map(|value| value.get(FAULTS));
    let is_defined = |fault: &&Value| {
        let has =
            |event: &chaos::Event| event.cases.0.get(FAULTS).is_some_and(|values| values.contains(fault));
        **fault == NO_FAULT || chaos.iter().any(has)
    };
    let place = file.matrix.iter().find(|(key, _)| key.get_ref() == FAULTS).map(|(_, value)| value.span());
    let expected =
        "\"none\", or what stands in the 'cases' of a [[chaos]], as in cases = { faults = \"cut\" }";
    match faults.find(|fault| !is_defined(fault)) {
        None => Ok(()),
        Some(fault) => Err((place.unwrap_or_else(|| file.workload.span()), unlike(FAULTS, fault, expected))),
    }
}

/// Other libraries exchange on emulated links, but those of one process, and have no defaults.
pub fn expect_peers(file: &File, cases: &[Case], command: Workload) -> Result<(), Placed> {
    let refuse = |problem: &str| Err((file.workload.span(), problem.to_owned()));
    let is_ddp = |case: &Case| case.method() == DDP;
    for case in cases.iter().filter(|case| case.is_of_peer()) {
        let method = case.method();
        let is_linear = LINEAR.contains(&&*method);
        let problem = if is_ddp(case) {
            lacks_of_ddp(case, command)
        } else if HOOKS.contains(&&*method) {
            lacks_of_hook(case, command)
        } else if MLLIB.contains(&&*method) {
            lacks_of_mllib(case, command)
        } else if is_linear {
            lacks_of_linear(case, command)
        } else {
            lacks_of_all_reduce(case, command)
        };
        match problem {
            Some(problem) => return refuse(problem),
            None if file.network.is_none() && !is_linear => {
                return refuse("other libraries are measured on emulated links: add a [network]");
            }
            None => {}
        }
    }
    let is_of_ddp = |case: &Case| case.0.contains_key("layers") && !case.runs_program();
    match cases.iter().any(is_of_ddp) && !cases.iter().any(is_ddp) {
        true => refuse("'layers' is what the method ddp emulates; leave it out, or add that method"),
        false => Ok(()),
    }
}

/// A floor is that of our own methods, across links of a rate that is said.
pub fn expect_floor(file: &File, cases: &[Case]) -> Result<(), Placed> {
    let lacks = |case: &Case| {
        if case.is_of_peer() {
            return Some("other libraries measure no 'floor'; give it to our methods alone");
        }
        (!case.0.contains_key("bandwidth")).then_some(
            "'floor' needs the rate of all links: write a 'bandwidth' in [network] or in [matrix], or leave 'floor' out",
        )
    };
    let Some(problem) = cases.iter().filter(|case| case.measures_floor()).find_map(lacks) else {
        return Ok(());
    };
    let mut keys = file.workload.get_ref().keys().chain(file.matrix.keys());
    let key = keys.find(|key| key.get_ref() == FLOOR);
    Err((key.map_or_else(|| file.workload.span(), Spanned::span), problem.to_owned()))
}

fn has(case: &Case, names: [&str; 2]) -> bool {
    names.iter().all(|name| case.0.contains_key(*name))
}

fn lacks_of_ddp(case: &Case, command: Workload) -> Option<&'static str> {
    let fits = command == Workload::Train && has(case, ["layers", "steps"]);
    (!fits).then_some(
        "ddp needs command = \"train\", 'steps', and 'layers', a file that gleaner train --layer-times FILE.json wrote",
    )
}

/// The script trains two models, each on one kind of data, by SGD, and knows few options.
fn lacks_of_hook(case: &Case, command: Workload) -> Option<&'static str> {
    let is = |name: &str, value: &str| case.0.get(name).is_some_and(|found| plain(found) == value);
    let from_file = case.0.get("data").is_some_and(|data| plain(data).starts_with(MNIST));
    let is_known = from_file && is("model", "mlp") || is("data", "synthetic") && is("model", "vgg16");
    if command != Workload::Train || !is_known || !has(case, ["steps", "lr"]) {
        return Some(
            "PyTorch's hooks need command = \"train\", data = \"mnist:DIR\" with model = \"mlp\" or data = \"synthetic\" with model = \"vgg16\", \
             'steps' and 'lr'",
        );
    }
    if case.0.contains_key("density") != (case.method() == TORCH_SPARDL) {
        return Some("of PyTorch's hooks, torch-spardl needs a 'density', and no other takes one");
    }
    (!knows_all(case, &HOOK_OPTIONS)).then_some(
        "PyTorch's hooks train by SGD with 'batch', 'lr', 'lr_drops', 'momentum', 'evaluate_every' and 'seed', and know none of the \
         other options that this file sets for them; give these to other methods alone",
    )
}

/// Whether a script of these options has a use for all that the case says, or may leave it alone.
fn knows_all(case: &Case, options: &[&str]) -> bool {
    const OURS: [&str; 9] =
        ["command", "workers", "method", "data", "model", "merge", "timeout", "plain", "seed"];
    case.0.keys().all(|name| [&OURS[..], options, LINK].iter().any(|names| names.contains(&&**name)))
}

/// Whether the case minimises the logistic loss of the samples of a file.
fn is_of_file(case: &Case, command: Workload) -> bool {
    let from_file = |data: &Value| !["url", "webspam"].contains(&&*plain(data));
    command == Workload::Regress && case.0.get("data").is_some_and(from_file)
}

fn lacks_of_mllib(case: &Case, command: Workload) -> Option<&'static str> {
    let needed: &[&str] = if case.method() == "mllib-sgd" { &["epochs", "lr"] } else { &["epochs"] };
    let has_all = needed.iter().all(|name| case.0.contains_key(*name));
    let fits = is_of_file(case, command) && has_all && knows_all(case, &MLLIB_OPTIONS);
    (!fits).then_some(
        "mllib-sgd and mllib-lbfgs need command = \"regress\", a LIBSVM file as 'data', 'epochs' and, the first, 'lr'; they know 'features', \
         'batch' and 'l2', and none of the other options; give these to other methods alone",
    )
}

fn lacks_of_linear(case: &Case, command: Workload) -> Option<&'static str> {
    let has_passes = case.0.get("epochs").and_then(Value::as_u64).is_some_and(|epochs| epochs > 1);
    let fits = is_of_file(case, command) && has_passes && case.workers() == 1;
    (!(fits && knows_all(case, &LINEAR_OPTIONS))).then_some(
        "liblinear and vowpal-wabbit need command = \"regress\", workers = 1, a LIBSVM file as 'data', and 'epochs' of 2 or more, and know none \
         of the other options; give these to other methods alone",
    )
}

fn lacks_of_all_reduce(case: &Case, command: Workload) -> Option<&'static str> {
    if command != Workload::Bench || !has(case, ["steps", "warmup"]) {
        return Some("open-mpi, mpich and gloo need command = \"bench\", 'steps' and 'warmup'");
    }
    let counts = |params: &Value| params.as_u64().is_some_and(|n| (1..=MOST_ENTRIES).contains(&n));
    (!case.0.get("params").is_some_and(counts)).then_some(
        "open-mpi, mpich and gloo need a whole number of 'params' from 1 to 2147483647: MPI counts the entries by 32 bits",
    )
}

/// What stands in braces in the words of a program is a value of the case.
pub fn expect_placeholders(file: &File, cases: &[Case]) -> Result<(), Placed> {
    let Some(name) = cases.iter().find_map(|case| case.program().err()) else { return Ok(()) };
    let key = file.workload.get_ref().keys().find(|key| key.get_ref() == PROGRAM);
    let problem = format!(
        "the program has {{{name}}}, and not every case has a '{name}'; expected a key of [workload], [matrix] or [network] between the braces"
    );
    Err((key.map_or_else(|| file.workload.span(), Spanned::span), problem))
}

pub fn searched(file: &File, cases: &[Case], command: Workload) -> Result<Option<search::Search>, Placed> {
    let is_needed = cases.iter().any(search::is_unknown);
    match &file.search {
        Some(entry) if is_needed => {
            let known = |key: &Spanned<String>| known_key(key, "search", command, command.options());
            search::Search::checked(entry, known).map(Some)
        }
        // Another program may have a ? in what it is given.
        None if !is_needed || command == Workload::Program => Ok(None),
        _ => Err((
            file.search.as_ref().map_or(file.workload.span(), Spanned::span),
            "a ? in an option's text and a [search] need each other, as in selector = \"threshold=?\"".into(),
        )),
    }
}
