//! A linear model and its files: safetensors with a checksum, which is read again, and LIBLINEAR's text.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use gleaner_algorithms::bag::Entries;
use gleaner_runtime::checksum;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use twox_hash::XxHash3_128;

use crate::error::RegressError;
use crate::objective::{Loss, Penalty};
use crate::settings::MOST_FEATURES;

/// What a file says of its format.
const FORMAT: &str = "gleaner linear model 1";

/// A linear model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The loss that it was trained for.
    pub loss: Loss,
    /// The penalties that it was trained under.
    pub penalty: Penalty,
    /// The number of features, n.
    pub features: usize,
    /// The constant entry of every sample, if there is one; its weight has the index n.
    pub bias: Option<f32>,
    /// The labels of the negative and the positive class; none for least squares.
    pub classes: Option<[f32; 2]>,
    /// Weights that are not zero.
    pub weights: Entries<f32>,
}

impl Model {
    /// All weights, with that of the constant entry behind the features'.
    pub fn dense(&self) -> Vec<f32> {
        self.weights.to_dense(self.features + usize::from(self.bias.is_some()))
    }

    /// The class of a margin, or for least squares the margin itself.
    pub fn predict(&self, margin: f64) -> f64 {
        match self.classes {
            Some([negative, positive]) => f64::from(if margin > 0.0 { positive } else { negative }),
            None => margin,
        }
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// None that a model of this crate has.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let indices: Vec<u8> = self.weights.indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        let values: Vec<u8> = self.weights.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = vec![self.weights.len()];
        let views = [
            ("indices", TensorView::new(Dtype::U32, shape.clone(), &indices).map_err(io::Error::other)?),
            ("weights", TensorView::new(Dtype::F32, shape, &values).map_err(io::Error::other)?),
        ];
        let mut header = HashMap::from([
            ("format".to_owned(), FORMAT.to_owned()),
            ("loss".to_owned(), self.loss.name().to_owned()),
            ("l1".to_owned(), self.penalty.l1.to_string()),
            ("l2".to_owned(), self.penalty.l2.to_string()),
            ("features".to_owned(), self.features.to_string()),
        ]);
        if let Some(bias) = self.bias {
            header.insert("bias".to_owned(), bias.to_string());
        }
        if let Some([negative, positive]) = self.classes {
            header.insert("classes".to_owned(), format!("{negative} {positive}"));
        }
        checksum::reserve(&mut header);
        let mut file = safetensors::serialize(views, Some(header)).map_err(io::Error::other)?;
        checksum::seal(&mut file).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(file)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, is no model, or is damaged.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, RegressError> {
        let path = path.as_ref();
        let bytes = fs::read(path).map_err(|source| RegressError::Read { path: path.to_owned(), source })?;
        Self::of_bytes(&bytes).map_err(|found| RegressError::Model {
            path: path.to_owned(),
            expected: "a model that gleaner regress --model wrote".into(),
            found,
            advice: "give another file, or train again",
        })
    }

    /// Of the bytes of a file; refused with what is found instead.
    fn of_bytes(bytes: &[u8]) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let header = header.metadata().clone().unwrap_or_default();
        let named = |name: &str| header.get(name).map(String::as_str);
        match named("format") {
            Some(FORMAT) => {}
            format => return Err(format!("the format {:?}", format.unwrap_or("unknown"))),
        }
        checksum::verify(bytes).map_err(|error| error.to_string())?;
        let lacks = |name: &str| format!("none that makes sense for its {name}");
        let number = |name: &str| named(name).and_then(|text| text.parse().ok()).ok_or_else(|| lacks(name));
        let tensor = |name: &str, dtype| match tensors.tensor(name) {
            Ok(tensor) if tensor.dtype() == dtype => Ok(tensor.data().as_chunks::<4>().0.to_vec()),
            _ => Err(lacks(name)),
        };
        let indices: Vec<u32> = tensor("indices", Dtype::U32)?.into_iter().map(u32::from_le_bytes).collect();
        let values: Vec<f32> = tensor("weights", Dtype::F32)?.into_iter().map(f32::from_le_bytes).collect();
        let model = Self {
            loss: named("loss").and_then(Loss::named).ok_or_else(|| lacks("loss"))?,
            penalty: Penalty { l1: number("l1")?, l2: number("l2")? },
            features: named("features").and_then(|n| n.parse().ok()).ok_or_else(|| lacks("features"))?,
            bias: named("bias").map(|bias| bias.parse().map_err(|_| lacks("bias"))).transpose()?,
            classes: named("classes")
                .map(|text| classes(text).ok_or_else(|| lacks("classes")))
                .transpose()?,
            weights: Entries { indices, values },
        };
        let (indices, n) =
            (&model.weights.indices, model.features.saturating_add(usize::from(model.bias.is_some())));
        let fits =
            indices.is_sorted_by(|a, b| a < b) && indices.last().is_none_or(|&last| (last as usize) < n);
        let pairs = indices.len() == model.weights.values.len();
        let is_finite =
            model.bias.is_none_or(f32::is_finite) && model.weights.values.iter().all(|w| w.is_finite());
        let ordered = model.classes.is_none_or(|[negative, positive]| negative < positive);
        if !(1..=MOST_FEATURES).contains(&model.features) || !ordered || !is_finite {
            return Err(lacks("features, classes, bias and weights"));
        }
        if !fits || !pairs || model.loss.classifies() != model.classes.is_some() {
            return Err(lacks("weights"));
        }
        Ok(model)
    }

    /// What two models have in common only if they are the same.
    pub(crate) fn digest(&self) -> String {
        let Self { loss, penalty, features, bias, classes, weights } = self;
        let mut hash = XxHash3_128::new();
        hash.write(format!("{loss} {penalty:?} {features} {bias:?} {classes:?}").as_bytes());
        for (index, weight) in weights.iter() {
            hash.write(&index.to_le_bytes());
            hash.write(&weight.to_le_bytes());
        }
        format!("digest {:032x}", hash.finish_128())
    }

    /// Writes LIBLINEAR's text, by which its `predict` gives the same predictions.
    ///
    /// # Errors
    /// A file that cannot be written, and labels that are no whole numbers, which LIBLINEAR cannot read.
    pub fn write_liblinear(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "solver_type {}\nnr_class 2", self.solver())?;
        if let Some([negative, positive]) = self.classes {
            if negative.fract() != 0.0 || positive.fract() != 0.0 {
                let labels =
                    format!("LIBLINEAR's labels are whole numbers, and these are {negative} and {positive}");
                return Err(io::Error::other(labels));
            }
            writeln!(out, "label {positive} {negative}")?;
        }
        // A negative one means to LIBLINEAR that there is none.
        let bias = self.bias.map_or(-1.0, f32::abs);
        let turns = self.bias.is_some_and(|bias| bias < 0.0);
        writeln!(out, "nr_feature {}\nbias {bias}\nw", self.features)?;
        let mut entries = self.weights.iter().peekable();
        for index in 0..(self.features + usize::from(self.bias.is_some())) as u32 {
            match entries.next_if(|(at, _)| *at == index) {
                Some((_, weight)) if turns && index as usize == self.features => {
                    writeln!(out, "{} ", -weight)?
                }
                Some((_, weight)) => writeln!(out, "{weight} ")?,
                None => out.write_all(b"0 \n")?,
            }
        }
        Ok(())
    }

    /// LIBLINEAR's name of what this model minimises, as near as it has one: it decides how a margin is read.
    fn solver(&self) -> &'static str {
        let is_sparse = self.penalty.l1 > 0.0;
        match self.loss {
            Loss::Logistic if is_sparse => "L1R_LR",
            Loss::Logistic => "L2R_LR",
            Loss::Hinge => "L2R_L1LOSS_SVC_DUAL",
            Loss::SquaredHinge if is_sparse => "L1R_L2LOSS_SVC",
            Loss::SquaredHinge => "L2R_L2LOSS_SVC",
            Loss::Squares => "L2R_L2LOSS_SVR",
        }
    }
}

fn classes(text: &str) -> Option<[f32; 2]> {
    let (negative, positive) = text.split_once(' ')?;
    Some([negative.parse().ok()?, positive.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            loss: Loss::Logistic,
            penalty: Penalty { l1: 0.0, l2: 1e-3 },
            features: 5,
            bias: Some(1.0),
            classes: Some([-1.0, 1.0]),
            weights: Entries { indices: vec![1, 4, 5], values: vec![0.1, -2.5e-8, 3.0] },
        }
    }

    #[test]
    fn a_model_comes_back_from_its_file() {
        let squares = Model { loss: Loss::Squares, bias: None, classes: None, features: 6, ..model() };
        for model in [model(), squares] {
            let bytes = model.to_bytes().unwrap();
            assert_eq!(Model::of_bytes(&bytes).unwrap(), model);
            for at in [8, 40, bytes.len() - 1] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert!(Model::of_bytes(&damaged).is_err(), "{at}");
                assert!(Model::of_bytes(&bytes[..at]).is_err(), "{at}");
            }
        }
    }

    #[test]
    fn models_that_make_no_sense_are_refused() {
        let infinite = Entries { indices: vec![1], values: vec![f32::INFINITY] };
        for wrong in [
            Model { features: 4, ..model() },
            Model { features: 0, weights: Entries::default(), ..model() },
            Model { features: usize::MAX, ..model() },
            Model { bias: Some(f32::NAN), ..model() },
            Model { classes: Some([1.0, 1.0]), ..model() },
            Model { classes: None, ..model() },
            Model { weights: infinite, ..model() },
        ] {
            assert!(Model::of_bytes(&wrong.to_bytes().unwrap()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn liblinear_gets_a_weight_a_line() {
        let mut text = Vec::new();
        model().write_liblinear(&mut text).unwrap();
        let expected = "solver_type L2R_LR\nnr_class 2\nlabel 1 -1\nnr_feature 5\nbias 1\nw\n0 \n0.1 \n0 \n0 \n-0.000000025 \n3 \n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        // A negative bias means to LIBLINEAR that there is none.
        let mut turned = Vec::new();
        Model { bias: Some(-1.0), ..model() }.write_liblinear(&mut turned).unwrap();
        assert_eq!(String::from_utf8(turned).unwrap(), expected.replace("\n3 \n", "\n-3 \n"));
        let halves = Model { classes: Some([0.5, 1.0]), ..model() };
        assert!(halves.write_liblinear(&mut Vec::new()).unwrap_err().to_string().contains("0.5 and 1"));
    }
}
