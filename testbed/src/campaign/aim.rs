//! Where moments are looked for: how long parts of workers' lives were lately, and how long it takes to inject a fault.

use std::collections::HashMap;
use std::time::Duration;

use super::fault::{Fault, Phase, Plan};
use super::marks::Marks;
use super::{Course, middle};

/// So many of the last count.
const LATELY: usize = 9;

/// What jobs have shown so far.
#[derive(Debug, Default)]
pub struct Aim {
    /// Of so many workers, the one of this rank.
    phases: HashMap<(u32, u32, Phase), Vec<Duration>>,
    faults: HashMap<Fault, Vec<Duration>>,
}

impl Aim {
    /// How long a part of a worker's life may be expected to be.
    pub fn expected(&self, plan: &Plan, course: &Course) -> Duration {
        let seen = self.phases.get(&(plan.workers, plan.victim, plan.phase));
        seen.map_or_else(|| course.of(plan.victim, plan.phase), |seen| lately(seen))
    }

    /// When to inject the fault, if the part is so long: what the fault itself takes is taken off.
    pub fn moment(&self, plan: &Plan, lasts: Duration) -> Duration {
        let takes = self.faults.get(&plan.fault).map(|seen| lately(seen));
        lasts.mul_f64(plan.share).saturating_sub(takes.unwrap_or_default())
    }

    /// Learns from a job what came before the fault, or from one without: how long parts were.
    pub fn learn(&mut self, plan: &Plan, marks: &[Marks], before: Option<Phase>) {
        for (rank, marks) in (0..).zip(marks) {
            for phase in
                Phase::ALL.into_iter().take_while(|phase| before.is_none_or(|before| *phase < before))
            {
                if let Some(lasted) = marks.lasted(phase) {
                    self.phases.entry((plan.workers, rank, phase)).or_default().push(lasted);
                }
            }
        }
    }

    /// Learns how long after its moment a fault was done.
    pub fn learn_late(&mut self, fault: Fault, late: Duration) {
        self.faults.entry(fault).or_default().push(late);
    }
}

fn lately(seen: &[Duration]) -> Duration {
    middle(seen.iter().rev().take(LATELY).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn moments_follow_what_was_seen_lately_and_what_injecting_takes() {
        let phases = vec![vec![ms(40); Phase::ALL.len()]; 3];
        let course = Course { phases, whole: ms(400), digest: String::new() };
        let plan = Plan {
            fault: Fault::Cut,
            victim: 1,
            phase: Phase::Agreeing,
            share: 0.5,
            ..Plan::of(0, 0, Some(3))
        };
        let mut aim = Aim::default();
        assert_eq!((aim.expected(&plan, &course), aim.moment(&plan, ms(40))), (ms(40), ms(20)));
        // What injecting takes comes before the moment, and never before the part.
        aim.learn_late(Fault::Cut, ms(3));
        aim.learn_late(Fault::Kill, ms(11));
        assert_eq!((aim.moment(&plan, ms(40)), aim.moment(&plan, ms(4))), (ms(17), ms(0)));
        // Agreeing took 10 ms at rank 1 and 12 ms at rank 2; of a job whose fault came while it agreed, only joining counts.
        let life =
            |agreeing| Marks::of(&format!("joining 1000\nagreeing 6000\nfirst-step {}\n", 6000 + agreeing));
        let marks = [life(9_000), life(10_000), life(12_000)];
        aim.learn(&plan, &marks, Some(Phase::Agreeing));
        assert_eq!(aim.expected(&plan, &course), ms(40));
        let joining = Plan { phase: Phase::Joining, ..plan };
        assert_eq!(aim.expected(&joining, &course), ms(5));
        aim.learn(&plan, &marks, Some(Phase::Steps));
        assert_eq!(aim.expected(&plan, &course), ms(10));
        assert_eq!(aim.expected(&Plan { victim: 2, ..plan }, &course), ms(12));
        // The last few count, and of these the one in the middle.
        let slower = [life(9_000), life(30_000), life(12_000)];
        (0..5).for_each(|_| aim.learn(&plan, &slower, None));
        assert_eq!(aim.expected(&plan, &course), ms(30));
    }
}
