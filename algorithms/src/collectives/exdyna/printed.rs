//! ExDyna's controllers as they are printed: block partitioning (Algorithm 2), dynamic partition allocation (Algorithm 3)
//! and online threshold scaling (Algorithm 5).
//!
//! Three things had to be read into them. Blocks are multiples of 32 entries long; a gradient so short that this gives none
//! has blocks of n/n_b entries, and one of fewer than n_b entries has a block for each. What is left behind the last block belongs to the last partition. And in
//! line 18 of Algorithm 3 the count of the left partition becomes smaller, as line 27 has it for the right one.

use super::super::{Number, Shape, State, recut};
use super::first_threshold;

/// The constants of Algorithms 2, 3 and 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Printed {
    /// Into how many blocks the gradient is cut, n_b.
    pub n_b: u32,
    /// A partition is too full above α times the mean, and too empty below 1/α of it.
    pub alpha: f64,
    /// The threshold rises fully where more than βk entries are selected, and falls where at most k/β are.
    pub beta: f64,
    /// By what share the threshold changes in a step, γ.
    pub gamma: f64,
    /// The blocks that a partition keeps at least; n_b/(4P) where None.
    pub min_blk: Option<u32>,
    /// The blocks that move at a time.
    pub blk_move: u32,
    /// The first threshold, δ_0; 1/(2√k) where None.
    pub delta_0: Option<f64>,
}

/// What the printed controllers know.
#[derive(Clone, Debug, Default)]
pub struct Allocation {
    /// δ_t.
    delta: f64,
    /// The blocks of each partition.
    blk_part: Vec<f64>,
    /// The entries of a block: it follows from the shape.
    sz_blk: usize,
}

impl State for Allocation {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        std::iter::once(&mut self.delta).chain(&mut self.blk_part).map(|n| n as &mut dyn Number).collect()
    }

    /// The blocks stay where they are, shared out to as many partitions as there are workers.
    fn migrate(self, _: &Shape, to: &Shape) -> Self {
        let mut ends: Vec<f64> = self.blk_part.clone();
        (1..ends.len()).for_each(|i| ends[i] += ends[i - 1]);
        let n_b = ends.pop().unwrap_or_default();
        let mut ends = recut(&ends, n_b as usize, &Shape { n: n_b as usize, ..to.clone() });
        ends.iter_mut().for_each(|end| *end = end.round());
        let starts = std::iter::once(0.0).chain(ends.clone());
        let blk_part =
            starts.zip(ends.iter().copied().chain([n_b])).map(|(start, end)| end - start).collect();
        Self { blk_part, ..self }
    }
}

impl Allocation {
    /// Where all partitions but the first begin; the last one ends where the gradient does.
    pub(super) fn cuts(&self) -> impl Iterator<Item = usize> {
        let starts = self.blk_part.iter().scan(0, |blk_pos: &mut usize, &blk_part| {
            *blk_pos = blk_pos.saturating_add(blk_part as usize);
            Some(blk_pos.saturating_mul(self.sz_blk))
        });
        starts.take(self.blk_part.len().saturating_sub(1))
    }
}

impl Printed {
    /// As published.
    pub const PUBLISHED: Self =
        Self { n_b: 1024, alpha: 1.05, beta: 1.1, gamma: 0.005, min_blk: None, blk_move: 1, delta_0: None };

    /// The threshold, and the blocks of each partition (Algorithm 2, lines 3 to 11).
    pub(super) fn start(&self, shape: &Shape) -> Allocation {
        let (p, n_b) = (shape.workers, self.blocks(shape));
        let (quotient, remainder) = (n_b / p, n_b % p);
        Allocation {
            delta: self.delta_0.unwrap_or_else(|| first_threshold(shape)),
            blk_part: (0..p).map(|i| f64::from(quotient + u32::from(i < remainder))).collect(),
            sz_blk: self.sz_blk(shape),
        }
    }

    /// The blocks that there are: n_b, unless there are fewer entries.
    fn blocks(&self, shape: &Shape) -> u32 {
        u32::try_from(shape.n).map_or(self.n_b, |n| self.n_b.min(n))
    }

    /// The entries of a block (Algorithm 2, lines 1 and 2).
    fn sz_blk(&self, shape: &Shape) -> usize {
        let temp = shape.n / self.blocks(shape).max(1) as usize;
        let sz_blk = temp - temp % 32;
        if sz_blk > 0 { sz_blk } else { temp.max(1) }
    }

    /// Algorithms 5 and 3, after a step in which the partitions gave this many entries.
    pub(super) fn learn(&self, shape: &Shape, learnt: &mut Allocation, k_t: Vec<f64>) {
        let exam = k_t.iter().sum::<f64>() / shape.k as f64;
        let sf = if exam > self.beta {
            1.0 + self.gamma
        } else if exam > 1.0 / self.beta {
            1.0 + 0.25 * self.gamma
        } else {
            1.0 - self.gamma
        };
        learnt.delta *= sf;
        self.allocate(shape, &mut learnt.blk_part, k_t);
    }

    /// Algorithm 3, lines 7 to 28. Where a partition begins follows from the blocks before it.
    fn allocate(&self, shape: &Shape, blk_part: &mut [f64], mut k_t: Vec<f64>) {
        let p = shape.workers;
        let blk_move = f64::from(self.blk_move);
        let min_blk = f64::from(self.min_blk.unwrap_or(self.blocks(shape) / (4 * p)));
        let pk_prev = k_t.iter().sum::<f64>() / f64::from(p);
        let den_prev = k_t.iter().sum::<f64>() / shape.n as f64;
        let k_move = blk_move * self.sz_blk(shape) as f64 * den_prev;
        for i in 0..p as usize - 1 {
            let (det, det2) = (k_t[i] / pk_prev, k_t[i + 1] / pk_prev);
            let (from, to) = if det > self.alpha && det2 < 1.0 / self.alpha {
                (i, i + 1)
            } else if det < 1.0 / self.alpha && det2 > self.alpha {
                (i + 1, i)
            } else {
                continue;
            };
            if blk_part[from] - blk_move < min_blk {
                continue;
            }
            blk_part[from] -= blk_move;
            blk_part[to] += blk_move;
            k_t[from] -= k_move;
            k_t[to] += k_move;
        }
    }
}
