//! What is checked of every job.

use std::time::Duration;

use serde::Serialize;

use super::expected::{Expected, at_fault, expected, names_link, reason};
use super::fault::{Fault, Phase, Plan};
use super::trial::Ended;

/// A job and what was found.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// What was done to it.
    #[serde(flatten)]
    pub plan: Plan,
    /// Seconds from the fault, or the beginning where nothing fails, to the end.
    pub seconds: f64,
    /// In which part of the victim's life the fault came, if it came before its end.
    pub injected: Option<Phase>,
    /// Whether that was the part that was meant, from before to after the fault.
    pub met: bool,
    /// How many jobs were run for it: those before missed the part that was meant, and nothing was wrong with them.
    pub tries: u32,
    /// The expected outcome.
    pub expected: Expected,
    /// Whether it ended well.
    pub succeeded: bool,
    /// Whether it ended by itself and in time.
    pub in_time: bool,
    /// Whether the rank with the fault, and it alone, was named, and the exit code is its own; of a job that failed with reason.
    pub named_right: bool,
    /// Whether the updates are right, as far as they came to an end.
    pub digests_equal: bool,
    /// Processes that were left.
    pub orphans: usize,
    /// What is wrong, a sentence each.
    pub wrong: Vec<String>,
    /// What was said on standard error.
    pub said: String,
}

/// Checks a job, where the updates should have this digest.
pub fn check(plan: Plan, timeout: Duration, ended: Ended, digest: &str) -> Checked {
    let Ended { bound, by_itself, code, ref marks, orphans, .. } = ended;
    let mut wrong = Vec::new();
    if !by_itself {
        wrong.push(format!("it did not end within {:.1} s and was killed", bound.as_secs_f64()));
    } else if ended.took > bound {
        wrong.push(format!("it took longer than {:.1} s", bound.as_secs_f64()));
    }
    let in_time = wrong.is_empty();
    let succeeded = code == Some(0);
    let expected = expected(&plan, timeout, ended.injected, &marks[plan.victim as usize], &ended.forged);
    let failed = ended.object["failed_rank"].as_u64();
    let mut named_right = false;
    if by_itself && !ended.object.is_object() {
        wrong.push("its last line on standard output is not an object".to_owned());
    } else if by_itself && succeeded {
        if expected == Expected::Fail {
            wrong.push(format!("it ended well, in spite of {} to rank {}", plan.fault, plan.victim));
        }
        if failed.is_some() {
            wrong.push(format!("it named {failed:?}, and ended with exit code 0"));
        }
    } else if by_itself && expected == Expected::Succeed {
        // Without a fault, or with one that passes, it has no reason to fail.
        wrong.push(format!("it failed with exit code {code:?}, and had no reason to"));
    } else if by_itself {
        let misnamed = misnamed(&plan, expected, &ended, failed);
        named_right = misnamed.is_empty();
        wrong.extend(misnamed);
    }
    let others = marks.iter().filter_map(|marks| marks.digest()).any(|found| found != digest);
    let missing = succeeded && marks.iter().any(|marks| marks.digest().is_none());
    if others {
        wrong.push("a rank's updates are not those of a job that nothing is done to".to_owned());
    }
    if missing {
        wrong.push("it ended well, though a rank has not taken all steps".to_owned());
    }
    if orphans > 0 {
        wrong.push(format!("{orphans} processes were left"));
    }
    Checked {
        plan,
        seconds: ended.took.as_secs_f64(),
        injected: ended.injected.map(|injected| injected.after),
        met: ended.met,
        tries: 1,
        expected,
        succeeded,
        in_time,
        named_right,
        digests_equal: !others && !missing,
        orphans,
        wrong,
        said: ended.said.unwrap_or_default(),
    }
}

/// What is wrong with how a failure is reported.
fn misnamed(plan: &Plan, expected: Expected, ended: &Ended, failed: Option<u64>) -> Vec<String> {
    let mut wrong = Vec::new();
    let last = ended.said.as_deref();
    let last = last.map(|said| said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing"));
    if last.is_some_and(|last| names_link(plan, expected, last)) {
        return wrong;
    }
    let at_fault = at_fault(plan, &ended.forged);
    let Some(named) = at_fault.iter().find(|&&rank| failed == Some(rank.into())) else {
        return vec![format!("it named {failed:?} and not one of {at_fault:?}")];
    };
    if let Some(last) = last {
        let mut phrases = reason(plan);
        phrases.push(format!("rank {named} failed"));
        for phrase in phrases.iter().filter(|&phrase| !last.contains(phrase)) {
            wrong.push(format!("its last line does not say \"{phrase}\": {last}"));
        }
    }
    if matches!(plan.fault, Fault::Kill | Fault::UnreadStderr) && ended.code != Some(137) {
        wrong.push(format!("its exit code is {:?} and not 137", ended.code));
    }
    wrong
}

/// What is summed up of one fault.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub fault: Fault,
    /// Jobs.
    pub tried: usize,
    /// Jobs that were run for them, with those that missed the part of a worker's life that was meant.
    pub tries: u32,
    /// Jobs into which the fault was injected before their end.
    pub injected: usize,
    /// Jobs that might end well or fail, or that the fault did not meet: they show little.
    pub either: usize,
    /// Jobs that ended by themselves and in time.
    pub in_time: usize,
    /// Jobs that failed.
    pub failed: usize,
    /// Of these, those that named the right rank.
    pub named_right: usize,
    /// Jobs in which all updates that came to an end were right.
    pub digests_equal: usize,
    /// Processes that were left.
    pub orphans: usize,
    /// Jobs with anything wrong.
    pub wrong: usize,
}

impl Row {
    /// Of these jobs, which are of one fault or of all.
    pub fn of(fault: Fault, jobs: &[&Checked]) -> Self {
        let count = |is: fn(&Checked) -> bool| jobs.iter().filter(|checked| is(checked)).count();
        Self {
            fault,
            tried: jobs.len(),
            tries: jobs.iter().map(|checked| checked.tries).sum(),
            injected: count(|checked| checked.injected.is_some()),
            either: count(|checked| {
                let was_met = checked.injected.is_some() || checked.plan.fault == Fault::None;
                checked.expected == Expected::Either || !was_met
            }),
            in_time: count(|checked| checked.in_time),
            failed: count(|checked| !checked.succeeded),
            named_right: count(|checked| checked.named_right),
            digests_equal: count(|checked| checked.digests_equal),
            orphans: jobs.iter().map(|checked| checked.orphans).sum(),
            wrong: count(|checked| !checked.wrong.is_empty()),
        }
    }
}

/// The table of a campaign: a row for each fault that was tried.
pub fn tally(checked: &[Checked]) -> Vec<Row> {
    let row = |(fault, _)| {
        Row::of(fault, &checked.iter().filter(|one| one.plan.fault == fault).collect::<Vec<_>>())
    };
    Fault::NAMED.into_iter().map(row).filter(|row| row.tried > 0).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::expected::Injected;
    use super::super::marks::Marks;
    use super::*;

    fn plan(fault: Fault) -> Plan {
        Plan { fault, victim: 2, phase: Phase::Steps, ..Plan::of(0, 3, Some(4)) }
    }

    fn ended(code: i32, failed: Option<u32>, said: &str) -> Ended {
        let took = Duration::from_secs(1);
        let marks = if code == 0 { "digest ab\nleft 1\n" } else { "" };
        Ended {
            took,
            bound: took * 2,
            by_itself: true,
            injected: Some(Injected { before: Some(Phase::Steps), after: Phase::Steps }),
            met: true,
            code: Some(code),
            object: json!({ "failed_rank": failed }),
            said: Some(said.to_owned()),
            marks: (0..4).map(|_| Marks::of(marks)).collect(),
            ..Ended::default()
        }
    }

    fn wrong(fault: Fault, ended: Ended) -> Vec<String> {
        check(plan(fault), Duration::from_secs(4), ended, "ab").wrong
    }

    #[test]
    fn who_names_another_or_ends_otherwise_is_wrong() {
        let line = "gleaner launch: rank 2 failed at step 3: killed by signal 9 (SIGKILL)\n";
        assert_eq!(wrong(Fault::Kill, ended(137, Some(2), line)), [""; 0]);
        assert_eq!(wrong(Fault::Kill, ended(1, Some(2), line)).len(), 1);
        assert_eq!(wrong(Fault::Stop, ended(1, Some(2), line)), [""; 0]);
        assert_eq!(wrong(Fault::Stop, ended(1, Some(1), line)).len(), 1);
        assert_eq!(wrong(Fault::Kill, ended(137, Some(2), "rank 1 failed\n")).len(), 2);
        assert_eq!(wrong(Fault::Kill, ended(137, None, "")).len(), 1);
        assert_eq!(wrong(Fault::Unequal, ended(1, Some(2), line)).len(), 1);
        // What is survived does not fail, and neither does a job without a fault.
        assert_eq!(wrong(Fault::Pause, ended(1, Some(2), line)).len(), 1);
        assert_eq!(wrong(Fault::Kill, Ended { injected: None, ..ended(137, Some(2), line) }).len(), 1);
        // Where it cannot be read, the object is enough.
        assert_eq!(wrong(Fault::UnreadStderr, Ended { said: None, ..ended(137, Some(2), "") }), [""; 0]);
        assert_eq!(wrong(Fault::Kill, Ended { object: json!(null), ..ended(137, None, line) }).len(), 1);
        assert_eq!(wrong(Fault::Kill, Ended { orphans: 2, ..ended(137, Some(2), line) }).len(), 1);
        assert_eq!(wrong(Fault::Kill, Ended { by_itself: false, ..ended(137, Some(2), line) }).len(), 1);
        let took = Duration::from_secs(3);
        assert_eq!(wrong(Fault::Kill, Ended { took, ..ended(137, Some(2), line) }).len(), 1);
    }

    #[test]
    fn who_ends_well_in_spite_of_a_fault_or_with_other_updates_is_wrong() {
        assert_eq!(wrong(Fault::Flood, ended(0, None, "")), [""; 0]);
        assert_eq!(wrong(Fault::Flood, ended(0, Some(2), "")).len(), 1);
        assert_eq!(wrong(Fault::FullDisk, ended(0, None, "")).len(), 1);
        assert_eq!(wrong(Fault::Unequal, ended(0, None, "")).len(), 1);
        let marks = |of: [&str; 4]| of.map(Marks::of).into_iter().collect();
        let whole = "digest ab\n";
        let of = |last| Ended { marks: marks([whole, whole, whole, last]), ..ended(0, None, "") };
        assert_eq!(wrong(Fault::Flood, of("digest cd\n")).len(), 1);
        assert_eq!(wrong(Fault::Flood, of("")).len(), 1);
        // A cut must fail the job unless the victim had all that it needs.
        assert_eq!(wrong(Fault::Cut, of(whole)), [""; 0]);
        assert_eq!(wrong(Fault::Cut, Ended { marks: marks([whole, whole, "", whole]), ..of("") }).len(), 2);
    }

    /// After a cut of about the timeout, a failure may tell the link to the victim instead; after a longer one, it may not.
    #[test]
    fn the_link_may_be_named_where_it_was_mended_in_time() {
        let line = "rank 1 failed at step 7: no heartbeat passed between it and rank 2 for 4.0 s, though both are alive";
        let of = |extent, line| {
            let plan = Plan { extent, ..plan(Fault::MendedCut) };
            check(plan, Duration::from_secs(4), ended(1, Some(1), line), "ab").wrong.len()
        };
        assert_eq!((of(0.4, line), of(1.0, line), of(0.4, "rank 1 failed: gone")), (0, 1, 1));
    }

    #[test]
    fn a_table_counts_what_was_tried() {
        let line = "rank 2 failed";
        let of = |fault, ended| check(plan(fault), Duration::from_secs(4), ended, "ab");
        let checked = [
            of(Fault::Stop, ended(1, Some(2), line)),
            of(Fault::Stop, ended(1, Some(0), line)),
            of(Fault::Stop, Ended { injected: None, ..ended(0, None, "") }),
            of(Fault::None, Ended { injected: None, ..ended(0, None, "") }),
        ];
        let rows = tally(&checked);
        let counts = |row: &Row| (row.tried, row.either, row.failed, row.named_right, row.wrong);
        assert_eq!(rows.iter().map(counts).collect::<Vec<_>>(), [(1, 0, 0, 0, 0), (3, 1, 2, 1, 1)]);
    }
}
