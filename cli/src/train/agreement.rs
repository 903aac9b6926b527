//! Making sure that workers agree where they must.

use std::collections::BTreeMap;

use super::error::TrainError;
use gleaner_runtime::Session;

/// Compares named values over all workers; where they differ, says which ranks have what.
pub fn expect_agreement(
    session: &Session,
    values: &[(&'static str, String)],
    advice: &'static str,
) -> Result<(), TrainError> {
    let note: Vec<String> = values.iter().map(|(_, value)| value.replace('\n', " ")).collect();
    let notes = session.all_gather(note.join("\n").as_bytes())?;
    compare(values, &notes, advice)
}

/// Goes on only if all workers can: where one has been refused something, the others learn why.
pub fn all_can<T>(session: &Session, own: Result<T, TrainError>) -> Result<T, TrainError> {
    let reason = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let notes = session.all_gather(reason.as_bytes())?;
    let own = own?;
    match (0..).zip(&notes).find(|(_, note)| !note.is_empty()) {
        Some((rank, note)) => {
            Err(TrainError::Refused { rank, reason: String::from_utf8_lossy(note).into_owned() })
        }
        None => Ok(own),
    }
}

fn compare(
    values: &[(&'static str, String)],
    notes: &[Vec<u8>],
    advice: &'static str,
) -> Result<(), TrainError> {
    let mut lines = Vec::new();
    // A worker without which the others go on says nothing.
    for (rank, note) in notes.iter().enumerate().filter(|(_, note)| !note.is_empty()) {
        let text = String::from_utf8_lossy(note).into_owned();
        let of_rank: Vec<String> = text.split('\n').map(String::from).collect();
        if of_rank.len() != values.len() {
            return Err(TrainError::Note {
                rank,
                expected: "values that all workers share",
                found: note.len(),
            });
        }
        lines.push((rank, of_rank));
    }
    for (number, (what, _)) in values.iter().enumerate() {
        let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, of_rank) in &lines {
            ranks.entry(&of_rank[number]).or_default().push(*rank);
        }
        if ranks.len() > 1 {
            // Of as many, those without rank 0.
            let fewest = ranks.values().min_by_key(|ranks| (ranks.len(), ranks[0] == 0));
            let rank = fewest.map_or(0, |ranks| ranks[0] as u32);
            return Err(TrainError::WorkersDiffer { rank, what, found: describe(&ranks), advice });
        }
    }
    Ok(())
}

/// Such as "abc on ranks 0, 2 and abd on rank 1".
fn describe(ranks: &BTreeMap<&str, Vec<usize>>) -> String {
    let describe = |(value, ranks): (&&str, &Vec<usize>)| {
        let list: Vec<String> = ranks.iter().map(|rank| rank.to_string()).collect();
        format!("{value} on rank{} {}", if list.len() > 1 { "s" } else { "" }, list.join(", "))
    };
    ranks.iter().map(describe).collect::<Vec<String>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_reported_with_its_ranks() {
        let values = [("seed", "1".to_string()), ("parameters", "abc".to_string())];
        let notes =
            |last: &str| vec![b"1\nabc".to_vec(), format!("1\n{last}").into_bytes(), b"1\nabc".to_vec()];
        compare(&values, &notes("abc"), "").unwrap();
        let refusal = compare(&values, &notes("abd"), "do this").unwrap_err();
        assert_eq!(refusal.of_all().unwrap().rank, 1);
        let refusal = refusal.to_string();
        assert_eq!(
            refusal,
            "expected the same parameters on every worker, found abc on ranks 0, 2 and abd on rank 1; do this"
        );
        assert!(compare(&values, &notes("a\nb"), "").unwrap_err().to_string().contains("from rank 1"));
        // Without rank 1, which has failed.
        compare(&values, &[notes("abc")[0].clone(), Vec::new(), notes("abc")[2].clone()], "").unwrap();
    }
}
