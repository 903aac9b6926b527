//! TEMPORARY: a single worker in place of the runtime, with top-k selection and residuals. Deleted when the runtime exists.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

pub struct Session;

impl Session {
    pub fn join() -> Result<Session, Error> {
        Ok(Session)
    }
    pub fn rank(&self) -> usize {
        0
    }
    pub fn world_size(&self) -> usize {
        1
    }
    pub fn gradients(&self, layout: &Layout, method: Method) -> Result<Gradients, Error> {
        let total: usize = layout.0.iter().map(|(_, len)| len).sum();
        let k = match method {
            Method::Dense => total,
            Method::Top(density) => (density as f64 * total as f64).ceil() as usize,
            Method::K(k) => k.min(total),
        };
        let mut offsets = HashMap::new();
        let mut at = 0;
        for (name, len) in &layout.0 {
            offsets.insert(name.clone(), (at, *len));
            at += len;
        }
        Ok(Gradients { k, offsets, accumulated: vec![0.0; total], step: 0, bytes: 0 })
    }
    pub fn barrier(&self) -> Result<(), Error> {
        Ok(())
    }
    pub fn all_gather(&self, note: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![note.to_vec()])
    }
}

pub enum Method {
    Dense,
    Top(f32),
    K(usize),
}

impl FromStr for Method {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "dense" => Ok(Method::Dense),
            "spardl" => Ok(Method::Top(0.01)),
            _ => Err(Error(format!("--method: expected spardl or dense, found {text}"))),
        }
    }
}

impl Method {
    pub fn density(self, density: f32) -> Self {
        if let Method::Dense = self { self } else { Method::Top(density) }
    }
    pub fn k(self, k: usize) -> Self {
        if let Method::Dense = self { self } else { Method::K(k) }
    }
}

pub struct Layout(Vec<(String, usize)>);

impl Layout {
    pub fn new() -> Self {
        Layout(Vec::new())
    }
    pub fn parameter(mut self, name: &str, len: usize) -> Self {
        self.0.push((name.to_string(), len));
        self
    }
}

pub struct Gradients {
    k: usize,
    offsets: HashMap<String, (usize, usize)>,
    accumulated: Vec<f32>,
    step: u64,
    bytes: u64,
}

impl Gradients {
    pub fn ready(&mut self, parameter: &str, gradient: &[f32]) -> Result<(), Error> {
        let (at, len) =
            *self.offsets.get(parameter).ok_or_else(|| Error(format!("no parameter {parameter}")))?;
        assert_eq!(len, gradient.len());
        self.accumulated[at..at + len].iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        Ok(())
    }
    pub fn wait(&mut self) -> Result<Update, Error> {
        let mut magnitudes: Vec<f32> = self.accumulated.iter().map(|value| value.abs()).collect();
        let total = magnitudes.len();
        let threshold = if self.k < total {
            *magnitudes.select_nth_unstable_by(total - self.k, f32::total_cmp).1
        } else {
            0.0
        };
        let mut values = vec![0.0; total];
        let mut entries = 0;
        for (residual, value) in self.accumulated.iter_mut().zip(&mut values) {
            if residual.abs() >= threshold && *residual != 0.0 {
                *value = std::mem::take(residual);
                entries += 1;
            }
        }
        self.step += 1;
        self.bytes += 8 * entries as u64;
        Ok(Update { offsets: self.offsets.clone(), values, entries })
    }
    pub fn step(&self) -> u64 {
        self.step
    }
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut bytes = self.step.to_le_bytes().to_vec();
        bytes.extend(self.accumulated.iter().flat_map(|value| value.to_le_bytes()));
        std::fs::write(path, bytes).map_err(|error| Error(error.to_string()))
    }
    pub fn load(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = std::fs::read(path).map_err(|error| Error(error.to_string()))?;
        let (words, _) = bytes.as_chunks::<4>();
        self.step = u64::from_le_bytes(bytes[..8].try_into().map_err(|_| Error("truncated".into()))?);
        self.accumulated = words[2..].iter().map(|&word| f32::from_le_bytes(word)).collect();
        Ok(())
    }
    pub fn bytes_received(&self) -> u64 {
        self.bytes
    }
}

pub struct Update {
    offsets: HashMap<String, (usize, usize)>,
    values: Vec<f32>,
    entries: usize,
}

impl Update {
    pub fn add_to(&self, parameter: &str, into: &mut [f32], scale: f32) {
        let (at, len) = self.offsets[parameter];
        into.iter_mut().zip(&self.values[at..at + len]).for_each(|(sum, value)| *sum += scale * value);
    }
    pub fn entries(&self) -> usize {
        self.entries
    }
}
