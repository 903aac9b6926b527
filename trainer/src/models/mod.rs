//! The models that can be trained.

mod clicks;
mod cnn;
mod lstm;
mod mlp;
mod resnet;
mod transformer;
mod vgg;

use std::fmt;

use candle_core::{Device, Tensor};
use clap::ValueEnum;

use crate::data::{Input, Source};
use crate::error::TrainerError;
use crate::layers::Mode;
use crate::parameters::{Builder, Parameters, Weight};

/// From a batch of inputs to logits (rows, classes).
pub trait Model {
    /// Computes the logits; images come as (n, height, width, channels), text as character numbers (steps, sequences), categories as
    /// numbers of rows (n, fields).
    fn forward(&self, input: &Tensor, mode: Mode) -> candle_core::Result<Tensor>;
}

/// Which model to train.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModelKind {
    /// A character language model: embedding, one LSTM layer, linear layer.
    Lstm,
    /// A small character language model of the other kind: two blocks of attention and a perceptron.
    Transformer,
    /// A perceptron with two hidden layers, for images of any size.
    Mlp,
    /// Two convolutions and two linear layers, for images whose height and width are multiples of 4.
    Cnn,
    /// Embeddings of categories and a perceptron: its largest gradient is sparse.
    Clicks,
    /// ResNet-20 for CIFAR: 269,722 parameters with 10 classes.
    Resnet20,
    /// VGG-16 for CIFAR: 14,728,266 parameters with 10 classes.
    Vgg16,
    /// VGG-19 for CIFAR: 20,086,692 parameters with 100 classes.
    Vgg19,
}

impl ModelKind {
    /// The model trained on this data unless another is asked for.
    pub fn default_for(source: &Source) -> Self {
        match source {
            Source::Documentation | Source::Text(_) | Source::FreshText => ModelKind::Lstm,
            Source::Mnist(_) | Source::Synthetic | Source::Digits | Source::FreshDigits => ModelKind::Mlp,
            Source::FreshClicks => ModelKind::Clicks,
            Source::Cifar10(_) | Source::Cifar100(_) => ModelKind::Resnet20,
        }
    }

    /// Puts the model together for this kind of input, on a device.
    pub fn build(
        self,
        input: Input,
        classes: usize,
        seed: u64,
        device: &Device,
    ) -> Result<(Box<dyn Model>, Parameters), TrainerError> {
        self.expect_reads(input)?;
        let mut builder = Builder::new(seed, device);
        let model: Box<dyn Model> = match (self, input) {
            (ModelKind::Lstm, Input::Characters) => {
                Box::new(lstm::CharacterModel::new(&mut builder, classes)?)
            }
            (ModelKind::Transformer, Input::Characters) => {
                Box::new(transformer::Transformer::new(&mut builder, classes)?)
            }
            (ModelKind::Cnn, Input::Images(shape)) => {
                Box::new(cnn::ConvolutionalNetwork::new(&mut builder, shape, classes)?)
            }
            (ModelKind::Clicks, Input::Categories { fields, rows }) => {
                Box::new(clicks::ClickModel::new(&mut builder, fields, rows, classes)?)
            }
            (ModelKind::Mlp, Input::Images(shape)) => {
                Box::new(mlp::Perceptron::new(&mut builder, shape, classes)?)
            }
            (ModelKind::Resnet20, Input::Images(shape)) => {
                Box::new(resnet::ResNet20::new(&mut builder, shape.channels, classes)?)
            }
            (ModelKind::Vgg16, Input::Images(shape)) => {
                Box::new(vgg::Vgg::new(&mut builder, &vgg::VGG_16, shape.channels, classes)?)
            }
            (ModelKind::Vgg19, Input::Images(shape)) => {
                Box::new(vgg::Vgg::new(&mut builder, &vgg::VGG_19, shape.channels, classes)?)
            }
            _ => return Err(self.refusal(input)),
        };
        Ok((model, builder.finish()))
    }

    /// Refuses input that this model does not read.
    ///
    /// # Errors
    /// Such input.
    pub fn expect_reads(self, input: Input) -> Result<(), TrainerError> {
        let reads = match (self, input) {
            (ModelKind::Lstm | ModelKind::Transformer, Input::Characters)
            | (ModelKind::Clicks, Input::Categories { .. })
            | (ModelKind::Mlp, Input::Images(_)) => true,
            (ModelKind::Cnn | ModelKind::Resnet20, Input::Images(shape)) => {
                shape.height % 4 == 0 && shape.width % 4 == 0
            }
            (ModelKind::Vgg16 | ModelKind::Vgg19, Input::Images(shape)) => {
                shape.height == 32 && shape.width == 32
            }
            _ => false,
        };
        if reads { Ok(()) } else { Err(self.refusal(input)) }
    }

    fn refusal(self, found: Input) -> TrainerError {
        TrainerError::ModelAndData { model: self, needed: self.needs(), found }
    }

    fn needs(self) -> &'static str {
        match self {
            ModelKind::Lstm | ModelKind::Transformer => "text",
            ModelKind::Mlp => "images",
            ModelKind::Clicks => "categories",
            ModelKind::Cnn | ModelKind::Resnet20 => "images whose height and width are multiples of 4",
            ModelKind::Vgg16 | ModelKind::Vgg19 => "images of 32 × 32",
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ModelKind::Lstm => "lstm",
            ModelKind::Transformer => "transformer",
            ModelKind::Cnn => "cnn",
            ModelKind::Clicks => "clicks",
            ModelKind::Mlp => "mlp",
            ModelKind::Resnet20 => "resnet20",
            ModelKind::Vgg16 => "vgg16",
            ModelKind::Vgg19 => "vgg19",
        })
    }
}

/// A linear layer.
struct Linear {
    weight: Weight,
    bias: Weight,
}

impl Linear {
    fn new(builder: &mut Builder, name: &str, inputs: usize, outputs: usize) -> candle_core::Result<Self> {
        let bound = 1.0 / (inputs as f32).sqrt();
        Ok(Linear {
            weight: builder.uniform(&format!("{name}.weight"), &[inputs, outputs], bound)?,
            bias: builder.uniform(&format!("{name}.bias"), &[outputs], bound)?,
        })
    }

    fn forward(&self, input: &Tensor) -> candle_core::Result<Tensor> {
        input.matmul(&self.weight.tensor())?.broadcast_add(&self.bias.tensor())
    }
}

#[cfg(test)]
mod tests;
