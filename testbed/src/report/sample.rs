//! One measurement, reduced to the numbers that figures show.

use std::collections::{BTreeMap, BTreeSet};

use gleaner_algorithms::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::read::Run;
use super::training;
use crate::experiment::{OF_THE_METHOD, PROGRAM, Workload};
use crate::record::{Outcome, Record};
use gleaner_statistics::Spread;
use gleaner_units::{grouped, rate};

/// What distinguishes cases besides the method, by name.
pub type Axes = BTreeMap<String, String>;

/// Axes in the order in which a setting names them; any others follow.
const FIRST: [&str; 5] = ["workers", "params", "model", "density", "bandwidth"];

/// A setting's axes in the order in which they are named.
pub fn in_order(axes: &Axes) -> impl Iterator<Item = (&String, &String)> {
    let mut axes: Vec<(&String, &String)> = axes.iter().collect();
    axes.sort_by_key(|(name, _)| place(name));
    axes.into_iter()
}

/// The place of an axis in that order.
pub fn place(axis: &str) -> usize {
    FIRST.iter().position(|first| *first == axis).unwrap_or(FIRST.len())
}

/// One measurement that came to an end.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Whether it synchronises synthetic gradients, trains, or trains a linear model, by our command or by a peer.
    pub workload: Workload,
    /// Which run it is of, from 0.
    pub run: usize,
    /// Its place among the run's records, from 0.
    pub record: usize,
    pub turn: u32,
    /// The seed, where there is one.
    pub seed: Option<String>,
    /// Whether something was done on purpose while it ran.
    pub disturbed: bool,
    /// The method alone.
    pub method: String,
    /// The method with what distinguishes several of its name.
    pub label: String,
    /// The names of its options, where it states them.
    pub options: Vec<String>,
    /// What surrounds it: workers, parameters, rate and whatever else the experiment varied.
    pub axes: Axes,
    /// What belongs to the method and was taken out of these, whether its label names it or not.
    pub of_method: Axes,
    /// A step, in seconds: the median over the steps with quartiles. In training the mean, with evaluations. Of a regression an epoch.
    pub seconds: Option<Spread>,
    /// Of a step on the slowest rank, in seconds: select, exchange, merge; or, in training, forward, backward and what is exposed of the
    /// exchange; or, of an epoch of a regression, computing and communication.
    pub parts: Option<[f64; 3]>,
    /// What these are parts of, in seconds.
    pub whole: Option<f64>,
    /// What the worker that receives most receives in a step, or in an epoch of a regression, in bytes, by the method's own count.
    pub bytes: Option<f64>,
    /// The same on its interface, with the headers of all layers.
    pub interface_bytes: Option<f64>,
    /// Entries of an update that are not zero, as a share of all.
    pub delivered: Option<f64>,
    /// The density that was asked for.
    pub asked: Option<f64>,
    /// Evaluations while training, in order.
    pub evaluations: Vec<Evaluation>,
    /// Of a training under a synchrony that the experiment names, by the names of their figures.
    pub metrics: BTreeMap<&'static str, f64>,
}

/// An evaluation on held-out data, as a training prints it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Evaluation {
    pub step: u64,
    /// After how many seconds of training.
    pub seconds: f64,
    /// Entries of all updates by then; of a sample as a share of an update with all.
    pub entries: Option<f64>,
    #[serde(rename = "held_out_loss")]
    pub loss: f64,
    /// The share of examples that were classified correctly.
    #[serde(rename = "held_out_accuracy")]
    pub accuracy: Option<f64>,
    /// The loss of the batches since the evaluation before.
    pub training_loss: Option<f64>,
    /// What a worker had received by then, in bytes.
    #[serde(rename = "bytes_received")]
    pub bytes: Option<f64>,
}

/// The measurements of all runs that came to an end, without those of which something was planned that did not happen.
pub fn samples(runs: &[Run]) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    for (run, of_run) in runs.iter().enumerate() {
        let mut jobs: BTreeMap<(u64, &[String]), usize> = BTreeMap::new();
        for record in &of_run.records {
            *jobs.entry(job(record)).or_default() += 1;
        }
        for (place, record) in
            of_run.records.iter().enumerate().filter(|(_, r)| r.unlike_its_case().is_none())
        {
            if let Outcome::Done(Value::Object(object)) = &record.outcome {
                let mut sample = sample(run, place, record, object);
                if record.case.get("command").is_some_and(|command| command == "regress") {
                    of_epochs(&mut sample, object);
                }
                // What crossed the interface belongs to all methods of a job together.
                sample.interface_bytes.take_if(|_| jobs[&job(record)] > 1);
                samples.push(sample);
            }
        }
    }
    tell_runs_apart(&mut samples, runs);
    label(&mut samples);
    samples
}

/// What distinguishes jobs: when they began, and what was run.
fn job(record: &Record) -> (u64, &[String]) {
    (record.started.to_bits(), &record.command)
}

fn sample(run: usize, place: usize, record: &Record, object: &Map<String, Value>) -> Sample {
    let number = |name: &str| object.get(name).and_then(Value::as_f64).filter(|n| n.is_finite());
    let case = |name: &str| record.case.get(name).map(text);
    let training = case("command").map_or(object.contains_key("held_out_loss"), |command| command == "train");
    let params = number("params").filter(|n| *n > 0.0);
    let steps = number("steps").filter(|s| *s > 0.0);
    let seconds = if training { training_step(&number) } else { exchange_step(object, &number) };
    let names = if training {
        ["seconds_forward", "seconds_backward", "seconds_exposed"]
    } else {
        ["slowest_select", "slowest_exchange", "slowest_merge"]
    };
    let whole = if training { number("seconds_iteration") } else { seconds.map(|spread| spread.value) };
    let evaluations = object.get("evaluations").and_then(Value::as_array).into_iter().flatten();
    let shared = |one: Evaluation| Evaluation { entries: one.entries.zip(params).map(|(e, n)| e / n), ..one };
    let options = object.get("options").and_then(Value::as_object);
    Sample {
        workload: if training { Workload::Train } else { Workload::Bench },
        run,
        record: place,
        turn: record.turn,
        seed: case("seed"),
        disturbed: !record.chaos.is_empty(),
        method: case("method")
            .or(object.get("method").map(text))
            .or(case(PROGRAM))
            .unwrap_or_else(|| "?".into()),
        label: String::new(),
        options: options.into_iter().flat_map(Map::keys).cloned().collect(),
        axes: axes(record, object),
        of_method: Axes::new(),
        seconds,
        parts: if let [Some(a), Some(b), Some(c)] = names.map(number) { Some([a, b, c]) } else { None },
        whole,
        bytes: number("bytes_per_step"),
        interface_bytes: interface_bytes(record, steps, training),
        delivered: params.and_then(|n| Some(number("entries_per_step")? / n)),
        asked: asked(record, params, &number),
        metrics: case("synchrony").map(|_| training::numbers(&number)).unwrap_or_default(),
        evaluations: evaluations.filter_map(|one| Evaluation::deserialize(one).ok().map(shared)).collect(),
    }
}

/// Fills in what a regression reports of its epochs.
fn of_epochs(sample: &mut Sample, object: &Map<String, Value>) {
    let epochs = object.get("epochs").and_then(Value::as_array).into_iter().flatten();
    let all = |name: &str| -> Vec<f64> {
        epochs.clone().filter_map(|epoch| epoch.get(name).and_then(Value::as_f64)).collect()
    };
    let mean = |name: &str| Some(Spread::mean(&all(name))?.value);
    sample.workload = Workload::Regress;
    sample.seconds = Spread::quartiles(&all("seconds"));
    let parts = mean("seconds").zip(mean("seconds_communication"));
    sample.parts = parts.map(|(whole, communication)| [whole - communication, communication, 0.0]);
    sample.bytes = mean("bytes_received");
    sample.interface_bytes = None;
}

/// The density in the case, unless the method is dense: an experiment may name a density for all its methods.
fn asked(record: &Record, params: Option<f64>, number: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
    let share = params.and_then(|n| Some(number("k")? / n));
    let named = record.case.get("density").and_then(Value::as_f64);
    share.filter(|share| *share == 1.0).or(named).or(share).or(number("density"))
}

/// Quartiles over the steps where all of them are there, or as they were computed while measuring.
fn exchange_step(object: &Map<String, Value>, number: &dyn Fn(&str) -> Option<f64>) -> Option<Spread> {
    let value = number("seconds")?;
    let steps = object.get("seconds_steps").and_then(Value::as_array).into_iter().flatten();
    let of_steps = Spread::quartiles(&steps.filter_map(Value::as_f64).collect::<Vec<_>>());
    match (number("seconds_p25"), number("seconds_p75"), of_steps) {
        (Some(low), Some(high), _) => Some(Spread { value, low, high }),
        (_, _, Some(spread)) => Some(Spread { value, ..spread }),
        _ => Some(Spread::exact(value)),
    }
}

fn training_step(number: &dyn Fn(&str) -> Option<f64>) -> Option<Spread> {
    let steps = number("steps")? - number("first_step").unwrap_or(0.0);
    let seconds = number("seconds_run")?;
    (steps > 0.0).then(|| Spread::exact(seconds / steps))
}

/// What the busiest interface received, over all steps that were made, those of the warm-up included. None where the
/// warm-up is not known: the division would be wrong.
fn interface_bytes(record: &Record, steps: Option<f64>, training: bool) -> Option<f64> {
    let received = record.traffic.iter().map(|t| t.received).max()?;
    let warm_up = if training { Some(0) } else { record.warm_up() };
    Some(received as f64 / (steps? + f64::from(warm_up?)))
}

fn axes(record: &Record, object: &Map<String, Value>) -> Axes {
    let is_named = record.case.contains_key("method") || object.contains_key("method");
    let is_axis = |(name, _): &(&String, &Value)| match name.as_str() {
        "command" | "method" | "seed" => false,
        // Without a method it stands for one.
        PROGRAM => is_named,
        _ => true,
    };
    let named = record.case.iter().filter(is_axis);
    let mut axes: Axes = named.map(|(name, value)| (name.clone(), text(value))).collect();
    let model = axes.contains_key("model");
    for name in ["workers", "params"] {
        if let Some(value) = object.get(name).filter(|_| name != "params" || !model) {
            axes.entry(name.into()).or_insert_with(|| text(value));
        }
    }
    if let Some(Ok(rate)) = axes.get("bandwidth").map(|r| rate(r)) {
        axes.insert("bandwidth".into(), rate.to_string());
    }
    // When something was done to it on purpose, a measurement is not mixed with the others.
    if !record.chaos.is_empty() && !axes.contains_key("faults") {
        axes.entry("chaos".into()).or_insert_with(|| "yes".into());
    }
    axes
}

/// A value as a person would write it.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(whole) if whole >= 10_000 => grouped(whole),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// Where several runs measured the same case, the run becomes an axis. Runs with seeds of their own go together.
fn tell_runs_apart(samples: &mut [Sample], runs: &[Run]) {
    type Case = (Workload, String, Axes);
    let mut seen: BTreeMap<Case, BTreeMap<Option<String>, BTreeSet<usize>>> = BTreeMap::new();
    let case = |s: &Sample| (s.workload, s.method.clone(), s.axes.clone());
    for sample in samples.iter() {
        let seeds = seen.entry(case(sample)).or_default();
        seeds.entry(sample.seed.clone()).or_default().insert(sample.run);
    }
    for sample in samples {
        let seeds = &seen[&case(sample)];
        if seeds.values().any(|runs| runs.len() > 1) {
            sample.axes.insert("run".into(), runs[sample.run].name.clone());
        }
    }
}

/// All axes that belong to a method rather than to what surrounds it: options of listed methods, as they state them, those that
/// measurements state, and others.
fn of_the_method(samples: &[Sample]) -> Vec<String> {
    let listed = Method::all().flat_map(|method| method.collective().options());
    let stated = samples.iter().flat_map(|sample| &sample.options);
    let options = listed.map(|option| option.name.to_owned()).chain(stated.cloned());
    let mut names = Vec::new();
    let others = ["values selector residual", OF_THE_METHOD, "plain faults chaos run"];
    let others = others.iter().flat_map(|words| words.split(' ')).map(str::to_owned);
    for name in options.chain(others) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Puts the axes of the method behind its name where they distinguish several of that name, and out of what surrounds it.
fn label(samples: &mut [Sample]) {
    let of_the_method = of_the_method(samples);
    let mut values: BTreeMap<(String, &str), BTreeSet<Option<String>>> = BTreeMap::new();
    for sample in samples.iter() {
        for axis in &of_the_method {
            values
                .entry((sample.method.clone(), axis.as_str()))
                .or_default()
                .insert(sample.axes.get(axis).cloned());
        }
    }
    for sample in samples {
        sample.label = sample.method.clone();
        for axis in &of_the_method {
            // An option that is false is not given.
            let Some(value) = sample.axes.remove(axis).filter(|value| value != "false") else { continue };
            if values.get(&(sample.method.clone(), axis.as_str())).is_some_and(|among| among.len() > 1) {
                sample.label += &match (axis.as_str(), value.as_str()) {
                    (_, "true") => format!(", {axis}"),
                    ("chaos", "yes") => ", with chaos".into(),
                    ("run", _) => format!(", {value}"),
                    _ => format!(", {axis} {value}"),
                };
            }
            sample.of_method.insert(axis.clone(), value);
        }
    }
}
