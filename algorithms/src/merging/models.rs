//! The layers of the models of OMGS-SGD's Table V, as data.

use super::{Layer, MergingError, Pass};

/// One tensor of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The layer's name and its own.
    pub name: String,
    /// The product of its shape.
    pub entries: usize,
}

/// A model's tensors as a text: a layer a line, in the order of the forward pass, with its name and its tensors with their shapes.
/// Lines that begin with `#` say where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelTensors {
    /// The model's name.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
}

/// VGG-16, ResNet-50, Inception-v4 and LSTM-PTB, in the order of OMGS-SGD's Table V.
pub static MODELS: [ModelTensors; 4] = [
    ModelTensors { name: "vgg16", text: include_str!("models/vgg16.txt") },
    ModelTensors { name: "resnet50", text: include_str!("models/resnet50.txt") },
    ModelTensors { name: "inception-v4", text: include_str!("models/inception-v4.txt") },
    ModelTensors { name: "lstm-ptb", text: include_str!("models/lstm-ptb.txt") },
];

impl ModelTensors {
    /// The tensors in the order in which backpropagation is taken to finish them: from the last of the forward pass to the
    /// first. Within a block with branches, a framework may choose another order.
    ///
    /// # Errors
    /// [`MergingError::Tensors`] for a line that says something else, and [`MergingError::NoLayers`].
    pub fn tensors(&self) -> Result<Vec<Tensor>, MergingError> {
        let mut tensors = Vec::new();
        for (i, text) in self.text.lines().enumerate() {
            if text.starts_with('#') || text.trim().is_empty() {
                continue;
            }
            let wrong = || MergingError::Tensors { model: self.name.into(), line: i + 1, text: text.into() };
            let mut words = text.split_whitespace();
            let layer = words.next().ok_or_else(wrong)?;
            let before = tensors.len();
            for word in words {
                let (name, shape) = word.split_once('=').ok_or_else(wrong)?;
                let sides = shape.split('x').map(|side| side.parse().ok().filter(|&side: &usize| side > 0));
                let entries =
                    sides.reduce(|product, side| product?.checked_mul(side?)).flatten().ok_or_else(wrong)?;
                tensors.push(Tensor { name: format!("{layer}.{name}"), entries });
            }
            if tensors.len() == before {
                return Err(wrong());
            }
        }
        if tensors.is_empty() {
            return Err(MergingError::NoLayers);
        }
        tensors.reverse();
        Ok(tensors)
    }

    /// A pass in which every tensor takes as long, so much together, both in seconds: for want of measured times.
    ///
    /// # Errors
    /// As [`tensors`](Self::tensors) and [`Pass::new`].
    pub fn evenly(&self, forward: f64, backward: f64) -> Result<Pass, MergingError> {
        let tensors = self.tensors()?;
        let each = backward / tensors.len() as f64;
        Pass::new(forward, tensors.iter().map(|t| Layer { backward: each, entries: t.entries }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merging::{Affine, Placement, Problem, Threshold, named};

    /// Tensors as in OMGS-SGD's Table V. VGG-16's total is SparDL's (14.7 M), ResNet-50's makes the paper's 97 MB; Inception-v4's is
    /// what its authors' layers add up to.
    #[test]
    fn tensors_are_those_of_the_paper() {
        let of = |model: &ModelTensors| {
            let tensors = model.tensors().unwrap();
            (model.name, tensors.len(), tensors.iter().map(|tensor| tensor.entries).sum::<usize>())
        };
        let rows = [
            ("vgg16", 54, 14_728_266),
            ("resnet50", 161, 25_557_032),
            ("inception-v4", 449, 42_679_816),
            ("lstm-ptb", 11, 66_034_000),
        ];
        assert_eq!(MODELS.each_ref().map(of), rows);
        assert_eq!(25_557_032 * 4 / (1 << 20), 97);
        assert_eq!(MODELS[0].tensors().unwrap()[0].name, "classifier.bias");
        // The stem of ResNet-50 and its first bottleneck, from the paper's Table 1, added up by hand.
        let resnet = MODELS[1].tensors().unwrap();
        let first: usize = resnet.iter().rev().take(15).map(|tensor| tensor.entries).sum();
        let (stem, bottleneck) = (64 * 3 * 49 + 128, 64 * 64 + 128 + 9 * 64 * 64 + 128 + 256 * 64 + 512);
        assert_eq!(first, stem + bottleneck + 256 * 64 + 512);
    }

    /// OMGS-SGD's Table V, the column of MGS-SGD, which depends on nothing but these sizes and their order.
    #[test]
    fn a_threshold_gives_the_groups_of_table_v() {
        let costs = Affine::default();
        let groups = MODELS.each_ref().map(|model| {
            let pass = model.evenly(0.0, 1.0).unwrap();
            let problem = Problem { pass: &pass, costs: &costs, place: Placement::InBackward };
            named("threshold").unwrap().group(&problem).unwrap().groups()
        });
        assert_eq!(Threshold::PUBLISHED.entries, 8192);
        assert_eq!(groups, [13, 53, 150, 9]);
    }

    #[test]
    fn lines_that_cannot_be_read() {
        let says = |text| ModelTensors { name: "mine", text }.tensors().unwrap_err().to_string();
        for text in [
            "a w=3\nb",
            "a w=3\nb w",
            "a w=3\nb w=",
            "a w=3\nb w=3x0",
            "a w=3\nb w=3x-1",
            "a w=3\nb w=9999999999x9999999999x9",
        ] {
            assert!(says(text).starts_with("line 2 of the tensors of mine"), "{text}");
        }
        assert!(says("# nothing\n").contains("no layers"));
    }
}
