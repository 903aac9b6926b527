//! Making sure that workers agree where they must, and that all of them know why one cannot go on.

use std::collections::BTreeMap;
use std::fmt;

use crate::failure::{Error, Failure};
use crate::session::Session;

/// Why workers do not go on together.
#[derive(thiserror::Error)]
pub enum Disagreement {
    /// Workers that must have the same of something do not: the first of those that fewest agree with.
    #[error("{}", .0.reason)]
    Differ(Failure),
    /// Another worker has been refused something.
    #[error("rank {} cannot go on: {}", .0.rank, .0.reason)]
    Refused(Failure),
    /// The job has failed.
    #[error(transparent)]
    Job(#[from] Error),
}

gleaner_transport::debug_as_sentence!(Disagreement);

impl Disagreement {
    /// The failure that all ranks know of together, so that none need report it to the others.
    pub fn of_all(&self) -> Option<Failure> {
        match self {
            Disagreement::Differ(failure) | Disagreement::Refused(failure) => Some(failure.clone()),
            Disagreement::Job(_) => None,
        }
    }
}

/// Goes on only if all workers can: where one has been refused something, the others learn why. All of them call it together.
///
/// # Errors
/// What this worker has been refused, or another one; the job has failed.
pub fn all_can<T, E: fmt::Display + From<Disagreement>>(
    session: &Session,
    own: Result<T, E>,
) -> Result<T, E> {
    let reason = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let notes = session.all_gather(reason.as_bytes()).map_err(Disagreement::from)?;
    let own = own?;
    let refused = (0..).zip(&notes).find(|(_, note)| !note.is_empty());
    refused.map_or(Ok(own), |(rank, note)| {
        let reason = String::from_utf8_lossy(note).into_owned();
        Err(Disagreement::Refused(Failure { rank, step: None, reason }).into())
    })
}

/// Compares named values over all workers, which call it together; where they differ, says which ranks have what.
///
/// # Errors
/// The first value that differs; the job has failed.
pub fn expect_same(
    session: &Session,
    values: &[(&'static str, String)],
    advice: &'static str,
) -> Result<(), Disagreement> {
    let (names, own): (Vec<&'static str>, Vec<&str>) =
        values.iter().map(|(name, own)| (*name, &**own)).unzip();
    let note = serde_json::to_vec(&(session.rank(), own)).unwrap_or_default();
    let notes = session.all_gather(&note)?;
    // A worker without which the others go on says nothing.
    let values: Vec<(usize, Vec<String>)> =
        notes.iter().filter_map(|note| serde_json::from_slice(note).ok()).collect();
    compare(&names, &values, advice)
}

/// `values`: of each rank, in the order of their names.
fn compare(
    names: &[&'static str],
    values: &[(usize, Vec<String>)],
    advice: &'static str,
) -> Result<(), Disagreement> {
    for (number, &what) in names.iter().enumerate() {
        let mut ranks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (rank, of_rank) in values {
            ranks.entry(of_rank.get(number).map_or("", String::as_str)).or_default().push(*rank);
        }
        if ranks.len() > 1 {
            // Of as many, those without rank 0.
            let fewest = ranks.values().min_by_key(|ranks| (ranks.len(), ranks[0] == 0));
            let rank = fewest.map_or(0, |ranks| ranks[0] as u32);
            let found = describe(&ranks);
            let reason = format!("expected the same {what} on every worker, found {found}; {advice}");
            return Err(Disagreement::Differ(Failure { rank, step: None, reason }));
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
