//! The models that can be trained.

mod lstm;
mod mlp;
mod resnet;
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
    /// Computes the logits; images come as (n, height, width, channels), text as character numbers (steps, sequences).
    fn forward(&self, input: &Tensor, mode: Mode) -> candle_core::Result<Tensor>;
}

/// Which model to train.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModelKind {
    /// A character language model: embedding, one LSTM layer, linear layer.
    Lstm,
    /// A perceptron with two hidden layers, for images of any size.
    Mlp,
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
            Source::Documentation | Source::Text(_) => ModelKind::Lstm,
            Source::Mnist(_) | Source::Synthetic => ModelKind::Mlp,
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
        let mut builder = Builder::new(seed, device);
        let model: Box<dyn Model> = match (self, input) {
            (ModelKind::Lstm, Input::Characters) => {
                Box::new(lstm::CharacterModel::new(&mut builder, classes)?)
            }
            (ModelKind::Mlp, Input::Images(shape)) => {
                Box::new(mlp::Perceptron::new(&mut builder, shape, classes)?)
            }
            (ModelKind::Resnet20, Input::Images(shape)) if shape.height % 4 == 0 && shape.width % 4 == 0 => {
                Box::new(resnet::ResNet20::new(&mut builder, shape.channels, classes)?)
            }
            (ModelKind::Vgg16, Input::Images(shape)) if shape.height == 32 && shape.width == 32 => {
                Box::new(vgg::Vgg::new(&mut builder, &vgg::VGG_16, shape.channels, classes)?)
            }
            (ModelKind::Vgg19, Input::Images(shape)) if shape.height == 32 && shape.width == 32 => {
                Box::new(vgg::Vgg::new(&mut builder, &vgg::VGG_19, shape.channels, classes)?)
            }
            _ => return Err(TrainerError::ModelAndData { model: self, needed: self.needs(), found: input }),
        };
        Ok((model, builder.finish()))
    }

    fn needs(self) -> &'static str {
        match self {
            ModelKind::Lstm => "text",
            ModelKind::Mlp => "images",
            ModelKind::Resnet20 => "images whose height and width are multiples of 4",
            ModelKind::Vgg16 | ModelKind::Vgg19 => "images of 32 × 32",
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            ModelKind::Lstm => "lstm",
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
mod tests {
    use super::*;
    use crate::data::ImageShape;
    use crate::layers::cross_entropy;
    use crate::random::Generator;
    use gleaner_algorithms::{Method, merging};
    use gleaner_candle::{Overlap, with_values};
    use gleaner_runtime::Session;

    const CIFAR: Input = Input::Images(ImageShape { height: 32, width: 32, channels: 3 });

    #[test]
    fn parameter_counts_are_those_of_the_papers() {
        let count = |kind: ModelKind, classes| kind.build(CIFAR, classes, 1, &Device::Cpu).unwrap().1.count();
        assert_eq!(count(ModelKind::Resnet20, 10), 269_722);
        assert_eq!(count(ModelKind::Vgg16, 10), 14_728_266);
        assert_eq!(count(ModelKind::Vgg19, 100), 20_086_692);
    }

    #[test]
    fn every_parameter_of_every_small_model_gets_a_gradient() {
        for (kind, input, classes) in [
            (ModelKind::Lstm, Input::Characters, 30),
            (ModelKind::Mlp, CIFAR, 10),
            (ModelKind::Resnet20, Input::Images(ImageShape { height: 8, width: 8, channels: 1 }), 10),
        ] {
            let (model, parameters) = kind.build(input, classes, 1, &Device::Cpu).unwrap();
            let batch = match input {
                Input::Characters => {
                    Tensor::zeros((5, 2), candle_core::DType::U32, &candle_core::Device::Cpu)
                }
                Input::Images(ImageShape { height, width, channels }) => {
                    Tensor::randn(0.0_f32, 1.0, (2, height, width, channels), &candle_core::Device::Cpu)
                }
            };
            let logits = model.forward(&batch.unwrap(), Mode::Training).unwrap();
            let targets = vec![1; logits.dim(0).unwrap()];
            assert_eq!(logits.dim(1).unwrap(), classes);
            let gradients = cross_entropy(&logits, &targets).unwrap().backward().unwrap();
            for parameter in &parameters.list {
                let gradient = gradients.get(parameter.variable()).expect(&parameter.name);
                assert_eq!(gradient.shape(), parameter.variable().shape(), "{}", parameter.name);
            }
        }
    }

    /// Some examples of a step, and their targets.
    fn examples(input: Input, classes: usize, step: u64) -> (Tensor, Vec<u32>) {
        let mut generator = Generator::new(step, "examples", 0);
        let mut values = |count: usize| (0..count).map(|_| generator.symmetric()).collect::<Vec<f32>>();
        match input {
            Input::Characters => {
                let characters = values(10).iter().map(|x| ((x + 1.0) * 14.9) as u32).collect();
                (Tensor::from_vec(characters, (5, 2), &Device::Cpu).unwrap(), vec![classes as u32 - 1; 10])
            }
            Input::Images(ImageShape { height, width, channels }) => {
                let pixels = values(2 * height * width * channels);
                (Tensor::from_vec(pixels, (2, height, width, channels), &Device::Cpu).unwrap(), vec![1, 3])
            }
        }
    }

    #[test]
    fn gradients_handed_over_in_the_backward_pass_are_candles_to_the_last_bit() {
        for (kind, input, classes, steps) in [
            (ModelKind::Lstm, Input::Characters, 30, 4),
            (ModelKind::Mlp, CIFAR, 10, 4),
            (ModelKind::Resnet20, CIFAR, 10, 4),
            (ModelKind::Vgg16, CIFAR, 10, 2),
            (ModelKind::Vgg19, CIFAR, 100, 2),
        ] {
            let session = Session::join().unwrap();
            let (model, mut parameters) = kind.build(input, classes, 1, &Device::Cpu).unwrap();
            // Dense, so that the update of one worker is its gradient; every parameter by itself.
            let merge = merging::named("layer-wise").unwrap().into();
            let mut overlap = Overlap::new(&session, parameters.variables(), Method::ring(), merge).unwrap();
            for step in 0..steps {
                let (inputs, targets) = examples(input, classes, step);
                let loss = |model: &dyn Model| {
                    cross_entropy(&model.forward(&inputs, Mode::Training).unwrap(), &targets).unwrap()
                };
                let plain = loss(model.as_ref()).backward().unwrap();
                parameters.watch(&mut overlap).unwrap();
                overlap.backward(&loss(model.as_ref())).unwrap();
                parameters.unwatch();
                let update = overlap.wait().unwrap();
                for parameter in &mut parameters.list {
                    let gradient = update.values(&parameter.name).unwrap();
                    let bits =
                        |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
                    let expected = with_values(plain.get(parameter.variable()).unwrap(), bits).unwrap();
                    assert!(bits(&gradient) == expected, "{kind}, step {step}: {}", parameter.name);
                    let change = |values: &mut [f32]| {
                        values
                            .iter_mut()
                            .zip(&gradient)
                            .for_each(|(value, gradient)| *value -= 0.01 * gradient);
                    };
                    parameter.update(change).unwrap();
                }
            }
            let groups = overlap.grouping().unwrap().groups();
            assert_eq!(groups, parameters.list.len(), "{kind}");
        }
    }

    #[test]
    fn a_model_refuses_data_of_another_kind() {
        let refusal =
            |kind: ModelKind, input| kind.build(input, 10, 1, &Device::Cpu).err().unwrap().to_string();
        assert!(refusal(ModelKind::Lstm, CIFAR).contains("needs text"));
        assert!(refusal(ModelKind::Vgg16, Input::Characters).contains("found text"));
        let mnist = Input::Images(ImageShape { height: 28, width: 28, channels: 1 });
        assert!(refusal(ModelKind::Vgg16, mnist).contains("28 × 28"));
    }
}
