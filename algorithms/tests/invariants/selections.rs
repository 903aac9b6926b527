//! Selections put anywhere into any method: refused, or both invariants hold. This is how a dense ring becomes a sparse one, and
//! recursive doubling becomes gTopk, so it tests what a method that is not written yet may rely on.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::schedule::{Rule, Schedule, Slots, Step};

use super::harness::{COLLECTIONS, Team, methods};
use super::inputs::{PATTERNS, Random};

/// Puts a random selection at one place into the programs of all workers, or of one.
fn insert(schedules: &mut [Schedule], random: &mut Random) {
    let blocks = schedules[0].partition.blocks() as u32;
    let n = schedules[0].partition.entries();
    let place = random.below(100);
    let (first, count) = (random.below(blocks as usize) as u32, 1 + random.below(blocks as usize) as u32);
    let longest = 1 + n / blocks as usize;
    let k: Vec<u32> = (0..blocks).map(|_| random.below(longest + 2) as u32).collect();
    let only = (random.below(3) == 0).then(|| random.below(schedules.len()));
    let turning = random.below(2) as u32;
    for (w, schedule) in schedules.iter_mut().enumerate().filter(|(w, _)| only.is_none_or(|o| o == *w)) {
        let slots = Slots::cyclic(first + turning * w as u32, count, blocks);
        let at = place * (schedule.steps.len() + 1) / 100;
        schedule
            .steps
            .insert(at, Step::Keep { slots, rule: Rule::Top(k.clone().into()), coding: Coding::Exact });
    }
}

/// Says which schedules it was, if an invariant is broken.
struct Says<'a>(&'a [Schedule], u64);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in trial {} with {:#?}", self.1, self.0);
        }
    }
}

#[test]
fn selections_anywhere_are_refused_or_obey_the_invariants() {
    for method in methods() {
        let (mut refused, mut accepted, mut shared) = (0, 0, 0);
        // What is proposed from must be whole, so more is refused where indices are agreed on.
        let trials =
            if ["clt-k", "exdyna", "exdyna-printed", "random-k"].contains(&method.collective().name()) {
                2500
            } else {
                1500
            };
        for trial in 0..trials {
            let mut random = Random::new(trial);
            let workers = 1 + random.below(9);
            let n = random.below(8 * workers);
            let mut schedules = method.clone().density(0.3).schedules(workers as u32, n).unwrap();
            for _ in 0..1 + random.below(3) {
                insert(&mut schedules, &mut random);
            }
            let says = Says(&schedules, trial);
            let collection = COLLECTIONS[random.below(3)];
            let Ok(mut team) = Team::checked(schedules.clone(), collection) else {
                refused += 1;
                continue;
            };
            accepted += 1;
            shared += usize::from(
                team.ensemble
                    .prepared()
                    .flat_map(|p| p.program.facts())
                    .flat_map(|f| &f.holders)
                    .any(|h| h.count > 1),
            );
            for _ in 0..3 {
                let pattern = PATTERNS[random.below(PATTERNS.len())];
                team.step(&pattern.gradients(workers, n, &mut random)).assert_invariants();
            }
            drop(says);
        }
        let name = method.collective().name();
        println!("{name}: {refused} refused, {accepted} accepted, {shared} with shared drops");
        assert!(refused > 100 && accepted > 100 && shared > 10, "{name}: {refused}, {accepted}, {shared}");
    }
}
