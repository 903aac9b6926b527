//! A random job: how many workers and servers, how long everything takes, which gradients there are, and who dies when.

use gleaner_algorithms::synchrony::Sgd;
use gleaner_statistics::random;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub struct Job {
    pub workers: u32,
    pub servers: u32,
    /// Lengths of units.
    pub units: Vec<usize>,
    pub steps: u64,
    pub sgd: Sgd,
    pub rate: f32,
    pub seed: u64,
    pub gradients: Gradients,
    pub split: Split,
    pub deaths: Vec<Death>,
    /// Whether workers also do what they may not.
    pub hostile: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Death {
    pub worker: u32,
    pub after: u64,
}

/// Which gradients workers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradients {
    /// Of a quadratic around a point of each worker, and some noise.
    Own,
    /// The same on all workers.
    Same,
    /// Small whole numbers, of each worker and step, whatever the parameters.
    Whole,
}

/// Which units are in the background of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    None,
    All,
    Random,
}

impl Job {
    pub fn entries(&self) -> usize {
        self.units.iter().sum()
    }

    /// A random number that is always the same for the same question.
    pub fn random(&self, question: &[u64]) -> u64 {
        question.iter().fold(self.seed, |state, number| random::at(state ^ number, 1))
    }

    /// From -1 to 1.
    fn value(&self, question: &[u64]) -> f32 {
        (self.random(question) % 2001) as f32 / 1000.0 - 1.0
    }

    /// Dyadic, so that sums of whole numbers are exact.
    pub fn initial(&self) -> Vec<f32> {
        (0..self.entries() as u64).map(|entry| (self.random(&[2, entry]) % 64) as f32 / 8.0 - 4.0).collect()
    }

    /// How long a pass takes: every worker has a pace, and sometimes it is held up.
    pub fn computing(&self, worker: u32, step: u64) -> u64 {
        let pace = 1 + self.random(&[3, worker.into()]) % 4;
        let random = self.random(&[4, worker.into(), step]);
        let held_up = if random.is_multiple_of(13) { 20 } else { 1 };
        (1 + random % 50) * pace * held_up
    }

    pub fn gradient(&self, worker: u32, step: u64, at: &[f32]) -> Vec<f32> {
        let worker = if self.gradients == Gradients::Same { 0 } else { worker.into() };
        let of = |(entry, &value): (usize, &f32)| {
            let entry = entry as u64;
            if self.gradients == Gradients::Whole {
                return (self.random(&[5, worker, step, entry]) % 9) as f32 - 4.0;
            }
            let steepness = 0.6 + 0.5 * self.value(&[6, entry]);
            steepness * (value - self.value(&[7, worker, entry]))
                + 0.3 * self.value(&[8, worker, step, entry])
        };
        at.iter().enumerate().map(of).collect()
    }

    /// By unit, whether it is in the background of this step.
    pub fn background(&self, step: u64) -> Vec<bool> {
        let of = |unit: usize| match self.split {
            Split::None => false,
            Split::All => true,
            Split::Random => self.random(&[9, step, unit as u64]).is_multiple_of(2),
        };
        (0..self.units.len()).map(of).collect()
    }
}

/// Jobs without deaths.
pub fn jobs() -> impl Strategy<Value = Job> {
    let optimizer = (
        prop::sample::select(vec![0.0f32, 0.5, 0.9]),
        prop::sample::select(vec![0.0f32, 0.01]),
        any::<bool>(),
        0.05f32..0.3,
    );
    let shape = (1u32..=6, 1u32..=3, prop::collection::vec(1usize..5, 1..5), 1u64..10);
    (shape, optimizer, any::<u64>(), any::<bool>()).prop_map(
        |((workers, servers, units, steps), (momentum, weight_decay, nesterov, rate), seed, hostile)| Job {
            workers,
            servers: servers.min(units.iter().sum::<usize>() as u32),
            units,
            steps,
            sgd: Sgd { momentum, weight_decay, nesterov },
            rate,
            seed,
            gradients: Gradients::Own,
            split: Split::Random,
            deaths: Vec::new(),
            hostile,
        },
    )
}

/// The same, and some die at any moment; maybe all.
pub fn with_deaths() -> impl Strategy<Value = Job> {
    (jobs(), prop::collection::vec((any::<u32>(), 0u64..3000), 0..5)).prop_map(|(job, deaths)| {
        let deaths = deaths.into_iter().map(|(worker, after)| Death { worker: worker % job.workers, after });
        Job { deaths: deaths.collect(), ..job }
    })
}
