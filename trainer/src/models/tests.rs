use super::*;
use crate::data::ImageShape;
use crate::layers::cross_entropy;
use gleaner_algorithms::{Method, merging};
use gleaner_candle::with_values;
use gleaner_runtime::Session;
use gleaner_statistics::random::Generator;

const SMALL: Input = Input::Images(ImageShape { height: 8, width: 8, channels: 1 });
const CATEGORIES: Input = Input::Categories { fields: 3, rows: 60 };
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
        (ModelKind::Resnet20, SMALL, 10),
        (ModelKind::Cnn, SMALL, 10),
        (ModelKind::Transformer, Input::Characters, 30),
        (ModelKind::Clicks, CATEGORIES, 2),
    ] {
        let (model, parameters) = kind.build(input, classes, 1, &Device::Cpu).unwrap();
        let batch = match input {
            Input::Characters => Tensor::zeros((5, 2), candle_core::DType::U32, &candle_core::Device::Cpu),
            Input::Images(ImageShape { height, width, channels }) => {
                Tensor::randn(0.0_f32, 1.0, (2, height, width, channels), &candle_core::Device::Cpu)
            }
            Input::Categories { fields, .. } => {
                Tensor::zeros((5, fields), candle_core::DType::U32, &candle_core::Device::Cpu)
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
        // Some rows occur several times.
        Input::Categories { fields, .. } => {
            let rows = values(7 * fields).iter().map(|x| ((x + 1.0) * 9.9) as u32).collect();
            let targets = vec![0, 1, 1, 0, 0, 1, 1];
            (Tensor::from_vec(rows, (7, fields), &Device::Cpu).unwrap(), targets)
        }
    }
}

#[test]
fn gradients_handed_over_in_the_backward_pass_are_candles_to_the_last_bit() {
    for (kind, input, classes, steps) in [
        (ModelKind::Lstm, Input::Characters, 30, 4),
        (ModelKind::Mlp, CIFAR, 10, 4),
        (ModelKind::Cnn, SMALL, 10, 4),
        (ModelKind::Transformer, Input::Characters, 30, 4),
        (ModelKind::Clicks, CATEGORIES, 2, 4),
        (ModelKind::Resnet20, CIFAR, 10, 4),
        (ModelKind::Vgg16, CIFAR, 10, 2),
        (ModelKind::Vgg19, CIFAR, 100, 2),
    ] {
        let session = Session::join().unwrap();
        let (model, mut parameters) = kind.build(input, classes, 1, &Device::Cpu).unwrap();
        // Dense, so that the update of one worker is its gradient; every parameter by itself.
        let merge = merging::named("layer-wise").unwrap().into();
        let mut overlap = parameters.overlap(&session, Method::ring(), merge).unwrap();
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
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
                let expected = with_values(plain.get(parameter.variable()).unwrap(), bits).unwrap();
                assert!(bits(&gradient) == expected, "{kind}, step {step}: {}", parameter.name);
                let change = |values: &mut [f32]| {
                    values.iter_mut().zip(&gradient).for_each(|(value, gradient)| *value -= 0.01 * gradient);
                };
                parameter.update(change).unwrap();
            }
        }
        let groups = overlap.grouping().unwrap().groups();
        let sparse = usize::from(kind == ModelKind::Clicks);
        assert_eq!(groups, parameters.list.len() - sparse, "{kind}");
    }
}

#[test]
fn a_model_refuses_data_of_another_kind() {
    let refusal = |kind: ModelKind, input| kind.build(input, 10, 1, &Device::Cpu).err().unwrap().to_string();
    assert!(refusal(ModelKind::Lstm, CIFAR).contains("needs text"));
    assert!(refusal(ModelKind::Transformer, CATEGORIES).contains("found categories in 3 fields"));
    assert!(refusal(ModelKind::Clicks, CIFAR).contains("needs categories"));
    assert!(refusal(ModelKind::Vgg16, Input::Characters).contains("found text"));
    let mnist = Input::Images(ImageShape { height: 28, width: 28, channels: 1 });
    assert!(refusal(ModelKind::Vgg16, mnist).contains("28 × 28"));
}
