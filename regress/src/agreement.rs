//! Making sure that workers agree where they must, and that all of them know why one cannot go on.

use gleaner_runtime::Session;

use crate::error::RegressError;

/// Goes on only if all workers can: where one has been refused something, the others learn why.
pub(crate) fn all_can<T>(session: &Session, own: Result<T, RegressError>) -> Result<T, RegressError> {
    let reason = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let notes = session.all_gather(reason.as_bytes())?;
    let own = own?;
    match (0..).zip(&notes).find(|(_, note)| !note.is_empty()) {
        Some((rank, note)) => {
            Err(RegressError::Refused { rank, reason: String::from_utf8_lossy(note).into_owned() })
        }
        None => Ok(own),
    }
}

/// Compares named values over all workers; where one differs from rank 0's, says on which rank.
pub(crate) fn expect_same(
    session: &Session,
    values: &[(&'static str, String)],
    advice: &'static str,
) -> Result<(), RegressError> {
    let own: Vec<String> = values.iter().map(|(_, value)| value.replace('\n', " ")).collect();
    let notes = session.all_gather(own.join("\n").as_bytes())?;
    let texts: Vec<String> = notes.iter().map(|note| String::from_utf8_lossy(note).into_owned()).collect();
    let lines: Vec<Vec<&str>> = texts.iter().map(|text| text.split('\n').collect()).collect();
    if let Some(rank) = lines.iter().position(|lines| lines.len() != values.len()) {
        return Err(RegressError::Note {
            rank,
            expected: "values that all workers share",
            found: texts[rank].len(),
        });
    }
    for (number, &(what, _)) in values.iter().enumerate() {
        let first = lines[0][number];
        if let Some((rank, other)) = (0..).zip(&lines).find(|(_, lines)| lines[number] != first) {
            let found = format!("{first} on rank 0 and {} on rank {rank}", other[number]);
            return Err(RegressError::WorkersDiffer { rank, what, found, advice });
        }
    }
    Ok(())
}

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
