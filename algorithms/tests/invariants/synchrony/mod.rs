//! What each synchrony promises, under random delays, with several servers, and with workers that die.

mod job;
mod oracles;
mod overlap;
mod server;
mod simulation;

use std::collections::BTreeSet;

use gleaner_algorithms::synchrony::SYNCHRONIES;
use proptest::prelude::*;

use super::harness::{bits_of, cases};
use job::{Job, Split, jobs, with_deaths};
use oracles::{one_by_one, stages};
use server::Came;
use simulation::{Saw, Simulation, run};

/// All that are listed, and others of their options.
fn all() -> Vec<String> {
    let listed = SYNCHRONIES.iter().map(|synchrony| synchrony().name());
    let more = [
        "ssp/0",
        "ssp/1",
        "dssp/0-0",
        "dssp/0-3",
        "dssp/1-4",
        "osp/lgp=off",
        "osp/lgp=ema:0.5",
        "local/1",
        "local/2,0.7,0.9,after=2",
    ];
    listed.chain(more.map(String::from)).collect()
}

/// Whether all workers saw the same bits in a step, and which, and in the end.
fn assert_views(simulation: &Simulation, expected: &[Vec<f32>]) {
    for Saw { worker, step, view, .. } in &simulation.saw {
        assert_eq!(bits_of(view), bits_of(&expected[*step as usize]), "worker {worker} in step {step}");
    }
    let last = bits_of(expected.last().unwrap());
    assert_eq!(bits_of(&simulation.parameters()), last);
    assert!(simulation.workers.iter().all(|worker| bits_of(&worker.truth) == last));
}

/// The gradients of all steps before this one, of the workers of a job.
fn before(job: &Job, step: u64) -> BTreeSet<(u32, u64)> {
    (0..job.workers).flat_map(|worker| (0..step).map(move |step| (worker, step))).collect()
}

/// That a worker saw the gradients of all steps so far back, all of its own, and none of steps too far ahead; and was not too far
/// ahead.
fn assert_bounded(job: &Job, simulation: &Simulation, bound: u64) {
    for Saw { worker, step, gradients, ahead, .. } in &simulation.saw {
        assert!(*ahead <= bound, "worker {worker} was {ahead} steps ahead in step {step}");
        for seen in gradients {
            assert!(
                seen.is_superset(&before(job, step.saturating_sub(bound))),
                "worker {worker} in step {step}: {seen:?}"
            );
            assert!(
                (0..*step).all(|step| seen.contains(&(*worker, step))),
                "worker {worker} in step {step}: {seen:?}"
            );
            assert!(seen.is_subset(&before(job, step + bound)), "worker {worker} in step {step}: {seen:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(200))]

    /// The simulation checks that no worker waits for ever, that every push is applied once, that who waits learns for whom, that
    /// no worker that has left is answered, and that what a worker may not do is refused.
    #[test]
    fn no_worker_waits_for_ever_and_no_push_is_lost(job in with_deaths()) {
        for synchrony in all() {
            let simulation = run(&job, &synchrony);
            let dead = job.deaths.iter().map(|death| death.worker).collect::<BTreeSet<_>>();
            let living = simulation.workers.iter().zip(0..).filter(|(_, rank)| !dead.contains(rank));
            for (worker, rank) in living {
                prop_assert_eq!(worker.step, job.steps, "worker {} under {}", rank, &synchrony);
            }
        }
    }

    #[test]
    fn what_may_not_be_done_changes_nothing(job in jobs()) {
        for synchrony in all() {
            let [with, without] = [true, false].map(|hostile| {
                let job = Job { hostile, ..job.clone() };
                bits_of(&run(&job, &synchrony).parameters())
            });
            prop_assert_eq!(with, without, "{}", synchrony);
        }
    }

    /// All of equal length see all earlier gradients and no other, and the same bits.
    #[test]
    fn bsp_is_a_loop(job in jobs()) {
        let job = Job { split: Split::None, ..job };
        let simulation = run(&job, "bsp");
        assert_views(&simulation, &stages(&job, 0));
        assert_bounded(&job, &simulation, 0);
    }

    /// What a worker that has died had pushed counts, and all others still see the same.
    #[test]
    fn bsp_goes_on_without_the_dead(job in with_deaths()) {
        let simulation = run(&job, "bsp");
        let mut seen: Vec<Option<&Saw>> = vec![None; job.steps as usize];
        for saw in &simulation.saw {
            let first = *seen[saw.step as usize].get_or_insert(saw);
            prop_assert_eq!(bits_of(&first.view), bits_of(&saw.view), "step {}", saw.step);
        }
        let living = |rank: &usize| !job.deaths.iter().any(|death| death.worker as usize == *rank);
        for rank in (0..job.workers as usize).filter(living) {
            let own = simulation.saw.iter().filter(|saw| saw.worker as usize == rank).count();
            prop_assert_eq!(own as u64, job.steps);
        }
    }

    #[test]
    fn asp_is_one_optimiser_that_takes_pushes_as_they_come(job in with_deaths()) {
        let job = Job { servers: 1, ..job };
        let simulation = run(&job, "asp");
        let came = &simulation.servers[0].log;
        let (parameters, views) = one_by_one(&job, came);
        prop_assert_eq!(bits_of(&parameters), bits_of(&simulation.parameters()));
        for Saw { worker, step, view, .. } in &simulation.saw {
            prop_assert_eq!(bits_of(view), bits_of(&views[*worker as usize][*step as usize]));
        }
    }

    /// No barrier: however slow another worker is, one takes as long as its own passes and messages do.
    #[test]
    fn under_asp_no_worker_waits(job in jobs()) {
        let simulation = run(&job, "asp");
        for Saw { worker, step, gradients, .. } in &simulation.saw {
            for (seen, server) in gradients.iter().zip(&simulation.servers) {
                let pushes = server.log.iter().filter_map(|came| match came {
                    Came::Push(worker, step) => Some((*worker, *step)),
                    Came::Left(_) => None,
                });
                let own = (*worker, step.wrapping_sub(1));
                let until: BTreeSet<_> = pushes.clone().take_while(|push| *push != own).chain([own]).collect();
                let expected = if *step == 0 { BTreeSet::new() } else { until };
                prop_assert_eq!(seen, &expected);
            }
        }
    }

    #[test]
    fn ssp_keeps_its_bound(job in jobs(), bound in 0u64..6) {
        let simulation = run(&job, &format!("ssp/{bound}"));
        assert_bounded(&job, &simulation, bound);
    }

    /// A worker that is not too far ahead is answered at once.
    #[test]
    fn no_worker_waits_without_need(job in with_deaths(), bound in 0u64..4) {
        let held = |synchrony: &str| run(&job, synchrony).servers.into_iter().filter_map(|server| server.held).min();
        prop_assert_eq!(held("asp"), None);
        prop_assert!(held("bsp").is_none_or(|ahead| ahead > 0));
        for synchrony in [format!("ssp/{bound}"), format!("dssp/{bound}-{}", bound + 2)] {
            prop_assert!(held(&synchrony).is_none_or(|ahead| ahead > bound), "{}", synchrony);
        }
    }

    #[test]
    fn ssp_keeps_its_bound_when_workers_die(job in with_deaths(), bound in 0u64..4) {
        let simulation = run(&job, &format!("ssp/{bound}"));
        prop_assert!(simulation.saw.iter().all(|saw| saw.ahead <= bound));
    }

    #[test]
    fn ssp_0_is_bsp_bit_for_bit(job in jobs()) {
        let job = Job { split: Split::None, ..job };
        assert_views(&run(&job, "ssp/0"), &stages(&job, 0));
        assert_views(&run(&job, "dssp/0-0"), &stages(&job, 0));
    }

    #[test]
    fn dssp_keeps_its_range(job in jobs(), least in 0u64..4, more in 0u64..5) {
        let simulation = run(&job, &format!("dssp/{least}-{}", least + more));
        assert_bounded(&job, &simulation, least + more);
    }

    #[test]
    fn dssp_without_a_range_is_ssp(job in with_deaths(), bound in 0u64..5) {
        let (dssp, ssp) = (run(&job, &format!("dssp/{bound}-{bound}")), run(&job, &format!("ssp/{bound}")));
        prop_assert_eq!(dssp.saw, ssp.saw);
    }

    /// Whatever the delays: rank by rank in every step. The simulation checks that one push and one reply are under way at a
    /// time.
    #[test]
    fn r2sp_takes_turns(job in jobs()) {
        let simulation = run(&job, "r2sp");
        let turns: Vec<(u32, u64)> =
            (0..job.steps).flat_map(|step| (0..job.workers).map(move |worker| (worker, step))).collect();
        for server in &simulation.servers {
            let pushes = server.log.iter().filter_map(|came| match came {
                Came::Push(worker, step) => Some((*worker, *step)),
                Came::Left(_) => None,
            });
            prop_assert_eq!(pushes.collect::<Vec<_>>(), &turns[..]);
        }
        for Saw { worker, step, gradients, .. } in &simulation.saw {
            let mut expected = before(&job, step.saturating_sub(1));
            expected.extend((0..=*worker).filter(|_| *step > 0).map(|rank| (rank, step - 1)));
            prop_assert!(gradients.iter().all(|seen| *seen == expected), "worker {} in step {}: {:?}", worker, step, gradients);
        }
    }
}
