//! ExDyna's controllers as they are printed: block partitioning (Algorithm 2), dynamic partition allocation (Algorithm 3)
//! and online threshold scaling (Algorithm 5).
//!
//! Three things had to be read into them. Blocks are multiples of 32 entries long; a gradient so short that this gives none
//! has blocks of n/n_b entries, and one of fewer than n_b entries has a block for each. What is left behind the last block belongs to the last partition. And in
//! line 18 of Algorithm 3 the count of the left partition becomes smaller, as line 27 has it for the right one.

use super::super::Shape;
use super::{THRESHOLD, first_threshold};

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

/// Where the numbers of blocks of all partitions stand among the agreed numbers.
const BLK_PART: usize = THRESHOLD + 1;

impl Printed {
    /// As published.
    pub const PUBLISHED: Self =
        Self { n_b: 1024, alpha: 1.05, beta: 1.1, gamma: 0.005, min_blk: None, blk_move: 1, delta_0: None };

    /// The threshold, and the blocks of each partition (Algorithm 2, lines 3 to 11).
    pub(super) fn memory(&self, shape: &Shape) -> Vec<f64> {
        let (p, n_b) = (shape.workers, self.blocks(shape));
        let (quotient, remainder) = (n_b / p, n_b % p);
        let blk_part = (0..p).map(|i| f64::from(quotient + u32::from(i < remainder)));
        [self.delta_0.unwrap_or_else(|| first_threshold(shape))].into_iter().chain(blk_part).collect()
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

    /// Where all partitions but the first begin; the last one ends where the gradient does.
    pub(super) fn cuts(&self, shape: &Shape, agreed: &[f64]) -> Vec<usize> {
        let sz_blk = self.sz_blk(shape);
        let starts = agreed.iter().skip(BLK_PART).scan(0, |blk_pos, &blk_part| {
            *blk_pos += blk_part as usize;
            Some(*blk_pos * sz_blk)
        });
        starts.take(shape.workers as usize - 1).collect()
    }

    /// Algorithms 5 and 3, after a step in which the partitions gave so many entries.
    pub(super) fn learn(&self, shape: &Shape, agreed: &mut [f64], k_t: Vec<f64>) {
        let exam = k_t.iter().sum::<f64>() / shape.k as f64;
        let sf = if exam > self.beta {
            1.0 + self.gamma
        } else if exam > 1.0 / self.beta {
            1.0 + 0.25 * self.gamma
        } else {
            1.0 - self.gamma
        };
        agreed[THRESHOLD] *= sf;
        self.allocate(shape, &mut agreed[BLK_PART..], k_t);
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
