//! A selection from values or from candidates, launch by launch, and the same by sorting.

use std::cmp::Reverse;
use std::ops::Range;

use crate::emulation::{CHUNK, Emulation, POISON, RECORDS, THREADS, TILE, launch};
use crate::format::magnitude;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    Largest(u32),
    Reaching(u32),
}

/// The device's Cut.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cut {
    magnitude: u32,
    ties: u32,
    pub reached: u32,
    pub kept: u32,
    pub smallest: u32,
    remaining: u32,
    ready: u32,
    unused: u32,
}

/// What came out.
#[derive(Debug, PartialEq)]
pub struct Selected {
    /// Index and bits.
    pub entries: Vec<(u32, u32)>,
    pub kept: u32,
    pub smallest: u32,
}

/// By sorting: the largest non-zero ones, the lower index first among equal magnitudes.
pub fn expected(values: &[f32], want: Want, most: usize) -> Selected {
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| magnitude(values[i]) != 0).collect();
    match want {
        Want::Largest(k) => {
            order.sort_by_key(|&i| (Reverse(magnitude(values[i])), i));
            order.truncate(k as usize);
            order.sort_unstable();
        }
        Want::Reaching(limit) => order.retain(|&i| magnitude(values[i]) >= limit),
    }
    let smallest = order.iter().map(|&i| magnitude(values[i])).min().unwrap_or(u32::MAX);
    let entries = order.iter().take(most).map(|&i| (i as u32, values[i].to_bits())).collect();
    Selected { entries, kept: order.len() as u32, smallest }
}

/// Where a selection writes, with poison where nothing is written.
struct Output {
    cut: Cut,
    bins: Vec<u32>,
    counts: Vec<u32>,
    chunks: Vec<u64>,
    indices: Vec<u32>,
    values: Vec<u32>,
    most: u32,
}

impl Output {
    fn new(tiles: usize, most: usize) -> Self {
        Self {
            cut: Cut { remaining: 77, ..Cut::default() },
            bins: vec![0; 2048],
            counts: vec![POISON; 2 * tiles],
            chunks: vec![POISON.into(); tiles.div_ceil(RECORDS).max(1)],
            indices: vec![POISON; most + 1],
            values: vec![POISON; most + 1],
            most: most as u32,
        }
    }

    /// Makes sums of the counts of this many tiles.
    fn sum(&mut self, emulation: &Emulation, tiles: usize) {
        let (grid, chunks) = (tiles.div_ceil(CHUNK).max(1) as u32, self.chunks.as_mut_ptr());
        let (counts, cut) = (self.counts.as_mut_ptr(), &raw mut self.cut);
        launch!(emulation, "offsets", grid, THREADS, counts, tiles as u32, chunks, cut);
    }

    fn selected(self) -> (Selected, Cut) {
        assert!(self.bins.iter().all(|&bin| bin == 0) && self.cut.ready == 0, "left as they were found");
        let written = self.cut.kept.min(self.most) as usize;
        assert!(self.indices[written..].iter().chain(&self.values[written..]).all(|&word| word == POISON));
        let entries =
            self.indices[..written].iter().copied().zip(self.values[..written].iter().copied()).collect();
        (Selected { entries, kept: self.cut.kept, smallest: self.cut.smallest }, self.cut)
    }
}

/// Selects from values.
pub fn select_dense(
    emulation: &Emulation,
    values: &[f32],
    want: Want,
    most: usize,
    grid: u32,
) -> (Selected, Cut) {
    let (from, count) = (values.as_ptr(), values.len() as u32);
    let tiles = values.len().div_ceil(TILE);
    let mut output = Output::new(tiles, most);
    let cut = &raw mut output.cut;
    match want {
        Want::Largest(k) => {
            for digit in 0u32..3 {
                launch!(
                    emulation,
                    "histogram_dense",
                    grid,
                    THREADS,
                    from,
                    count,
                    digit,
                    k,
                    cut,
                    output.bins.as_mut_ptr()
                );
            }
        }
        Want::Reaching(limit) => launch!(emulation, "fixed_cut", 1, 1, cut, limit),
    }
    launch!(emulation, "count_dense", grid, THREADS, from, count, cut, output.counts.as_mut_ptr());
    output.sum(emulation, tiles);
    launch!(
        emulation,
        "emit_dense",
        grid,
        THREADS,
        from,
        count,
        output.counts.as_ptr(),
        output.chunks.as_ptr(),
        cut,
        output.most,
        output.indices.as_mut_ptr(),
        output.values.as_mut_ptr()
    );
    output.selected()
}

/// Candidates of a block, as several calls of accumulate collected them.
pub struct Candidates {
    indices: Vec<u32>,
    values: Vec<f32>,
    capacity: u32,
    reserved: u32,
    records: Vec<[u32; 2]>,
    calls: Vec<[u32; 4]>,
}

impl Candidates {
    /// `calls`: parts of the block, in the order in which they come.
    pub fn collect(
        emulation: &Emulation,
        block: &[f32],
        calls: &[Range<usize>],
        limit: u32,
        capacity: usize,
        grid: u32,
    ) -> Self {
        let (indices, values) = (vec![POISON; capacity], vec![f32::from_bits(POISON); capacity]);
        let mut found = Self {
            indices,
            values,
            capacity: capacity as u32,
            reserved: 0,
            records: Vec::new(),
            calls: Vec::new(),
        };
        let mut held = vec![0.0f32; block.len()];
        let mut status = [u64::MAX, 0];
        for call in calls {
            let (first, tiles) = (found.records.len(), call.len().div_ceil(TILE));
            found.records.resize(first + tiles, [POISON; 2]);
            launch!(
                emulation,
                "accumulate_f32",
                grid,
                THREADS,
                held[call.start..].as_mut_ptr(),
                block[call.start..].as_ptr(),
                call.len() as u32,
                call.start as u32,
                0u32,
                limit,
                found.indices.as_mut_ptr(),
                found.values.as_mut_ptr(),
                capacity as u32,
                &raw mut found.reserved,
                found.records[first..].as_mut_ptr(),
                &raw mut status,
                0u64
            );
            found.calls.push([first as u32, tiles as u32, call.start as u32, 0]);
        }
        found.calls.sort_by_key(|call| call[2]);
        let mut before = 0;
        for call in &mut found.calls {
            (call[2], before) = (before, before + call[1]);
        }
        found
    }

    pub fn select(&self, emulation: &Emulation, want: Want, most: usize, grid: u32) -> (Selected, Cut) {
        let records = self.records.len();
        let mut output = Output::new(records, most);
        let (cut, reserved) = (&raw mut output.cut, &raw const self.reserved);
        match want {
            Want::Largest(k) => {
                for digit in 0u32..3 {
                    launch!(
                        emulation,
                        "histogram_found",
                        grid,
                        THREADS,
                        self.values.as_ptr(),
                        reserved,
                        self.capacity,
                        digit,
                        k,
                        cut,
                        output.bins.as_mut_ptr()
                    );
                }
            }
            Want::Reaching(limit) => launch!(emulation, "fixed_cut", 1, 1, cut, limit),
        }
        let (calls, call_count) = (self.calls.as_ptr(), self.calls.len() as u32);
        let chunks = records.div_ceil(RECORDS).max(1) as u32;
        launch!(
            emulation,
            "count_found",
            chunks,
            THREADS,
            self.values.as_ptr(),
            self.records.as_ptr(),
            calls,
            call_count,
            records as u32,
            self.capacity,
            reserved,
            cut,
            output.counts.as_mut_ptr(),
            output.chunks.as_mut_ptr()
        );
        launch!(
            emulation,
            "emit_found",
            records.div_ceil(THREADS as usize / 32).max(1) as u32,
            THREADS,
            self.indices.as_ptr(),
            self.values.as_ptr(),
            self.records.as_ptr(),
            calls,
            call_count,
            records as u32,
            self.capacity,
            reserved,
            output.counts.as_ptr(),
            output.chunks.as_ptr(),
            cut,
            output.most,
            output.indices.as_mut_ptr(),
            output.values.as_mut_ptr()
        );
        output.selected()
    }
}
