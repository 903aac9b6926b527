//! Scores of all workers' samples, on every worker.

use gleaner_runtime::Session;

use crate::data::Samples;
use crate::error::RegressError;
use crate::evaluation::Score;

/// Scores that a worker sends in one note: a note has less than 1 MiB.
const AT_ONCE: usize = 1 << 14;

/// Bytes of a score.
const BYTES: usize = 12;

/// The scores of samples; `signs` has each sample's y.
pub(crate) fn scores(samples: &Samples, signs: &[f32], weights: &[f32]) -> Vec<Score> {
    let score = |(row, &y): (crate::data::Row<'_>, &f32)| Score { margin: margin(row, weights), y };
    samples.rows().zip(signs).map(score).collect()
}

/// w·x.
pub(crate) fn margin(row: crate::data::Row<'_>, weights: &[f32]) -> f64 {
    row.iter().map(|(index, value)| f64::from(weights[index as usize]) * f64::from(value)).sum()
}

/// Gives every worker the scores of all, by rank.
pub(crate) fn gather(session: &Session, own: Vec<Score>) -> Result<Vec<Vec<Score>>, RegressError> {
    if session.world_size() == 1 {
        return Ok(vec![own]);
    }
    let counts = crate::agreement::gather(session, &[own.len() as f64])?;
    let rounds = counts.iter().map(|count| (count[0] as usize).div_ceil(AT_ONCE)).max().unwrap_or(0);
    let mut all = vec![Vec::new(); counts.len()];
    for round in 0..rounds {
        let at = |round: usize| (round * AT_ONCE).min(own.len());
        let bytes = |score: &Score| {
            let mut bytes = [0; BYTES];
            bytes[..8].copy_from_slice(&score.margin.to_le_bytes());
            bytes[8..].copy_from_slice(&score.y.to_le_bytes());
            bytes
        };
        let note: Vec<u8> = own[at(round)..at(round + 1)].iter().flat_map(bytes).collect();
        for (rank, (all, note)) in all.iter_mut().zip(session.all_gather(&note)?).enumerate() {
            let (scores, rest) = note.as_chunks::<BYTES>();
            if !rest.is_empty() {
                return Err(RegressError::Note { rank, expected: "scores", found: note.len() });
            }
            all.extend(scores.iter().map(|bytes| {
                let [a, b, c, d, e, f, g, h, y @ ..] = *bytes;
                Score { margin: f64::from_le_bytes([a, b, c, d, e, f, g, h]), y: f32::from_le_bytes(y) }
            }));
        }
    }
    Ok(all)
}
