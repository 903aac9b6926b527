//! SparDL's Algorithm 1, with the optimised Spar-Reduce-Scatter, written down from the paper a second time: plain vectors
//! and ordered maps, no schedules, no code shared with the crate.

use std::collections::{BTreeMap, BTreeSet};

/// Which discarded gradients are collected (§3.2).
#[derive(Clone, Copy, PartialEq)]
pub enum Residuals {
    /// gres: local, in-procedure and end-procedure residuals.
    Global,
    /// pres: local and end-procedure residuals.
    Partial,
    /// lres: local residuals.
    Local,
}

/// One block of sparse gradients g: index in the whole gradient, value.
type Sparse = BTreeMap<usize, f32>;

/// What Algorithm 1 gives: the global gradients, and the residual of every worker.
pub struct Result {
    pub gradients: Sparse,
    pub residuals: Vec<Vec<f32>>,
}

/// The start of each of P blocks, and n: as even as can be, longer blocks first.
fn blocks(n: usize, p: usize) -> Vec<usize> {
    let mut starts = vec![0];
    for b in 0..p {
        starts.push(starts[b] + n / p + if b < n % p { 1 } else { 0 });
    }
    starts
}

/// k / P for each block, the remainder to the first blocks. A block shorter than its share takes all it can, and the rest
/// goes round again to those with room.
pub fn shares(k: usize, n: usize, p: usize) -> Vec<usize> {
    let starts = blocks(n, p);
    let len = |b: usize| starts[b + 1] - starts[b];
    let mut share = vec![0; p];
    let mut left = k;
    while left > 0 {
        let open: Vec<usize> = (0..p).filter(|&b| share[b] < len(b)).collect();
        let (each, more) = (left / open.len(), left % open.len());
        for (i, &b) in open.iter().enumerate() {
            let wanted = each + if i < more { 1 } else { 0 };
            let taken = wanted.min(len(b) - share[b]);
            share[b] += taken;
            left -= taken;
        }
    }
    share
}

/// The `k` largest by absolute value; of equals the first. Zeros are nothing to send.
fn top(gradients: &[f32], start: usize, k: usize) -> Sparse {
    let mut order: Vec<usize> = (0..gradients.len()).filter(|&i| gradients[i] != 0.0).collect();
    order.sort_by(|&i, &j| gradients[j].abs().partial_cmp(&gradients[i].abs()).unwrap().then(i.cmp(&j)));
    order.into_iter().take(k).map(|i| (start + i, gradients[i])).collect()
}

/// Runs Algorithm 1 on all workers: G ← G + ξ, then lines 2 to 14.
pub fn algorithm_1(gradients: &[Vec<f32>], old: &[Vec<f32>], k: usize, residuals: Residuals) -> Result {
    let (p, n) = (gradients.len(), gradients[0].len());
    let (starts, shares) = (blocks(n, p), shares(k, n, p));
    // Line 1, and line 3's copy.
    let copy: Vec<Vec<f32>> = (0..p).map(|w| (0..n).map(|i| old[w][i] + gradients[w][i]).collect()).collect();
    let mut g = copy.clone();
    // What each worker discards in procedure (ξ), and what it selected of every block.
    let mut discarded: Vec<Vec<f32>> = vec![vec![0.0; n]; p];
    let mut selected: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); p];
    let sparsify = |w: usize, b: usize, g: &[Vec<f32>], discarded: &mut [Vec<f32>]| -> Sparse {
        let range = starts[b]..starts[b + 1];
        let kept = top(&g[w][range.clone()], range.start, shares[b]);
        for i in range {
            discarded[w][i] = if kept.contains_key(&i) { 0.0 } else { g[w][i] };
        }
        kept
    };
    // Dividing: worker w preserves block w; bag B_i has the blocks at distances 2^(i-1) .. 2^i - 1 round the circle, as
    // far as there are blocks.
    let mut l = 0;
    while 1 << l < p {
        l += 1;
    }
    let bag = |w: usize, i: usize| -> Vec<usize> {
        (1usize << (i - 1)..1 << i).filter(|&d| d < p).map(|d| (w + d) % p).collect()
    };
    // Transmission with sparsification: at step i bag B_(l-i+1) goes to the worker at distance 2^(l-i).
    for step in 1..=l {
        let mut sent: Vec<Vec<(usize, Sparse)>> = Vec::new();
        for (w, selected) in selected.iter_mut().enumerate() {
            let blocks = bag(w, l - step + 1);
            let of_worker: Vec<(usize, Sparse)> =
                blocks.into_iter().map(|b| (b, sparsify(w, b, &g, &mut discarded))).collect();
            for (_, kept) in &of_worker {
                selected.extend(kept.keys());
            }
            sent.push(of_worker);
        }
        for (w, bags) in sent.iter().enumerate() {
            let target = (w + (1 << (l - step))) % p;
            for (i, value) in bags.iter().flat_map(|(_, kept)| kept) {
                g[target][*i] += value;
            }
        }
    }
    // Line 10: the reserved block. Line 11: all gather all blocks.
    let mut global = Sparse::new();
    for (w, selected) in selected.iter_mut().enumerate() {
        let kept = sparsify(w, w, &g, &mut discarded);
        selected.extend(kept.keys());
        global.extend(kept);
    }
    // Lines 12 to 14 for all three; the other methods of collection leave some of it out.
    let mut new = copy.clone();
    for w in 0..p {
        match residuals {
            Residuals::Global => global.keys().for_each(|&i| new[w][i] = discarded[w][i]),
            Residuals::Partial => {
                global.keys().filter(|i| selected[w].contains(i)).for_each(|&i| new[w][i] = 0.0);
            }
            Residuals::Local => selected[w].iter().for_each(|&i| new[w][i] = 0.0),
        }
    }
    Result { gradients: global, residuals: new }
}

/// Short blocks, uneven ones, and shares that do not divide.
#[test]
fn the_allotments_of_six_workers() {
    assert_eq!(shares(12, 60, 6), [2; 6]);
    assert_eq!(shares(8, 60, 6), [2, 2, 1, 1, 1, 1]);
    assert_eq!(shares(3, 3, 6), [1, 1, 1, 0, 0, 0]);
    assert_eq!(blocks(10, 4), [0, 3, 6, 8, 10]);
}
