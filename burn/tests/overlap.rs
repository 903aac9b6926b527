//! Models whose gradients are exchanged while the backward pass goes on, among several workers in one process.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use gleaner_algorithms::{Method, merging};
use gleaner_burn::{Overlap, OverlapError};
use gleaner_runtime::{Error, Session};
use gleaner_transport::memory;

const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Module, Debug)]
struct Perceptron {
    layers: Vec<Linear>,
}

fn perceptron(sizes: &[usize]) -> Perceptron {
    let device = Device::flex().autodiff();
    let layer = |pair: &[usize]| LinearConfig::new(pair[0], pair[1]).init(&device);
    Perceptron { layers: sizes.windows(2).map(layer).collect() }
}

/// How a layer is found, from its number and its input.
type Watch<'a> = &'a mut dyn FnMut(&Linear, usize, &Tensor<2>) -> Linear;

/// The mean squared error of a perceptron that is to add its inputs up.
fn loss(model: &Perceptron, inputs: &Tensor<2>, watch: Watch<'_>) -> Tensor<1> {
    let mut values = inputs.clone();
    for (i, layer) in model.layers.iter().enumerate() {
        values = watch(layer, i, &values).forward(values);
        if i + 1 < model.layers.len() {
            values = relu(values);
        }
    }
    (values - inputs.clone().sum_dim(1)).square().mean()
}

fn inputs(rows: usize, width: usize, rank: usize, step: usize) -> Tensor<2> {
    let own = |i: usize| ((i * 31 + step * 17 + rank * 101) % 97) as f32 / 48.0 - 1.0;
    let data = TensorData::new((0..rows * width).map(own).collect::<Vec<_>>(), [rows, width]);
    Tensor::from_data(data, &Device::flex().autodiff())
}

/// The bits of all parameters, or of their gradients.
struct Bits<'a> {
    gradients: Option<&'a GradientsParams>,
    bits: Vec<Vec<u32>>,
}

impl ModuleVisitor for Bits<'_> {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<D>(parameter.id).unwrap(),
            None => parameter.val(),
        };
        let values: Vec<f32> = tensor.into_data().try_to_vec().unwrap();
        self.bits.push(values.into_iter().map(f32::to_bits).collect());
    }
}

fn bits(model: &Perceptron, gradients: Option<&GradientsParams>) -> Vec<Vec<u32>> {
    let mut bits = Bits { gradients, bits: Vec::new() };
    model.visit(&mut bits);
    bits.bits
}

fn alone() -> Session {
    Session::join().unwrap()
}

#[test]
fn what_is_handed_over_has_the_bits_of_burns_own_gradients() {
    let session = alone();
    let model = perceptron(&[8, 48, 32, 1]);
    let strategy = merging::named("layer-wise").unwrap();
    let mut overlap = Overlap::new(&session, &model, Method::ring(), strategy.into()).unwrap();
    for step in 0..3 {
        let inputs = inputs(16, 8, 0, step);
        let own = loss(&model, &inputs, &mut |layer, _, _| layer.clone());
        let own = GradientsParams::from_grads(own.backward(), &model);
        // The second layer is not watched, and handed over at the end.
        let watched = loss(&model, &inputs, &mut |layer, i, input| match i {
            0 => overlap.watch_first(layer).unwrap(),
            1 => layer.clone(),
            _ => overlap.watch(layer, input).unwrap(),
        });
        overlap.backward(&watched, &model).unwrap();
        let finished: Vec<&str> = overlap.finished().map(|(name, _)| name).collect();
        assert_eq!(finished.len(), 4);
        assert!(finished[..2].iter().all(|name| name.starts_with("layers.2.")), "{finished:?}");
        let update = overlap.wait().unwrap();
        let means = overlap.means(&update, &model).unwrap();
        assert_eq!(bits(&model, Some(&means)), bits(&model, Some(&own)));
        assert!(overlap.grouping().unwrap().ranges().count() > 1);
    }
}

/// The last layer is handed over long before the pass is over, and the order is that of the layers. Without their inputs all layers
/// are handed over at its end.
#[test]
fn gradients_are_handed_over_while_the_pass_goes_on() {
    let session = alone();
    let model = perceptron(&[512, 512, 512, 512, 1]);
    let strategy = merging::named("single").unwrap();
    let mut overlap = Overlap::new(&session, &model, Method::ring(), strategy.into()).unwrap();
    // When the first gradient is handed over, as a share of the time until the last one is.
    let mut first = |with_inputs: bool, step| {
        let inputs = inputs(256, 512, 0, step);
        let loss = loss(&model, &inputs, &mut |layer, _, input| match with_inputs {
            true => overlap.watch(layer, input).unwrap(),
            false => overlap.watch_first(layer).unwrap(),
        });
        overlap.backward(&loss, &model).unwrap();
        let (names, times): (Vec<_>, Vec<_>) =
            overlap.finished().map(|(name, after)| (name[..8].to_owned(), after.as_secs_f64())).unzip();
        assert!(names.len() == 8 && (!with_inputs || names.is_sorted_by(|a, b| a >= b)), "{names:?}");
        overlap.wait().unwrap();
        times[0] / times[7]
    };
    // Of several steps, since the machine may do something else in the middle of one.
    let least = (0..10).map(|step| first(true, step)).fold(1.0, f64::min);
    assert!(least < 0.5, "{least}");
    let most = (0..10).map(|step| first(false, step)).fold(0.0, f64::max);
    assert!(most > 0.5, "{most}");
}

#[test]
fn workers_stay_together_and_learn() {
    let start = perceptron(&[8, 48, 32, 1]);
    let worker = |session: Session, mut model: Perceptron| {
        let strategy = merging::named("optimal").unwrap();
        let mut overlap =
            Overlap::new(&session, &model, Method::spardl().density(0.2), strategy.into()).unwrap();
        let mut optimizer = SgdConfig::new().init();
        let mut losses = Vec::new();
        for step in 0..200 {
            let inputs = inputs(16, 8, session.rank(), step % 4);
            let loss = loss(&model, &inputs, &mut |layer, _, input| overlap.watch(layer, input).unwrap());
            losses.push(loss.clone().into_scalar::<f32>());
            overlap.backward(&loss, &model).unwrap();
            let update = overlap.wait().unwrap();
            let means = overlap.means(&update, &model).unwrap();
            model = optimizer.step(0.05, model, means);
        }
        assert!(overlap.expected().is_some());
        assert!(losses[196] < losses[0] / 4.0, "{losses:?}");
        bits(&model, None)
    };
    let ranks: Vec<_> = std::thread::scope(|scope| {
        let run = |network| {
            let model = start.clone();
            scope.spawn(move || worker(Session::over(async { Ok(network) }, TIMEOUT).unwrap(), model))
        };
        let ranks: Vec<_> = memory::networks(3).into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(ranks.iter().all(|rank| *rank == ranks[0]) && ranks[0] != bits(&start, None));
}

/// A layer may be applied twice in a step, to other inputs.
#[test]
fn a_layer_that_is_used_twice_is_handed_over_once() {
    let session = alone();
    let model = perceptron(&[8, 8]);
    let strategy = merging::named("single").unwrap();
    let mut overlap = Overlap::new(&session, &model, Method::ring(), strategy.into()).unwrap();
    let inputs = inputs(16, 8, 0, 0);
    let twice = |first: Linear, second: &mut dyn FnMut(&Tensor<2>) -> Linear| {
        let values = relu(first.forward(inputs.clone()));
        second(&values).forward(values).square().mean()
    };
    let own = twice(model.layers[0].clone(), &mut |_| model.layers[0].clone());
    let own = GradientsParams::from_grads(own.backward(), &model);
    let first = overlap.watch_first(&model.layers[0]).unwrap();
    let watched = twice(first, &mut |values| overlap.watch(&model.layers[0], values).unwrap());
    overlap.backward(&watched, &model).unwrap();
    assert_eq!(overlap.finished().count(), 2);
    let update = overlap.wait().unwrap();
    assert_eq!(bits(&model, Some(&overlap.means(&update, &model).unwrap())), bits(&model, Some(&own)));
}

/// Runs an invalid step, and gives the error.
fn refused(
    step: impl FnOnce(&mut Overlap, &Perceptron, &Tensor<2>) -> Result<(), OverlapError>,
) -> OverlapError {
    let session = alone();
    let model = perceptron(&[8, 8, 1]);
    let strategy = merging::named("single").unwrap();
    let mut overlap = Overlap::new(&session, &model, Method::ring(), strategy.into()).unwrap();
    let error = step(&mut overlap, &model, &inputs(4, 8, 0, 0)).unwrap_err();
    if !matches!(error, OverlapError::Unknown) {
        // The job has ended.
        assert!(matches!(overlap.wait(), Err(OverlapError::Runtime(Error::Failed(_)))));
    }
    error
}

#[test]
fn what_cannot_be_is_refused() {
    // A layer of an earlier step that burn has not consumed: of those that it has, it says so itself.
    let stale = refused(|overlap, model, inputs| {
        let old: Vec<Linear> = model.layers.iter().map(|layer| overlap.watch_first(layer).unwrap()).collect();
        overlap.arrange(&loss(model, inputs, &mut |layer, _, _| layer.clone()))?;
        overlap.backward(&loss(model, inputs, &mut |_, i, _| old[i].clone()), model)
    });
    assert!(matches!(&stale, OverlapError::Stale(name) if name.starts_with("layers.")), "{stale}");
    let two_ways = refused(|overlap, model, inputs| {
        let watched = loss(model, inputs, &mut |layer, _, input| overlap.watch(layer, input).unwrap());
        let direct = loss(model, inputs, &mut |layer, _, _| layer.clone());
        overlap.backward(&(watched + direct), model)
    });
    assert!(matches!(&two_ways, OverlapError::TwoWays(name) if name == "layers.0.weight"), "{two_ways}");
    let twice = refused(|overlap, model, inputs| {
        let mut pass = || {
            let loss = loss(model, inputs, &mut |layer, _, input| overlap.watch(layer, input).unwrap());
            overlap.backward(&loss, model)
        };
        pass().and_then(|()| pass())
    });
    assert!(matches!(twice, OverlapError::Twice), "{twice}");
    let nan = refused(|overlap, model, inputs| {
        let inputs = inputs.clone() * f32::NAN;
        let loss = loss(model, &inputs, &mut |layer, _, input| overlap.watch(layer, input).unwrap());
        overlap.backward(&loss, model)
    });
    assert!(nan.to_string().contains("layers.1."), "{nan}");
    let unknown = refused(|overlap, _, _| overlap.watch_first(&perceptron(&[2, 2])).map(drop));
    assert!(matches!(unknown, OverlapError::Unknown), "{unknown}");
}

#[test]
fn parameters_of_another_kind_are_refused() {
    let session = alone();
    let strategy = || merging::named("single").unwrap().into();
    let plain = Perceptron { layers: vec![LinearConfig::new(2, 2).init(&Device::flex())] };
    // Without autodiff nothing requires a gradient.
    let error = Overlap::new(&session, &plain, Method::ring(), strategy()).err().unwrap();
    assert!(matches!(error, OverlapError::Untrained), "{error}");
    let mut wide = perceptron(&[2, 2]);
    wide.layers[0].weight =
        wide.layers[0].weight.clone().map(|tensor| tensor.cast(DType::F64).detach().require_grad());
    let error = Overlap::new(&session, &wide, Method::ring(), strategy()).err().unwrap();
    assert!(matches!(&error, OverlapError::Kind { name, .. } if name == "layers.0.weight"), "{error}");
}
