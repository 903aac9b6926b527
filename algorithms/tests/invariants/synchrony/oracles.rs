//! What is expected of a job: plain loops, without events, messages or policies.

use gleaner_algorithms::Layers;
use gleaner_algorithms::synchrony::{Local, Sgd};

use super::job::Job;
use super::server::Came;

/// An optimiser with its parameters.
#[derive(Clone)]
struct State {
    values: Vec<f32>,
    velocities: Vec<f32>,
}

impl State {
    fn new(job: &Job) -> Self {
        Self { values: job.initial(), velocities: vec![0.0; job.entries()] }
    }

    fn step(&mut self, sgd: Sgd, gradient: &[f32], rate: f32) {
        sgd.step(&mut self.values, &mut self.velocities, gradient, rate);
    }
}

/// The sum in the order given, divided.
fn mean(gradients: impl IntoIterator<Item = Vec<f32>>, of: usize) -> Vec<f32> {
    let mut gradients = gradients.into_iter();
    let mut sum = gradients.next().unwrap();
    for gradient in gradients {
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= of as f32);
    sum
}

/// What all workers see at the beginning of each step, and the parameters in the end, where every worker sees the truth as of
/// `delay` steps before in units of the background, and the whole truth in others. Without units in the background, or delay 0,
/// this is BSP.
pub fn stages(job: &Job, delay: usize) -> Vec<Vec<f32>> {
    let units: Vec<_> = Layers::of(job.units.iter().copied()).ranges().collect();
    let mut state = State::new(job);
    let mut truths = vec![state.values.clone()];
    let mut views = vec![state.values.clone()];
    for step in 0..job.steps {
        let view = &views[step as usize];
        let gradient =
            mean((0..job.workers).map(|worker| job.gradient(worker, step, view)), job.workers as usize);
        state.step(job.sgd, &gradient, job.rate);
        truths.push(state.values.clone());
        let mut view = state.values.clone();
        for (unit, range) in units.iter().enumerate() {
            if job.background(step)[unit] {
                let past = truths.len().saturating_sub(1 + delay);
                view[range.clone()].copy_from_slice(&truths[past][range.clone()]);
            }
        }
        views.push(view);
    }
    // In the end everything has come.
    *views.last_mut().unwrap() = state.values;
    views
}

/// The parameters in the end where each push is an update in the order in which they came, and what each worker saw.
pub fn one_by_one(job: &Job, came: &[Came]) -> (Vec<f32>, Vec<Vec<Vec<f32>>>) {
    let mut state = State::new(job);
    let mut views: Vec<Vec<Vec<f32>>> = vec![vec![state.values.clone()]; job.workers as usize];
    let mut present = job.workers as usize;
    for came in came {
        match *came {
            Came::Left(_) => present -= 1,
            Came::Push(worker, step) => {
                let gradient = job.gradient(worker, step, views[worker as usize].last().unwrap());
                state.step(job.sgd, &mean([gradient], present), job.rate);
                views[worker as usize].push(state.values.clone());
            }
        }
    }
    (state.values, views)
}

/// The parameters after the last exchange where workers take local steps.
pub fn local(job: &Job, local: Local) -> Vec<f32> {
    let mut outer = State::new(job);
    let mut inner: Vec<State> = (0..job.workers).map(|_| outer.clone()).collect();
    let mut since = 0;
    for step in 0..job.steps {
        for (worker, state) in (0..).zip(&mut inner) {
            let gradient = job.gradient(worker, step, &state.values);
            state.step(job.sgd, &gradient, job.rate);
        }
        since += 1;
        if step < local.after || since == local.steps {
            since = 0;
            let difference = |state: &State| {
                outer.values.iter().zip(&state.values).map(|(before, after)| before - after).collect()
            };
            let gradient = mean(inner.iter().map(difference).collect::<Vec<_>>(), inner.len());
            let sgd = Sgd { momentum: local.momentum, weight_decay: 0.0, nesterov: local.momentum > 0.0 };
            outer.step(sgd, &gradient, local.rate);
            inner.iter_mut().for_each(|state| state.values.clone_from(&outer.values));
        }
    }
    outer.values
}
