//! The passes in plain Rust: what they mean, and what finishes after a kernel.

use super::Entries;
use super::sweep::{NonFiniteSum, Sweep};
use super::top::Cut;
use crate::Element;

/// Entries examined together: few enough that one candidate among them costs little.
const GROUP: usize = 8;

/// Sweeps everything, or up to the first entry that may not be stored; see [`super::sweep::accumulate`].
pub(super) fn sweep<T: Element, P: Sweep>(
    residual: &mut [T],
    source: &[T],
    limit: T::Magnitude,
    first: u32,
    out: &mut Entries<T>,
) -> Result<(), NonFiniteSum> {
    let mut start = 0;
    while let Some(group) = source[start..].first_chunk::<GROUP>() {
        let mut entries = *group;
        if P::ADD {
            let (old, _) = residual[start..].as_chunks::<GROUP>();
            for lane in 0..GROUP {
                entries[lane] += old[0][lane];
            }
        }
        let any_reaches = |bound| entries.iter().fold(false, |any, entry| any | (entry.magnitude() >= bound));
        if P::STORE {
            if any_reaches(T::INFINITE) {
                break;
            }
            residual[start..][..GROUP].copy_from_slice(&entries);
        }
        if any_reaches(limit) {
            // Which lanes, without a branch for each.
            let (mut lanes, mut count) = ([0; GROUP], 0);
            for (lane, entry) in entries.iter().enumerate() {
                lanes[count % GROUP] = lane;
                count += usize::from(entry.magnitude() >= limit);
            }
            for &lane in &lanes[..count] {
                out.push(first + (start + lane) as u32, entries[lane % GROUP]);
            }
        }
        start += GROUP;
    }
    for index in start..source.len() {
        let entry = if P::ADD { residual[index] + source[index] } else { source[index] };
        if P::STORE {
            if !entry.is_finite() {
                return Err(NonFiniteSum { index });
            }
            residual[index] = entry;
        }
        if entry.magnitude() >= limit {
            out.push(first + index as u32, entry);
        }
    }
    Ok(())
}

/// Appends each entry to `kept` or to `dropped`, without a branch that data decides. Takes off `cut` the ties it has kept.
pub(super) fn split<T: Element>(
    cut: &mut Cut<T::Magnitude>,
    indices: &[u32],
    values: &[T],
    kept: &mut Entries<T>,
    dropped: Option<&mut Entries<T>>,
) {
    let mut nowhere = Entries::default();
    let dropped = dropped.unwrap_or(&mut nowhere);
    let (mut next_kept, mut next_dropped) = (kept.len(), dropped.len());
    for side in [&mut *kept, &mut *dropped] {
        side.indices.resize(side.indices.len() + indices.len(), 0);
        side.values.resize(side.values.len() + indices.len(), T::ZERO);
    }
    for (&index, &value) in indices.iter().zip(values) {
        let keep = cut.keeps(value.magnitude());
        kept.indices[next_kept] = index;
        kept.values[next_kept] = value;
        dropped.indices[next_dropped] = index;
        dropped.values[next_dropped] = value;
        next_kept += usize::from(keep);
        next_dropped += usize::from(!keep);
    }
    for (side, len) in [(kept, next_kept), (dropped, next_dropped)] {
        side.indices.truncate(len);
        side.values.truncate(len);
    }
}
