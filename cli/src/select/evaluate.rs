//! What a choice is worth: the columns of the table.

use std::collections::BTreeSet;

use gleaner_algorithms::bag::Entries;

use super::measure::{Entrant, One};

/// A row of the table; the names are those of the JSON object. Means are over the workers.
#[derive(serde::Serialize)]
pub struct Row {
    pub selector: String,
    /// The time of the slowest worker.
    pub seconds: f64,
    /// The same, as a multiple of one read of the gradient.
    pub times_read: f64,
    /// Mean number of entries that a worker sends values for.
    pub entries: f64,
    /// The same, as a multiple of k.
    pub times_k: f64,
    /// Mean share of a gradient's squared L2 norm that these entries hold: 0 to 1.
    pub l2_share: f64,
    /// Mean over pairs of workers of |A ∩ B| / |A ∪ B|: 0 to 1. None with one worker, or where nothing was sent.
    pub jaccard: Option<f64>,
    /// All workers' indices together, as a multiple of P·k: 1/P where all send the same k, 1 where no two send one entry.
    pub build_up: f64,
    /// P times the largest number of entries that a worker chose, by the sum of all: what an all-gather of equal lengths
    /// carries for one that it needs. None where nothing was chosen.
    pub padding: Option<f64>,
    /// Mean relative error of the threshold, against each gradient's k-th largest magnitude. None where there is none.
    pub threshold_error: Option<f64>,
    /// The share of the slowest worker's time that the mean worker waits for it: 0 to 1.
    pub idling: f64,
}

pub fn evaluate(
    entrant: &Entrant,
    one: &One,
    read: f64,
    gradients: &[Vec<f32>],
    exact: &[f64],
    k: usize,
) -> Row {
    let workers = gradients.len() as f64;
    let sent = sent(entrant, one, gradients);
    let counts: Vec<f64> = sent.iter().map(|entries| entries.len() as f64).collect();
    let entries = mean(&counts).unwrap_or(0.0);
    let l2_shares: Vec<f64> = sent
        .iter()
        .zip(gradients)
        .map(|(entries, gradient)| match squares(gradient) {
            0.0 => 1.0,
            all => squares(&entries.values) / all,
        })
        .collect();
    let union: BTreeSet<u32> = sent.iter().flat_map(|entries| entries.indices.iter().copied()).collect();
    let overlaps: Vec<f64> = (0..sent.len())
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .filter_map(|(a, b)| overlap(&sent[a], &sent[b]))
        .collect();
    let chosen: Vec<f64> = one.chosen.iter().map(|entries| entries.len() as f64).collect();
    let (most, all) = (chosen.iter().copied().fold(0.0, f64::max), chosen.iter().sum::<f64>());
    let slowest = one.seconds.iter().copied().fold(0.0, f64::max);
    let errors = one.thresholds.as_ref().map(|thresholds| {
        let known = thresholds.iter().zip(exact).filter(|(_, exact)| **exact > 0.0);
        known.map(|(threshold, exact)| (threshold - exact).abs() / exact).collect::<Vec<_>>()
    });
    Row {
        selector: entrant.to_string(),
        seconds: slowest,
        times_read: slowest / read.max(f64::MIN_POSITIVE),
        entries,
        times_k: entries / k as f64,
        l2_share: mean(&l2_shares).unwrap_or(0.0),
        jaccard: mean(&overlaps),
        build_up: union.len() as f64 / (workers * k as f64),
        padding: (all > 0.0).then(|| workers * most / all),
        threshold_error: errors.as_deref().and_then(mean),
        idling: if slowest > 0.0 { 1.0 - mean(&one.seconds).unwrap_or(0.0) / slowest } else { 0.0 },
    }
}

/// What each worker sends: where the workers choose for each other, its own values at what all chose.
fn sent(entrant: &Entrant, one: &One, gradients: &[Vec<f32>]) -> Vec<Entries> {
    if let Entrant::Own(_) = entrant {
        return one.chosen.clone();
    }
    let mut union: Vec<u32> = one.chosen.iter().flat_map(|entries| entries.indices.iter().copied()).collect();
    union.sort_unstable();
    gradients.iter().map(|gradient| union.iter().map(|&i| (i, gradient[i as usize])).collect()).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn squares(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v) * f64::from(v)).sum()
}

/// |A ∩ B| / |A ∪ B|.
fn overlap(a: &Entries, b: &Entries) -> Option<f64> {
    let (mut both, mut either) = (0u64, 0u64);
    a.visit_union(b, |_, a, b| {
        either += 1;
        both += u64::from(a.is_some() && b.is_some());
    });
    (either > 0).then(|| both as f64 / either as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(indices: &[u32]) -> Entries {
        indices.iter().map(|&i| (i, 1.0)).collect()
    }

    #[test]
    fn columns_are_what_they_say() {
        let gradients = vec![vec![3.0, 4.0, 0.0, 0.0], vec![0.0, 1.0, 1.0, 1.0]];
        let one = One {
            chosen: vec![entries(&[0]), entries(&[1, 2, 3])],
            thresholds: Some(vec![3.0, 2.0]),
            seconds: vec![0.001, 0.003],
        };
        let own = Entrant::Own(gleaner_algorithms::selectors::Selector::Random);
        let row = evaluate(&own, &one, 0.001, &gradients, &[4.0, 1.0], 1);
        assert_eq!((row.entries, row.times_k, row.jaccard, row.build_up), (2.0, 2.0, Some(0.0), 2.0));
        assert_eq!((row.padding, row.threshold_error), (Some(1.5), Some(0.625)));
        // The values stand for themselves: 1 of 25 squares, and 3 of 3.
        assert!((row.l2_share - 0.52).abs() < 1e-12);
        assert!((row.times_read - 3.0).abs() < 1e-9 && (row.idling - 1.0 / 3.0).abs() < 1e-9);
        // Chosen for all: all workers' values at all four indices.
        let row = evaluate(&Entrant::ExDyna, &one, 0.001, &gradients, &[4.0, 1.0], 4);
        assert_eq!((row.entries, row.jaccard, row.build_up, row.l2_share), (4.0, Some(1.0), 0.5, 1.0));
        assert_eq!(overlap(&entries(&[1, 2, 3]), &entries(&[2, 3, 4])), Some(0.5));
        assert_eq!(overlap(&entries(&[]), &entries(&[])), None);
    }
}
