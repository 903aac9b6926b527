//! What a step delivers.

use std::collections::HashMap;
use std::sync::Arc;

use gleaner_algorithms::bag::{Bag, floats};
use gleaner_algorithms::{Block, Partition};

use crate::layout::{Layout, LayoutError};

/// The same sparse update on every worker: the mean over the workers of what was selected.
#[derive(Debug)]
pub struct Update {
    pub(crate) layout: Arc<Layout>,
    pub(crate) by_name: Arc<HashMap<String, usize>>,
    pub(crate) groups: Vec<(Partition, Vec<Bag>)>,
    pub(crate) workers: u32,
    pub(crate) step: u64,
}

impl Update {
    /// The step that it belongs to, counted from 0.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The number of non-zero entries over all parameters.
    pub fn entries(&self) -> usize {
        self.groups.iter().flat_map(|(_, bags)| bags).map(Bag::nonzeros).sum()
    }

    /// The mean, entry by entry, for one parameter.
    ///
    /// # Errors
    /// An unknown name.
    pub fn values(&self, parameter: &str) -> Result<Vec<f32>, LayoutError> {
        let position = self.by_name.get(parameter).ok_or_else(|| LayoutError::Unknown(parameter.into()))?;
        let mut values = vec![0.0; self.layout.parameters[*position].len];
        self.add_to(parameter, &mut values, 1.0)?;
        Ok(values)
    }

    /// `into += scale · mean`, for one parameter's entries.
    ///
    /// # Errors
    /// An unknown name, or a slice of another length than the parameter.
    pub fn add_to(&self, parameter: &str, into: &mut [f32], scale: f32) -> Result<(), LayoutError> {
        let position = self.by_name.get(parameter).ok_or_else(|| LayoutError::Unknown(parameter.into()))?;
        let p = &self.layout.parameters[*position];
        if into.len() != p.len {
            return Err(LayoutError::Length { name: p.name.clone(), expected: p.len, found: into.len() });
        }
        let scale = scale / self.workers as f32;
        let (partition, bags) = &self.groups[p.group];
        let (start, end) = (p.offset, p.offset + p.len);
        for (b, bag) in bags.iter().enumerate() {
            let block = partition.range(Block(b as u32));
            let (from, to) = (block.start.max(start), block.end.min(end));
            if from >= to {
                continue;
            }
            let (first, last) = ((from - block.start) as u32, (to - block.start) as u32);
            match bag {
                Bag::Dense(values) => {
                    let values = values.stretches(first as usize..last as usize).flat_map(floats);
                    into[from - start..to - start].iter_mut().zip(values).for_each(|(x, v)| *x += scale * v);
                }
                Bag::Sparse(entries) => {
                    let here = entries.indices.partition_point(|&i| i < first);
                    for (&i, v) in entries.indices[here..].iter().zip(&entries.values[here..]) {
                        if i >= last {
                            break;
                        }
                        into[block.start + i as usize - start] += scale * v;
                    }
                }
            }
        }
        Ok(())
    }

    /// Feeds every delivered entry, as little-endian (group, position, bits of the sum), to a digest: equal on all
    /// workers if and only if their updates are.
    pub fn digest(&self, mut feed: impl FnMut(&[u8])) {
        for (group, (partition, bags)) in self.groups.iter().enumerate() {
            for (b, bag) in bags.iter().enumerate() {
                let start = partition.range(Block(b as u32)).start as u64;
                let mut bytes = Vec::with_capacity(4096);
                for (i, value) in bag.iter() {
                    bytes.extend((group as u32).to_le_bytes());
                    bytes.extend((start + u64::from(i)).to_le_bytes());
                    bytes.extend(value.to_bits().to_le_bytes());
                    if bytes.len() >= 4080 {
                        feed(&bytes);
                        bytes.clear();
                    }
                }
                feed(&bytes);
            }
        }
    }
}
