//! The exact top-k of a worker's own block, which is held as an untouched accumulator and a sparse overlay.

use crate::bag::Entries;
use crate::select;

/// Entries of a block that may be among its largest.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// Every entry of at least this magnitude is here; None when nothing was collected.
    pub threshold: Option<f32>,
    /// They.
    pub entries: Entries,
}

/// What a selection from a worker's own block leaves.
#[derive(Debug)]
pub(super) struct OwnTop {
    /// The k largest.
    pub(super) kept: Entries,
    /// The entries that others contributed to and that were not kept, with their whole sums (zeros included).
    pub(super) settled: Entries,
    /// From which magnitude on to collect candidates in the next step.
    pub(super) threshold: Option<f32>,
}

/// The k largest entries of `own` overlaid with `overlay` (sums with what was received, by index).
///
/// If at least k candidates reach the threshold above which all were collected, no other entry can
/// be among the k largest. Otherwise the block is read again with lower thresholds.
pub(super) fn own_top(own: &[f32], overlay: &Entries, candidates: &Candidates, k: u32) -> OwnTop {
    let k = k as usize;
    let mut found = candidates.threshold.and_then(|t| enough(&candidates.entries, overlay, t, k));
    if found.is_none() && k > 0 {
        let estimate = select::estimate_threshold(own, k);
        for threshold in [estimate, estimate * 0.25, 0.0] {
            let mut scanned = Entries::default();
            select::scan(own, threshold, 0, &mut scanned);
            found = enough(&scanned, overlay, threshold, k);
            if found.is_some() {
                break;
            }
        }
    }
    let found = found.unwrap_or_default();
    let (mut top, mut rest) = (Entries::default(), Entries::default());
    let smallest = select::top_k(&found.entries.indices, &found.entries.values, k, &mut top, &mut rest);
    let predict = || select::predict_threshold(found.threshold, found.reached, smallest, k);
    let threshold = (top.len() == k && k > 0).then(predict);
    let settled = without(overlay.iter(), &top.indices);
    OwnTop { kept: top, settled, threshold }
}

/// What a selection from several slots together is made of: of each slot the entries that may be chosen.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// By slot.
    pub(super) entries: Vec<Entries>,
    /// Every entry of at least this magnitude is in there.
    pub(super) threshold: f32,
}

/// What was kept of a pool.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// By slot.
    pub(super) kept: Vec<Entries>,
    /// The smallest magnitude kept, 0 if nothing was.
    pub(super) smallest: f32,
    /// How many entries reached the threshold of the pool.
    pub(super) reached: usize,
}

/// A place to choose from.
pub(super) enum Source<'a> {
    /// The worker's own block, the sums of it with what was received, and the candidates that were collected.
    Own(&'a [f32], &'a Entries, &'a Candidates),
    /// All that there is.
    Bag(&'a Entries),
}

impl Source<'_> {
    /// Its entries of at least a magnitude, read off the candidates where they suffice.
    fn reaching(&self, threshold: f32) -> Entries {
        match self {
            Source::Bag(entries) => (*entries).clone(),
            Source::Own(own, overlay, candidates) => {
                let mut scanned = Entries::default();
                let found = match candidates.threshold {
                    Some(collected) if collected <= threshold => &candidates.entries,
                    _ => {
                        select::scan(own, threshold, 0, &mut scanned);
                        &scanned
                    }
                };
                overlaid(found, overlay)
            }
        }
    }

    /// From which magnitude on its candidates are complete.
    fn collected(&self) -> Option<f32> {
        match self {
            Source::Bag(_) => Some(0.0),
            Source::Own(_, _, candidates) => candidates.threshold,
        }
    }
}

/// The k largest of all sources together; of equal magnitudes the earlier source, and in it the lower index.
pub(super) fn jointly(sources: &[Source<'_>], k: usize) -> (Chosen, f32) {
    let owned: usize = sources.iter().map(|s| if let Source::Own(own, ..) = s { own.len() } else { 0 }).sum();
    // Each block guesses the threshold for its share of k; the lowest is safe for all.
    let estimate = || {
        let of = |s: &Source<'_>| match s {
            Source::Own(own, ..) if !own.is_empty() => {
                let share = (k as f64 * own.len() as f64 / owned as f64).ceil() as usize;
                select::estimate_threshold(own, share)
            }
            _ => f32::INFINITY,
        };
        sources.iter().map(of).fold(f32::INFINITY, f32::min)
    };
    let collected = sources.iter().map(Source::collected).try_fold(0.0f32, |most, c| Some(most.max(c?)));
    let guesses = collected.into_iter().map(Some).chain([None]);
    for guess in guesses {
        let guess = guess.unwrap_or_else(estimate);
        let guess = if guess.is_finite() { guess } else { 0.0 };
        for threshold in [guess, guess * 0.25, 0.0] {
            let pool = Pool { entries: sources.iter().map(|s| s.reaching(threshold)).collect(), threshold };
            let chosen = pool.top(k);
            if chosen.reached >= k || threshold <= 0.0 {
                return (chosen, threshold);
            }
            if Some(threshold) == collected {
                // The prediction failed: an estimate is the better next guess.
                break;
            }
        }
    }
    Default::default()
}

/// The entries of all sources of at least a magnitude, and the `most` largest of them if they are more.
pub(super) fn above(sources: &[Source<'_>], threshold: f32, most: usize) -> Chosen {
    let pool = Pool { entries: sources.iter().map(|s| s.reaching(threshold)).collect(), threshold };
    let reached = pool.reached();
    pool.top(reached.min(most))
}

impl Pool {
    fn reached(&self) -> usize {
        let reaches = |v: &&f32| **v != 0.0 && v.abs() >= self.threshold;
        self.entries.iter().map(|e| e.values.iter().filter(reaches).count()).sum()
    }

    /// The k largest.
    fn top(&self, k: usize) -> Chosen {
        let reached = self.reached();
        let values: Vec<f32> = self.entries.iter().flat_map(|e| &e.values).copied().collect();
        let ordinals: Vec<u32> = (0..values.len() as u32).collect();
        let (mut top, mut rest) = (Entries::default(), Entries::default());
        let smallest = select::top_k(&ordinals, &values, k, &mut top, &mut rest);
        let mut ordinals = top.indices.into_iter().peekable();
        let mut first = 0;
        let kept = self
            .entries
            .iter()
            .map(|entries| {
                let start = first;
                first += entries.len() as u32;
                let mut kept = Entries::default();
                while let Some(ordinal) = ordinals.next_if(|&o| o < first) {
                    let at = (ordinal - start) as usize;
                    kept.push(entries.indices[at], entries.values[at]);
                }
                kept
            })
            .collect();
        Chosen { kept, smallest, reached }
    }
}

/// Candidates with the sums laid over them; zeros are left out.
fn overlaid(candidates: &Entries, overlay: &Entries) -> Entries {
    if overlay.is_empty() {
        return candidates.clone();
    }
    let mut entries = Entries::with_capacity(candidates.len() + overlay.len());
    candidates.visit_union(overlay, |index, own, sum| {
        let value = sum.or(own).unwrap_or(0.0);
        if value != 0.0 {
            entries.push(index, value);
        }
    });
    entries
}

/// All entries of both, which share no index; zeros too.
pub(super) fn interleave(a: &Entries, b: &Entries) -> Entries {
    let mut all = Entries::with_capacity(a.len() + b.len());
    a.visit_union(b, |index, a, b| all.push(index, a.or(b).unwrap_or(0.0)));
    all
}

/// The entries whose indices are not among `kept`, which ascend.
pub(super) fn without(entries: impl Iterator<Item = (u32, f32)>, kept: &[u32]) -> Entries {
    let mut kept = kept.iter().peekable();
    entries
        .filter(|&(index, _)| {
            while kept.next_if(|&&i| i < index).is_some() {}
            kept.peek() != Some(&&index)
        })
        .collect()
}

/// Entries among which the k largest are.
#[derive(Default)]
struct Enough {
    entries: Entries,
    threshold: f32,
    /// How many of them reach the threshold.
    reached: usize,
}

/// Candidates and overlay as one, if k of them reach the threshold.
fn enough(candidates: &Entries, overlay: &Entries, threshold: f32, k: usize) -> Option<Enough> {
    let entries = overlaid(candidates, overlay);
    let reached = entries.values.iter().filter(|v| v.abs() >= threshold).count();
    (reached >= k || threshold <= 0.0).then_some(Enough { entries, threshold, reached })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn oracle(values: &[f32], k: usize) -> Entries {
        let mut order: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
        order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
        order.truncate(k);
        order.sort_unstable();
        order.into_iter().map(|i| (i as u32, values[i])).collect()
    }

    proptest! {
        #[test]
        fn a_prediction_never_changes_the_choice(
            own in proptest::collection::vec(prop_oneof![Just(0.0f32), Just(1.0f32), -3.0f32..3.0], 0..200),
            received in proptest::collection::vec((0usize..200, -3i8..4), 0..60),
            k in 0u32..60,
            predicted in proptest::option::of(0.0f32..3.0),
        ) {
            let mut sums = std::collections::BTreeMap::new();
            for (i, v) in received {
                if let Some(own) = own.get(i) { sums.insert(i as u32, own + f32::from(v)); }
            }
            let overlay: Entries = sums.into_iter().collect();
            let mut whole = own.clone();
            overlay.iter().for_each(|(i, v)| whole[i as usize] = v);
            let mut candidates = Candidates { threshold: predicted, ..Default::default() };
            if let Some(threshold) = predicted {
                candidates.entries = own.iter().enumerate().filter(|(_, v)| v.abs() >= threshold && **v != 0.0).map(|(i, &v)| (i as u32, v)).collect();
            }
            let top = own_top(&own, &overlay, &candidates, k);
            prop_assert_eq!(&top.kept, &oracle(&whole, k as usize));
            let settled: Entries = overlay.iter().filter(|(i, _)| !top.kept.indices.contains(i)).collect();
            prop_assert_eq!(top.settled, settled);
        }
    }
}
