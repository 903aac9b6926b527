//! k of the whole gradient, shared out to groups that travel by themselves.
//!
//! Where each group of n_g entries selects density · n_g of them, as in LAGS-SGD and OMGS-SGD, groups with large entries send as few
//! as groups with small ones. TopK-SGD selects from all entries together. A group is sent before the later ones are known, so the
//! groups compete by what they held before: each gets as many entries as it had among the k largest of a whole gradient.

use std::str::FromStr;

/// What k entries are selected from where a gradient travels in several groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SelectOver {
    /// Each group selects the same share of its entries (LAGS-SGD, OMGS-SGD).
    #[default]
    Group,
    /// The groups compete for k of the whole gradient (TopK-SGD, with the counts of an earlier step).
    Gradient,
}

impl SelectOver {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SelectOver::Group => "group",
            SelectOver::Gradient => "gradient",
        }
    }
}

impl FromStr for SelectOver {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let both = [SelectOver::Group, SelectOver::Gradient];
        both.into_iter()
            .find(|over| over.name() == name)
            .ok_or_else(|| format!("'{name}' is nothing to select over; expected group or gradient"))
    }
}

/// A group keeps at least one part in so many of what its length alone would give it.
pub const FLOOR: usize = 8;

/// Low bits of a magnitude that are left out when entries are counted: eight bits after the leading one remain.
const COARSE: u32 = 15;

/// How many entries of each part are among the k largest magnitudes of all parts together. Magnitudes that differ by less than
/// 1/256 count as equal, and all that equal the k-th largest are counted. Zeros never are.
pub fn among_largest(parts: &[&[f32]], k: usize) -> Vec<u64> {
    let magnitude = |value: &f32| (value.to_bits() & !(1 << 31)) >> COARSE;
    let mut histogram = vec![0u64; 1 << (31 - COARSE)];
    for value in parts.iter().copied().flatten() {
        histogram[magnitude(value) as usize] += 1;
    }
    let mut reached = 0;
    let least = histogram.iter().rposition(|&entries| {
        reached += entries;
        reached >= k as u64
    });
    let least = least.unwrap_or(0).max(1) as u32;
    let count = |part: &&[f32]| part.iter().filter(|value| magnitude(value) >= least).count() as u64;
    parts.iter().map(count).collect()
}

/// k shared out by the lengths of the groups. No group goes without an entry, or it would wait for ever: so the sum is more than k
/// where there are more groups than that.
pub fn by_length(k: usize, entries: &[usize]) -> Vec<usize> {
    let all = entries.iter().sum::<usize>().max(1) as u128;
    let upto = |before: usize| (k as u128 * before as u128 / all) as usize;
    let mut before = 0;
    let share = |&n: &usize| {
        before += n;
        (upto(before) - upto(before - n)).max(k.min(1)).min(n)
    };
    entries.iter().map(share).collect()
}

/// k shared out in proportion to weights, among groups of this many entries. None gets more than its entries, and none less than an
/// entry and one part in [`FLOOR`] of what it gets [by length](by_length). The sum is k, unless these floors are more.
pub fn by_weight(k: usize, weights: &[u64], entries: &[usize]) -> Vec<usize> {
    let floors: Vec<usize> = by_length(k, entries).into_iter().map(|share| share.div_ceil(FLOOR)).collect();
    // Shares at a level: entries per weight, in units of 2⁻³².
    let at = |level: u128| -> Vec<usize> {
        let share = |((&weight, &floor), &n): ((&u64, &usize), &usize)| {
            let share = level.saturating_mul(u128::from(weight.max(1))) >> 32;
            (share.min(n as u128) as usize).max(floor)
        };
        weights.iter().zip(&floors).zip(entries).map(share).collect()
    };
    let sum = |level| at(level).iter().sum::<usize>();
    // The highest level at which there are no more than k.
    let (mut low, mut high) = (0, (k as u128 + 1) << 32);
    while high - low > 1 {
        let level = low + (high - low) / 2;
        if sum(level) <= k { low = level } else { high = level }
    }
    let (mut shares, above) = (at(low), at(low + 1));
    let mut left = k.saturating_sub(shares.iter().sum());
    for (share, above) in shares.iter_mut().zip(above) {
        let more = (above - *share).min(left);
        *share += more;
        left -= more;
    }
    shares
}

/// By how many entries shares differ.
pub fn moved(before: &[usize], after: &[usize]) -> usize {
    before.iter().zip(after).map(|(&before, &after)| after.saturating_sub(before)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn groups() -> impl Strategy<Value = (Vec<usize>, Vec<u64>)> {
        proptest::collection::vec((1usize..5000, prop_oneof![0u64..3, 0u64..100_000, Just(u64::MAX)]), 1..12)
            .prop_map(|groups| groups.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn shares_add_up_to_k_within_their_bounds((entries, weights) in groups(), density in 0.0f64..=1.0) {
            let k = (density * entries.iter().sum::<usize>() as f64) as usize;
            let (shares, even) = (by_weight(k, &weights, &entries), by_length(k, &entries));
            let floors: usize = even.iter().map(|share| share.div_ceil(FLOOR)).sum();
            prop_assert_eq!(shares.iter().sum::<usize>(), k.max(floors));
            for ((share, even), n) in shares.iter().zip(&even).zip(&entries) {
                prop_assert!(share <= n && share * FLOOR >= *even && (*share > 0 || k == 0));
            }
            prop_assert!(moved(&even, &shares) <= k.max(floors));
        }

        /// What is neither at its floor nor full has its part of k, up to an entry.
        #[test]
        fn shares_go_with_weights((entries, weights) in groups(), density in 0.0f64..=1.0) {
            let k = (density * entries.iter().sum::<usize>() as f64) as usize;
            let shares = by_weight(k, &weights, &entries);
            let floors: Vec<usize> = by_length(k, &entries).iter().map(|share| share.div_ceil(FLOOR)).collect();
            let free = |i: usize| shares[i] > floors[i] + 1 && shares[i] < entries[i];
            for (i, j) in (0..shares.len()).flat_map(|i| (0..i).map(move |j| (i, j))) {
                if free(i) && free(j) {
                    let (a, b) = (weights[i].max(1) as f64, weights[j].max(1) as f64);
                    let (low, high) = ((shares[i] as f64 - 1.0) / a, (shares[i] as f64 + 1.0) / a);
                    prop_assert!(low <= (shares[j] as f64 + 1.0) / b && (shares[j] as f64 - 1.0) / b <= high);
                }
            }
        }

        #[test]
        fn the_largest_are_counted(values in proptest::collection::vec(-4i32..=4, 1..200), cut in 0usize..200, k in 0usize..220) {
            let values: Vec<f32> = values.iter().map(|&v| if v == 0 { 0.0 } else { 2f32.powi(v.abs()).copysign(v as f32) }).collect();
            let (first, second) = values.split_at(cut.min(values.len()));
            let counts = among_largest(&[first, second], k);
            let mut sorted: Vec<f32> = values.iter().map(|v| v.abs()).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let least = if k == 0 { f32::INFINITY } else { sorted.get(k - 1).copied().unwrap_or(0.0).max(1.0) };
            let expected = [first, second].map(|part| part.iter().filter(|v| v.abs() >= least).count() as u64);
            prop_assert_eq!(counts, expected);
        }
    }

    #[test]
    fn by_length_no_group_goes_without() {
        assert_eq!(by_length(10, &[50, 30, 20]), [5, 3, 2]);
        assert_eq!(by_length(2, &[98, 1, 1]), [1, 1, 1]);
        assert_eq!(by_length(0, &[5, 5]), [0, 0]);
    }

    /// A third of k by length is 33 or 34, and an eighth of that 5; the other 95 are 71¼ and 23¾.
    #[test]
    fn by_weight_no_group_falls_below_its_floor() {
        assert_eq!(by_weight(100, &[300, 100, 0], &[1000, 1000, 1000]), [72, 23, 5]);
    }
}
