//! OSP's ends and what is between them, and local steps: equalities with plain loops.

use super::job::{Gradients, Job, Split, jobs};
use super::oracles::{local, stages};
use super::simulation::{Saw, run};
use super::{assert_views, bits_of, cases};
use gleaner_algorithms::synchrony::{Local, Sgd};
use proptest::prelude::*;

/// That all workers end with the servers' bits, and these are the ones expected.
fn assert_ends(job: &Job, synchrony: &str, expected: &[f32]) {
    let simulation = run(job, synchrony);
    assert_eq!(bits_of(&simulation.parameters()), bits_of(expected), "{synchrony}");
    assert!(
        simulation.workers.iter().all(|worker| bits_of(&worker.truth) == bits_of(expected)),
        "{synchrony}"
    );
}

/// BSP where every update is a step late: the loop, written out.
fn delayed(job: &Job) -> Vec<Vec<f32>> {
    let (mut values, mut velocities) = (job.initial(), vec![0.0; job.entries()]);
    let mut views = vec![values.clone(), values.clone()];
    for step in 0..job.steps {
        let view = &views[step as usize];
        let mut mean = job.gradient(0, step, view);
        for worker in 1..job.workers {
            mean.iter_mut().zip(job.gradient(worker, step, view)).for_each(|(sum, value)| *sum += value);
        }
        mean.iter_mut().for_each(|sum| *sum /= job.workers as f32);
        job.sgd.step(&mut values, &mut velocities, &mean, job.rate);
        views.push(values.clone());
    }
    views
}

proptest! {
    #![proptest_config(cases(200))]

    /// Whatever stands in for what is under way: with nothing under way nothing does.
    #[test]
    fn osp_with_everything_in_the_routine_stage_is_bsp_bit_for_bit(job in jobs()) {
        let job = Job { split: Split::None, ..job };
        for synchrony in ["osp", "osp/lgp=off", "osp/lgp=ema:0.9"] {
            assert_views(&run(&job, synchrony), &stages(&job, 0));
        }
    }

    #[test]
    fn osp_with_everything_in_the_background_is_bsp_a_step_late_bit_for_bit(job in jobs()) {
        let job = Job { split: Split::All, ..job };
        let simulation = run(&job, "osp/lgp=off,cap=1,budget=1");
        let mut views = delayed(&job);
        let last = views.pop().unwrap();
        for Saw { worker, step, view, .. } in &simulation.saw {
            prop_assert_eq!(bits_of(view), bits_of(&views[*step as usize]), "worker {} in step {}", worker, step);
        }
        prop_assert_eq!(bits_of(&simulation.parameters()), bits_of(&last));
    }

    /// Between its ends: units of the routine stage as they are, the others a step late, whatever the split is in each step.
    #[test]
    fn osp_without_prediction_is_late_by_one_step_in_the_background(job in jobs()) {
        assert_views(&run(&job, "osp/lgp=off"), &stages(&job, 1));
    }

    /// With the same gradients on all workers the local ones are the global ones, and the prediction is what comes: OSP is BSP,
    /// whatever is in the background.
    #[test]
    fn a_prediction_from_the_global_gradient_leaves_nothing_late(job in jobs(), doublings in 0u32..3) {
        let sgd = Sgd { momentum: 0.0, ..job.sgd };
        // The mean of a power of two of equal values is that value.
        let job = Job { sgd, workers: 1 << doublings, gradients: Gradients::Same, ..job };
        assert_views(&run(&job, "osp"), &stages(&job, 0));
    }

    /// The same with momentum, which workers see in true changes but for rounding.
    #[test]
    fn momentum_is_seen_in_true_changes(job in jobs()) {
        let job = Job { gradients: Gradients::Same, ..job };
        let views = stages(&job, 0);
        for Saw { worker, step, view, .. } in &run(&job, "osp").saw {
            for (value, expected) in view.iter().zip(&views[*step as usize]) {
                // A velocity is off by the rounding of a parameter over the rate, and moves by the rate: some ulps of values up
                // to 8 in each step.
                prop_assert!((value - expected).abs() <= 1e-4, "worker {} in step {}: {} for {}", worker, step, value, expected);
            }
        }
    }

    /// What a prediction says is put right: it changes what gradients are computed at, and nothing that it leaves behind differs
    /// between workers.
    #[test]
    fn after_the_last_background_all_have_the_same_bits(job in jobs()) {
        for synchrony in ["osp", "osp/lgp=off", "osp/lgp=ema:0.5"] {
            let simulation = run(&job, synchrony);
            let last = bits_of(&simulation.parameters());
            prop_assert!(simulation.workers.iter().all(|worker| bits_of(&worker.truth) == last));
        }
    }

    #[test]
    fn local_steps_are_a_loop(job in jobs(), steps in 1u64..4, after in 0u64..4, diloco: bool) {
        let (rate, momentum) = if diloco { (0.7, 0.9) } else { (1.0, 0.0) };
        let synchrony = format!("local/{steps},{rate},{momentum},after={after}");
        assert_ends(&job, &synchrony, &local(&job, Local { steps, rate, momentum, after }));
    }

    /// In numbers that are exact nothing is left between one local step with a plain mean, and BSP.
    #[test]
    fn local_1_is_bsp_bit_for_bit_where_nothing_is_rounded(
        job in jobs(), doublings in 0u32..3, momentum in prop::sample::select(vec![0.0, 0.5]),
    ) {
        let sgd = Sgd { momentum, weight_decay: 0.0, ..job.sgd };
        let (workers, gradients) = (1 << doublings, Gradients::Whole);
        let job = Job { sgd, workers, gradients, rate: 0.125, steps: job.steps.min(6), ..job };
        assert_ends(&job, "local/1", stages(&Job { split: Split::None, ..job.clone() }, 0).last().unwrap());
    }

    /// In others the difference of two parameters is rounded, and so is their mean: by an ulp of the largest parameter or two in
    /// each step, where the optimiser draws parameters together; momentum hands that on for 1 / (1 - momentum) steps.
    #[test]
    fn local_1_is_bsp_but_for_rounding(job in jobs()) {
        let job = Job { split: Split::None, ..job };
        let views = stages(&job, 0);
        let largest = views.iter().flatten().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let tolerance = 4.0 * f32::EPSILON * largest * job.steps as f32 / (1.0 - job.sgd.momentum);
        let ends = run(&job, "local/1").parameters();
        for (value, expected) in ends.iter().zip(views.last().unwrap()) {
            prop_assert!((value - expected).abs() <= tolerance, "{} for {}, within {}", value, expected, tolerance);
        }
    }
}
