//! Steps that were measured: what an experiment stored, or `gleaner bench --json` printed.

use std::collections::BTreeMap;
use std::path::Path;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::MethodError;
use gleaner_statistics::median;
use serde_json::Value;

use super::Steps;
use crate::Error;
use crate::record::{Outcome, Record, Unread, lines};
use crate::topology::Shape;

/// The median step of a method in one job, or over the turns of an experiment.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The method's name, with its first option if that is set.
    pub label: String,
    /// The method.
    pub method: Method,
    /// Workers.
    pub workers: u32,
    /// Entries of the gradient.
    pub n: usize,
    /// What each link did in each direction, if it was stored.
    pub shape: Option<Shape>,
    /// Cores that all workers shared, if it was stored.
    pub cores: Option<u32>,
    /// The steps whose median this is, and those before them.
    pub steps: Steps,
    /// Seconds of a step on the slowest worker: the median of what the `turns` say.
    pub seconds: f64,
    /// The same by turn.
    pub turns: Vec<f64>,
    /// Of them, accumulating, choosing and preparing messages.
    pub select: f64,
    /// Of them, taking entries in and committing.
    pub merge: f64,
    /// Bytes that the busiest worker received.
    pub bytes_received: f64,
    /// What an experiment stored of it, a record for each turn; none of what `gleaner bench` printed.
    pub records: Vec<Record>,
}

impl Measured {
    /// Its records, each with the prediction as the number `predicted_seconds` of its outcome, and the commit that predicts.
    pub fn predicted(&self, seconds: f64, commit: Option<&str>) -> impl Iterator<Item = Record> {
        self.records.iter().cloned().map(move |mut record| {
            record.predicted_commit = commit.map(str::to_owned);
            if let Outcome::Done(Value::Object(summary)) = &mut record.outcome {
                summary.insert("predicted_seconds".into(), seconds.into());
            }
            record
        })
    }
}

/// What was measured, by the names of the axes.
type Case = BTreeMap<String, Value>;

/// All steps of `gleaner bench` in a file, without those in which a network or a worker was disturbed on purpose,
/// and those on a topology of their own. The turns of an experiment's case are one.
///
/// # Errors
/// A file that cannot be read or has no such steps, and lines that are no measurements.
pub fn read(path: &Path) -> Result<Vec<Measured>, Error> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|source| format!("{shown} cannot be read: {source}"))?;
    let mut found: Vec<(Option<Case>, Vec<Measured>)> = Vec::new();
    for line in lines(&bytes) {
        let refused = |reason: String| {
            let expected = "expected what gleaner testbed run stores, or what gleaner bench --json prints";
            format!("line {} of {shown} is no measurement: {reason}; {expected}", line.number)
        };
        let (case, all) = match line.record {
            Ok(record) => {
                let measured = of_record(&record).map_err(refused)?;
                (Some(record.case), measured.into_iter().collect())
            }
            Err(newer @ Unread::Newer(_)) => return Err(refused(newer.to_string()).into()),
            // A launcher puts the rank before each line that a worker prints.
            Err(_) => match line.bytes.iter().position(|byte| *byte == b'{') {
                Some(start) => (None, of_bench(&line.bytes[start..]).map_err(refused)?),
                None => continue,
            },
        };
        for measured in all {
            match found.iter_mut().find(|(other, _)| case.is_some() && *other == case) {
                Some((_, turns)) => turns.push(measured),
                None => found.push((case.clone(), vec![measured])),
            }
        }
    }
    let found: Vec<Measured> = found.into_iter().filter_map(|(_, turns)| over_turns(turns)).collect();
    if found.is_empty() {
        return Err(format!(
            "{shown} has no step of `gleaner bench` that is simulated: on emulated links that are alike, without chaos, jitter, or \
             another collection of residuals"
        )
        .into());
    }
    Ok(found)
}

/// The median of every number that is measured.
fn over_turns(turns: Vec<Measured>) -> Option<Measured> {
    let median = |number: fn(&Measured) -> f64| median(turns.iter().map(number));
    Some(Measured {
        seconds: median(|turn| turn.seconds),
        turns: turns.iter().map(|turn| turn.seconds).collect(),
        select: median(|turn| turn.select),
        merge: median(|turn| turn.merge),
        bytes_received: median(|turn| turn.bytes_received),
        records: turns.iter().flat_map(|turn| turn.records.clone()).collect(),
        ..turns.first()?.clone()
    })
}

/// What `gleaner bench --json` printed: an object with one method, or with several.
fn of_bench(line: &[u8]) -> Result<Vec<Measured>, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let methods = match value.get("methods") {
        Some(Value::Array(methods)) => methods.clone(),
        _ => vec![value],
    };
    methods.iter().map(|summary| of_summary(summary, None, None)).collect()
}

fn of_record(record: &Record) -> Result<Option<Measured>, String> {
    let is_bench = record.case.get("command").is_none_or(|command| command == "bench");
    let Outcome::Done(summary) = &record.outcome else { return Ok(None) };
    if !is_bench || !record.chaos.is_empty() || record.unlike_its_case().is_some() {
        return Ok(None);
    }
    // Predicted are emulated links that are alike and do not vary, and methods with all their options but these. Earlier measurements call a
    // link's latency just that, which nothing reads.
    let unlike = ["topology", "jitter", "residual", "latency"];
    if record.traffic.is_empty() || unlike.iter().any(|key| record.case.contains_key(*key)) {
        return Ok(None);
    }
    let text = |name: &str| record.case.get(name).and_then(Value::as_str);
    let shape = Shape::default().with(text)?;
    let mut measured = of_summary(summary, Some(shape), Some(record.machine.cores))?;
    measured.records.push(record.clone());
    measured.steps.warm_up = record.warm_up().unwrap_or(measured.steps.warm_up);
    if let Some(coding) = text("values") {
        measured.method = measured.method.coding(coding.parse().map_err(|error| format!("{error}"))?);
    }
    if let Some(selector) = text("selector") {
        measured.method = measured.method.selector(selector.parse().map_err(|error| format!("{error}"))?);
    }
    Ok(Some(measured))
}

fn of_summary(summary: &Value, shape: Option<Shape>, cores: Option<u32>) -> Result<Measured, String> {
    let number = |name: &str| {
        summary.get(name).and_then(Value::as_f64).ok_or_else(|| format!("it has no number '{name}'"))
    };
    let label = summary.get("method").and_then(Value::as_str).ok_or("it has no 'method'")?;
    let n = number("params")? as usize;
    let mut method = named(label, number("k")? as usize, n).map_err(|error| error.to_string())?;
    for (option, value) in summary.get("options").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| format!("its option '{option}' is no text"))?;
        method = method.with(option, value).map_err(|error| error.to_string())?;
    }
    let seconds = number("seconds")?;
    let counted = number("steps")? as u32;
    if counted == 0 {
        return Err("it has no steps".into());
    }
    Ok(Measured {
        label: label.to_owned(),
        method,
        workers: number("workers")? as u32,
        n,
        shape,
        cores,
        steps: Steps { counted, ..Steps::default() },
        seconds,
        turns: vec![seconds],
        select: number("slowest_select")?,
        merge: number("slowest_merge")?,
        bytes_received: number("bytes_per_step")?,
        records: Vec::new(),
    })
}

/// A method by its label, such as spardl/3.
fn named(label: &str, k: usize, n: usize) -> Result<Method, MethodError> {
    let method = Method::named(label)?;
    // By its density, so that a sample of the gradient has the same.
    Ok(if method.collective().is_sparse() { method.density(k as f64 / n.max(1) as f64) } else { method })
}
