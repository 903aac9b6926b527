//! A perceptron on burn, whose gradients are exchanged while the backward pass goes on: `cargo run --release --example overlap`, or
//! among four workers `gleaner launch -n 4 -- target/release/examples/overlap`.

use std::error::Error;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor, TensorData};
use gleaner_algorithms::{Method, merging};
use gleaner_burn::{Overlap, OverlapError};
use gleaner_runtime::Session;

#[derive(Module, Debug)]
struct Perceptron {
    layers: Vec<Linear>,
}

impl Perceptron {
    /// Applies each layer as it is watched.
    fn forward(&self, overlap: &mut Overlap, inputs: Tensor<2>) -> Result<Tensor<2>, OverlapError> {
        let mut values = inputs;
        for (i, layer) in self.layers.iter().enumerate() {
            values = overlap.watch(layer, &values)?.forward(values);
            if i + 1 < self.layers.len() {
                values = relu(values);
            }
        }
        Ok(values)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let session = Session::join()?;
    let device = Device::flex().autodiff();
    // The same starting values on every worker.
    device.seed(1);
    let layers = [(8, 64), (64, 64), (64, 1)]
        .map(|(inputs, outputs)| LinearConfig::new(inputs, outputs).init(&device));
    let mut model = Perceptron { layers: layers.into() };
    let (method, strategy) = (Method::spardl().density(0.1), merging::named("optimal")?.into());
    let mut overlap = Overlap::new(&session, &model, method, strategy)?;
    let mut optimizer = SgdConfig::new().init();
    let mut loss = f32::INFINITY;
    for step in 0..300 {
        // Each worker learns the sum of its own inputs.
        let own = |i: usize| ((i * 31 + step * 17 + session.rank() * 101) % 97) as f32 / 48.0 - 1.0;
        let inputs = TensorData::new((0..32 * 8).map(own).collect::<Vec<_>>(), [32, 8]);
        let inputs = Tensor::<2>::from_data(inputs, &device);
        let error = (model.forward(&mut overlap, inputs.clone())? - inputs.sum_dim(1)).square().mean();
        loss = error.clone().into_scalar();
        overlap.backward(&error, &model)?;
        let update = overlap.wait()?;
        let gradients = overlap.means(&update, &model)?;
        model = optimizer.step(0.01, model, gradients);
    }
    println!("rank {} of {}: loss {loss:.4}", session.rank(), session.world_size());
    Ok(())
}
