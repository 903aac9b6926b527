//! SparDL's Algorithm 1, with the optimised Spar-Reduce-Scatter, and the two Spar-All-Gathers of §3.3, written down from
//! the paper a second time: plain vectors and ordered maps, no schedules, no code shared with the crate.

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

/// How the teams come together (§3.3).
#[derive(Clone, Copy, PartialEq)]
pub enum Teams {
    /// R-SAG among d teams.
    Recursive(usize),
    /// B-SAG among d teams, with h.
    Bruck(usize, usize),
}

/// What Algorithm 1 gives: the global gradients, and the residual of every worker.
pub struct Result {
    pub gradients: Sparse,
    pub residuals: Vec<Vec<f32>>,
    /// N_t of Algorithm 2, over all blocks: the gradients after B-SAG, before the last selection.
    pub after_bsag: usize,
}

/// The start of each of P blocks, and n: as even as can be, longer blocks first.
fn blocks(n: usize, p: usize) -> Vec<usize> {
    let mut starts = vec![0];
    for b in 0..p {
        starts.push(starts[b] + n / p + if b < n % p { 1 } else { 0 });
    }
    starts
}

/// k / P for each block; a block shorter than its share takes all it can, and the rest goes round again to those with room.
/// When less is left than there are blocks with room, it is handed out one by one, and in every step from where the step
/// before left off.
pub fn shares(k: usize, n: usize, p: usize, step: usize) -> Vec<usize> {
    let starts = blocks(n, p);
    let len = |b: usize| starts[b + 1] - starts[b];
    let mut share = vec![0; p];
    let mut left = k;
    let with_room = |share: &[usize]| -> Vec<usize> { (0..p).filter(|&b| share[b] < len(b)).collect() };
    while left > 0 && left >= with_room(&share).len() {
        let open = with_room(&share);
        let each = left / open.len();
        for b in open {
            let taken = each.min(len(b) - share[b]);
            share[b] += taken;
            left -= taken;
        }
    }
    let open = with_room(&share);
    let mut next = 0;
    for t in 0..=step {
        for _ in 0..left {
            if t == step {
                share[open[next]] += 1;
            }
            next = (next + 1) % open.len();
        }
    }
    share
}

/// The `k` largest by absolute value; of equals the first.
fn top(gradients: &Sparse, k: usize) -> Sparse {
    let mut order: Vec<usize> = gradients.keys().copied().collect();
    order.sort_by(|i, j| gradients[j].abs().partial_cmp(&gradients[i].abs()).unwrap().then(i.cmp(j)));
    order.into_iter().take(k).map(|i| (i, gradients[&i])).collect()
}

/// What the workers hold while Algorithm 1 runs.
struct Job {
    /// The accumulated gradients, with what was received added.
    g: Vec<Vec<f32>>,
    /// What each worker discards in procedure, ξ.
    discarded: Vec<Vec<f32>>,
    /// What each worker selected of its own contribution.
    selected: Vec<BTreeSet<usize>>,
    /// Where each worker received something.
    received: Vec<BTreeSet<usize>>,
    starts: Vec<usize>,
    shares: Vec<usize>,
}

impl Job {
    /// Lines 6 to 8, and 10: the share of a block, and the rest to ξ. A zero is nothing to send, unless it is a sum: to those
    /// whose gradients cancel it says that they arrived (ours).
    fn sparsify(&mut self, w: usize, block: usize) -> Sparse {
        let range = self.starts[block]..self.starts[block + 1];
        let there = |i: &usize| self.g[w][*i] != 0.0 || self.received[w].contains(i);
        let here = range.clone().filter(there).map(|i| (i, self.g[w][i])).collect();
        let kept = top(&here, self.shares[block]);
        for i in range {
            self.discarded[w][i] = if kept.contains_key(&i) { 0.0 } else { self.g[w][i] };
        }
        self.selected[w].extend(kept.keys());
        kept
    }

    /// Spar-Reduce-Scatter among the m workers from `first` on (§3.1): what each of them holds of its block at the end.
    fn spar_reduce_scatter(&mut self, first: usize, m: usize) -> Vec<Sparse> {
        // Dividing: worker w preserves block w; bag B_i has the blocks at distances 2^(i-1) .. 2^i - 1 round the circle,
        // as far as there are blocks.
        let l = (0..).find(|l| 1usize << l >= m).unwrap();
        let bag = |w: usize, i: usize| -> Vec<usize> {
            (1usize << (i - 1)..1 << i).filter(|&d| d < m).map(|d| (w + d) % m).collect()
        };
        // Transmission with sparsification: at step i bag B_(l-i+1) goes to the worker at distance 2^(l-i).
        for step in 1..=l {
            let mut sent = Vec::new();
            for w in 0..m {
                let blocks = bag(w, l - step + 1).into_iter();
                sent.push(blocks.map(|b| self.sparsify(first + w, b)).collect::<Vec<_>>());
            }
            for (w, bags) in sent.iter().enumerate() {
                let target = first + (w + (1 << (l - step))) % m;
                for (i, value) in bags.iter().flatten() {
                    self.g[target][*i] += value;
                    self.received[target].insert(*i);
                }
            }
        }
        // Line 10: the reserved block.
        (0..m).map(|w| self.sparsify(first + w, w)).collect()
    }

    /// The `k` largest of a sum of sparse gradients, of which each of `holders` workers discards the same part.
    fn select(&mut self, sum: &Sparse, k: usize, holders: &[usize]) -> Sparse {
        let kept = top(sum, k);
        for (&i, &value) in sum.iter().filter(|(i, _)| !kept.contains_key(i)) {
            holders.iter().for_each(|&w| self.discarded[w][i] += value / holders.len() as f32);
        }
        kept
    }
}

fn add(a: &Sparse, b: &Sparse) -> Sparse {
    let mut sum = a.clone();
    b.iter().for_each(|(i, value)| *sum.entry(*i).or_insert(0.0) += value);
    sum
}

/// Runs Algorithm 1 on all workers in the step of this number, counted from 0. They are divided into teams: G ← G + ξ, then lines 2 to 14.
pub fn algorithm_1(
    gradients: &[Vec<f32>],
    old: &[Vec<f32>],
    k: usize,
    residuals: Residuals,
    teams: Teams,
    step: usize,
) -> Result {
    let (p, n) = (gradients.len(), gradients[0].len());
    let (Teams::Recursive(d) | Teams::Bruck(d, _)) = teams;
    let m = p / d;
    // Line 1, and line 3's copy.
    let copy: Vec<Vec<f32>> = (0..p).map(|w| (0..n).map(|i| old[w][i] + gradients[w][i]).collect()).collect();
    let mut job = Job {
        g: copy.clone(),
        discarded: vec![vec![0.0; n]; p],
        selected: vec![BTreeSet::new(); p],
        received: vec![BTreeSet::new(); p],
        starts: blocks(n, m),
        shares: shares(k, n, m, step),
    };
    // Every team by itself: then each of its workers holds one block.
    let mut held: Vec<Sparse> = (0..d).flat_map(|team| job.spar_reduce_scatter(team * m, m)).collect();
    let mut after_bsag = 0;
    for position in 0..m {
        let workers: Vec<usize> = (0..d).map(|team| team * m + position).collect();
        let share = job.shares[position];
        match teams {
            // In exchange t the teams at distance 2^t swap all, add and select; 2^(t+1) teams then hold the same.
            Teams::Recursive(_) => {
                let mut alike = 1;
                while alike < d {
                    alike *= 2;
                    for group in workers.chunks(alike) {
                        let sum = add(&held[group[0]], &held[group[alike / 2]]);
                        let kept = job.select(&sum, share, group);
                        group.iter().for_each(|&w| held[w] = kept.clone());
                    }
                }
            }
            // Each team selects its h largest; all get those of all, add them up and select.
            Teams::Bruck(_, h) => {
                let mut sum = Sparse::new();
                for &w in &workers {
                    let mine = job.select(&held[w].clone(), share.min(h), &[w]);
                    sum = add(&sum, &mine);
                }
                after_bsag += sum.len();
                let kept = job.select(&sum, share, &workers);
                workers.iter().for_each(|&w| held[w] = kept.clone());
            }
        }
    }
    // Line 11: all gather all blocks, each team by itself; all teams have the same.
    let mut global = Sparse::new();
    held.drain(..m).for_each(|block| global.extend(block));
    // Lines 12 to 14 for all three; the other methods of collection leave some of it out.
    let mut new = copy.clone();
    for ((new, selected), discarded) in new.iter_mut().zip(&job.selected).zip(&job.discarded) {
        match residuals {
            Residuals::Global => global.keys().for_each(|&i| new[i] = discarded[i]),
            Residuals::Partial => {
                global.keys().filter(|i| selected.contains(i)).for_each(|&i| new[i] = 0.0);
            }
            Residuals::Local => selected.iter().for_each(|&i| new[i] = 0.0),
        }
    }
    Result { gradients: global, residuals: new, after_bsag }
}

/// Algorithm 2, with h clamped to [k/P, dk/P], and never less than one entry. Line 3's exclusive or in words: while too
/// many gradients remain h has to fall, and while there is room it has to grow; a step of the right sign goes on, and is
/// doubled every other time, and one of the wrong sign turns round at half its length.
pub struct Algorithm2 {
    pub h: f64,
    step: f64,
    flag: bool,
    least: f64,
    most: f64,
}

impl Algorithm2 {
    pub fn new(k: usize, p: usize, d: usize) -> Self {
        let (k, p, d) = (k as f64, p as f64, d as f64);
        let least = (k / p).max(1.0);
        Self { h: least, step: 0.01 * k * (d - 1.0) / p, flag: false, least, most: d * least }
    }

    /// After an iteration with N gradients after B-SAG, of which L are wanted.
    pub fn adjust(&mut self, n: usize, l: usize) {
        let (grows, should_fall) = (self.step > 0.0, n > l);
        if grows != should_fall {
            if self.flag {
                self.step *= 2.0;
            }
            self.flag = !self.flag;
        } else {
            self.step /= -2.0;
            self.flag = false;
        }
        self.h = (self.h + self.step).clamp(self.least, self.most);
        // Ours: the amount is at least one entry, so that h can follow, and at most the upper end.
        self.step = self.step.abs().clamp(1.0, self.most).copysign(self.step);
    }
}

/// Short blocks, uneven ones, and shares that do not divide.
#[test]
fn the_allotments_of_six_workers() {
    assert_eq!(shares(12, 60, 6, 7), [2; 6]);
    assert_eq!(shares(8, 60, 6, 0), [2, 2, 1, 1, 1, 1]);
    assert_eq!(shares(8, 60, 6, 1), [1, 1, 2, 2, 1, 1]);
    assert_eq!(shares(10, 60, 6, 1), [2, 2, 1, 1, 2, 2]);
    assert_eq!(shares(3, 3, 6, 0), [1, 1, 1, 0, 0, 0]);
    assert_eq!(shares(2, 3, 6, 1), [1, 0, 1, 0, 0, 0]);
    assert_eq!(blocks(10, 4), [0, 3, 6, 8, 10]);
}
