//! The passes in plain Rust: what they mean, and what finishes after a kernel.

use super::sweep::{NonFinite, Pass};
use super::top::Cut;
use super::{Entries, INFINITE, magnitude};

/// Entries examined together: few enough that one candidate among them costs little.
const GROUP: usize = 8;

/// Sweeps everything, or up to the first entry that may not be stored; see [`super::sweep::accumulate`].
pub(super) fn sweep<P: Pass>(
    residual: &mut [f32],
    source: &[f32],
    limit: u32,
    first: u32,
    out: &mut Entries,
) -> Result<(), NonFinite> {
    let mut start = 0;
    while let Some(group) = source[start..].first_chunk::<GROUP>() {
        let mut entries = *group;
        if P::ADD {
            let (old, _) = residual[start..].as_chunks::<GROUP>();
            for lane in 0..GROUP {
                entries[lane] += old[0][lane];
            }
        }
        // Magnitudes are below 2^31, and signed comparisons are those that every vector unit has.
        let any_reaches = |bound: u32| {
            entries.iter().fold(false, |any, &entry| any | (magnitude(entry) as i32 >= bound as i32))
        };
        if P::STORE {
            if any_reaches(INFINITE) {
                break;
            }
            residual[start..][..GROUP].copy_from_slice(&entries);
        }
        if any_reaches(limit) {
            // Which lanes, without a branch for each.
            let (mut lanes, mut count) = ([0; GROUP], 0);
            for (lane, &entry) in entries.iter().enumerate() {
                lanes[count % GROUP] = lane;
                count += usize::from(magnitude(entry) >= limit);
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
            if magnitude(entry) >= INFINITE {
                return Err(NonFinite { index });
            }
            residual[index] = entry;
        }
        if magnitude(entry) >= limit {
            out.push(first + index as u32, entry);
        }
    }
    Ok(())
}

/// Appends each entry to `kept` or to `dropped`, without a branch that data decides. Takes off `cut` the ties it has kept.
pub(super) fn split(
    cut: &mut Cut,
    indices: &[u32],
    values: &[f32],
    kept: &mut Entries,
    dropped: &mut Entries,
) {
    let (mut next_kept, mut next_dropped) = (kept.len(), dropped.len());
    for side in [&mut *kept, &mut *dropped] {
        side.indices.resize(side.indices.len() + indices.len(), 0);
        side.values.resize(side.values.len() + indices.len(), 0.0);
    }
    for (&index, &value) in indices.iter().zip(values) {
        let magnitude = magnitude(value);
        let tie = (magnitude == cut.magnitude) & (cut.ties > 0);
        let keep = (magnitude > cut.magnitude) | tie;
        cut.ties -= usize::from(tie);
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
