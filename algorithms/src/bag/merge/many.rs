//! Many sorted runs as one.

use super::{SortedRun, merge};
use crate::bag::Entries;
use crate::{Element, Reduction};

/// Entries that are combined before the next ones are looked at: so few that what is between two merges stays in a
/// second-level cache, and in memory that is used again and again.
const WINDOW: usize = 16 << 10;

/// All sets as one, in a fixed order: ((0 + 1) + (2 + 3)) + …, the first half being a power of two.
pub(in crate::bag) fn reduce<T: Element>(sets: &[Entries<T>], reduction: &Reduction<T>) -> Entries<T> {
    let total: usize = sets.iter().map(Entries::len).sum();
    let mut all = Entries::with_capacity(total);
    let Some(longest) = sets.iter().max_by_key(|set| set.len()) else { return all };
    // The longest set decides where the windows end. Where sets are not alike, some windows are larger, and no less right.
    let step = (WINDOW * longest.len() / total.max(1)).max(1);
    let ends = longest.indices.iter().skip(step).step_by(step).map(Some).chain([None]);

    let mut rest: Vec<SortedRun<T>> = sets.iter().map(SortedRun::of).collect();
    let (mut window, mut spare) = (Entries::default(), Vec::new());
    for end in ends {
        let until = |run: &SortedRun<T>| {
            end.map_or(run.len(), |end| run.indices.partition_point(|index| index < end))
        };
        let parts: Vec<SortedRun<T>> = rest.iter_mut().map(|run| run.take(until(run))).collect();
        in_order(&parts, reduction, &mut window, &mut spare);
        all.indices.extend_from_slice(&window.indices);
        all.values.extend_from_slice(&window.values);
    }
    all
}

/// Makes `out` hold all runs as one. `spare` lends memory.
fn in_order<T: Element>(
    runs: &[SortedRun<T>],
    reduction: &Reduction<T>,
    out: &mut Entries<T>,
    spare: &mut Vec<Entries<T>>,
) {
    match *runs {
        [] => out.clear(),
        [one] => {
            out.clear();
            out.indices.extend_from_slice(one.indices);
            out.values.extend_from_slice(one.values);
        }
        [a, b] => merge(a, b, reduction, out),
        _ => {
            let (first, second) = runs.split_at(runs.len().next_power_of_two() / 2);
            let (mut a, mut b) = (spare.pop().unwrap_or_default(), spare.pop().unwrap_or_default());
            in_order(first, reduction, &mut a, spare);
            in_order(second, reduction, &mut b, spare);
            merge(SortedRun::of(&a), SortedRun::of(&b), reduction, out);
            spare.extend([a, b]);
        }
    }
}
