//! What the passes of a model take.

use gleaner_runtime::planner::Measured;
use gleaner_statistics::median;

use crate::Overlap;

/// What the passes of a step take on this rank, in seconds: medians of the last 128 steps.
#[derive(Clone, Debug, PartialEq)]
pub struct PassTimes {
    /// From the first parameter that is watched to the backward pass.
    pub forward: f64,
    /// The layers, in the order in which backpropagation finishes them.
    pub layers: Vec<LayerTime>,
}

/// What the backward pass of a layer takes.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTime {
    /// The names of its parameters.
    pub parameters: Vec<String>,
    /// Entries of all of them.
    pub entries: usize,
    /// From when the layer before was finished, in seconds.
    pub seconds: f64,
}

impl Overlap<'_> {
    /// What the passes take, once a step was taken by [`backward`](Self::backward).
    pub fn pass_times(&self) -> Option<PassTimes> {
        let (layers, _) = self.layers.as_ref().filter(|_| !self.recent.is_empty())?;
        let over = |of: &dyn Fn(&Measured) -> f64| median(self.recent.iter().map(of));
        let layer = |(number, layer): (usize, &Vec<usize>)| LayerTime {
            parameters: layer.iter().map(|&position| self.parameters[position].0.clone()).collect(),
            entries: layer.iter().map(|&position| self.parameters[position].1.elem_count()).sum(),
            seconds: over(&|step| step.layers[number]),
        };
        let layers = layers.iter().enumerate().map(layer).collect();
        Some(PassTimes { forward: over(&|step| step.forward), layers })
    }
}
