//! Replicas survive a restart bit by bit, also while units are under way.

use std::path::{Path, PathBuf};

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_runtime::{Layout, Options, Session};

use crate::job::{self, Over};
use crate::problem::{self, N, bits, initial, layout, options};

const STEPS: u64 = 14;

fn file(folder: &Path, session: &Session) -> PathBuf {
    folder.join(format!("rank-{}.safetensors", session.rank()))
}

/// Saved after each step of a run: the run has the same bits as one without checkpoints, and so has one that goes on from any of them.
#[test]
fn a_resumed_run_has_the_bits_of_an_uninterrupted_one() {
    let corrected =
        Correction { momentum: 0.5, mask: true, clip: Some(5.0), warm_up: 8, ef21: false, decay: None };
    let methods = [
        Method::ring(),
        Method::spardl().density(0.1).corrected(Correction { momentum: 0.0, mask: false, ..corrected }),
        Method::named("oktopk").unwrap().density(0.1).corrected(corrected),
        Method::named("exdyna").unwrap().density(0.1),
    ];
    let synchronies = [
        "bsp",
        "osp/budget=0.6",
        "osp/budget=0.9,lgp=ema:0.5,cap=1",
        "osp/lgp=off,cap=1,budget=1",
        "local/4,0.7,0.9",
    ];
    for (method, synchrony) in
        methods.iter().flat_map(|method| synchronies.map(|synchrony| (method, synchrony)))
    {
        if synchrony.starts_with("local") && method.correction().momentum > 0.0 {
            continue;
        }
        let options = options(synchrony, method.clone());
        let whole = problem::run(Over::Memory, 3, &options, STEPS);
        for stop in [1, 4, 6, 13] {
            let folder = tempfile::tempdir().unwrap();
            let saved = job::run(Over::Memory, 3, |session| {
                let mut replica = session.replica(&layout(), &initial(), options.clone()).unwrap();
                let mut all = problem::steps(&session, &mut replica, 0..stop);
                replica.save(file(folder.path(), &session)).unwrap();
                all.extend(problem::steps(&session, &mut replica, stop..STEPS));
                replica.flush().unwrap();
                all.push(bits(replica.parameters()));
                all
            });
            assert!(saved == whole, "{method} under {synchrony}: saving changes nothing");
            let rest = job::run(Over::Adverse, 3, |session| {
                let mut replica = session.replica(&layout(), &initial(), options.clone()).unwrap();
                let run = replica.run().to_owned();
                replica.load(file(folder.path(), &session)).unwrap();
                assert_ne!(replica.run(), run);
                let before = bits(replica.parameters());
                let mut all = vec![before];
                all.extend(problem::steps(&session, &mut replica, stop..STEPS));
                replica.flush().unwrap();
                all.push(bits(replica.parameters()));
                all
            });
            for (rest, whole) in rest.iter().zip(&whole) {
                assert!(
                    rest[..] == whole[stop as usize - 1..],
                    "{method} under {synchrony} from step {stop}"
                );
            }
        }
    }
}

/// A step that is left out, also of units that were under way.
#[test]
fn steps_that_were_left_out_are_counted_on() {
    let method = Method::spardl().density(0.1).on_nonfinite(OnNonFinite::Skip);
    let options = options("osp/cap=1,budget=1", method);
    let run = |session: &Session, from: u64, to: u64, folder: &Path| {
        let mut replica = session.replica(&layout(), &initial(), options.clone()).unwrap();
        if from > 0 {
            replica.load(file(folder, session)).unwrap();
        }
        let mut skipped = 0;
        for step in from..to {
            let mut gradient = problem::gradient(replica.parameters(), session.rank(), step);
            if step == 3 && session.rank() == 2 {
                gradient[499] = f32::INFINITY;
            }
            skipped += usize::from(problem::step(&mut replica, &gradient, step).skipped.is_some());
            assert!(replica.parameters().iter().all(|value| value.is_finite()), "step {step}");
        }
        replica.save(file(folder, session)).unwrap();
        (skipped, bits(replica.parameters()))
    };
    let (once, twice) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let whole = job::run(Over::Memory, 3, |session| run(&session, 0, 9, once.path()));
    // While the step that is left out is under way.
    let first = job::run(Over::Memory, 3, |session| run(&session, 0, 4, twice.path()).0);
    let second = job::run(Over::Memory, 3, |session| run(&session, 4, 9, twice.path()));
    assert_eq!(first, [0; 3]);
    assert!(whole.iter().all(|(skipped, _)| *skipped == 1));
    assert!(second == whole);
}

/// Also by the names that the replica has for values of its own.
#[test]
fn a_trainers_values_and_words_are_saved_beside_the_replica() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::join().unwrap();
    let path = file(folder.path(), &session);
    let make = || session.replica(&layout(), &initial(), options("osp/budget=0.6", Method::ring())).unwrap();
    let (mut replica, mut again) = (make(), make());
    problem::steps(&session, &mut replica, 0..3);
    let (mean, seed) = ([1.5_f32, f32::INFINITY], ("seed", "3".to_owned()));
    let values = [("parameters", &mean[..]), ("true values", &mean[..0])];
    replica.save_with(&path, &values, &[seed.clone(), ("epoch", "7".into())]).unwrap();
    let mut found = [0.0; 2];
    let refusal = again.load_with(&path, &mut [("parameters", &mut found)], &[("seed", "4".into())]);
    assert!(refusal.unwrap_err().to_string().contains("its seed is 3, here it is 4"));
    let refusal = again.load_with(&path, &mut [("parameters", &mut found[..1])], &[]);
    assert!(refusal.unwrap_err().to_string().contains("length of 'parameters' is 2, here it is 1"));
    assert_eq!((again.step_number(), again.parameters(), found), (0, &initial()[..], [0.0; 2]));
    let said = again.load_with(&path, &mut [("parameters", &mut found)], &[seed]).unwrap();
    assert_eq!((said["epoch"].as_str(), found), ("7", mean));
    assert_eq!((again.step_number(), bits(again.parameters())), (3, bits(replica.parameters())));
    // Without them.
    again.load(&path).unwrap();
}

#[test]
fn checkpoints_of_other_jobs_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session::join().unwrap();
    let path = file(folder.path(), &session);
    let mut replica =
        session.replica(&layout(), &initial(), options("osp/budget=0.6", Method::ring())).unwrap();
    problem::steps(&session, &mut replica, 0..3);
    replica.save(&path).unwrap();
    let refusal = |layout: Layout, options: Options| {
        let mut other = session.replica(&layout, &initial(), options).unwrap();
        let said = other.load(&path).unwrap_err().to_string();
        assert_eq!((other.step_number(), other.parameters()), (0, &initial()[..]));
        said
    };
    let other = refusal(layout(), options("bsp", Method::ring()));
    assert!(other.contains("its method is ring under osp/budget=0.6, here it is ring under bsp"), "{other}");
    let other = refusal(Layout::new().parameter("w", N), options("osp/budget=0.6", Method::ring()));
    assert!(other.contains("its number of parameters is 5, here it is 1"), "{other}");
    let mut gradients = session.gradients(&layout(), Method::ring()).unwrap();
    let other = gradients.load(&path).unwrap_err().to_string();
    assert!(other.contains("its method is ring under osp/budget=0.6, here it is ring"), "{other}");
    // In the middle of a pass.
    replica.ready("p1", &[1.0]).unwrap();
    for said in [replica.save(&path), replica.load(&path)].map(|end| end.unwrap_err().to_string()) {
        assert!(said.contains("is called between steps only"), "{said}");
    }
}
