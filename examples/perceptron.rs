//! A perceptron in plain Rust, trained by several workers: each layer's gradient is handed over as soon as it is known, and a
//! checkpoint of parameters and residuals is written now and then, from which the next run goes on.
//!
//! `gleaner launch -n 4 -- target/release/examples/perceptron FOLDER`, after `cargo build --release --example perceptron`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use fastrand::Rng;
use gleaner::{Layout, Method, Session};

const HIDDEN: usize = 32;
const SAMPLES: usize = 2000;
const BATCH: usize = 20;
const STEPS: u64 = 1500;
const RATE: f32 = 0.5;

/// Two inputs, a hidden layer, and the logit of a class. A neuron's weights end with its bias.
struct Perceptron {
    hidden: Vec<f32>,
    output: Vec<f32>,
}

impl Perceptron {
    /// The activations, and the probability that a point is of the class.
    fn forward(&self, point: [f32; 2]) -> (Vec<f32>, f32) {
        let neuron = |w: &[f32]| (w[0] * point[0] + w[1] * point[1] + w[2]).tanh();
        let active: Vec<f32> = self.hidden.chunks_exact(3).map(neuron).collect();
        let logit = active.iter().zip(&self.output).map(|(a, w)| a * w).sum::<f32>() + self.output[HIDDEN];
        (active, 1.0 / (1.0 + (-logit).exp()))
    }
}

/// A point, and whether it is inside a circle. A sample has the same point on all ranks.
fn sample(i: usize) -> ([f32; 2], f32) {
    let mut random = Rng::with_seed(i as u64);
    let point = [0, 1].map(|_| 2.0 * random.f32() - 1.0);
    (point, f32::from(u8::from(point[0].hypot(point[1]) < 0.7)))
}

/// The checkpoint of a rank. Two are kept, so that all ranks have one of the same step whenever the job is killed.
fn file(folder: &Path, step: u64, rank: usize) -> PathBuf {
    folder.join(format!("step-{step}-rank-{rank}.safetensors"))
}

/// The steps of which this rank has a checkpoint.
fn steps_in(folder: &Path, rank: usize) -> Vec<u64> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let suffix = format!("-rank-{rank}.safetensors");
    names
        .filter_map(|name| name.to_str()?.strip_prefix("step-")?.strip_suffix(&suffix)?.parse().ok())
        .collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let session = Session::join()?;
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let mine = session.shard(SAMPLES);

    // The output layer first: backpropagation comes to it first. Each layer is a group, and is exchanged while the next is computed.
    let layout = Layout::new().parameter("output", HIDDEN + 1).group().parameter("hidden", 3 * HIDDEN);
    let mut gradients = session.gradients(&layout, Method::spardl().density(0.1))?;
    let mut random = Rng::with_seed(session.rank() as u64);
    let mut model = Perceptron {
        hidden: (0..3 * HIDDEN).map(|_| 4.0 * random.f32() - 2.0).collect(),
        output: vec![0.0; HIDDEN + 1],
    };
    // Ranks may begin with any parameters; then they have those of rank 0.
    session.broadcast(&mut model.hidden)?;
    if let Some(folder) = &folder {
        fs::create_dir_all(folder)?;
        if let Some(step) = session.newest_common(&steps_in(folder, session.rank()))? {
            let values = &mut [("output", &mut model.output[..]), ("hidden", &mut model.hidden[..])];
            gradients.load_with(file(folder, step, session.rank()), values, &[])?;
        }
    }
    let first = gradients.step();

    for step in first..STEPS {
        let batch: Vec<usize> =
            (0..BATCH).map(|i| mine.start + (step as usize * BATCH + i) % mine.len()).collect();
        let passes: Vec<_> = batch.iter().map(|&i| (sample(i), model.forward(sample(i).0))).collect();
        // Of the logistic loss, the gradient at the logit is the probability less the truth.
        let errors: Vec<f32> = passes.iter().map(|((_, is), (_, says))| (says - is) / BATCH as f32).collect();

        let mut of_output = vec![0.0; HIDDEN + 1];
        for ((_, (active, _)), error) in passes.iter().zip(&errors) {
            of_output.iter_mut().zip(active.iter().chain([&1.0])).for_each(|(g, a)| *g += error * a);
        }
        gradients.ready("output", &of_output)?;

        let mut of_hidden = vec![0.0; 3 * HIDDEN];
        for (((point, _), (active, _)), error) in passes.iter().zip(&errors) {
            for ((g, a), w) in of_hidden.chunks_exact_mut(3).zip(active).zip(&model.output) {
                let slope = error * w * (1.0 - a * a);
                g.iter_mut().zip([point[0], point[1], 1.0]).for_each(|(g, x)| *g += slope * x);
            }
        }
        gradients.ready("hidden", &of_hidden)?;

        let update = gradients.wait()?;
        update.add_to("output", &mut model.output, -RATE)?;
        update.add_to("hidden", &mut model.hidden, -RATE)?;
        if let Some(folder) = folder.as_ref().filter(|_| (step + 1) % 500 == 0) {
            let values = [("output", &model.output[..]), ("hidden", &model.hidden[..])];
            gradients.save_with(file(folder, step + 1, session.rank()), &values, &[])?;
            // What every rank has two newer ones of is not needed any more.
            fs::remove_file(file(folder, (step + 1).saturating_sub(1000), session.rank())).ok();
        }
    }

    let right =
        mine.clone().filter(|&i| (model.forward(sample(i).0).1 > 0.5) == (sample(i).1 == 1.0)).count();
    let accuracy = session.mean(right as f64 / mine.len() as f64)?;
    println!(
        "rank {} of {}: {:.1}% of all samples are classified, after steps {first} to {STEPS}",
        session.rank(),
        session.world_size(),
        100.0 * accuracy
    );
    Ok(())
}
