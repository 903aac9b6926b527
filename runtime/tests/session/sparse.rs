//! Gradients that are sparse already: the sums of dense reducers, bit by bit, from entries alone.

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_runtime::{Error, Gradients, Handle, Layout};

use crate::job::{self, Over, gradient};

/// The methods that deliver all entries of sparse gradients, and those that do not.
fn methods() -> (Vec<Method>, Vec<Method>) {
    Method::all().partition(|method| method.for_sparse(4, 1000).is_ok())
}

/// Few entries of a gradient, others on each rank, some of them shared, and some that cancel between two ranks.
fn few(n: usize, rank: usize, step: u64) -> Vec<f32> {
    let all = gradient(n, rank, step);
    let share = |(i, value): (usize, f32)| match i % 11 {
        _ if i % 11 == rank % 11 => value,
        9 => gradient(n, 77, step)[i],
        10 if rank < 2 => {
            if rank == 0 {
                1.5
            } else {
                -1.5
            }
        }
        _ => 0.0,
    };
    all.into_iter().enumerate().map(share).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_are_those_of_dense_reducers() {
    for workers in [1, 2, 3, 4, 5, 8] {
        for n in [1usize, 23, 700] {
            job::run(Over::Memory, workers, |session| {
                for method in methods().0 {
                    let name = method.collective().name();
                    let mut sparse = session.sparse_reducer("w", n, method.clone()).unwrap();
                    let mut dense = session.reducer("w", n, method.density(1.0)).unwrap();
                    for step in 0..3 {
                        let values = few(n, session.rank(), step);
                        let expected = dense.start(&values).unwrap().wait().unwrap();
                        let found = sparse.start(&Entries::from_dense(&values)).unwrap().wait().unwrap();
                        let values = expected.values("w").unwrap();
                        assert_eq!(
                            bits(&found.values("w").unwrap()),
                            bits(&values),
                            "{name}, {workers}, {n}"
                        );
                        assert_eq!(found.sparse("w").unwrap(), Entries::from_dense(&values), "{name}");
                        assert_eq!(expected.sparse("w").unwrap(), Entries::from_dense(&values), "{name}");
                        let mut sums = vec![0.0; n];
                        expected.add_to("w", &mut sums, workers as f32).unwrap();
                        assert_eq!(found.sparse_sums("w").unwrap(), Entries::from_dense(&sums), "{name}");
                        assert_eq!(sparse.residual().unwrap(), Entries::default(), "{name}");
                    }
                }
            });
        }
    }
}

/// Methods that leave entries out, or that name all n, are refused, and run where a density is asked for.
#[test]
fn methods_that_leave_entries_out_are_refused() {
    job::run(Over::Memory, 3, |session| {
        for method in methods().1 {
            let name = method.collective().name();
            let error = session.sparse_reducer("w", 1000, method.clone()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("without a density"), "{error}");
            session.sparse_reducer("w", 1000, method.density(0.1)).unwrap();
        }
    });
}

/// Beside dense parameters, whatever their method: the means of a dense parameter that delivers all, in steps that others take
/// at their own density.
#[test]
fn a_sparse_parameter_travels_by_itself() {
    const N: usize = 500;
    let layout = Layout::new().parameter("a", 40).sparse_parameter("embedding", N).parameter("b", 30);
    for name in ["spardl", "oktopk", "random-k", "ring", "dsar-split-all-gather"] {
        for method in [Method::named(name).unwrap(), Method::named(name).unwrap().k(7)] {
            let means = job::run(Over::Memory, 3, |session| {
                let mut gradients = session.gradients(&layout, method.clone()).unwrap();
                let mut dense = session.reducer("embedding", N, Method::ring()).unwrap();
                let mut means = Vec::new();
                for step in 0..3 {
                    let values = few(N, session.rank(), step);
                    gradients.ready("b", &gradient(30, session.rank(), step)).unwrap();
                    gradients.ready_sparse("embedding", &Entries::from_dense(&values)).unwrap();
                    gradients.ready("a", &gradient(40, session.rank(), step)).unwrap();
                    let update = gradients.wait().unwrap();
                    let expected = dense.start(&values).unwrap().wait().unwrap().values("embedding").unwrap();
                    let found = update.values("embedding").unwrap();
                    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
                    assert!(found.iter().zip(&expected).all(near), "{name}");
                    assert_eq!(update.sparse("embedding").unwrap().to_dense(N), found);
                    let sums = update.sparse_sums("embedding").unwrap();
                    assert!(sums.iter().all(|(i, sum)| (sum / 3.0 - found[i as usize]).abs() < 1e-6));
                    means.push(bits(&found));
                }
                means
            });
            assert!(means.iter().all(|of_rank| *of_rank == means[0]));
        }
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let layout = Layout::new().parameter("a", 4).sparse_parameter("embedding", 10);
    job::run(Over::Memory, 2, |session| {
        let mut gradients = session.gradients(&layout, Method::ring()).unwrap();
        let mut reducer = session.sparse_reducer("w", 10, Method::named("topka").unwrap()).unwrap();
        let entries =
            |indices: &[u32]| Entries { indices: indices.to_vec(), values: vec![1.0; indices.len()] };
        let uneven = Entries { indices: vec![1, 2], values: vec![1.0] };
        for (given, said) in [
            (entries(&[1, 1]), "index 1 after 1; expected indices that ascend"),
            (entries(&[3, 2]), "index 2 after 3; expected indices that ascend"),
            (entries(&[3, 10]), "index 10; expected indices below 10"),
            (uneven, "2 indices and 1 values"),
        ] {
            let error = gradients.ready_sparse("embedding", &given).unwrap_err().to_string();
            assert!(error.contains("'embedding'") && error.contains(said), "{error}");
            let error = reducer.start(&given).unwrap_err().to_string();
            assert!(error.contains("'w'") && error.contains(said), "{error}");
        }
        let error = gradients.ready("embedding", &[0.0; 10]).unwrap_err().to_string();
        assert!(error.contains("a sparse parameter") && error.contains("ready_sparse()"), "{error}");
        let error = gradients.ready_sparse("a", &entries(&[1])).unwrap_err().to_string();
        assert!(error.contains("a dense parameter") && error.contains("ready()"), "{error}");
        let other = Layout::new().parameter("a", 4).parameter("embedding", 10);
        let error = gradients.regroup(&other).unwrap_err().to_string();
        assert!(error.contains("'embedding' is a sparse parameter"), "{error}");
        let long = session.sparse_reducer("long", 1 << 33, Method::ring()).unwrap_err().to_string();
        assert!(long.contains("at most 4294967295"), "{long}");
        let selector = Method::named("topka").unwrap().selector("threshold=0.5".parse().unwrap());
        let error = session.sparse_reducer("w", 10, selector).unwrap_err().to_string();
        assert!(error.contains("leave the selector out"), "{error}");
        let correction = Correction { momentum: 0.9, ..Correction::default() };
        let error = session.gradients(&layout, Method::spardl().corrected(correction)).err().unwrap();
        assert!(error.to_string().contains("velocities do not stay sparse"), "{error}");
        // All goes on.
        gradients.ready_sparse("embedding", &entries(&[3, 9])).unwrap();
        gradients.ready("a", &[1.0; 4]).unwrap();
        assert_eq!(gradients.wait().unwrap().sparse("embedding").unwrap(), entries(&[3, 9]));
    });
}

#[test]
fn ranks_that_differ_are_reported() {
    let errors = job::run(Over::Memory, 2, |session| {
        if session.rank() == 0 {
            session.sparse_reducer("w", 10, Method::ring()).unwrap_err().to_string()
        } else {
            session.reducer("w", 10, Method::ring()).err().unwrap().to_string()
        }
    });
    assert!(errors.iter().all(|error| error.contains("sparse reducer 'w' with 10 entries")), "{errors:?}");
}

/// Values that are not finite fail the job with the parameter's name, or let all ranks leave the step out.
#[test]
fn values_that_are_not_finite() {
    let entries = |value: f32| Entries { indices: vec![2, 7], values: vec![1.0, value] };
    let topka = || Method::named("topka").unwrap();
    let errors = job::run(Over::Memory, 2, |session| {
        let mut reducer = session.sparse_reducer("w", 10, topka()).unwrap();
        let value = if session.rank() == 1 { f32::NAN } else { 1.0 };
        reducer.start(&entries(value)).and_then(Handle::wait).unwrap_err().to_string()
    });
    let said = "the gradient of 'w' has NaN at entry 7, the only entry that is not finite";
    assert!(errors.iter().all(|error| error.contains(said)), "{errors:?}");
    job::run(Over::Memory, 2, |session| {
        let method = topka().density(0.1).on_nonfinite(OnNonFinite::Skip);
        let mut reducer = session.sparse_reducer("w", 10, method).unwrap();
        reducer.start(&entries(3.0)).unwrap().wait().unwrap();
        let waits = reducer.residual().unwrap();
        assert_eq!(waits, Entries { indices: vec![2], values: vec![1.0] });
        let value = if session.rank() == 1 { f32::INFINITY } else { 1.0 };
        let update = reducer.start(&entries(value)).unwrap().wait().unwrap();
        assert_eq!(update.skipped().unwrap().rank, 1);
        assert!(update.sparse("w").unwrap().is_empty());
        assert_eq!(reducer.residual().unwrap(), waits, "as before the step");
        let update = reducer.start(&entries(1.5)).unwrap().wait().unwrap();
        assert_eq!(update.sparse("w").unwrap(), Entries { indices: vec![2], values: vec![2.0] });
    });
}

/// What was accumulated in a step that is given up waits as entries.
#[test]
fn a_cancelled_step_waits() {
    job::run(Over::Memory, 2, |session| {
        let mut reducer =
            session.sparse_reducer("w", 1_000_000_000, Method::named("topka").unwrap()).unwrap();
        let entries = Entries { indices: vec![2, 999_999_999], values: vec![1.0, 2.0] };
        let handle = reducer.start(&entries).unwrap();
        if session.rank() == 0 {
            handle.cancel();
        }
        let cancelled = match handle.wait() {
            Err(Error::Cancelled(_)) => true,
            Err(error) => panic!("{error}"),
            Ok(update) => {
                assert_eq!(update.sparse("w").unwrap(), entries);
                false
            }
        };
        let waits = reducer.residual().unwrap();
        assert_eq!(waits, if cancelled { entries.clone() } else { Entries::default() });
        let update = reducer.start(&Entries::default()).unwrap().wait().unwrap();
        assert_eq!(update.sparse("w").unwrap(), waits);
        assert!(reducer.residual().unwrap().is_empty());
    });
}

/// A checkpoint has nothing of a sparse parameter, since nothing of it waits.
#[test]
fn a_checkpoint_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::new().sparse_parameter("embedding", 1_000_000_000).parameter("a", 40);
    let step = |gradients: &mut Gradients, rank: usize, step: u64| {
        let entries =
            Entries { indices: vec![5, 900_000_000 + rank as u32], values: vec![1.0, step as f32 + 1.0] };
        gradients.ready_sparse("embedding", &entries).unwrap();
        gradients.ready("a", &gradient(40, rank, step)).unwrap();
        let update = gradients.wait().unwrap();
        (update.sparse("embedding").unwrap(), bits(&update.values("a").unwrap()))
    };
    let path = |rank: usize| folder.path().join(format!("{rank}.safetensors"));
    let expected = job::run(Over::Memory, 2, |session| {
        let mut gradients = session.gradients(&layout, Method::spardl().density(0.1)).unwrap();
        step(&mut gradients, session.rank(), 0);
        gradients.save(path(session.rank())).unwrap();
        step(&mut gradients, session.rank(), 1)
    });
    let found = job::run(Over::Memory, 2, |session| {
        let mut gradients = session.gradients(&layout, Method::spardl().density(0.1)).unwrap();
        gradients.load(path(session.rank())).unwrap();
        step(&mut gradients, session.rank(), 1)
    });
    assert_eq!(found, expected);
    assert!(std::fs::metadata(path(0)).unwrap().len() < 10_000);
}

/// Local clipping is of the norm of all parameters together, entries of sparse ones among them.
#[test]
fn clipping_takes_entries_in() {
    let clip = Correction { clip: Some(1.0), ..Correction::default() };
    let layout = Layout::new().parameter("a", 1).sparse_parameter("embedding", 100);
    job::run(Over::Memory, 1, |session| {
        let mut gradients = session.gradients(&layout, Method::ring().corrected(clip)).unwrap();
        gradients.ready("a", &[3.0]).unwrap();
        gradients.ready_sparse("embedding", &Entries { indices: vec![99], values: vec![4.0] }).unwrap();
        let update = gradients.wait().unwrap();
        assert_eq!(update.values("a").unwrap(), [0.6]);
        assert_eq!(update.sparse("embedding").unwrap(), Entries { indices: vec![99], values: vec![0.8] });
        let method = Method::named("topka").unwrap().corrected(clip);
        let mut reducer = session.sparse_reducer("w", 100, method).unwrap();
        let update =
            reducer.start(&Entries { indices: vec![1, 2], values: vec![3.0, 4.0] }).unwrap().wait().unwrap();
        assert_eq!(update.sparse("w").unwrap(), Entries { indices: vec![1, 2], values: vec![0.6, 0.8] });
    });
}

/// The method is chosen in the first step, the same on all ranks, though they bring other numbers of entries.
#[test]
fn auto_is_resolved_by_the_entries_that_are_met() {
    let chosen = job::run(Over::Memory, 3, |session| {
        let mut reducer = session.sparse_reducer("w", 1_000_000_000, Method::auto()).unwrap();
        assert!(reducer.method().is_auto());
        let entries: Entries = (0..=session.rank() as u32 * 100).map(|i| (i * 1_000_000, 1.0)).collect();
        let update = reducer.start(&entries).unwrap().wait().unwrap();
        assert_eq!(update.sparse("w").unwrap().len(), 201);
        assert!(reducer.residual().unwrap().is_empty());
        reducer.method().to_string()
    });
    assert!(
        methods().0.iter().any(|method| chosen[0].starts_with(method.collective().name()))
            && chosen.iter().all(|name| *name == chosen[0])
    );
    // Nothing n-long.
    assert!(!chosen[0].starts_with("ring") && !chosen[0].starts_with("dsar"), "{}", chosen[0]);
}

/// Other methods are tried while steps go on, the ranks change together, and every update is whole. A rank that looks into its residual
/// in between, and one that abandons a handle, change nothing of that.
#[test]
fn auto_tries_other_methods_and_settles_for_one() {
    let chosen = job::run(Over::Memory, 3, |session| {
        let mut reducer = session.sparse_reducer("w", 1_000_000, Method::auto()).unwrap();
        assert!(reducer.chosen().is_none());
        let rank = session.rank();
        let entries: Entries = (0..500).map(|i| (i * 900 + rank as u32, 1.0)).collect();
        for step in 0..400 {
            let handle = reducer.start(&entries).unwrap();
            match (step + rank) % 3 {
                0 => drop(handle),
                _ => assert_eq!(handle.wait().unwrap().sparse("w").unwrap().len(), 1500),
            }
            if step % 7 == rank {
                assert!(reducer.residual().unwrap().is_empty());
            }
        }
        let chosen = reducer.chosen().unwrap();
        assert!(chosen.decided && chosen.tried.len() > 1, "{chosen:?}");
        assert_eq!(chosen.taken.forecast.method.to_string(), reducer.method().to_string());
        reducer.method().to_string()
    });
    assert!(chosen.iter().all(|name| *name == chosen[0]), "{chosen:?}");
}
