//! A model applied to data.

use std::io::{self, Write};
use std::path::Path;

use gleaner_runtime::Session;
use gleaner_runtime::agreement::{all_can, expect_same};

use crate::data::{Part, Sharding, Source, each_sample, of_rank};
use crate::error::RegressError;
use crate::evaluation::{Evaluation, Score, evaluate};
use crate::job::signs;
use crate::model::Model;
use crate::scoring;

/// The result of a prediction.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// Margins in the order of the samples in the file.
    pub margins: Vec<f64>,
    /// Where all labels are the model's.
    pub evaluation: Option<Evaluation>,
}

/// Applies a model to a file, of which every worker reads its part, one sample at a time. `features` is what the data are said to have.
///
/// # Errors
/// A model or data that cannot be read, data of another number of features than the model's, and an exchange that fails.
pub fn predict(
    session: &Session,
    model_file: &Path,
    data: &Path,
    features: Option<usize>,
) -> Result<(Model, Predicted), RegressError> {
    let model = all_can(session, Model::read(model_file))?;
    let identity = all_can(session, Source::File(data.to_owned()).identity())?;
    expect_same(session, &[("model", model.digest())], "give every worker the same model")?;
    expect_same(session, &[("data", identity)], "give every worker the same file")?;
    let (scores, sharding) = all_can(session, score(session, &model, model_file, data, features))?;
    let by_rank = scoring::gather(session, scores)?;
    let all = in_order(by_rank, sharding);
    if all.is_empty() {
        return Err(RegressError::Data {
            data: data.display().to_string(),
            expected: "a sample or more".into(),
            found: "none".into(),
            advice: "give data with samples",
        });
    }
    let labels: Vec<f32> = all.iter().map(|score| score.y).collect();
    let margins = all.iter().map(|score| score.margin).collect();
    let known = signs(&labels, model.classes).ok();
    let evaluation = known.map(|signs| {
        let mut scores: Vec<Score> = all.iter().zip(signs).map(|(score, y)| Score { y, ..*score }).collect();
        evaluate(model.loss, &mut scores)
    });
    Ok((model, Predicted { margins, evaluation }))
}

/// This worker's scores, with labels as they stand in the file.
fn score(
    session: &Session,
    model: &Model,
    model_file: &Path,
    data: &Path,
    features: Option<usize>,
) -> Result<(Vec<Score>, Sharding), RegressError> {
    if let Some(other) = features.filter(|&features| features != model.features) {
        return Err(RegressError::Model {
            path: model_file.to_owned(),
            expected: format!("a model of {other} features, as --features says"),
            found: format!("one of {}", model.features),
            advice: "give the model that was trained on such data",
        });
    }
    let (weights, bias) = (model.dense(), model.bias.map(f64::from));
    let constant = bias.map_or(0.0, |bias| bias * f64::from(weights[model.features]));
    let part = Part { rank: session.rank(), of: session.world_size() };
    let mut scores = Vec::new();
    let (data, part) = of_rank(data, part);
    let sharding = each_sample(&data, part, model.features as u32, |row| {
        scores.push(Score { margin: scoring::margin(row, &weights) + constant, y: row.label });
    })?;
    Ok((scores, sharding))
}

/// Scores in the order of the file.
fn in_order(by_rank: Vec<Vec<Score>>, sharding: Sharding) -> Vec<Score> {
    match sharding {
        Sharding::InPieces => by_rank.concat(),
        Sharding::InTurn => {
            let rounds = by_rank.first().map_or(0, Vec::len);
            (0..rounds)
                .flat_map(|round| by_rank.iter().filter_map(move |of| of.get(round).copied()))
                .collect()
        }
    }
}

impl Predicted {
    /// Writes a line for each sample: what is predicted, and for classes the margin.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, model: &Model, out: &mut impl Write) -> io::Result<()> {
        for &margin in &self.margins {
            match model.classes {
                Some(_) => writeln!(out, "{} {margin}", model.predict(margin))?,
                None => writeln!(out, "{margin}")?,
            }
        }
        Ok(())
    }
}
