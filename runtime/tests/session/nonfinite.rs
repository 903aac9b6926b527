//! Values that are not finite: all ranks leave the step out, and nothing of it stays.

use gleaner_algorithms::residual::OnNonFinite;
use gleaner_algorithms::{Method, Reduction};
use gleaner_runtime::{Error, Gradients, Layout, Session, Update};

use crate::job::{self, NETWORKS, Over, gradient};

/// Three groups; the second has two parameters.
const PARAMETERS: [(&str, usize); 4] = [("a", 300), ("b", 120), ("c", 280), ("d", 200)];
const N: usize = 900;

fn layout() -> Layout {
    PARAMETERS.iter().fold(Layout::new(), |layout, &(name, len)| {
        let layout = if name == "c" { layout } else { layout.group() };
        layout.parameter(name, len)
    })
}

/// Which rank has bad values in which step, at which entries.
type Faults<'a> = &'a [(usize, u64, &'a [usize])];

/// What a rank sees: the update's bits or who made all skip it, for each step, and the residuals at the end.
#[derive(Debug, PartialEq)]
struct Seen {
    steps: Vec<Result<Vec<u32>, u32>>,
    own: Vec<Option<String>>,
    residuals: Vec<u32>,
    skipped: u64,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn values(update: &Update) -> Vec<f32> {
    PARAMETERS.iter().flat_map(|(name, _)| update.values(name).unwrap()).collect()
}

/// The residuals as a checkpoint has them.
fn residuals(gradients: &Gradients, folder: &std::path::Path, rank: usize) -> Vec<u32> {
    let path = folder.join(format!("{rank}.safetensors"));
    gradients.save(&path).unwrap();
    let file = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let words = |name: &str| {
        let tensor = tensors.tensor(&format!("residual.{name}")).unwrap();
        tensor.data().as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>()
    };
    PARAMETERS.iter().flat_map(|(name, _)| words(name)).collect()
}

/// Steps of a job in which some values are bad; `gives` says which gradients a step of the job has.
fn job(over: Over, workers: u32, method: Method, gives: &[u64], faults: Faults<'_>) -> Vec<Seen> {
    let folder = tempfile::tempdir().unwrap();
    job::run(over, workers, |session| {
        let rank = session.rank();
        let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
        let mut seen = Seen { steps: Vec::new(), own: Vec::new(), residuals: Vec::new(), skipped: 0 };
        for (step, &given) in gives.iter().enumerate() {
            let mut values_of_step = gradient(N, rank, given);
            for (_, _, entries) in faults.iter().filter(|(r, s, _)| (*r, *s) == (rank, step as u64)) {
                let poison = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                entries.iter().zip(poison.iter().cycle()).for_each(|(&i, &bad)| values_of_step[i] = bad);
            }
            let mut pieces = Vec::new();
            let mut from = 0;
            for (name, len) in PARAMETERS {
                pieces.push((name, from..from + len));
                from += len;
            }
            // Another order on each rank and in each step.
            pieces.rotate_left((rank + step) % 4);
            for (name, range) in pieces {
                gradients.ready(name, &values_of_step[range]).unwrap();
            }
            let update = gradients.wait().unwrap();
            assert_eq!((update.step(), gradients.step()), (step as u64, step as u64 + 1));
            match update.skipped() {
                None => seen.steps.push(Ok(bits(&values(&update)))),
                Some(skipped) => {
                    assert_eq!((update.entries(), gradients.lost()), (0, 0.0));
                    assert!(values(&update).iter().all(|v| v.to_bits() == 0), "nothing is delivered");
                    seen.steps.push(Err(skipped.rank));
                    seen.own.push(skipped.own.clone());
                }
            }
        }
        seen.residuals = residuals(&gradients, folder.path(), rank);
        seen.skipped = gradients.skipped();
        seen
    })
}

/// A skipped step is as if it had not been: the others have the updates and the residuals of a job without it.
fn skipping_leaves_no_trace(over: Over, workers: u32, method: Method) {
    let last = workers as usize - 1;
    // The second step has its fault in one group, the fourth in all of them and on two ranks; the first has one as well, where
    // the residual is known to be zero.
    let faults: &[(usize, u64, &[usize])] =
        &[(last, 0, &[899]), (last, 2, &[305, 306, 419]), (0, 4, &[0, 300, 420, 700]), (last / 2, 4, &[500])];
    let with =
        job(over, workers, method.clone().on_nonfinite(OnNonFinite::Skip), &[9, 0, 9, 1, 9, 2, 3], faults);
    let without = job(over, workers, method.clone(), &[0, 1, 2, 3], &[]);
    for (rank, (with, without)) in with.iter().zip(&without).enumerate() {
        let delivered: Vec<_> = with.steps.iter().filter(|step| step.is_ok()).collect();
        assert_eq!(delivered, without.steps.iter().collect::<Vec<_>>(), "{method}: rank {rank} of {workers}");
        assert_eq!(with.residuals, without.residuals, "{method}: rank {rank} of {workers}");
        let skipped: Vec<Option<u32>> = with.steps.iter().map(|step| step.as_ref().err().copied()).collect();
        let named = skipped[4].unwrap();
        assert!([0, last as u32 / 2].contains(&named), "{skipped:?}");
        let alone = Some(last as u32);
        assert_eq!(skipped, [alone, None, alone, None, Some(named), None, None]);
        assert_eq!((with.skipped, without.skipped), (3, 0));
        for (own, at_fault) in
            with.own.iter().zip([rank == last, rank == last, rank == 0 || rank == last / 2])
        {
            assert_eq!(own.is_some(), at_fault, "rank {rank}: {own:?}");
        }
        if rank == last {
            let own = with.own[1].as_ref().unwrap();
            assert!(own.contains("'b' has NaN at entry 5, the first of 3"), "{own}");
        }
    }
    assert!(with.iter().all(|seen| seen.steps == with[0].steps), "all ranks see the same");
}

#[test]
fn a_skipped_step_leaves_no_trace() {
    for over in NETWORKS {
        for workers in [1, 2, 4] {
            for listed in Method::all() {
                skipping_leaves_no_trace(over, workers, listed.clone().density(0.05));
            }
        }
    }
}

/// A step ends on all ranks while the rank that had it left out is still busy with the rest of the group's gradient, if it ends too early.
#[test]
fn a_step_is_left_out_once_its_whole_gradient_was_given() {
    let layout = Layout::new().group().parameter("a", 4).group().parameter("b", 4).parameter("c", 4);
    let skipping = Method::spardl().k(4).on_nonfinite(OnNonFinite::Skip);
    for over in NETWORKS {
        let seen = job::run(over, 2, |session| {
            let mut gradients = session.gradients(&layout, skipping.clone()).unwrap();
            let mut step = |bad: f32| {
                let value = if session.rank() == 1 { bad } else { 1.0 };
                gradients.ready("a", &[1.0; 4]).unwrap();
                gradients.ready("b", &[value; 4]).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50));
                gradients.ready("c", &[1.0; 4]).unwrap();
                let update = gradients.wait().unwrap();
                (update.skipped().map(|skipped| skipped.rank), bits(&update.values("c").unwrap()))
            };
            let skipped = step(f32::NAN);
            (skipped, (0..4).map(|_| step(1.0)).collect::<Vec<_>>())
        });
        for (skipped, delivered) in &seen {
            assert_eq!(*skipped, (Some(1), bits(&[0.0; 4])));
            assert!(delivered.iter().all(|(skipped, _)| skipped.is_none()) && *delivered == seen[0].1);
        }
    }
}

#[test]
fn what_a_skipping_job_resumes_is_the_same_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    // Its random numbers follow from the steps that were learnt from.
    let method = Method::named("random-k").unwrap().density(0.05).on_nonfinite(OnNonFinite::Skip);
    let layout = Layout::new().parameter("w", N);
    let step = |gradients: &mut Gradients, step| {
        let mut values = gradient(N, 0, step);
        values[7] = if step == 1 { f32::NAN } else { values[7] };
        gradients.ready("w", &values).unwrap();
        bits(&gradients.wait().unwrap().values("w").unwrap())
    };
    let steps = |gradients: &mut Gradients| (3..5).map(|s| step(gradients, s)).collect::<Vec<_>>();
    let session = Session::join().unwrap();
    let mut whole = session.gradients(&layout, method.clone()).unwrap();
    (0..3).for_each(|s| drop(step(&mut whole, s)));
    whole.save(&path).unwrap();
    let session = Session::join().unwrap();
    let mut resumed = session.gradients(&layout, method).unwrap();
    resumed.load(&path).unwrap();
    assert_eq!((resumed.step(), resumed.skipped()), (3, 1));
    assert!(steps(&mut whole) == steps(&mut resumed));
}

/// Reducers skip by themselves, whatever they reduce by, and others are not touched.
#[test]
fn a_reducer_skips_its_own_steps() {
    let n = 400;
    for over in NETWORKS {
        for workers in [1, 3] {
            job::run(over, workers, |session| {
                let rank = session.rank();
                let skip = |method: Method| method.on_nonfinite(OnNonFinite::Skip);
                let sparse = Method::spardl().density(0.1);
                let mut first = session.reducer("first", n, skip(sparse.clone())).unwrap();
                let mut most =
                    session.reducer_of("most", n, skip(Method::ring()), Reduction::<f64>::Max).unwrap();
                let mut alone = session.reducer("alone", n, sparse).unwrap();
                for step in 0..6 {
                    let mut values = gradient(n, rank, step);
                    let at_fault = workers as usize - 1 == rank && step % 2 == 0;
                    let before = first.residual().unwrap();
                    if step % 2 == 1 {
                        let wanted = alone.start(&values).unwrap().wait().unwrap();
                        let update = first.start(&values).unwrap().wait().unwrap();
                        assert_eq!(update.skipped(), None);
                        assert_eq!(
                            bits(&update.values("first").unwrap()),
                            bits(&wanted.values("alone").unwrap())
                        );
                        continue;
                    }
                    let wide: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
                    values[17] = if at_fault { f32::NAN } else { values[17] };
                    let skipped = first.start(&values).unwrap();
                    let other = most.start(&wide).unwrap();
                    let update = skipped.wait().unwrap();
                    let why = update.skipped().unwrap();
                    assert_eq!((why.rank, why.own.is_some()), (workers - 1, at_fault));
                    assert_eq!(bits(&first.residual().unwrap()), bits(&before));
                    assert_eq!(other.wait().unwrap().skipped(), None);
                    let bad = vec![if at_fault { f64::INFINITY } else { 1.0 }; n];
                    let update = most.start(&bad).unwrap().wait().unwrap();
                    assert_eq!(update.skipped().map(|why| why.rank), Some(workers - 1));
                }
            });
        }
    }
}

/// A rank cancels a step in which another one has values that are not finite: the outcome is the same for all, and only says
/// whether the good values wait for the next step, and no bad one ever does.
#[test]
fn cancelling_and_skipping_at_once_leave_nothing_that_is_not_finite() {
    let n = 500;
    let (mut cancelled, mut skipped) = (0, 0);
    for over in NETWORKS {
        let ends = job::run(over, 3, |session| {
            let rank = session.rank();
            let method = Method::spardl().density(0.1).on_nonfinite(OnNonFinite::Skip);
            let mut reducer = session.reducer("r", n, method).unwrap();
            let mut ends = Vec::new();
            for step in 0..80 {
                let mut values = gradient(n, rank, step);
                let before = reducer.residual().unwrap();
                // Now the one asks first, now the other, and sometimes both at once.
                let pause = || std::thread::sleep(std::time::Duration::from_micros(step * 40));
                if rank == 2 {
                    values[3] = f32::NAN;
                    (step % 2 == 0).then(pause);
                }
                let handle = reducer.start(&values).unwrap();
                if rank == 1 {
                    (step % 2 == 1).then(pause);
                    handle.cancel();
                }
                let waits = match handle.wait() {
                    Err(Error::Cancelled(c)) => {
                        ends.push((c.rank, false));
                        rank != 2
                    }
                    Ok(update) => {
                        ends.push((update.skipped().unwrap().rank, true));
                        false
                    }
                    Err(other) => panic!("{other}"),
                };
                let wanted: Vec<f32> = before
                    .iter()
                    .zip(&values)
                    .map(|(old, new)| if waits { old + new } else { *old })
                    .collect();
                assert_eq!(bits(&reducer.residual().unwrap()), bits(&wanted));
            }
            ends
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "all ranks see the same");
        for (rank, skip) in &ends[0] {
            assert_eq!(*rank, if *skip { 2 } else { 1 });
            *(if *skip { &mut skipped } else { &mut cancelled }) += 1;
        }
    }
    // Both happen, or nothing is tested.
    assert!(cancelled > 20 && skipped > 20, "{cancelled} {skipped}");
}

#[test]
fn ranks_that_differ_in_what_they_do_are_reported() {
    let failures = job::run(Over::Memory, 2, |session| {
        let on = if session.rank() == 1 { OnNonFinite::Skip } else { OnNonFinite::Refuse };
        session.gradients(&layout(), Method::ring().on_nonfinite(on)).err().unwrap().to_string()
    });
    for failure in failures {
        assert!(
            failure.contains("not finite: skip, rank 0 has on values that are not finite: refuse"),
            "{failure}"
        );
    }
}
