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
    let mut settled = Entries::default();
    let mut kept = top.indices.iter().peekable();
    for (index, value) in overlay.iter() {
        while kept.next_if(|&&i| i < index).is_some() {}
        if kept.peek() != Some(&&index) {
            settled.push(index, value);
        }
    }
    OwnTop { kept: top, settled, threshold }
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
    let mut entries = Entries::with_capacity(candidates.len() + overlay.len());
    let mut reached = 0;
    candidates.visit_union(overlay, |index, own, sum| {
        let value = sum.or(own).unwrap_or(0.0);
        if value != 0.0 {
            reached += usize::from(value.abs() >= threshold);
            entries.push(index, value);
        }
    });
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
