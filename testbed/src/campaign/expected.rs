//! The expected outcome of a job, for every fault and moment.

use std::time::Duration;

use serde::Serialize;

use super::fault::{Fault, NOTICED, Phase, Plan};
use super::forgery::Forged;
use super::marks::Marks;
use super::worker::CHECKPOINT;

/// The expected outcome of a job. In every case updates must be right as far as they came to an end, and a failure must name who is
/// to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expected {
    /// It ends well on all ranks.
    Succeed,
    /// It fails.
    Fail,
    /// It may do either: it is not known whether the fault took anything from the job.
    Either,
}

/// When a fault came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// In which part of the victim's life it was, if it had begun any, right before,
    pub before: Option<Phase>,
    /// and right after.
    pub after: Phase,
}

/// The expected outcome of a job of this plan, whose victim reported this in the end.
pub fn expected(
    plan: &Plan,
    timeout: Duration,
    injected: Option<Injected>,
    victim: &Marks,
    forged: &Forged,
) -> Expected {
    let Some(Injected { before, after }) = injected else { return Expected::Succeed };
    let fails_unless = |passes| if passes { Expected::Either } else { Expected::Fail };
    // It had all that it needs for its steps, and others may have.
    let has_finished = victim.digest().is_some();
    match plan.fault {
        Fault::None | Fault::Pause | Fault::ShortCut => Expected::Succeed,
        Fault::SlowLink | Fault::Flood | Fault::FullStderr => Expected::Succeed,
        Fault::Kill | Fault::UnreadStderr | Fault::Stop => fails_unless(victim.has_left()),
        Fault::Cut => fails_unless(has_finished),
        Fault::MendedCut => {
            let is_short = plan.lasts(timeout).is_some_and(|lasts| lasts < timeout.mul_f64(NOTICED));
            fails_unless(has_finished || is_short)
        }
        Fault::FullDisk if before > Some(Phase::Checkpoint) => Expected::Succeed,
        Fault::FullDisk => fails_unless(after >= Phase::Checkpoint),
        // While links are opened, it may be tried again.
        Fault::Changed if forged.peers.is_empty() => Expected::Succeed,
        Fault::Changed => fails_unless(!forged.was_taken || has_finished || before <= Some(Phase::FirstStep)),
        Fault::Unequal => Expected::Fail,
    }
}

/// Which ranks a failure may name.
pub fn at_fault(plan: &Plan, forged: &Forged) -> Vec<u32> {
    match plan.fault {
        // Of two, either may be the one that was cut off.
        Fault::Cut | Fault::MendedCut if plan.workers == 2 => vec![0, 1],
        // Nor which end of a link changes bytes.
        Fault::Changed => [&[plan.victim][..], &forged.peers].concat(),
        _ => vec![plan.victim],
    }
}

/// Whether a failure that names another rank says that it is the link to the victim. Once a host's link is mended, TCP's connections
/// go on one by one: until then both ends of one may be alive to the others.
pub fn names_link(plan: &Plan, expected: Expected, last: &str) -> bool {
    let link = format!("no heartbeat passed between it and rank {} for", plan.victim);
    plan.fault == Fault::MendedCut && expected == Expected::Either && last.contains(&link)
}

/// What the reason of a failure says.
pub fn reason(plan: &Plan) -> Vec<String> {
    match plan.fault {
        Fault::Kill | Fault::UnreadStderr => vec!["killed by signal 9 (SIGKILL)".to_owned()],
        Fault::FullDisk => {
            vec![format!("disk-{}/{CHECKPOINT}", plan.victim), "No space left on device".to_owned()]
        }
        Fault::Unequal => vec!["steps".to_owned()],
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(4);

    /// What no job survives while it takes its steps.
    const FATAL: [Fault; 7] = [
        Fault::Kill,
        Fault::Stop,
        Fault::Cut,
        Fault::MendedCut,
        Fault::FullDisk,
        Fault::UnreadStderr,
        Fault::Unequal,
    ];

    fn of(fault: Fault, extent: f64, injected: Option<(Phase, Phase)>, marks: &str) -> Expected {
        let plan = Plan { fault, extent, ..Plan::of(0, 0, Some(4)) };
        let injected = injected.map(|(before, after)| Injected { before: Some(before), after });
        expected(&plan, TIMEOUT, injected, &Marks::of(marks), &Forged::default())
    }

    #[test]
    fn the_expected_outcome_of_a_job_follows_from_the_fault_and_its_moment() {
        use Phase::{Checkpoint, LastSteps, Leaving, Steps};
        let steps = Some((Steps, Steps));
        for (fault, _) in Fault::NAMED {
            assert_eq!(of(fault, 1.0, None, ""), Expected::Succeed, "{fault}: it did not come");
            let fails = FATAL.contains(&fault);
            assert_eq!(of(fault, 1.0, steps, "") == Expected::Fail, fails, "{fault}");
            assert_eq!(of(fault, 1.0, steps, "") == Expected::Succeed, !fails, "{fault}");
        }
        let leaving = Some((LastSteps, Leaving));
        assert_eq!(of(Fault::Kill, 0.0, leaving, "digest ab\n"), Expected::Fail);
        assert_eq!(of(Fault::Kill, 0.0, leaving, "digest ab\nleft 7\n"), Expected::Either);
        assert_eq!(of(Fault::Cut, 0.0, leaving, "digest ab\n"), Expected::Either);
        // 1.8 and 2 seconds more than the timeout.
        assert_eq!(of(Fault::MendedCut, 0.48, steps, ""), Expected::Either);
        assert_eq!(of(Fault::MendedCut, 0.5, steps, ""), Expected::Fail);
        assert_eq!(of(Fault::FullDisk, 0.0, Some((Steps, Checkpoint)), ""), Expected::Either);
        assert_eq!(of(Fault::FullDisk, 0.0, Some((LastSteps, LastSteps)), ""), Expected::Succeed);
    }

    #[test]
    fn changed_bytes_that_were_taken_fail_a_job() {
        let plan = Plan { fault: Fault::Changed, victim: 2, ..Plan::of(0, 0, Some(4)) };
        let of = |phase, was_taken, marks| {
            let forged = Forged { peers: vec![3, 1], was_taken };
            assert_eq!(at_fault(&plan, &forged), [2, 3, 1]);
            let injected = Some(Injected { before: Some(phase), after: phase });
            expected(&plan, TIMEOUT, injected, &Marks::of(marks), &forged)
        };
        assert_eq!(of(Phase::Steps, true, ""), Expected::Fail);
        assert_eq!(of(Phase::Steps, false, ""), Expected::Either);
        assert_eq!(of(Phase::Steps, true, "digest ab\n"), Expected::Either);
        assert_eq!(of(Phase::Joining, true, ""), Expected::Either);
    }
}
