//! A server of a simulation: what its policy has it do.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use gleaner_algorithms::synchrony::{Policy, Sgd, Stage};

/// What came to a server, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    Push(u32, u64),
    Left(u32),
}

#[derive(Debug)]
pub struct Server {
    pub range: Range<usize>,
    pub policy: Box<dyn Policy>,
    pub values: Vec<f32>,
    velocities: Vec<f32>,
    /// Pushes that have come and are not applied.
    pub pushes: BTreeMap<(Stage, u32, u64), Vec<f32>>,
    /// Whose pushes are not answered.
    pub waiting: BTreeSet<(u32, Stage)>,
    pub left: BTreeSet<u32>,
    pub applied: BTreeSet<(u32, u64)>,
    pub log: Vec<Came>,
    /// By how few steps one was ahead of the slowest and was not answered at once.
    pub held: Option<u64>,
    /// What is on its link: workers that push, and to whom a reply goes.
    pub pushing: BTreeSet<u32>,
    pub replying: BTreeSet<u32>,
}

impl Server {
    pub fn new(policy: Box<dyn Policy>, range: Range<usize>, initial: &[f32]) -> Self {
        Self {
            policy,
            values: initial[range.clone()].to_vec(),
            velocities: vec![0.0; range.len()],
            range,
            pushes: BTreeMap::new(),
            waiting: BTreeSet::new(),
            left: BTreeSet::new(),
            applied: BTreeSet::new(),
            log: Vec::new(),
            held: None,
            pushing: BTreeSet::new(),
            replying: BTreeSet::new(),
        }
    }

    /// One step of the optimiser on the entries of a stage.
    pub fn apply(
        &mut self,
        (stage, pushes, workers): (Stage, &[(u32, u64)], u32),
        (sgd, rate): (Sgd, f32),
        in_stage: impl Fn(usize) -> bool,
    ) {
        assert!(!pushes.is_empty() && pushes.len() <= workers as usize);
        let mut sum: Vec<f32> = Vec::new();
        for &(worker, step) in pushes {
            let gradient =
                self.pushes.remove(&(stage, worker, step)).expect("applied twice, or before it came");
            if sum.is_empty() {
                sum = gradient;
            } else {
                sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
            }
            self.applied.insert((worker, step));
        }
        for (entry, sum) in self.range.clone().zip(sum).filter(|&(entry, _)| in_stage(entry)) {
            let at = entry - self.range.start..=entry - self.range.start;
            let mean = sum / workers as f32;
            sgd.step(&mut self.values[at.clone()], &mut self.velocities[at], &[mean], rate);
        }
    }

    /// The workers that wait now, and by how much the least of them is ahead.
    pub fn hold(&mut self, workers: u32) {
        let pushed = |rank: u32| {
            self.log.iter().filter(|came| matches!(came, Came::Push(w, _) if *w == rank)).count() as u64
        };
        let slowest = (0..workers).filter(|rank| !self.left.contains(rank)).map(pushed).min();
        let ahead = self.waiting.iter().map(|&(rank, _)| pushed(rank) - slowest.unwrap_or(0));
        self.held = ahead.chain(self.held).min();
    }
}
