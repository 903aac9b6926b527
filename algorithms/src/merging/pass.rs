//! What backpropagation does in a step, and when.

use super::MergingError;

/// A layer with parameters, or one tensor of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// How long its gradient takes in the backward pass after the one before is finished, in seconds: t_b of OMGS-SGD's Table II.
    pub backward: f64,
    /// How many entries its gradient has: d of OMGS-SGD's Table II.
    pub entries: usize,
}

/// The forward and the backward pass of one step on one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    forward: f64,
    layers: Vec<Layer>,
    /// When the backward pass would reach the end of this many layers if nothing stalled it: L + 1 of them.
    ends: Vec<f64>,
    /// The entries of this many layers: L + 1 of them.
    sizes: Vec<usize>,
}

impl Pass {
    /// From how long the forward pass takes, in seconds, and the layers in the order in which backpropagation finishes them:
    /// the first one here is the paper's layer L.
    ///
    /// # Errors
    /// No layers, a layer without entries, or a time that is negative or not finite.
    pub fn new(forward: f64, layers: Vec<Layer>) -> Result<Self, MergingError> {
        if layers.is_empty() {
            return Err(MergingError::NoLayers);
        }
        let forward = time(forward, || "the forward pass".into())?;
        let (mut ends, mut sizes) = (vec![forward], vec![0]);
        for (i, layer) in layers.iter().enumerate() {
            if layer.entries == 0 {
                return Err(MergingError::Empty { layer: i });
            }
            let what = || format!("the backward pass of layer {i}");
            let end = ends[i] + time(layer.backward, what)?;
            ends.push(time(end, || format!("the backward pass up to layer {i}"))?);
            sizes.push(sizes[i] + layer.entries);
        }
        Ok(Self { forward, layers, ends, sizes })
    }

    /// The layers, in the order in which backpropagation finishes them. At least one.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// How long the forward pass takes, in seconds: t_f.
    pub fn forward(&self) -> f64 {
        self.forward
    }

    /// How long the backward pass takes if nothing stalls it, in seconds: the sum of all t_b.
    pub fn backward(&self) -> f64 {
        self.end(self.layers.len()) - self.forward
    }

    /// When backpropagation is done with the first n layers if nothing stalls it, in seconds after the step began.
    pub(super) fn end(&self, layers: usize) -> f64 {
        self.ends[layers]
    }

    /// The entries of the layers from one on and before another.
    pub(super) fn entries(&self, from: usize, to: usize) -> usize {
        self.sizes[to] - self.sizes[from]
    }
}

/// A time in seconds, if it can be one.
pub(super) fn time(seconds: f64, what: impl FnOnce() -> String) -> Result<f64, MergingError> {
    if seconds.is_finite() && seconds >= 0.0 {
        return Ok(seconds);
    }
    Err(MergingError::Time { what: what(), seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_times_get_a_sentence() {
        let layer = |backward, entries| Layer { backward, entries };
        let says = |forward, layers: &[Layer]| Pass::new(forward, layers.to_vec()).unwrap_err().to_string();
        assert!(says(0.0, &[]).contains("no layers"));
        assert!(says(-1.0, &[layer(1.0, 1)]).contains("the forward pass takes -1 s"));
        assert!(says(0.0, &[layer(1.0, 1), layer(f64::NAN, 1)]).contains("layer 1 takes NaN s"));
        assert!(says(0.0, &[layer(f64::INFINITY, 1)]).contains("layer 0 takes inf s"));
        assert!(says(0.0, &[layer(f64::MAX, 1), layer(f64::MAX, 1)]).contains("up to layer 1"));
        assert!(says(0.0, &[layer(1.0, 0)]).contains("layer 0 has no entries"));
    }
}
