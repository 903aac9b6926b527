//! Gradients whose groups follow from what steps take, as for candle: see `gleaner::runtime::planner`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gleaner::algorithms::Sparsity;
use gleaner::algorithms::device::{Device, DeviceError, DeviceSlice};
use gleaner::algorithms::merging::{Grouping, Strategy};
use gleaner::cuda::{Cuda, Moment};
use gleaner::runtime::planner::{Measured, PlanError, Planner, layers};
use gleaner::{Layout, Method, Update};

/// Gradients, and who decides which of them travel together.
pub struct Planned {
    session: Arc<gleaner::Session>,
    pub gradients: gleaner::Gradients,
    parameters: Vec<(String, usize)>,
    positions: HashMap<String, usize>,
    /// Of the whole gradient: groups may have others.
    sparsity: Sparsity,
    /// None where the groups stay as they were given.
    plan: Option<Plan>,
    /// Where gradients are computed, if not by the processor.
    device: Option<Arc<Cuda>>,
    /// When this step began, its first gradient was ready, and each of them.
    began: Instant,
    first: Option<Instant>,
    finished: Vec<(usize, Ready)>,
}

/// When a gradient was ready.
enum Ready {
    Here(Instant),
    /// In the order of the device's work: the program is ahead of it.
    There(Moment),
}

impl Ready {
    fn since(&self, first: &Self) -> Result<Duration, DeviceError> {
        match (self, first) {
            (Self::Here(now), Self::Here(first)) => Ok(now.saturating_duration_since(*first)),
            (Self::There(now), Self::There(first)) => now.since(first),
            _ => Ok(Duration::ZERO),
        }
    }
}

struct Plan {
    strategy: Arc<dyn Strategy>,
    /// The order of the gradients is that of the step after so many.
    steady_after: u64,
    steps: u64,
    /// The parameters of each layer in the order in which they become ready, and the layers' groups, once the order is known.
    layers: Option<(Vec<Vec<usize>>, Planner)>,
}

impl Planned {
    /// Agrees with all ranks on the groups and the method. With a strategy its groups follow after some steps. On a device residuals stay
    /// there.
    ///
    /// # Errors
    /// As `Session::gradients`.
    pub fn new(
        session: Arc<gleaner::Session>,
        groups: &[Vec<(String, usize)>],
        method: Method,
        strategy: Option<Arc<dyn Strategy>>,
        steady_after: u64,
        device: Option<Arc<Cuda>>,
    ) -> Result<Self, gleaner::Error> {
        let mut layout = Layout::new();
        for group in groups {
            layout = group.iter().fold(layout.group(), |layout, (name, n)| layout.parameter(name, *n));
        }
        let parameters = groups.concat();
        let sparsity = method.sparsity();
        let gradients = match device.clone() {
            None => session.gradients(&layout, method)?,
            Some(device) => session.gradients_on(device as Arc<dyn Device>, &layout, method)?,
        };
        Ok(Self {
            gradients,
            session,
            positions: parameters.iter().cloned().map(|(name, _)| name).zip(0..).collect(),
            parameters,
            sparsity,
            device,
            plan: strategy.map(|strategy| Plan { strategy, steady_after, steps: 0, layers: None }),
            began: Instant::now(),
            first: None,
            finished: Vec::new(),
        })
    }

    /// The gradient of a parameter is ready.
    ///
    /// # Errors
    /// As `Gradients::ready`.
    pub fn ready(&mut self, parameter: &str, values: &[f32]) -> Result<(), gleaner::Error> {
        self.gradients.ready(parameter, values)?;
        self.note(parameter, Ready::Here(Instant::now()));
        Ok(())
    }

    /// The same of a gradient on the device.
    ///
    /// # Errors
    /// As `Gradients::ready_on_device`.
    pub fn ready_on_device(&mut self, parameter: &str, values: &DeviceSlice) -> Result<(), gleaner::Error> {
        self.gradients.ready_on_device(parameter, values)?;
        if let (Some(device), Some(_)) = (&self.device, &self.plan) {
            let ready = Ready::There(device.now()?);
            self.note(parameter, ready);
        }
        Ok(())
    }

    /// Notes when a parameter's gradient was ready.
    fn note(&mut self, parameter: &str, ready: Ready) {
        self.first.get_or_insert_with(Instant::now);
        if let Some(&position) = self.positions.get(parameter) {
            self.finished.push((position, ready));
        }
    }

    /// A step is over here: goes over to other groups where what was measured asks for it, together with all ranks.
    ///
    /// # Errors
    /// A job that has failed.
    pub fn conclude(&mut self, update: &Update) -> Result<(), PlanError> {
        let now = Instant::now();
        let forward = self.first.take().map_or(Duration::ZERO, |first| first - self.began);
        let iteration = now - std::mem::replace(&mut self.began, now);
        let ready = std::mem::take(&mut self.finished);
        let Some(plan) = self.plan.as_mut().filter(|_| update.skipped().is_none()) else { return Ok(()) };
        plan.steps += 1;
        if plan.steps <= plan.steady_after {
            return Ok(());
        }
        let after = |(position, at): &(usize, Ready)| Ok((*position, at.since(&ready[0].1)?));
        let finished: Result<Vec<(usize, Duration)>, DeviceError> = ready.iter().map(after).collect();
        let finished = finished.map_err(gleaner::Error::from)?;
        if plan.layers.is_none() {
            return self.arrange(&finished);
        }
        let Some(method) = self.method() else { return Ok(()) };
        let times = self.gradients.times();
        let Some((layers, planner)) = self.plan.as_mut().and_then(|plan| plan.layers.as_mut()) else {
            return Ok(());
        };
        let between = layers::between(layers, &finished);
        let measured = Measured::new(forward.as_secs_f64(), between, &times, iteration.as_secs_f64());
        if planner.conclude(&self.session, &method, measured)? {
            let layout = layout(&self.parameters, layers, planner.grouping());
            self.gradients.regroup(&layout)?;
        }
        Ok(())
    }

    /// Takes the order in which gradients became ready on rank 0 for that of all steps, and the strategy's groups if it needs no
    /// times.
    fn arrange(&mut self, finished: &[(usize, Duration)]) -> Result<(), PlanError> {
        let note: Vec<u8> =
            finished.iter().flat_map(|&(position, _)| (position as u32).to_le_bytes()).collect();
        let notes = self.session.all_gather(&note)?;
        let words = notes.first().map_or(&[][..], |note| note.as_chunks::<4>().0);
        let mut order: Vec<usize> = words.iter().map(|&word| u32::from_le_bytes(word) as usize).collect();
        let mut is_named = vec![false; self.parameters.len()];
        order.retain(|&position| {
            is_named.get_mut(position).is_some_and(|named| !std::mem::replace(named, true))
        });
        order.extend((0..is_named.len()).rev().filter(|&position| !is_named[position]));
        self.take_up(&order)
    }

    /// The parameters in the order in which they become ready, once it is known.
    pub fn order(&self) -> Option<Vec<String>> {
        let (layers, _) = self.plan.as_ref()?.layers.as_ref()?;
        Some(layers.iter().flatten().map(|&position| self.parameters[position].0.clone()).collect())
    }

    /// Takes the order that a run had which goes on here, so that its groups are the same where they need no times. All ranks call it
    /// together. Names that are not all of the parameters change nothing: what is loaded after this is refused with a sentence.
    ///
    /// # Errors
    /// Ranks whose orders differ.
    pub fn adopt(&mut self, order: &[String]) -> Result<(), PlanError> {
        let positions: Option<Vec<usize>> =
            order.iter().map(|name| self.positions.get(name).copied()).collect();
        match positions.filter(|positions| positions.len() == self.parameters.len()) {
            Some(positions) if self.plan.is_some() => self.take_up(&positions),
            _ => Ok(()),
        }
    }

    fn take_up(&mut self, order: &[usize]) -> Result<(), PlanError> {
        let Some(method) = self.method() else { return Ok(()) };
        let Some(plan) = &mut self.plan else { return Ok(()) };
        let count = |position: usize| self.parameters[position].1;
        let layers = layers::of(order, count, &method);
        let entries = layers.iter().map(|layer| layer.iter().copied().map(count).sum()).collect();
        let mut planner =
            Planner::new(Arc::clone(&plan.strategy), self.session.world_size() as u32, entries)?;
        self.gradients.regroup(&layout(&self.parameters, &layers, planner.grouping()))?;
        planner.measure(&self.session, &method)?;
        plan.steps = plan.steps.max(plan.steady_after);
        plan.layers = Some((layers, planner));
        // Measuring is no part of a step.
        self.began = Instant::now();
        Ok(())
    }

    /// The method of the first group, with the sparsity of the whole gradient.
    fn method(&self) -> Option<Method> {
        Some(self.gradients.methods().into_iter().next()?.selecting(self.sparsity))
    }

    /// The present groups by the numbers of their parameters; nothing before they were planned.
    pub fn groups(&self) -> Option<Vec<Vec<String>>> {
        let (layers, planner) = self.plan.as_ref()?.layers.as_ref()?;
        let names = |layers: &[Vec<usize>]| -> Vec<String> {
            layers.iter().flatten().map(|&position| self.parameters[position].0.clone()).collect()
        };
        Some(planner.grouping().ranges().map(|group| names(&layers[group])).collect())
    }

    /// What a step is expected to take by the plan, in seconds, and the share of its exchange that is hidden.
    pub fn expected(&self) -> Option<(f64, f64)> {
        let (_, planner) = self.plan.as_ref()?.layers.as_ref()?;
        planner.expected().map(|expected| (expected.iteration, expected.hidden_share))
    }
}

fn layout(parameters: &[(String, usize)], layers: &[Vec<usize>], grouping: &Grouping) -> Layout {
    let mut layout = Layout::new();
    for group in grouping.ranges() {
        layout = layers[group].iter().flatten().fold(layout.group(), |layout, &position| {
            let (name, n) = &parameters[position];
            layout.parameter(name, *n)
        });
    }
    layout
}
