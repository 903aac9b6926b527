//! Gradients as a training brings them, for methods that follow them from step to step: they become smaller, their scale
//! jumps where the learning rate changes, and the large entries cluster in one place, which moves.

use std::error::Error;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::residual::{Collection, Residual};
use gleaner_algorithms::schedule::lockstep;
use gleaner_statistics::random::Generator;

/// How long a training is.
pub const STEPS: usize = 2000;

/// At which steps the learning rate changes, and how many times larger gradients become with it: two drops and a rise.
pub const JUMPS: [(usize, f32); 3] = [(700, 0.1), (1200, 0.1), (1600, 10.0)];

/// Noise beyond the length of the gradient, so that it begins elsewhere in every step.
const SLACK: usize = 1 << 17;

/// How large gradients are in a step: 1 at first, 100 times smaller after [`STEPS`], and all jumps that were.
pub fn scale(step: usize) -> f32 {
    let fallen = 0.01f32.powf(step as f32 / STEPS as f32);
    JUMPS.iter().filter(|(at, _)| *at <= step).fold(fallen, |scale, (_, times)| scale * times)
}

/// A generator of gradients of one length.
pub struct Stream {
    /// The cubes of uniform numbers: a few are large.
    noise: Vec<f32>,
    /// How large each entry is in the present step.
    sizes: Vec<f32>,
    random: Generator,
}

impl Stream {
    pub fn new(n: usize) -> Self {
        let mut stream = Self { noise: Vec::new(), sizes: vec![0.0; n], random: Generator::seeded(0x51ab) };
        let noise = (0..n + SLACK).map(|_| {
            let unit = (stream.random.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            unit * unit * unit
        });
        stream.noise = noise.collect();
        stream
    }

    fn piece(&mut self) -> std::ops::Range<usize> {
        let first = (self.random.bits() % SLACK as u64) as usize;
        first..first + self.sizes.len()
    }

    /// The gradients of all workers in one step: what they have in common, and the noise of each.
    pub fn fill(&mut self, step: usize, gradients: &mut [Vec<f32>]) {
        let scale = scale(step);
        let centre = 0.08 + 0.12 * step as f32 / STEPS as f32;
        let n = self.sizes.len() as f32;
        for (i, size) in self.sizes.iter_mut().enumerate() {
            let distance = 12.0 * (i as f32 / n - centre);
            *size = scale * (0.3 + 3.0 / (1.0 + distance * distance));
        }
        let common = self.piece();
        for gradient in gradients {
            let own = self.piece();
            let noise = self.noise[common.clone()].iter().zip(&self.noise[own]);
            let entries = gradient.iter_mut().zip(&self.sizes);
            entries.zip(noise).for_each(|((g, size), (common, own))| *g = size * (common + own));
        }
    }
}

/// What a step did.
pub struct Followed {
    /// The threshold that ExDyna selected by; 0 with other methods.
    pub threshold: f64,
    /// How many entries each partition gave in ExDyna; with other methods how many each worker chose.
    pub counts: Vec<usize>,
    /// How many entries the update has.
    pub delivered: usize,
    /// The L2 norm of what a worker has not sent, mean over the workers: equation 1 of ExDyna.
    pub error: f64,
    /// Whether the partitions were others than before.
    pub moved: bool,
}

impl Followed {
    pub fn count(&self) -> usize {
        self.counts.iter().sum()
    }

    /// f(t), equation 5 of ExDyna: how many times the mean the fullest partition has.
    pub fn imbalance(&self) -> f64 {
        let fullest = self.counts.iter().copied().max().unwrap_or(0);
        fullest as f64 * self.counts.len() as f64 / self.count().max(1) as f64
    }
}

/// Runs a method on a stream.
pub fn follow(
    method: Method,
    workers: usize,
    n: usize,
    steps: usize,
) -> Result<Vec<Followed>, Box<dyn Error>> {
    let mut stream = Stream::new(n);
    let mut ensemble = Ensemble::<f32>::new(method, workers as u32, n)?;
    let mut gradients = vec![vec![0.0; n]; workers];
    let mut partition = ensemble.partition().clone();
    let mut followed = Vec::with_capacity(steps);
    for step in 0..steps {
        stream.fill(step, &mut gradients);
        let threshold = ensemble.memories()[0].agreed.first().copied().unwrap_or(0.0);
        let before = std::mem::replace(&mut partition, ensemble.partition().clone());
        let mut runs = Vec::with_capacity(workers);
        for (worker, gradient) in gradients.iter().enumerate() {
            ensemble.residuals[worker].accumulate(0, gradient)?;
            runs.push(ensemble.begin(worker)?);
        }
        let finished = lockstep(runs)?;
        let proposed = finished.runs[0].finished.observed().proposed;
        let counts = if proposed.iter().any(Option::is_some) {
            proposed.iter().map(|p| p.as_ref().map_or(0, |p| p.len())).collect()
        } else {
            finished.runs.iter().map(|run| run.finished.observed().own.entries).collect()
        };
        let (delivered, moved) = (finished.runs[0].finished.entries(), before != partition);
        ensemble.commit(finished, Collection::Global)?;
        let norm = |residual: &Residual| {
            residual.read(0..n).expect("in main memory").iter().map(|v| f64::from(v * v)).sum::<f64>().sqrt()
        };
        let error = ensemble.residuals.iter().map(norm).sum::<f64>() / workers as f64;
        followed.push(Followed { threshold, counts, delivered, error, moved });
    }
    Ok(followed)
}
