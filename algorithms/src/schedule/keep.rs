//! The exact top-k of a worker's own block, which is held as an untouched accumulator and a sparse overlay.

use crate::accumulator::Own;
use crate::bag::{Entries, Marks};
use crate::device::{DeviceError, Largest};
use crate::{Element, select};

/// Entries of a block that may be among its largest.
#[derive(Clone, Debug, Default)]
pub struct Candidates<T: Element = f32> {
    /// Every entry of at least this magnitude is here; None when nothing was collected.
    pub threshold: Option<T>,
    /// They.
    pub entries: Entries<T>,
    /// Whether a device has chosen what was selected of the block.
    pub by_device: bool,
}

impl<T: Element> Candidates<T> {
    /// Whether the k largest of the block are among these, with the sums laid over them.
    pub(super) fn suffice(&self, overlay: &Entries<T>, k: usize) -> bool {
        let Some(threshold) = self.threshold else { return false };
        let reached =
            |entries: &Entries<T>| entries.values.iter().filter(|v| reaches(**v, threshold)).count();
        let (own, sums, mut hidden, mut i, mut j) = (&self.entries, overlay, 0, 0, 0);
        while let (Some(here), Some(there)) = (own.indices.get(i), sums.indices.get(j)) {
            hidden += usize::from(here == there && reaches(own.values[i], threshold));
            (i, j) = (i + usize::from(here <= there), j + usize::from(there <= here));
        }
        threshold <= T::ZERO || reached(own) + reached(sums) - hidden >= k
    }
}

/// What a selection from a worker's own block leaves.
#[derive(Debug)]
pub(super) struct OwnTop<T: Element> {
    /// The k largest; of zeros only those that are sums, where there is room.
    pub(super) kept: Entries<T>,
    /// The entries that others contributed to and that were not kept, with their whole sums.
    pub(super) remaining: Entries<T>,
    /// From which magnitude on to collect candidates in the next step, and memory for them.
    pub(super) next: Candidates<T>,
}

/// The k largest entries of `own` overlaid with `overlay` (sums with what was received, by index).
///
/// If at least k candidates reach the threshold above which all were collected, no other entry can
/// be among the k largest. Otherwise the block is read again. A device has its candidates with it.
pub(super) fn own_top<T: Element>(
    own: &Own<'_, T>,
    overlay: &Entries<T>,
    candidates: Candidates<T>,
    k: u32,
) -> Result<OwnTop<T>, DeviceError> {
    let k = k as usize;
    if overlay.is_empty()
        && k > 0
        && let Some(largest) = own.largest(k)?
    {
        return Ok(OwnTop::of(largest, k));
    }
    let predicted = match candidates.threshold.filter(|_| !own.is_on_device()) {
        Some(threshold) => enough(candidates.entries, overlay, threshold, k),
        None => None,
    };
    let mut found = match predicted.or_else(|| (k == 0).then(Enough::default)) {
        Some(found) => found,
        None => {
            // Each sum laid over a candidate may take one away.
            let (found, threshold) = own.candidates(k + overlay.len())?;
            Enough::of(found, overlay, threshold)
        }
    };
    let mut top = Entries::default();
    let smallest = select::top_k(&found.entries.indices, &found.entries.values, k, &mut top, None);
    let threshold = predict(k, &top, smallest, (found.threshold, found.reached));
    let remaining = without(overlay, &top.indices);
    found.entries.clear();
    Ok(OwnTop {
        kept: top,
        remaining,
        next: Candidates { threshold, entries: found.entries, by_device: false },
    })
}

/// From which magnitude on to collect in the next step, where this many reached a threshold and these were kept.
fn predict<T: Element>(
    k: usize,
    kept: &Entries<T>,
    smallest: T,
    (threshold, reached): (T, usize),
) -> Option<T> {
    let is_known = kept.len() == k && smallest > T::ZERO;
    is_known.then(|| select::predict_threshold(threshold, reached, smallest, k))
}

impl<T: Element> OwnTop<T> {
    /// What a device has chosen, of values that nothing was added to.
    fn of(largest: Largest<T>, k: usize) -> Self {
        let Largest { entries, smallest, threshold, reached } = largest;
        let threshold = predict(k, &entries, smallest, (threshold, reached));
        let next = Candidates { threshold, entries: Entries::default(), by_device: true };
        Self { kept: entries, remaining: Entries::default(), next }
    }
}

/// What a selection from several slots together is made of: of each slot the entries that may be chosen.
#[derive(Debug, Default)]
pub(super) struct Pool<T: Element> {
    /// By slot.
    pub(super) entries: Vec<Entries<T>>,
    /// Every entry of at least this magnitude is in there.
    pub(super) threshold: T,
}

/// What was kept of a pool.
#[derive(Debug, Default)]
pub(super) struct Pooled<T: Element> {
    /// By slot.
    pub(super) kept: Vec<Entries<T>>,
    /// The smallest magnitude kept, 0 if nothing was.
    pub(super) smallest: T,
    /// How many entries reached the threshold of the pool, zeros apart.
    pub(super) reached: usize,
}

/// A place to choose from.
pub(super) enum Searched<'a, T: Element> {
    /// The worker's own block, the sums of it with what was received, and the candidates that were collected.
    Own(Own<'a, T>, &'a Entries<T>, &'a Candidates<T>),
    /// All that there is.
    Bag(&'a Entries<T>),
}

impl<T: Element> Searched<'_, T> {
    /// Its entries of at least a magnitude, read off the candidates where they suffice.
    fn reaching(&self, threshold: T) -> Result<Entries<T>, DeviceError> {
        match self {
            Searched::Bag(entries) => Ok((*entries).clone()),
            Searched::Own(own, overlay, candidates) => {
                let scanned = match candidates.threshold {
                    Some(collected) if collected <= threshold && !own.is_on_device() => {
                        candidates.entries.clone()
                    }
                    _ => own.reaching(threshold)?,
                };
                Ok(overlaid(scanned, overlay))
            }
        }
    }

    /// The same, unless they are many times k.
    fn few(&self, threshold: T, k: usize) -> Result<Option<Entries<T>>, DeviceError> {
        match self {
            Searched::Bag(entries) => Ok(Some((*entries).clone())),
            Searched::Own(own, overlay, _) => {
                Ok(own.few(threshold, k)?.map(|found| overlaid(found, overlay)))
            }
        }
    }

    /// Entries among which its k largest are, and a magnitude above which all are there.
    fn largest(&self, k: usize) -> Result<(Entries<T>, T), DeviceError> {
        match self {
            Searched::Bag(entries) => Ok(((*entries).clone(), T::ZERO)),
            Searched::Own(own, overlay, _) => {
                // Each sum laid over a candidate may take one away.
                let (found, threshold) = own.candidates(k + overlay.len())?;
                Ok((overlaid(found, overlay), threshold))
            }
        }
    }

    /// Whether its block has to be read for all entries of at least a magnitude.
    pub(super) fn reads(&self, threshold: T) -> bool {
        self.collected().is_none_or(|collected| collected > threshold)
    }

    /// Entries that there are to choose from.
    pub(super) fn len(&self) -> usize {
        match self {
            Searched::Own(own, ..) => own.stored(),
            Searched::Bag(entries) => entries.len(),
        }
    }

    /// From which magnitude on its candidates are complete.
    fn collected(&self) -> Option<T> {
        match self {
            Searched::Bag(_) => Some(T::ZERO),
            Searched::Own(_, _, candidates) => candidates.threshold,
        }
    }
}

/// The k largest of all sources together; of equal magnitudes the earlier source, and in it the lower index. With it
/// the threshold that all sources were searched with.
pub(super) fn jointly<T: Element>(
    sources: &[Searched<'_, T>],
    k: usize,
) -> Result<(Pooled<T>, T), DeviceError> {
    let predicted = sources.iter().map(Searched::collected).try_fold(T::ZERO, |most, collected| {
        let collected = collected?;
        Some(if collected > most { collected } else { most })
    });
    let choose = |entries: Vec<Entries<T>>, threshold: T| {
        let chosen = Pool { entries, threshold }.top(k);
        (chosen.reached >= k || threshold <= T::ZERO).then_some((chosen, threshold))
    };
    if let Some(predicted) = predicted {
        let found: Result<Vec<_>, _> = sources.iter().map(|s| s.reaching(predicted)).collect();
        if let Some(chosen) = choose(found?, predicted) {
            return Ok(chosen);
        }
    }
    let estimate = estimate(sources, k)?;
    let few: Result<Option<Vec<_>>, _> = sources.iter().map(|s| s.few(estimate, k)).collect();
    if let Some(chosen) = few?.and_then(|entries| choose(entries, estimate)) {
        return Ok(chosen);
    }
    let found: Result<Vec<_>, _> = sources.iter().map(|s| s.largest(k)).collect();
    let (entries, thresholds): (Vec<_>, Vec<_>) = found?.into_iter().unzip();
    // From there on all of them have everything.
    let threshold = thresholds.into_iter().reduce(|a, b| if b > a { b } else { a }).unwrap_or(T::ZERO);
    Ok((Pool { entries, threshold }.top(k), threshold))
}

/// Each block guesses the threshold for its share of k; the lowest is safe for all.
fn estimate<T: Element>(sources: &[Searched<'_, T>], k: usize) -> Result<T, DeviceError> {
    let owned: usize =
        sources.iter().map(|s| if let Searched::Own(own, ..) = s { own.len() } else { 0 }).sum();
    let mut lowest: Option<T> = None;
    for source in sources {
        let Searched::Own(own, ..) = source else { continue };
        if own.len() == 0 {
            continue;
        }
        let share = (k as f64 * own.len() as f64 / owned as f64).ceil() as usize;
        let here = own.estimate(share)?;
        if here.is_finite() && lowest.is_none_or(|lowest| here < lowest) {
            lowest = Some(here);
        }
    }
    Ok(lowest.unwrap_or(T::ZERO))
}

/// The entries of all sources of at least a magnitude, and the `most` largest of them if they are more; sums that are zero
/// where there is room.
pub(super) fn above<T: Element>(
    sources: &[Searched<'_, T>],
    threshold: T,
    most: usize,
) -> Result<Pooled<T>, DeviceError> {
    let passes = |&(_, value): &(u32, T)| value == T::ZERO || reaches(value, threshold);
    let of = |s: &Searched<'_, T>| Ok(s.reaching(threshold)?.iter().filter(passes).collect());
    let entries = sources.iter().map(of).collect::<Result<_, DeviceError>>()?;
    Ok(Pool { entries, threshold }.top(most))
}

impl<T: Element> Pool<T> {
    fn reached(&self) -> usize {
        let reaches = |value: &&T| reaches(**value, self.threshold);
        self.entries.iter().map(|e| e.values.iter().filter(reaches).count()).sum()
    }

    /// The k largest; 2k is less than 2^32, as is the length of each slot.
    fn top(self, k: usize) -> Pooled<T> {
        self.top_within(k, u32::MAX as usize)
    }

    /// The same where this many entries can be numbered: no fewer than 2k or than a slot has.
    fn top_within(mut self, k: usize, most: usize) -> Pooled<T> {
        let reached = self.reached();
        let longer = self.entries.iter().map(Entries::len).sum::<usize>() > most;
        if longer && self.entries.len() > 1 {
            // What is among the k largest of all is so in its half.
            let half = self.entries.split_off(self.entries.len() / 2);
            let halves = [std::mem::take(&mut self.entries), half];
            let kept = |entries| Pool { entries, threshold: self.threshold }.top_within(k, most).kept;
            self.entries = halves.into_iter().flat_map(kept).collect();
        }
        let values: Vec<T> = self.entries.iter().flat_map(|e| &e.values).copied().collect();
        let ordinals: Vec<u32> = (0..values.len() as u32).collect();
        let mut top = Entries::default();
        let smallest = select::top_k(&ordinals, &values, k, &mut top, None);
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
        Pooled { kept, smallest, reached }
    }
}

/// Entries with the sums laid over them.
pub(super) fn overlaid<T: Element>(candidates: Entries<T>, overlay: &Entries<T>) -> Entries<T> {
    if overlay.is_empty() {
        return candidates;
    }
    Marks::of(&overlay.indices).pick::<T, false>(&candidates).merge(overlay)
}

/// The entries whose indices are not among `kept`, which ascend.
pub(super) fn without<T: Element>(entries: &Entries<T>, kept: &[u32]) -> Entries<T> {
    if entries.is_empty() {
        return Entries::default();
    }
    Marks::of(kept).pick::<T, false>(entries)
}

/// Entries among which the k largest are.
#[derive(Default)]
struct Enough<T: Element> {
    entries: Entries<T>,
    threshold: T,
    /// How many of them reach the threshold, zeros apart.
    reached: usize,
}

/// Whether a value's magnitude reaches a threshold; zeros reach none, and nothing reaches NaN.
fn reaches<T: Element>(value: T, threshold: T) -> bool {
    value != T::ZERO && T::from_magnitude(value.magnitude()) >= threshold
}

impl<T: Element> Enough<T> {
    /// Candidates and overlay as one.
    fn of(candidates: Entries<T>, overlay: &Entries<T>, threshold: T) -> Self {
        let entries = overlaid(candidates, overlay);
        let reached = entries.values.iter().filter(|v| reaches(**v, threshold)).count();
        Self { entries, threshold, reached }
    }
}

/// Candidates and overlay as one, if k of them reach the threshold.
fn enough<T: Element>(
    candidates: Entries<T>,
    overlay: &Entries<T>,
    threshold: T,
    k: usize,
) -> Option<Enough<T>> {
    let found = Enough::of(candidates, overlay, threshold);
    (found.reached >= k || threshold <= T::ZERO).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Zeros count where they are sums.
    fn oracle(values: &[f32], sums: &[u32], k: usize) -> Entries {
        let there = |&i: &usize| values[i] != 0.0 || sums.contains(&(i as u32));
        let mut order: Vec<usize> = (0..values.len()).filter(there).collect();
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
            let threshold = candidates.threshold.unwrap_or_default();
            let read_off = enough(candidates.entries.clone(), &overlay, threshold, k as usize).is_some();
            prop_assert_eq!(candidates.suffice(&overlay, k as usize), predicted.is_some() && read_off);
            let top = own_top(&Own::Host(&own), &overlay, candidates, k).unwrap();
            prop_assert_eq!(&top.kept, &oracle(&whole, &overlay.indices, k as usize));
            let remaining: Entries = overlay.iter().filter(|(i, _)| !top.kept.indices.contains(i)).collect();
            prop_assert_eq!(top.remaining, remaining);
        }

        /// Of more entries than can be numbered, each half gives its k largest, and these are chosen from: again and again.
        #[test]
        fn a_long_pool_gives_what_one_vector_does(
            slots in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(0.0f32), Just(1.0f32), -3.0f32..3.0], 0..=8), 0..9),
            k in 0usize..=4,
            threshold in 0.0f32..3.0,
        ) {
            let pool = || Pool { entries: slots.iter().map(|slot| (0..).zip(slot.iter().copied()).collect()).collect(), threshold };
            let all = slots.concat();
            let every: Vec<u32> = (0..all.len() as u32).collect();
            let largest = oracle(&all, &every, k);
            let mut end = 0;
            let expected: Vec<Entries> = slots.iter().map(|slot| {
                let start = end;
                end += slot.len() as u32;
                largest.iter().filter(|(i, _)| (start..end).contains(i)).map(|(i, v)| (i - start, v)).collect()
            }).collect();
            for most in [8, usize::MAX] {
                let Pooled { kept, smallest, reached } = pool().top_within(k, most);
                prop_assert_eq!(&kept, &expected, "where {} can be numbered", most);
                prop_assert_eq!(smallest, largest.values.iter().map(|v| v.abs()).reduce(f32::min).unwrap_or(0.0));
                prop_assert_eq!(reached, all.iter().filter(|v| **v != 0.0 && v.abs() >= threshold).count());
            }
        }
    }
}
