//! OSP over an all-reduce: what it is at its two ends, and in between beside the paper's equations written out.

use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::{Model, Network};
use gleaner_algorithms::synchrony::Sgd;
use gleaner_runtime::{Options, Pass, Stepped};

use crate::job::{self, Over};
use crate::problem::{
    self, LENGTHS, N, SAMPLES, SGD, UNITS, bits, cases, gradient, initial, layout, options, places, rate,
};

const STEPS: u64 = 14;

#[test]
fn everything_in_routine_is_bsp_bit_for_bit() {
    for (over, workers, method) in cases() {
        let bsp = problem::run(Over::Memory, workers, &options("bsp", method.clone()), STEPS);
        for lgp in ["on", "off", "ema:0.5"] {
            let osp = options(&format!("osp/lgp={lgp},budget=0"), method.clone());
            assert!(problem::run(over, workers, &osp, STEPS) == bsp, "{workers} workers, {method}, {lgp}");
        }
    }
}

/// Every gradient is taken with the parameters that the update before the last one led to.
#[test]
fn everything_in_the_background_is_bsp_delayed_by_one_step_bit_for_bit() {
    for (over, workers, method) in cases() {
        let expected = job::run(Over::Memory, workers, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            let (mut parameters, mut velocities) = (initial(), vec![0.0; N]);
            let mut before = parameters.clone();
            let mut all = Vec::new();
            for step in 0..STEPS {
                let mean = problem::exchange(&session, &mut gradients, &before, step);
                before.copy_from_slice(&parameters);
                SGD.step(&mut parameters, &mut velocities, &mean, rate(step));
                all.push(bits(&before));
            }
            all.push(bits(&parameters));
            all
        });
        let osp = options("osp/lgp=off,cap=1,budget=1", method.clone());
        let found = problem::run(over, workers, &osp, STEPS);
        assert!(found == expected, "{workers} workers, {method}");
        assert!(found.iter().all(|rank| *rank == found[0]), "{workers} workers, {method}");
    }
}

/// Where each unit is among all entries.
fn units() -> Vec<std::ops::Range<usize>> {
    let mut end = 0;
    let unit = |unit: &&[usize]| {
        let start = end;
        end += unit.iter().map(|&p| LENGTHS[p]).sum::<usize>();
        start..end
    };
    UNITS.iter().map(unit).collect()
}

/// The units that go to the background: the least important ones by Σ|g·p|, as long as they fit.
fn least_important(truth: &[f32], means: &[f32], budget: usize) -> Vec<usize> {
    let importance = |unit: &std::ops::Range<usize>| -> f64 {
        unit.clone().map(|i| (f64::from(truth[i]) * f64::from(means[i])).abs()).sum()
    };
    let mut order: Vec<(f64, usize)> = units().iter().map(importance).zip(0..).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut left = budget;
    let mut background: Vec<usize> = Vec::new();
    for (_, unit) in order {
        if units()[unit].len() <= left {
            left -= units()[unit].len();
            background.push(unit);
        }
    }
    background
}

/// Equations 4, 6 and 7, without momentum, so that no velocity is inferred: true values, and beside them what each worker predicts.
#[test]
fn stages_and_predictions_are_the_papers() {
    let sgd = Sgd { momentum: 0.0, ..SGD };
    let mut has_both = false;
    for (over, workers, method) in cases() {
        let expected = job::run(Over::Memory, workers, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            let (mut truth, mut velocities) = (initial(), vec![0.0; N]);
            let mut parameters = truth.clone();
            // The last global gradient, and the units of which it has not been applied yet.
            let (mut means, mut late) = (vec![0.0; N], Vec::<usize>::new());
            let mut all = Vec::new();
            for step in 0..STEPS {
                let own = gradient(&parameters, session.rank(), step);
                let new = problem::exchange(&session, &mut gradients, &parameters, step);
                let mut apply = |units: &[usize], truth: &mut [f32], means: &[f32], step: u64| {
                    for unit in units.iter().map(|&unit| self::units()[unit].clone()) {
                        let (truth, velocities) = (&mut truth[unit.clone()], &mut velocities[unit.clone()]);
                        sgd.step(truth, velocities, &means[unit], rate(step));
                    }
                };
                apply(&late, &mut truth, &means, step.saturating_sub(1));
                late = least_important(&truth, &means, 300);
                let routine: Vec<usize> = (0..UNITS.len()).filter(|unit| !late.contains(unit)).collect();
                apply(&routine, &mut truth, &new, step);
                means = new;
                parameters.copy_from_slice(&truth);
                for unit in late.iter().map(|&unit| self::units()[unit].clone()) {
                    for i in unit {
                        parameters[i] -= rate(step) * (own[i] + sgd.weight_decay * truth[i]);
                    }
                }
                all.push(bits(&parameters));
            }
            for unit in late.iter().map(|&unit| units()[unit].clone()) {
                let (truth, velocities) = (&mut truth[unit.clone()], &mut velocities[unit.clone()]);
                sgd.step(truth, velocities, &means[unit], rate(STEPS - 1));
            }
            all.push(bits(&truth));
            all
        });
        let osp = Options { sgd, ..options("osp/budget=0.6", method.clone()) };
        let found = problem::run(over, workers, &osp, STEPS);
        let differs = (0..=STEPS as usize).find(|&step| found[0][step] != expected[0][step]);
        assert!(found == expected, "{workers} workers, {method}: rank 0 differs in step {differs:?}");
        let last = STEPS as usize;
        assert!(found.iter().all(|rank| rank[last] == found[0][last]), "after a flush all are the same");
        has_both |= workers > 1 && found[0][3] != found[1][3];
    }
    assert!(has_both, "before it, predictions differ");
}

/// With momentum, decay and Nesterov, predicted in any way: the workers have the same bits after a flush, and between two steps in all
/// units that were waited for.
#[test]
fn after_a_flush_all_workers_have_the_same_bits() {
    for (over, workers, method) in cases() {
        for kind in ["lgp=on,budget=0.5", "lgp=ema:0.9,budget=0.8", "lgp=off,budget=0.3", "budget=bound"] {
            let mut osp = options(&format!("osp/{kind}"), method.clone());
            osp.sgd.nesterov = workers % 2 == 0;
            let found = problem::run(over, workers, &osp, STEPS);
            let last = found.iter().map(|rank| &rank[STEPS as usize]);
            assert!(
                last.clone().all(|rank| *rank == found[0][STEPS as usize]),
                "{kind}, {workers}, {method}"
            );
            for step in 0..STEPS as usize {
                let same = |unit: &std::ops::Range<usize>| {
                    found.iter().all(|rank| rank[step][unit.clone()] == found[0][step][unit.clone()])
                };
                assert!(units().iter().any(same), "{kind}, {workers} workers, {method}, step {step}");
            }
        }
    }
}

/// Algorithm 1 with losses that are given: nothing in the first two epochs, and then more as the loss falls; never more than 80%.
#[test]
fn the_budget_follows_the_loss_of_the_epochs() {
    let stepped: Vec<Vec<Stepped>> = job::run(Over::Memory, 3, |session| {
        let method = Method::ring();
        // What the replica forecasts by.
        let probed = session.probe(N).unwrap();
        let network = Network { bytes_per_second: probed.slowest, ..probed.network };
        let model = Model::new(network, probed.speed, &method, N).unwrap();
        let forecast = model.forecast(method.clone(), 3, N).unwrap().seconds;
        let pass = Duration::from_secs_f64(3.0 * forecast).max(Duration::from_millis(20));
        let mut replica = session.replica(&layout(), &initial(), options("osp", method)).unwrap();
        let steps = (0..25u64).map(|step| {
            let gradient = gradient(replica.parameters(), session.rank(), step);
            places().for_each(|(name, place)| replica.ready(&name, &gradient[place]).unwrap());
            // Longer than the exchange of all entries, so that the cap decides.
            std::thread::sleep(pass);
            // The ranks' losses differ; their mean is 4 in the first epoch, 3, 2, 5, 1 in those after it.
            let mean = [4.0, 3.0, 2.0, 5.0, 1.0][step as usize / 5];
            let loss = mean + (session.rank() as f32 - 1.0) / 2.0;
            replica.step(Pass { rate: rate(step), samples: SAMPLES, loss }).unwrap()
        });
        steps.collect()
    });
    let most = (0.8 * N as f64) as u64;
    for rank in &stepped {
        for (step, stepped) in rank.iter().enumerate() {
            let share = [0.0, 0.0, 0.25, 0.5, 0.0][step / 5];
            let allowed = if step < 5 { 0 } else { most };
            let budget = ((most as f64 * share) as u64, allowed);
            assert_eq!(stepped.budget, Some(budget), "step {step}");
            assert!(stepped.deferred <= budget.0);
            assert_eq!(stepped.deferred > 0, step / 5 == 2 || step / 5 == 3, "step {step}");
        }
    }
    // What travels during a pass has come before the update after it.
    assert!(stepped[0].iter().any(|stepped| !stepped.background.is_zero()));
}
