//! The health of gradients that are sent late: how long values wait until they are delivered, and what of that slows a training down.
//!
//! In every [`EVERY`]th step a worker adds up the magnitudes of a sample of what it selects from, and of what is left of it once the step is
//! committed: what waits, and what a step delivers of it. By Little's law the one over the other is how many steps a value waits. Of values in
//! the memory of a device nothing is looked at.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use gleaner_algorithms::Element;

/// Steps from one look to the next: a prime, so that steps which deliver everything are met as often as they come.
const EVERY: u64 = 17;

/// Values that are looked at in a group, at most, in pieces of so many that are spread over it evenly.
const SAMPLE: usize = 1 << 16;
const PIECE: usize = 64;

/// How many looks are taken together.
const RECENT: usize = 4;

/// What waits longer than so many steps is stale.
const STALE: f64 = 100.0;

/// What waits for so many times the steps that momentum remembers reaches momentum as a late sum.
const LATE: f64 = 2.0;

/// A method delivers too little if what waits would take so many times as long as entries that are chosen at random.
const BEYOND: f64 = 2.0;

/// Residuals grow if more waits from window to window, so many times on end; and if it is twice as much each time, they double.
const RISES: usize = 3;
const WINDOWS: usize = RISES + 1;

/// What slows a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finding {
    /// Residuals go on growing, and less is delivered than the density promises.
    Unbounded {
        /// How many steps a value waited, over the steps in which they grew.
        waits: f64,
        /// The share of the entries that a step is set to deliver.
        density: f64,
    },
    /// Residuals double again and again: gradients grow, since updates come too late.
    Doubling {
        /// Steps within which they double.
        steps: u64,
    },
    /// Most of an update is of old gradients.
    Stale {
        /// How many steps a value waits.
        waits: f64,
    },
    /// Momentum goes on with sums that come late.
    Momentum {
        /// How many steps a value waits.
        waits: f64,
        /// The share of its velocity that the optimiser keeps.
        momentum: f32,
    },
}

impl Finding {
    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Finding::Unbounded { .. } => "unbounded",
            Finding::Doubling { .. } => "doubling",
            Finding::Stale { .. } => "stale",
            Finding::Momentum { .. } => "momentum",
        }
    }

    /// The options of `gleaner train` that help, the first one first.
    pub fn options(&self) -> &'static [&'static str] {
        match self {
            Finding::Unbounded { .. } => &["--lr", "--density", "--deliver-all", "--selector"],
            Finding::Doubling { .. } => &["--lr", "--clip-local", "--density"],
            Finding::Stale { .. } => {
                &["--density", "--warmup-density", "--deliver-all", "--rate-in-residual"]
            }
            Finding::Momentum { .. } => &["--density", "--momentum"],
        }
    }
}

/// What was found, and what helps.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Finding::Unbounded { waits, density } => write!(
                f,
                "residuals grow without bound: a value waits for {} until it is delivered, where a step is set to deliver {} of the entries, \
                 so that an entry is delivered every {}; choose a lower rate, a higher density, steps that deliver everything, or in place of a \
                 fixed threshold a selector that follows the gradients",
                steps(waits),
                share(density),
                steps(1.0 / density),
            ),
            Finding::Doubling { steps } => write!(
                f,
                "residuals double every {steps} steps, and have done so {RISES} times: updates come too late for this learning rate; \
                 choose a lower rate, local clipping, or a higher density"
            ),
            Finding::Stale { waits } => write!(
                f,
                "most of an update is of old gradients: a value waits for {} until it is delivered; choose a higher density, a density \
                 that falls to it in a warm-up, or steps that deliver everything, and if the rate drops, the rate in the residual",
                steps(waits),
            ),
            Finding::Momentum { waits, momentum } => write!(
                f,
                "a value waits for {} and then comes at once, and momentum {momentum} goes on with it for {}; choose an optimiser whose \
                 momentum counts how long entries have waited (LateSgd, in Python gleaner.torch.SGD or gleaner.late_sgd_step, in C \
                 gleaner_late_sgd_step), Adam without momentum (beta1 = 0), a higher density, or less momentum",
                steps(waits),
                steps(remembers(momentum)),
            ),
        }
    }
}

/// A number of steps, in words.
fn steps(of: f64) -> String {
    if of < 1e7 { format!("about {of:.0} steps") } else { "more steps than a training has".into() }
}

fn share(density: f64) -> String {
    format!("{}%", (density * 1e6).round() / 1e4)
}

/// For how many steps momentum goes on with what it was given.
fn remembers(momentum: f32) -> f64 {
    1.0 / (1.0 - f64::from(momentum))
}

/// What waits on this worker, and how long, over the last steps that were looked at; see [`crate::Gradients::health`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Health {
    /// In how many steps it was looked at, so far: nothing is found before the fourth.
    pub looks: u64,
    /// The sum of the magnitudes of what waits after a step, as estimated from a sample; the mean of the last looks.
    pub waiting: f64,
    /// The same of what a step delivers of this worker's values.
    pub delivered: f64,
    /// The share of the entries that a step is set to deliver.
    pub density: f64,
    /// Where most of what waits has grown from window to window, or nothing is delivered: how many steps a value waited in that time.
    growing: Option<f64>,
    /// Steps within which most of what waits has doubled, time and again.
    doubling: Option<u64>,
}

impl Health {
    /// How many steps a value waits until it is delivered: infinitely many where values wait and nothing is delivered, and 0 where nothing waits.
    pub fn waits(&self) -> f64 {
        if self.waiting > 0.0 { self.waiting / self.delivered } else { 0.0 }
    }

    /// What slows a training whose optimiser has this momentum, in [0, 1): 0 for none, as beside momentum correction, which comes before
    /// the selection.
    pub fn findings(&self, momentum: f32) -> Vec<Finding> {
        let (waits, density) = (self.waits(), self.density);
        let mut findings = Vec::new();
        if self.looks < RECENT as u64 {
            return findings;
        }
        findings.extend(self.doubling.map(|steps| Finding::Doubling { steps }));
        if let Some(waits) = self.growing.filter(|waits| waits * density > BEYOND) {
            findings.push(Finding::Unbounded { waits, density });
            return findings;
        }
        if waits > STALE {
            findings.push(Finding::Stale { waits });
        }
        if (0.0..1.0).contains(&momentum) && momentum > 0.0 && waits > LATE * remembers(momentum) {
            findings.push(Finding::Momentum { waits, momentum });
        }
        findings
    }
}

/// The result of one group; of those of a gradient, all together.
impl<'a> FromIterator<&'a Watch> for Health {
    fn from_iter<I: IntoIterator<Item = &'a Watch>>(watches: I) -> Self {
        let (mut all, mut entries, mut k) = (Self::default(), 0, 0);
        let (mut growing, mut grown, mut doubling, mut risen) = (Look::default(), 0.0, 0.0, 0.0);
        for watch in watches {
            let recent = watch.recent.mean();
            all.looks = all.looks.max(watch.looks);
            all.waiting += recent.waiting;
            all.delivered += recent.delivered;
            risen += watch.recent.growth();
            if watch.has_risen(1.0) {
                let windows = watch.windows.mean();
                growing.waiting += windows.waiting;
                growing.delivered += windows.delivered;
                grown += recent.waiting;
            }
            if watch.has_risen(2.0) {
                doubling += recent.waiting;
                all.doubling = all.doubling.max(Some(watch.turn()));
            }
            (entries, k) = (entries + watch.entries, k + watch.k);
        }
        all.density = k as f64 / entries.max(1) as f64;
        all.growing = (2.0 * grown > all.waiting).then(|| growing.waiting / growing.delivered);
        // Of what no step delivers at all, the last looks are enough.
        if all.delivered == 0.0 && risen > 0.0 {
            all.growing = Some(f64::INFINITY);
        }
        all.doubling = all.doubling.filter(|_| 2.0 * doubling > all.waiting);
        all
    }
}

/// What is looked at of a group.
#[derive(Debug)]
pub(crate) struct Watch {
    entries: usize,
    /// How many of them a step is set to deliver.
    k: usize,
    /// Steps that were committed.
    steps: u64,
    looks: u64,
    recent: Last<RECENT>,
    /// The means of the last windows, each long enough that an entry has had its turn.
    windows: Last<WINDOWS>,
    /// The sums of the looks of the present window, how many they are, and the step that it began with.
    window: (Look, u32, u64),
}

/// Sums of magnitudes.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    waiting: f64,
    delivered: f64,
}

/// The last N looks, the newest at the end.
#[derive(Debug, Default)]
struct Last<const N: usize>(VecDeque<Look>);

impl<const N: usize> Last<N> {
    fn push(&mut self, look: Look) {
        if self.0.len() == N {
            self.0.pop_front();
        }
        self.0.push_back(look);
    }

    /// By how much more waits at the newest than at the oldest.
    fn growth(&self) -> f64 {
        let waiting = |look: Option<&Look>| look.map_or(0.0, |look| look.waiting);
        waiting(self.0.back()) - waiting(self.0.front())
    }

    fn mean(&self) -> Look {
        let mean = |of: fn(&Look) -> f64| self.0.iter().map(of).sum::<f64>() / self.0.len().max(1) as f64;
        Look { waiting: mean(|look| look.waiting), delivered: mean(|look| look.delivered) }
    }
}

impl Watch {
    pub(crate) fn new(entries: usize) -> Self {
        let (recent, windows) = (Last::default(), Last::default());
        Self { entries, k: 0, steps: 0, looks: 0, recent, windows, window: (Look::default(), 0, 0) }
    }

    /// Whether the step that is being committed is looked at.
    pub(crate) fn is_due(&self) -> bool {
        (self.steps + 1).is_multiple_of(EVERY)
    }

    /// The sum of the magnitudes of values that `at` gives, as estimated from a sample.
    pub(crate) fn amount<T: Element, V: AsRef<[T]>>(&self, at: impl Fn(Range<usize>) -> V) -> f64 {
        let stride = self.entries.div_ceil(SAMPLE).max(1);
        let (mut sum, mut count) = (0.0, 0);
        for start in (0..self.entries).step_by(PIECE * stride) {
            let values = at(start..self.entries.min(start + PIECE));
            let values = values.as_ref();
            sum += values.iter().map(|value| value.to_f64().abs()).sum::<f64>();
            count += values.len();
        }
        sum * self.entries as f64 / count.max(1) as f64
    }

    /// A step was committed that was set to deliver k entries. Of one that was looked at, what there was before and what is left.
    pub(crate) fn end_step(&mut self, k: usize, looked: Option<(f64, f64)>) {
        self.steps += 1;
        if k != self.k {
            // Another density has other residuals.
            self.k = k;
            self.windows = Last::default();
            self.window = (Look::default(), 0, self.steps);
        }
        let Some((before, waiting)) = looked else { return };
        let look = Look { waiting, delivered: (before - waiting).max(0.0) };
        self.looks += 1;
        self.recent.push(look);
        let (sum, count, began) = self.window;
        let (waiting, delivered) = (sum.waiting + look.waiting, sum.delivered + look.delivered);
        let count = count + 1;
        self.window = (Look { waiting, delivered }, count, began);
        if self.steps - began >= self.turn() {
            let looks = f64::from(count);
            self.windows.push(Look { waiting: waiting / looks, delivered: delivered / looks });
            self.window = (Look::default(), 0, self.steps);
        }
    }

    /// Steps in which each entry has a turn by the density, and some looks are taken.
    fn turn(&self) -> u64 {
        (self.entries.div_ceil(self.k.max(1)) as u64).max(RECENT as u64 * EVERY)
    }

    /// Whether each of the last windows has more than so many times as much waiting as the one before.
    fn has_risen(&self, times: f64) -> bool {
        let windows = self.windows.0.iter().zip(self.windows.0.iter().skip(1));
        windows
            .filter(|(before, after)| before.waiting > 0.0 && after.waiting > times * before.waiting)
            .count()
            == RISES
    }
}

#[cfg(test)]
mod tests;
