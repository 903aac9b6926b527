//! What goes wrong in a job of a campaign, to whom, and when.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use gleaner_statistics::random::{at, unit};

/// What is done to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Nothing.
    None,
    /// A worker is killed.
    Kill,
    /// A worker is stopped and does not go on.
    Stop,
    /// A worker is stopped for less than the timeout.
    Pause,
    /// A host's link is cut and stays so.
    Cut,
    /// A host's link is cut for much less than the timeout.
    ShortCut,
    /// A host's link is cut, and mended after about the timeout, or much later.
    MendedCut,
    /// A host's link becomes slow.
    SlowLink,
    /// Another host opens connections to a worker's ports and says nothing.
    Flood,
    /// The disk that a worker writes its checkpoints to becomes full.
    FullDisk,
    /// What the launcher and a worker say goes to a full disk.
    FullStderr,
    /// What the launcher says is not read, and a worker is killed.
    UnreadStderr,
    /// Bytes that a worker receives from another are changed on their way.
    Changed,
    /// A worker takes fewer steps than the others.
    Unequal,
}

impl Fault {
    /// All of them in their order, and how they are named.
    pub const NAMED: [(Self, &'static str); 14] = [
        (Self::None, "none"),
        (Self::Kill, "kill"),
        (Self::Stop, "stop"),
        (Self::Pause, "stop, continue"),
        (Self::Cut, "cut"),
        (Self::ShortCut, "short cut"),
        (Self::MendedCut, "cut, mended"),
        (Self::SlowLink, "slow link"),
        (Self::Flood, "flood"),
        (Self::FullDisk, "full disk"),
        (Self::FullStderr, "full stderr"),
        (Self::UnreadStderr, "unread stderr, kill"),
        (Self::Changed, "changed bytes"),
        (Self::Unequal, "unequal steps"),
    ];

    /// Whether it comes at a moment: the others are there from the start.
    pub fn has_moment(self) -> bool {
        !matches!(self, Self::None | Self::FullStderr | Self::Unequal)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMED[*self as usize].1)
    }
}

/// A part of a job's life, as its workers report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Finding the others.
    Joining,
    /// Agreeing on what is to be done.
    Agreeing,
    /// The first step, for which links are opened.
    FirstStep,
    /// Steps.
    Steps,
    /// Writing a checkpoint.
    Checkpoint,
    /// Steps after it.
    LastSteps,
    /// Leaving the job.
    Leaving,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Self; 7] = [
        Self::Joining,
        Self::Agreeing,
        Self::FirstStep,
        Self::Steps,
        Self::Checkpoint,
        Self::LastSteps,
        Self::Leaving,
    ];
}

impl fmt::Display for Phase {
    /// As it is written in JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A silence of this many timeouts is noticed by all, whatever else the machine does.
pub const NOTICED: f64 = 1.5;

/// How many workers a job has where that is sampled.
const WORKERS: std::ops::RangeInclusive<u32> = 2..=8;

/// One job of a campaign: it follows from the campaign's seed and its number alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Its number.
    pub number: u64,
    /// How many workers it has.
    pub workers: u32,
    /// What happens.
    pub fault: Fault,
    /// To which worker, or its host.
    pub victim: u32,
    /// When: in this part of the victim's life,
    pub phase: Phase,
    /// after this share of what the part lasts undisturbed.
    pub share: f64,
    /// How much of it, where a fault knows more and less: from 0 to 1.
    pub extent: f64,
    /// Whether links are not encrypted.
    pub is_plain: bool,
}

impl Plan {
    /// Faults take turns, and of each the phases do, so that all are tried evenly; the rest is sampled, by default the number
    /// of workers as well.
    pub fn of(seed: u64, number: u64, workers: Option<u32>) -> Self {
        let (faults, phases) = (Fault::NAMED.len() as u64, Phase::ALL.len() as u64);
        let mut random = seed ^ at(number, 1);
        let mut draw = || {
            random = at(random, 1);
            random
        };
        let sizes = u64::from(WORKERS.end() - WORKERS.start() + 1);
        let sampled = WORKERS.start() + (draw() % sizes) as u32;
        let workers = workers.unwrap_or(sampled);
        let turn = number / faults + number % faults + at(seed, 1) % phases;
        Self {
            number,
            workers,
            fault: Fault::NAMED[(number % faults) as usize].0,
            victim: (draw() % u64::from(workers)) as u32,
            phase: Phase::ALL[(turn % phases) as usize],
            share: unit(draw()),
            extent: unit(draw()),
            is_plain: draw() & 1 == 1,
        }
    }

    /// After which time the fault is undone, where it is.
    pub fn lasts(&self, timeout: Duration) -> Option<Duration> {
        let share = match self.fault {
            Fault::Pause => 0.5,
            // The kernel takes up to a second to use a link that is mended, and TCP waits longer from time to time.
            Fault::ShortCut => 0.05 + 0.15 * self.extent,
            // Half of them are so long that the job must fail.
            Fault::MendedCut if self.extent < 0.5 => 0.2 + (NOTICED - 0.2) * 2.0 * self.extent,
            Fault::MendedCut => NOTICED + (3.0 - NOTICED) * (2.0 * self.extent - 1.0),
            _ => return None,
        };
        Some(timeout.mul_f64(share))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, workers, fault, victim, phase, share, extent, is_plain } = self;
        let links = if *is_plain { "plain" } else { "sealed" };
        let (share, extent) = (100.0 * share, 100.0 * extent);
        write!(
            f,
            "run {number}: {fault}, rank {victim} of {workers}, {phase} at {share:.0}%, extent {extent:.0}%, {links} links"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// `Display` finds a fault's name by its place in the list.
    #[test]
    fn every_fault_has_a_name_of_its_own_in_the_order_of_the_faults() {
        for (place, (fault, name)) in Fault::NAMED.into_iter().enumerate() {
            assert_eq!((fault as usize, fault.to_string().as_str()), (place, name));
            assert_eq!(Fault::NAMED.iter().filter(|(_, other)| *other == name).count(), 1, "{name}");
        }
        // As the results have them.
        let written = Fault::NAMED.map(|(fault, _)| serde_json::to_string(&fault).unwrap().replace('"', ""));
        let expected = "none kill stop pause cut short-cut mended-cut slow-link flood full-disk full-stderr unread-stderr \
                        changed unequal";
        assert_eq!(written.join(" "), expected);
    }

    #[test]
    fn faults_phases_and_victims_are_tried_evenly() {
        for seed in [0, 1, 99] {
            let rounds = (Fault::NAMED.len() * Phase::ALL.len()) as u64;
            let mut tried = HashMap::new();
            let (mut victims, mut sizes) = ([0; 4], [0; 9]);
            for number in 0..10 * rounds {
                let plan = Plan::of(seed, number, Some(4));
                assert_eq!(plan, Plan::of(seed, number, Some(4)));
                assert!((0.0..1.0).contains(&plan.share) && (0.0..1.0).contains(&plan.extent));
                let sampled = Plan::of(seed, number, None);
                assert!(plan.workers == 4 && sampled.victim < sampled.workers);
                sizes[sampled.workers as usize] += 1;
                *tried.entry((plan.fault, plan.phase.to_string())).or_insert(0) += 1;
                victims[plan.victim as usize] += 1;
            }
            assert_eq!(tried.len() as u64, rounds);
            assert!(tried.values().all(|&count| count == 10), "{tried:?}");
            assert!(victims.iter().all(|&count| count > 10 * rounds / 8), "{victims:?}");
            assert!(sizes[2..].iter().all(|&count| count > 10 * rounds / 14), "{sizes:?}");
        }
    }

    /// Cuts that are mended show most where the job must fail: half of them are longer than any silence that may pass.
    #[test]
    fn half_of_the_cuts_that_are_mended_are_longer_than_any_silence_that_may_pass() {
        let lasts = |extent| {
            let plan = Plan { fault: Fault::MendedCut, extent, ..Plan::of(0, 0, None) };
            plan.lasts(Duration::from_secs(1)).unwrap().as_secs_f64()
        };
        for (extent, expected) in [(0.0, 0.2), (0.25, 0.85), (0.5, 1.5), (0.75, 2.25), (1.0, 3.0)] {
            assert!((lasts(extent) - expected).abs() < 1e-6, "{extent}: {}", lasts(extent));
        }
        let plans = (0..14_000).map(|number| Plan::of(7, number, None));
        let cuts: Vec<f64> =
            plans.filter(|plan| plan.fault == Fault::MendedCut).map(|plan| lasts(plan.extent)).collect();
        let long = cuts.iter().filter(|&&lasts| lasts >= NOTICED).count();
        assert!(cuts.len() == 1000 && (450..550).contains(&long), "{long} of {}", cuts.len());
    }
}
