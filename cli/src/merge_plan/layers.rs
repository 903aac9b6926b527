//! Layers with their sizes and times: of a model that is known, or from a file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use gleaner_algorithms::merging::{Layer, MODELS, ModelTensors, Pass};
use gleaner_units as units;
use serde::{Deserialize, Serialize};

use crate::report::{self, CommandError};

/// The names of models that `--model` takes.
pub fn known() -> PossibleValuesParser {
    PossibleValuesParser::new(MODELS.each_ref().map(|model| model.name))
}

pub fn model(name: &str) -> Option<&'static ModelTensors> {
    MODELS.iter().find(|model| model.name == name)
}

/// A layer as files and reports have it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedLayer {
    pub name: String,
    pub entries: usize,
    /// How long its gradient takes in the backward pass, in seconds.
    pub seconds: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The forward pass, in seconds.
    pub forward: Option<f64>,
    /// In the order in which backpropagation finishes them.
    pub layers: Vec<NamedLayer>,
}

/// What is planned for.
pub struct Layers {
    /// The model's name, or the file's.
    pub model: String,
    /// In the order in which backpropagation finishes them, all with times.
    pub list: Vec<NamedLayer>,
    /// Where the times come from, in words.
    pub share: &'static str,
    /// The same for the evaluator.
    pub pass: Pass,
}

impl Layers {
    /// From a model's name, a file, or both, and what the forward and the backward pass are said to take.
    ///
    /// # Errors
    /// A file that cannot be read or is of another model; times that are missing, given twice, negative or not finite.
    pub fn find(
        name: Option<&str>,
        path: Option<&Path>,
        (forward, backward): (Option<Duration>, Option<Duration>),
    ) -> Result<Self, CommandError> {
        let known = match name.and_then(model) {
            Some(model) => model
                .tensors()?
                .into_iter()
                .map(|t| NamedLayer { name: t.name, entries: t.entries, seconds: None })
                .collect(),
            None => Vec::new(),
        };
        let (of_file, mut list) = match path {
            Some(path) => read(path)?,
            None => (None, known.clone()),
        };
        if let (Some(name), Some(path)) = (name, path) {
            same(name, path, &known, &list)?;
        }
        let timed = list.iter().any(|layer| layer.seconds.is_some());
        if let (true, Some(_), Some(path)) = (timed, backward, path) {
            let twice =
                "has the times of the layers, and --backward gives another one; leave one of them out";
            return Err(report::refused(format!("{} {twice}", path.display())));
        }
        if let (false, Some(backward)) = (timed, backward) {
            let each = backward.as_secs_f64() / list.len().max(1) as f64;
            list.iter_mut().for_each(|layer| layer.seconds = Some(each));
        }
        let mut layers = Vec::new();
        for NamedLayer { name, entries, seconds } in &list {
            let backward = seconds.ok_or_else(|| {
                let advice = "measure how long each layer's gradient takes, or give the whole backward pass by --backward";
                report::refused(format!("layer '{name}' has no time; {advice}"))
            })?;
            if !backward.is_finite() || backward < 0.0 {
                let expected = "expected a finite time of at least 0: measure it again";
                return Err(format!("layer '{name}' takes {backward} s; {expected}").into());
            }
            layers.push(Layer { backward, entries: *entries });
        }
        let sum: f64 = layers.iter().map(|layer| layer.backward).sum();
        let forward = forward.map(|forward| forward.as_secs_f64()).or(of_file).unwrap_or(sum / 2.0);
        let pass = Pass::new(forward, layers)?;
        let model =
            name.map_or_else(|| path.map(|p| p.display().to_string()).unwrap_or_default(), str::to_owned);
        let share = if timed { "as given" } else { "the same for every layer (assumed)" };
        Ok(Self { model, list, share, pass })
    }

    pub fn entries(&self) -> usize {
        self.list.iter().map(|layer| layer.entries).sum()
    }
}

/// The forward pass, if it is given, and the layers.
fn read(path: &Path) -> Result<(Option<f64>, Vec<NamedLayer>), CommandError> {
    let shown = path.display();
    let text =
        fs::read_to_string(path).map_err(|e| format!("the layers cannot be read from {shown}: {e}"))?;
    let wrong = |what: String| {
        CommandError::from(format!(
            "{shown}: {what}; expected JSON such as {{\"layers\": [{{\"name\": \"fc\", \"entries\": 1000, \"seconds\": 0.002}}]}}, or CSV \
             with the header name,entries,seconds"
        ))
    };
    if text.trim_start().starts_with('{') {
        let File { forward, layers } =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        return Ok((forward, layers));
    }
    let mut lines =
        text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())).filter(|(_, line)| !line.is_empty());
    let header = lines.next().map(|(_, line)| line.to_owned()).unwrap_or_default();
    if header != "name,entries,seconds" && header != "name,entries" {
        return Err(wrong(format!("its first line is '{}'", header.chars().take(60).collect::<String>())));
    }
    let layer = |(number, line): (usize, &str)| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let layer = || {
            let seconds = fields.get(2).filter(|text| !text.is_empty());
            let seconds = seconds.map(|text| units::number::<f64>(text)).transpose().ok()?;
            let fits = fields.len() == header.split(',').count() && !fields[0].is_empty();
            fits.then_some(NamedLayer {
                name: fields[0].to_owned(),
                entries: units::count(fields[1]).ok()?,
                seconds,
            })
        };
        layer().ok_or_else(|| wrong(format!("line {number} is '{line}'")))
    };
    Ok((None, lines.map(layer).collect::<Result<_, CommandError>>()?))
}

/// Refuses layers of a file that are not those of the model.
fn same(name: &str, path: &Path, known: &[NamedLayer], found: &[NamedLayer]) -> Result<(), CommandError> {
    let another = |what: String| {
        let expected = format!("expected the times of {name}'s tensors, from the last to the first");
        Err(format!("{} is of another model than {name}: {what}; {expected}", path.display()).into())
    };
    if known.len() != found.len() {
        return another(format!("it has {} layers, {name} has {} tensors", found.len(), known.len()));
    }
    match known.iter().zip(found).find(|(known, found)| known.entries != found.entries) {
        Some((known, found)) => another(format!(
            "'{}' has {} entries where {name}'s {} has {}",
            found.name, found.entries, known.name, known.entries
        )),
        None => Ok(()),
    }
}
