//! Parameters go over to other groups between two steps, or to another number of workers, and nothing is lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Layers, Method};
use gleaner_runtime::{Gradients, Layout, Session, Update};
use gleaner_statistics::random::Generator;
use safetensors::SafeTensors;

use crate::job::{self, NETWORKS, Over, gradient};

const PARAMETERS: [(&str, usize); 6] = [("a", 40), ("b", 1), ("c", 25), ("d", 60), ("e", 7), ("f", 33)];

/// The parameters in a random order and random groups: the same on all ranks for one seed.
fn random_layout(random: &mut impl FnMut(usize) -> usize) -> Layout {
    let mut left = PARAMETERS.to_vec();
    let mut layout = Layout::new();
    while !left.is_empty() {
        let (name, len) = left.swap_remove(random(left.len()));
        layout = layout.parameter(name, len);
        if random(3) == 0 {
            layout = layout.group();
        }
    }
    layout
}

fn randoms(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = Generator::seeded(seed);
    move |below| random.below(below as u32) as usize
}

/// Small whole numbers, so that sums of them and of their halves are exact.
fn whole(rank: usize, step: u64, parameter: usize) -> Vec<f32> {
    let mut random = randoms(1 + 97 * step + 1009 * rank as u64 + 100_003 * parameter as u64);
    (0..PARAMETERS[parameter].1).map(|_| random(9) as f32 - 4.0).collect()
}

fn step(gradients: &mut Gradients, rank: usize, step: u64) -> Update {
    // Another order on each rank.
    for i in (0..PARAMETERS.len()).map(|i| (i + rank) % PARAMETERS.len()) {
        gradients.ready(PARAMETERS[i].0, &whole(rank, step, i)).unwrap();
    }
    gradients.wait().unwrap()
}

fn values(update: &Update) -> Vec<f32> {
    PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap()).collect()
}

fn file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}.safetensors"))
}

fn files(folder: &Path, workers: usize) -> Vec<PathBuf> {
    (0..workers).map(|rank| file(folder, rank)).collect()
}

/// What is saved, by the kind of tensor, summed over the ranks, in the order of the parameters.
fn saved(folder: &Path, workers: usize, kind: &str) -> Vec<f64> {
    let mut sums: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for path in files(folder, workers) {
        let bytes = std::fs::read(path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        for (name, len) in PARAMETERS {
            let tensor = tensors.tensor(&format!("{kind}.{name}")).unwrap();
            let values = tensor.data().as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)));
            let sum = sums.entry(name).or_insert_with(|| vec![0.0; len]);
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
    sums.into_values().flatten().collect()
}

#[test]
fn nothing_is_lost_where_groups_change_between_any_two_steps() {
    const WORKERS: u32 = 4;
    const STEPS: u64 = 12;
    for (seed, momentum) in [(1, 0.0), (2, 0.5), (3, 0.0), (4, 0.5)] {
        let correction = Correction { momentum, ..Correction::default() };
        let method = Method::spardl().density(0.1).corrected(correction);
        let folder = tempfile::tempdir().unwrap();
        let ranks = job::run(Over::Memory, WORKERS, |session| {
            let mut random = randoms(seed);
            let mut gradients = session.gradients(&random_layout(&mut random), method.clone()).unwrap();
            let mut updates = Vec::new();
            let mut regrouped = 0;
            for s in 0..STEPS {
                while random(2) == 0 {
                    gradients.regroup(&random_layout(&mut random)).unwrap();
                    regrouped += 1;
                }
                assert_eq!(gradients.step(), s);
                let update = step(&mut gradients, session.rank(), s);
                assert_eq!(update.step(), s);
                updates.push(values(&update));
            }
            assert!(regrouped > 4);
            gradients.regroup(&random_layout(&mut random)).unwrap();
            gradients.save(file(folder.path(), session.rank())).unwrap();
            updates
        });
        assert!(ranks.iter().all(|updates| bits(updates) == bits(&ranks[0])), "the same on all ranks");
        let mut given = Vec::new();
        let mut velocities = Vec::new();
        for (p, (_, len)) in PARAMETERS.into_iter().enumerate() {
            let (mut velocity, mut total) = (vec![0.0; len], vec![0.0; len]);
            for s in 0..STEPS {
                // The sum of the ranks' velocities is the velocity of their sum.
                velocity.iter_mut().for_each(|u| *u *= f64::from(momentum));
                for rank in 0..WORKERS as usize {
                    velocity.iter_mut().zip(whole(rank, s, p)).for_each(|(u, g)| *u += f64::from(g));
                }
                total.iter_mut().zip(&velocity).for_each(|(total, u)| *total += u);
            }
            given.extend(total);
            velocities.extend(velocity);
        }
        let residual = saved(folder.path(), WORKERS as usize, "residual");
        assert!(residual.iter().any(|value| *value != 0.0), "something waits");
        for (i, given) in given.into_iter().enumerate() {
            let delivered: f64 = ranks[0].iter().map(|u| f64::from(u[i]) * f64::from(WORKERS)).sum();
            assert_eq!(given, delivered + residual[i], "entry {i}, momentum {momentum}");
        }
        if momentum > 0.0 {
            assert_eq!(saved(folder.path(), WORKERS as usize, "velocity"), velocities);
        }
    }
}

/// Once no gradient comes, nothing waits within the most steps that the method states for a group: where each layer is a group
/// of its own, and where each layer of one group is selected from by itself.
#[test]
fn every_group_and_every_layer_drains() {
    const WORKERS: u32 = 4;
    let add = |layout: Layout, &(name, len): &(&str, usize)| layout.parameter(name, len);
    let apart = PARAMETERS.iter().fold(Layout::new(), |layout, parameter| add(layout.group(), parameter));
    let together = PARAMETERS.iter().fold(Layout::new(), add);
    let lengths = PARAMETERS.map(|(_, len)| len);
    let each: Vec<Layers> = lengths.iter().map(|&len| len.into()).collect();
    let by_layer = Method::named("topka").unwrap().selector(Selector::Layers);
    let groups = Method::all().map(|method| (method, &apart, each.clone()));
    let mut drained = 0;
    for (method, layout, groups) in groups.chain([(by_layer, &together, vec![Layers::of(lengths)])]) {
        let method = method.density(0.1);
        let bound = |group: Layers| method.collective().drains_within(&method.shape(WORKERS, group).unwrap());
        let bounds: Option<Vec<u64>> = groups.into_iter().map(bound).collect();
        let Some(steps) = bounds.and_then(|bounds| bounds.into_iter().max()) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let ranks = job::run(Over::Memory, WORKERS, |session| {
            let mut gradients = session.gradients(layout, method.clone()).unwrap();
            let mut sums = values(&step(&mut gradients, session.rank(), 0));
            for _ in 0..steps {
                for (name, len) in PARAMETERS {
                    gradients.ready(name, &vec![0.0; len]).unwrap();
                }
                let update = values(&gradients.wait().unwrap());
                sums.iter_mut().zip(update).for_each(|(sum, value)| *sum += value);
            }
            gradients.save(file(folder.path(), session.rank())).unwrap();
            sums
        });
        let residual = saved(folder.path(), WORKERS as usize, "residual");
        let waiting = residual.iter().filter(|value| **value != 0.0).count();
        assert_eq!(waiting, 0, "{method}: entries still wait after {steps} steps");
        let given = (0..PARAMETERS.len()).flat_map(|p| {
            let of = move |i| (0..WORKERS as usize).map(|rank| whole(rank, 0, p)[i]).sum::<f32>();
            (0..PARAMETERS[p].1).map(of).collect::<Vec<_>>()
        });
        let delivered = ranks[0].iter().map(|mean| mean * WORKERS as f32);
        assert_eq!(given.collect::<Vec<_>>(), delivered.collect::<Vec<_>>(), "{method}");
        drained += 1;
    }
    // All but exdyna-printed, and one more by layer.
    assert_eq!(drained, Method::all().count());
}

fn bits(updates: &[Vec<f32>]) -> Vec<u32> {
    updates.iter().flatten().map(|value| value.to_bits()).collect()
}

/// All that a method can know: a group that stays has it afterwards, at another place, and others begin with the step.
#[test]
fn regrouping_is_as_loading_a_checkpoint_into_other_groups() {
    let before =
        || Layout::new().parameter("late", 300).group().parameter("early", 500).parameter("first", 100);
    let after = |which: usize| match which {
        // Both groups stay, each at the other's place; or none does.
        0 => Layout::new().parameter("early", 500).parameter("first", 100).group().parameter("late", 300),
        _ => Layout::new().parameter("first", 100).parameter("late", 300).group().parameter("early", 500),
    };
    let steps = |session: &Session, gradients: &mut Gradients, steps: std::ops::Range<u64>| {
        let mut updates = Vec::new();
        for step in steps {
            let mut g = gradient(900, session.rank(), step);
            if step == 3 && session.rank() == 1 {
                g[450] = f32::INFINITY;
            }
            for (name, range) in [("first", 800..900), ("early", 300..800), ("late", 0..300)] {
                gradients.ready(name, &g[range]).unwrap();
            }
            let update = gradients.wait().unwrap();
            assert_eq!(update.skipped().is_some(), step == 3);
            let all = ["late", "early", "first"].map(|name| update.values(name).unwrap());
            updates.push(all.concat());
        }
        bits(&updates)
    };
    let corrections = [
        Correction::default(),
        Correction { momentum: 0.9, mask: true, clip: Some(5.0), warm_up: 8, ef21: false, decay: None },
    ];
    for (i, method) in Method::all().enumerate() {
        for correction in corrections {
            let coding = if method.collective().is_sparse() { Coding::Qsgd4 } else { Coding::Exact };
            let method = method.clone().density(0.02).coding(coding);
            let method = method.corrected(correction).on_nonfinite(OnNonFinite::Skip);
            let folder = tempfile::tempdir().unwrap();
            let regrouped = job::run(NETWORKS[i % 2], 3, |session| {
                let mut gradients = session.gradients(&before(), method.clone()).unwrap();
                steps(&session, &mut gradients, 0..4);
                gradients.save(file(folder.path(), session.rank())).unwrap();
                gradients.regroup(&after(i % 2)).unwrap();
                assert_eq!((gradients.step(), gradients.skipped()), (4, 1));
                steps(&session, &mut gradients, 4..9)
            });
            let loaded = job::run(Over::Memory, 3, |session| {
                let mut gradients = session.gradients(&after(i % 2), method.clone()).unwrap();
                gradients.load(file(folder.path(), session.rank())).unwrap();
                steps(&session, &mut gradients, 4..9)
            });
            assert!(regrouped.iter().chain(&loaded).all(|rank| *rank == regrouped[0]), "{method}");
        }
    }
}

#[test]
fn another_number_of_workers_takes_all_that_waits() {
    let correction = Correction { momentum: 0.5, ..Correction::default() };
    for (before, after) in [(4, 3), (2, 4), (5, 1), (3, 3)] {
        for method in [Method::spardl(), Method::named("oktopk").unwrap(), Method::named("exdyna").unwrap()] {
            let method = method.density(0.1).corrected(correction);
            let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            job::run(Over::Memory, before, |session| {
                let mut gradients =
                    session.gradients(&random_layout(&mut randoms(1)), method.clone()).unwrap();
                (0..4).for_each(|s| drop(step(&mut gradients, session.rank(), s)));
                gradients.save(file(old.path(), session.rank())).unwrap();
            });
            let updates = job::run(Over::Memory, after, |session| {
                let mut gradients =
                    session.gradients(&random_layout(&mut randoms(2)), method.clone()).unwrap();
                // What was there before is replaced.
                step(&mut gradients, session.rank(), 0);
                gradients.load_from(&files(old.path(), before as usize)).unwrap();
                assert_eq!(gradients.step(), 4);
                gradients.save(file(new.path(), session.rank())).unwrap();
                values(&step(&mut gradients, session.rank(), 4))
            });
            for kind in ["residual", "velocity"] {
                let sum = |folder: &Path, workers: u32| saved(folder, workers as usize, kind);
                let waits = sum(old.path(), before);
                assert!(waits.iter().any(|value| *value != 0.0));
                if method.collective().name() == "spardl" {
                    assert_eq!(sum(new.path(), after), waits, "{kind} of {before} workers on {after}");
                }
            }
            assert!(updates.iter().all(|update| *update == updates[0]), "{method}");
        }
    }
}

#[test]
fn files_that_are_not_of_one_job_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let layout = || random_layout(&mut randoms(1));
    let spardl = Method::spardl().density(0.1);
    job::run(Over::Memory, 2, |session| {
        let mut gradients = session.gradients(&layout(), spardl.clone()).unwrap();
        gradients.save(folder.path().join(format!("fresh-{}", session.rank()))).unwrap();
        step(&mut gradients, session.rank(), 0);
        gradients.save(file(folder.path(), session.rank())).unwrap();
    });
    let session = Session::join().unwrap();
    let mut gradients = session.gradients(&layout(), spardl).unwrap();
    let mut refusal = |paths: &[PathBuf]| gradients.load_from(paths).unwrap_err().to_string();
    let [first, second] = [file(folder.path(), 0), file(folder.path(), 1)];
    assert!(refusal(&[]).contains("no checkpoints"));
    let swapped = refusal(&[second.clone(), first.clone()]);
    assert!(swapped.contains("its rank is 1, here it is 0"), "{swapped}");
    let some = refusal(std::slice::from_ref(&first));
    assert!(some.contains("its world size is 2, here it is 1"), "{some}");
    let mixed = refusal(&[first.clone(), folder.path().join("fresh-1")]);
    assert!(mixed.contains("its step is 0, here it is 1"), "{mixed}");
    gradients.load_from(&[first, second]).unwrap();
    assert_eq!(gradients.step(), 1);
}

#[test]
fn what_is_no_regrouping_is_refused_and_changes_nothing() {
    let session = Session::join().unwrap();
    let mut gradients = session.gradients(&random_layout(&mut randoms(1)), Method::ring()).unwrap();
    let mut with = |change: &dyn Fn(Layout) -> Layout, leave: &str, sentence: &str| {
        let kept = PARAMETERS.into_iter().filter(|(name, _)| *name != leave);
        let layout = kept.fold(Layout::new(), |layout, (name, len)| layout.parameter(name, len));
        let error = gradients.regroup(&change(layout)).unwrap_err().to_string();
        assert!(error.contains(sentence), "{error}");
    };
    with(&|layout| layout, "c", "'c' has no place in the layout, in the present one 25 entries");
    with(&|layout| layout.parameter("g", 1), "", "'g' has 1 entries, in the present one no place");
    with(&|layout| layout.parameter("c", 26), "c", "'c' has 26 entries, in the present one 25 entries");
    with(&|layout| layout.parameter("c", 25), "", "two parameters named 'c'");
    gradients.ready("b", &[1.0]).unwrap();
    let error = gradients.regroup(&random_layout(&mut randoms(2))).unwrap_err().to_string();
    assert!(error.contains("between steps only"), "{error}");
    for (name, len) in PARAMETERS.into_iter().filter(|(name, _)| *name != "b") {
        gradients.ready(name, &vec![1.0; len]).unwrap();
    }
    assert!(values(&gradients.wait().unwrap()).iter().all(|value| *value == 1.0));
}

#[test]
fn ranks_that_regroup_otherwise_or_at_another_step_fail_with_one_sentence() {
    let failures = job::run(Over::Memory, 3, |session| {
        let mut gradients = session.gradients(&random_layout(&mut randoms(1)), Method::ring()).unwrap();
        step(&mut gradients, session.rank(), 0);
        let seed = if session.rank() == 2 { 3 } else { 2 };
        gradients.regroup(&random_layout(&mut randoms(seed))).unwrap_err().to_string()
    });
    assert!(failures.iter().all(|f| f.contains("rank 2") && f.contains("in group")), "{failures:?}");
    let failures = job::run(Over::Memory, 3, |session| {
        let mut gradients = session.gradients(&random_layout(&mut randoms(1)), Method::ring()).unwrap();
        if session.rank() == 1 {
            return gradients.load_from(&[] as &[PathBuf]).unwrap_err().to_string();
        }
        gradients.regroup(&random_layout(&mut randoms(2))).unwrap_err().to_string()
    });
    assert!(failures.iter().all(|f| f.contains("rank 1") && f.contains("load_from()")), "{failures:?}");
}

#[test]
fn the_method_auto_goes_on_choosing() {
    let methods = job::run(Over::Memory, 2, |session| {
        let mut random = randoms(5);
        let mut gradients =
            session.gradients(&random_layout(&mut random), Method::auto().density(0.1)).unwrap();
        for s in 0..30 {
            if s % 7 == 6 {
                gradients.regroup(&random_layout(&mut random)).unwrap();
            }
            step(&mut gradients, session.rank(), s);
        }
        gradients.methods().iter().map(Method::to_string).collect::<Vec<_>>()
    });
    assert_eq!(methods[0], methods[1]);
}

/// Two groups become one, which goes on with the threshold of the larger one and not as a method begins.
#[test]
fn what_was_learnt_is_carried_over_where_groups_are_merged() {
    let before = || Layout::new().parameter("small", 100).group().parameter("large", 700);
    let merged = || Layout::new().parameter("small", 100).parameter("large", 700);
    for name in ["oktopk", "exdyna"] {
        let method = Method::named(name).unwrap().density(0.05);
        let folder = tempfile::tempdir().unwrap();
        let learnt = |of: &str, group: usize| -> Vec<f64> {
            let bytes = std::fs::read(folder.path().join(of)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let tensor = tensors.tensor(&format!("agreed.{group}")).unwrap();
            tensor.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
        };
        job::run(Over::Memory, 3, |session| {
            let rank = session.rank();
            let save = |gradients: &Gradients, of: &str| {
                if rank == 0 {
                    gradients.save(folder.path().join(of)).unwrap();
                }
            };
            let mut gradients = session.gradients(&before(), method.clone()).unwrap();
            save(&gradients, "first");
            for step in 0..6 {
                let g = gradient(800, rank, step);
                gradients.ready("large", &g[100..]).unwrap();
                gradients.ready("small", &g[..100]).unwrap();
                gradients.wait().unwrap();
            }
            save(&gradients, "before");
            gradients.regroup(&merged()).unwrap();
            save(&gradients, "merged");
            let g = gradient(800, rank, 6);
            gradients.ready("large", &g[100..]).unwrap();
            gradients.ready("small", &g[..100]).unwrap();
            gradients.wait().unwrap();
        });
        let threshold = learnt("before", 1)[0];
        assert!(threshold > 0.0 && threshold != learnt("first", 1)[0], "{name} has learnt");
        assert_ne!(threshold, learnt("before", 0)[0]);
        assert_eq!(learnt("merged", 0)[0], threshold, "{name}");
    }
}
