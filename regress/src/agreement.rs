//! Numbers that all workers tell each other.

use gleaner_runtime::Session;

use crate::error::RegressError;

/// Some numbers of all workers, by rank; as many of each.
pub(crate) fn gather(session: &Session, own: &[f64]) -> Result<Vec<Vec<f64>>, RegressError> {
    let note: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
    let notes = session.all_gather(&note)?;
    let numbers = notes.iter().enumerate().map(|(rank, note)| {
        let (words, rest) = note.as_chunks::<8>();
        if words.len() != own.len() || !rest.is_empty() {
            return Err(RegressError::Note { rank, expected: "some numbers", found: note.len() });
        }
        Ok(words.iter().map(|&word| f64::from_le_bytes(word)).collect())
    });
    numbers.collect()
}
