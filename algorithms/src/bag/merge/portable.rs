//! Merging in plain Rust: what it means, for all types, and what finishes after a kernel.

use std::hint::select_unpredictable;

use super::{Entries, Position, SortedRun};
use crate::Element;

/// Parts that are interleaved in turns. Each entry waits for the comparison before it, so one part alone would leave the
/// processor idle most of the time.
const PARTS: usize = 4;

/// Two runs, and the place for their result.
struct Segment<'a, T> {
    a: SortedRun<'a, T>,
    b: SortedRun<'a, T>,
    place: Position<'a, T>,
}

/// Writes the entries of both runs in the order of their indices; of two equal ones, that of `a` first.
pub(super) fn interleave<T: Element>(a: SortedRun<T>, b: SortedRun<T>, mut place: Position<T>) {
    let total = a.len() + b.len();
    let mut start = (0, 0);
    let mut parts: [Segment<T>; PARTS] = std::array::from_fn(|part| {
        let end = cut(a.indices, b.indices, total * (part + 1) / PARTS);
        let (a, b) = (a.before(end.0).after(start.0), b.before(end.1).after(start.1));
        start = end;
        Segment { a, b, place: place.take(a.len() + b.len()) }
    });
    in_turns(&mut parts);
    for part in parts {
        let mut alone = [part];
        in_turns(&mut alone);
        let [Segment { a, b, mut place }] = alone;
        // One of them is used up.
        place.fill(a);
        place.fill(b);
    }
}

/// How many of the first `count` entries of both runs, interleaved, are each one's.
fn cut(a: &[u32], b: &[u32], count: usize) -> (usize, usize) {
    let (mut least, mut most) = (count.saturating_sub(b.len()), count.min(a.len()));
    while least < most {
        let middle = (least + most) / 2;
        // Too few of `a` if its next one belongs before the last one of `b`.
        if a[middle] <= b[count - middle - 1] { least = middle + 1 } else { most = middle }
    }
    (least, count - least)
}

/// Interleaves the parts, an entry of each in turn, until one of them has used up one of its runs.
fn in_turns<T: Element, const N: usize>(parts: &mut [Segment<T>; N]) {
    loop {
        // This many entries can be taken from whichever run.
        let safe = parts.iter().map(|part| part.a.len().min(part.b.len())).min().unwrap_or(0);
        if safe == 0 {
            return;
        }
        let runs: [_; N] = std::array::from_fn(|part| {
            let Segment { a, b, .. } = parts[part];
            (a.before(a.len()), b.before(b.len()))
        });
        let mut places =
            parts.each_mut().map(|part| (&mut part.place.indices[..safe], &mut part.place.values[..safe]));
        let mut taken = [0; N];
        for done in 0..safe {
            for part in 0..N {
                let ((a, b), (indices, values)) = (&runs[part], &mut places[part]);
                let i = taken[part];
                let j = done - i;
                let (here, there) = (a.indices[i], b.indices[j]);
                let first = here <= there;
                indices[done] = select_unpredictable(first, here, there);
                values[done] = *select_unpredictable(first, &a.values[i], &b.values[j]);
                taken[part] = i + usize::from(first);
            }
        }
        for (part, taken) in parts.iter_mut().zip(taken) {
            part.a = part.a.after(taken);
            part.b = part.b.after(safe - taken);
            part.place.take(safe);
        }
    }
}

/// Entries looked at together, in the hope that none of them has to be joined.
const GROUP: usize = 8;

/// Progress of joining neighbours.
#[derive(Clone, Copy, Default)]
pub(super) struct Merged {
    /// Entries that were looked at.
    pub(super) read: usize,
    /// Entries that remain of them, at the start.
    pub(super) kept: usize,
    /// Whether the last entry looked at has taken in the next one.
    pub(super) joined: bool,
}

/// Combines neighbours of one index, of which there are never more than two. Continues from `progress`; returns how many
/// entries remain, at the start.
pub(super) fn join<T: Element>(
    entries: &mut Entries<T>,
    progress: Merged,
    combine: impl Fn(T, T) -> T,
) -> usize {
    let Merged { read, mut kept, mut joined } = progress;
    let (indices, values) = (&mut entries.indices[..], &mut entries.values[..]);
    let mut start = read;
    while let (Some(here), Some(found)) =
        (indices[start..].first_chunk::<{ GROUP + 1 }>(), values[start..].first_chunk::<{ GROUP + 1 }>())
    {
        if !here.iter().zip(&here[1..]).fold(joined, |any, (here, next)| any | (here == next)) {
            indices.copy_within(start..start + GROUP, kept);
            values.copy_within(start..start + GROUP, kept);
            kept += GROUP;
        } else {
            // The first of two takes in the second, which goes.
            let (here, found) = (*here, *found);
            let twice: [u32; GROUP] = std::array::from_fn(|lane| u32::from(here[lane] == here[lane + 1]));
            let mut both = [T::ZERO; GROUP];
            for lane in 0..GROUP {
                let pair = combine(found[lane], found[lane + 1]);
                both[lane] = if twice[lane] != 0 { pair } else { found[lane] };
            }
            for lane in 0..GROUP {
                (indices[kept], values[kept]) = (here[lane], both[lane]);
                kept += usize::from(!joined);
                joined = twice[lane] != 0;
            }
        }
        start += GROUP;
    }
    for at in start..indices.len() {
        let (index, value) = (indices[at], values[at]);
        let twice = indices.get(at + 1) == Some(&index);
        let value = if twice { combine(value, values[at + 1]) } else { value };
        (indices[kept], values[kept]) = (index, value);
        kept += usize::from(!joined);
        joined = twice;
    }
    kept
}
