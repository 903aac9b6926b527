//! Controllers of our own, for what the printed ones are meant to do.
//!
//! *The threshold.* Near the right one, the logarithm of the threshold changes by a share κ of the error, which is the
//! logarithm of how many times too many entries were selected, and by a speed, which itself follows the error: so a
//! threshold that has to fall steadily, as when gradients become smaller, lags behind by nothing. Where the count is not
//! even within a factor of [`NEAR`], as after a jump, the threshold is searched for: by strides that grow as long as they
//! lead the same way, and are halved and turned round when they led too far. It is searched for as well where following it
//! at full speed does not help: counts are bounded by n and by the entries that are not zero, so one that is near may come
//! from a threshold that is any number of times too low.
//!
//! *The partitions.* The selected entries themselves say where they would be cut into P parts of equal counts. The mean of
//! that over some steps is where the cuts should be. They are moved there only if the counts have become unequal, for
//! every move makes a new schedule.

use std::sync::Arc;

use super::super::{Number, Shape, State, even, recut};
use super::first_threshold;
use crate::{Block, Partition};

/// The constants of the corrected controllers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Corrected {
    /// By what share of the error the logarithm of the threshold changes in a step, κ.
    pub kappa: f64,
    /// By what share of the error its speed changes in a step.
    pub iota: f64,
    /// The share that a step has in the means of cuts and counts, once there have been enough steps.
    pub smoothing: f64,
    /// The cuts move when the fullest partition has this many times the mean, and a standard deviation more.
    pub imbalance: f64,
    /// The first threshold; 1/(2√k), the paper's, where None.
    pub delta_0: Option<f64>,
}

/// Counts from k/4 to less than 4k are near. 4k is not, for that is what a flooded partition gives, however low the threshold.
const NEAR: f64 = 4.0;

/// An error from which on a threshold that moves at full speed is not being followed but fallen behind: 15%.
const BEHIND: f64 = 0.14;

/// The first stride of a search, the shortest and the longest, in the logarithm of the threshold.
const STRIDES: (f64, f64, f64) = (0.2, 0.01, 100.0);

/// How many times longer a stride becomes with each step the same way. Halving has to win where residuals drain and fill up
/// again while the threshold goes to and fro, or it would do so for ever.
const LONGER: f64 = 1.3;

/// The fastest that the logarithm of the threshold moves steadily in a step.
const FASTEST: f64 = 0.1;

/// Thresholds stay within what a float of 64 bits can be. Smaller floats are below or above them all at the ends, and the
/// strides that lead there are long enough to lead back.
const THRESHOLDS: (f64, f64) = (1e-300, 1e300);

/// What the corrected controllers know.
#[derive(Clone, Debug, Default)]
pub struct Following {
    threshold: f64,
    /// How fast the logarithm of the threshold moves.
    speed: f64,
    /// The present stride of a search, 0 without one.
    stride: f64,
    /// Steps without a search.
    steady: f64,
    /// Where the partitions but the first begin.
    cuts: Vec<f64>,
    /// Where they had better begin.
    wanted: Vec<f64>,
    /// The mean counts of the partitions.
    loads: Vec<f64>,
}

impl State for Following {
    fn agreed(&mut self) -> Vec<&mut dyn Number> {
        let Self { threshold, speed, stride, steady, cuts, wanted, loads } = self;
        let lists = cuts.iter_mut().chain(wanted).chain(loads);
        [threshold, speed, stride, steady].into_iter().chain(lists).map(|n| n as &mut dyn Number).collect()
    }

    fn migrate(self, from: &Shape, to: &Shape) -> Self {
        let (cuts, wanted) = (recut(&self.cuts, from.n, to), recut(&self.wanted, from.n, to));
        Self { cuts, wanted, loads: even_loads(to), ..self }
    }
}

impl Following {
    pub(super) fn cuts(&self) -> impl Iterator<Item = usize> {
        self.cuts.iter().map(|&cut| cut as usize)
    }
}

fn even_loads(shape: &Shape) -> Vec<f64> {
    vec![shape.k as f64 / f64::from(shape.workers); shape.workers as usize]
}

/// What is proposed in a partition at most, so that a threshold that is too low does not flood the network.
pub(super) fn most(shape: &Shape) -> usize {
    (NEAR as usize * shape.k).min(shape.n)
}

impl Corrected {
    /// Chosen on streams of gradients; see the method's page.
    pub const DEFAULT: Self =
        Self { kappa: 0.06, iota: 0.015, smoothing: 0.5, imbalance: 1.05, delta_0: None };

    pub(super) fn start(&self, shape: &Shape) -> Following {
        let cuts: Vec<f64> = even(shape).into_iter().map(|cut| cut as f64).collect();
        let threshold = self.delta_0.unwrap_or_else(|| first_threshold(shape));
        Following { threshold, wanted: cuts.clone(), cuts, loads: even_loads(shape), ..Following::default() }
    }

    /// After a step in which these indices were proposed, by partition.
    pub(super) fn learn(
        &self,
        shape: &Shape,
        partition: &Partition,
        following: &mut Following,
        proposed: &[Option<Arc<[u32]>>],
    ) {
        let counts: Vec<usize> = proposed.iter().map(|p| p.as_ref().map_or(0, |p| p.len())).collect();
        let count: usize = counts.iter().sum();
        let times = count as f64 / shape.k as f64;
        let near = (1.0 / NEAR..NEAR).contains(&times);
        if near && self.follow(following, times.ln()) {
            self.balance(following, &counts, ideal(partition, proposed, count));
        } else {
            // A search keeps the speed it began with, which is full where following did not help, and else none.
            if !near && following.stride == 0.0 {
                following.speed = 0.0;
            }
            search(following, times > 1.0);
        }
        following.threshold = following.threshold.clamp(THRESHOLDS.0, THRESHOLDS.1);
    }

    /// Follows a threshold that is near, unless it is to be searched for. The error is the logarithm of how many times too
    /// many were selected.
    fn follow(&self, following: &mut Following, error: f64) -> bool {
        let searching = following.stride != 0.0;
        // A search that began because following did not help ends at the threshold itself: what is near says little there.
        let flat_out = |speed: f64| speed.abs() == FASTEST;
        let speed = (following.speed + self.iota * error).clamp(-FASTEST, FASTEST);
        if error.abs() >= BEHIND {
            if searching && flat_out(following.speed) {
                return false;
            }
            if !searching && speed == FASTEST.copysign(error) {
                following.speed = speed;
                return false;
            }
        }
        // The strides of a search say nothing about how the threshold should move after it.
        following.speed = if searching { (self.iota * error).clamp(-FASTEST, FASTEST) } else { speed };
        following.stride = 0.0;
        following.threshold *= (self.kappa * error + following.speed).exp();
        true
    }

    /// Follows the counts of the partitions and where the cuts should be, and moves the cuts there if need be.
    fn balance(&self, following: &mut Following, counts: &[usize], ideal: Vec<usize>) {
        following.steady += 1.0;
        let share = self.smoothing.max(1.0 / following.steady);
        let Following { cuts, wanted, loads, .. } = following;
        let follow = |mean: &mut f64, now: usize| *mean += share * (now as f64 - *mean);
        wanted.iter_mut().zip(ideal).for_each(|(mean, now)| follow(mean, now));
        loads.iter_mut().zip(counts).for_each(|(mean, &now)| follow(mean, now));
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        let fullest = loads.iter().fold(0.0, |most: f64, &load| most.max(load));
        if fullest > mean * self.imbalance + mean.sqrt() {
            cuts.clone_from(wanted);
            loads.fill(mean);
        }
    }
}

/// Strides on towards a threshold that is far away.
fn search(following: &mut Following, too_many: bool) {
    let (first, shortest, longest) = STRIDES;
    let stride = following.stride;
    let size = match (stride > 0.0) == too_many {
        _ if stride == 0.0 => first,
        true => (LONGER * stride.abs()).min(longest),
        false => (stride.abs() / 2.0).max(shortest),
    };
    following.stride = if too_many { size } else { -size };
    following.threshold *= following.stride.exp();
}

/// Where the proposed entries, of which there are `count`, would be cut into as many parts as there are partitions, of equal
/// counts: the position of each part's first entry, but for the first part.
fn ideal(partition: &Partition, proposed: &[Option<Arc<[u32]>>], count: usize) -> Vec<usize> {
    let parts = proposed.len();
    let mut cuts = Vec::with_capacity(parts);
    let mut before = 0;
    for (b, indices) in proposed.iter().enumerate() {
        let indices = indices.as_deref().unwrap_or_default();
        let start = partition.range(Block(b as u32)).start;
        while let Some(&index) = indices.get(count * (cuts.len() + 1) / parts - before) {
            cuts.push(start + index as usize);
            if cuts.len() + 1 == parts {
                return cuts;
            }
        }
        before += indices.len();
    }
    cuts
}
