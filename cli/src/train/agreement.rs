//! Making sure that workers agree where they must.

use std::collections::BTreeMap;

use super::error::{TrainError, TrainResult};
use crate::crew::gather;
use gleaner_runtime::Session;

/// Compares named values over all workers; where they differ, says which ranks have what.
pub fn expect_agreement(
    session: &Session,
    values: &[(&'static str, String)],
    advice: &'static str,
) -> TrainResult<()> {
    let (names, own): (Vec<&'static str>, Vec<String>) = values.iter().cloned().unzip();
    compare(&names, &gather(session, &(session.rank(), own))?, advice)
}

/// Goes on only if all workers can: where one has been refused something, the others learn why.
pub fn all_can<T>(session: &Session, own: TrainResult<T>) -> TrainResult<T> {
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

/// `values`: of each rank, in the order of their names.
fn compare(names: &[&'static str], values: &[(usize, Vec<String>)], advice: &'static str) -> TrainResult<()> {
    for (number, &what) in names.iter().enumerate() {
        let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, of_rank) in values {
            ranks.entry(of_rank.get(number).map_or("", String::as_str)).or_default().push(*rank);
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
        let all = |last: &str| -> Vec<(usize, Vec<String>)> {
            ["abc", last, "abc"]
                .map(|digest| vec!["1".into(), digest.into()])
                .into_iter()
                .enumerate()
                .collect()
        };
        let compare = |values: &[(usize, Vec<String>)]| compare(&["seed", "parameters"], values, "do this");
        compare(&all("abc")).unwrap();
        let refusal = compare(&all("abd")).unwrap_err();
        assert_eq!(refusal.of_all().unwrap().rank, 1);
        let refusal = refusal.to_string();
        assert_eq!(
            refusal,
            "expected the same parameters on every worker, found abc on ranks 0, 2 and abd on rank 1; do this"
        );
        // Without rank 1, which has failed.
        compare(&[all("abd")[0].clone(), all("abd")[2].clone()]).unwrap();
    }
}
