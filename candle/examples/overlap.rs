//! A user's own model on candle, whose gradients are exchanged while the backward pass goes on: `cargo run --release --package
//! gleaner-candle --example overlap`, or among four workers `gleaner launch -n 4 -- target/release/examples/overlap`.

use std::error::Error;

use candle_core::{Device::Cpu, Tensor, Var};
use gleaner::algorithms::merging;
use gleaner::{Method, Session};
use gleaner_candle::Overlap;

const LAYERS: [(usize, usize); 3] = [(8, 64), (64, 64), (64, 1)];

/// A perceptron that uses each weight as it is watched.
fn forward(overlap: &mut Overlap, inputs: &Tensor) -> Result<Tensor, Box<dyn Error>> {
    let mut values = inputs.clone();
    for layer in 0..LAYERS.len() {
        values = values.matmul(&overlap.watch(&format!("layer{layer}"))?)?;
        if layer + 1 < LAYERS.len() {
            values = values.relu()?;
        }
    }
    Ok(values)
}

fn main() -> Result<(), Box<dyn Error>> {
    let session = Session::join()?;
    // The same starting values on every worker.
    let mut weights = Vec::new();
    for (layer, (inputs, outputs)) in LAYERS.into_iter().enumerate() {
        let value = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * (3.0 / inputs as f32).sqrt();
        let values = (0..inputs * outputs).map(value).collect();
        weights.push((format!("layer{layer}"), Var::from_vec(values, (inputs, outputs), &Cpu)?));
    }
    let (method, strategy) = (Method::spardl().density(0.1), merging::named("optimal")?.into());
    let mut overlap = Overlap::new(&session, weights.clone(), method, strategy)?;
    let mut loss = f32::INFINITY;
    for step in 0..300 {
        // Each worker learns the sum of its own inputs.
        let own = |i: usize| ((i * 31 + step * 17 + session.rank() * 101) % 97) as f32 / 48.0 - 1.0;
        let inputs = Tensor::from_vec((0..32 * 8).map(own).collect(), (32, 8), &Cpu)?;
        let error = (forward(&mut overlap, &inputs)? - inputs.sum_keepdim(1)?)?.sqr()?.mean_all()?;
        loss = error.to_scalar()?;
        overlap.backward(&error)?;
        let update = overlap.wait()?;
        let gradients = overlap.means(&update)?;
        for (_, weight) in &weights {
            if let Some(gradient) = gradients.get(weight) {
                weight.set(&(weight.as_tensor() - (gradient * 0.01)?)?)?;
            }
        }
    }
    println!("rank {} of {}: loss {loss:.4}", session.rank(), session.world_size());
    Ok(())
}
