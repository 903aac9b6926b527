//! Momentum correction, masking, local clipping and density warm-up in a running job.

use std::path::Path;

use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_algorithms::{Element, Method, Reduction};
use gleaner_runtime::{Gradients, Layout, Session};

use crate::job::{self, NETWORKS, Over, gradient};

const N: usize = 900;
const STEPS: u64 = 12;

const ALL: Correction =
    Correction { momentum: 0.9, mask: true, clip: Some(5.0), warm_up: 8, ef21: false, decay: None };

const DECAYING: Correction = Correction { momentum: 0.0, mask: false, decay: Some(0.9), ..ALL };

const CHANGES: Correction = Correction { mask: false, ef21: true, ..ALL };

fn layout() -> Layout {
    Layout::new().parameter("late", 300).group().parameter("early", 600)
}

/// Some steps; gives the bits of the updates.
fn steps(session: &Session, gradients: &mut Gradients, steps: std::ops::Range<u64>) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for step in steps {
        let mut g = gradient(N, session.rank(), step);
        if step == 6 && session.rank() == 1 {
            g[450] = f32::INFINITY;
        }
        gradients.ready("early", &g[300..]).unwrap();
        gradients.ready("late", &g[..300]).unwrap();
        let update = gradients.wait().unwrap();
        assert_eq!(update.skipped().is_some(), step == 6);
        let values = ["late", "early"].map(|name| update.values(name).unwrap());
        all.push(values.concat().iter().map(|v| v.to_bits()).collect());
    }
    all
}

fn file(folder: &Path, session: &Session) -> std::path::PathBuf {
    folder.join(format!("rank-{}.safetensors", session.rank()))
}

#[test]
fn all_ranks_agree_and_a_resumed_job_goes_on_bit_by_bit_with_all_of_it_on() {
    let all = Method::all().map(|method| method.corrected(ALL));
    let sparse = || Method::all().filter(|method| method.collective().is_sparse());
    let decaying = sparse().map(|method| method.corrected(DECAYING));
    let changes = sparse().map(|method| method.corrected(CHANGES));
    for (i, corrected) in all.chain(decaying).chain(changes).enumerate() {
        let method = corrected.density(0.01).on_nonfinite(OnNonFinite::Skip);
        let over = NETWORKS[i % 2];
        let whole = job::run(over, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            steps(&session, &mut gradients, 0..STEPS)
        });
        assert!(whole.iter().all(|rank| *rank == whole[0]), "{method}: the same on all ranks");
        // In the middle of the warm-up, after the skipped step, and when it is over.
        for stop in [3, 7, 11] {
            let folder = tempfile::tempdir().unwrap();
            job::run(over, 3, |session| {
                let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
                steps(&session, &mut gradients, 0..stop);
                gradients.save(file(folder.path(), &session)).unwrap();
            });
            let rest = job::run(over, 3, |session| {
                let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
                gradients.load(file(folder.path(), &session)).unwrap();
                steps(&session, &mut gradients, stop..STEPS)
            });
            assert!(
                rest.iter().all(|rest| rest[..] == whole[0][stop as usize..]),
                "{method} from step {stop}"
            );
        }
    }
}

/// How many entries are delivered follows the warm-up.
#[test]
fn the_density_falls_step_by_step() {
    let correction = Correction { warm_up: 6, ..Correction::default() };
    for name in ["spardl", "gtopk"] {
        for method in [Method::named(name).unwrap().density(0.01), Method::named(name).unwrap().k(9)] {
            let method = method.corrected(correction);
            let counts = job::run(Over::Memory, 3, |session| {
                let mut gradients =
                    session.gradients(&Layout::new().parameter("w", N), method.clone()).unwrap();
                let mut counts = Vec::new();
                for step in 0..8 {
                    gradients.ready("w", &gradient(N, session.rank(), step)).unwrap();
                    counts.push(gradients.wait().unwrap().entries());
                }
                counts
            });
            // log4(25) is 2.3: two stages, of 25% and 5%.
            assert!(counts.iter().all(|c| *c == [225, 225, 225, 45, 45, 45, 9, 9]), "{method}: {counts:?}");
        }
    }
}

#[test]
fn gradients_are_clipped_together_and_short_ones_not_at_all() {
    let run = |correction: Correction, reducer: bool| {
        job::run(Over::Memory, 4, |session| {
            let method = Method::ring().corrected(correction);
            let g = gradient(N, session.rank(), 0);
            if reducer {
                let mut reducer = session.reducer("r", N, method).unwrap();
                return reducer.start(&g).unwrap().wait().unwrap().values("r").unwrap();
            }
            let mut gradients = session.gradients(&layout(), method).unwrap();
            gradients.ready("early", &g[300..]).unwrap();
            gradients.ready("late", &g[..300]).unwrap();
            let update = gradients.wait().unwrap();
            ["late", "early"].map(|name| update.values(name).unwrap()).concat()
        })
        .swap_remove(0)
    };
    let clip = |norm| Correction { clip: Some(norm), ..Correction::default() };
    for reducer in [false, true] {
        let plain = run(Correction::default(), reducer);
        assert!(run(clip(1e6), reducer).iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits()));
        let clipped = run(clip(1.5), reducer);
        // Each of four workers is shortened to half of 1.5.
        let mut expected = vec![0.0f64; N];
        for rank in 0..4 {
            let g = gradient(N, rank, 0);
            let norm = g.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt();
            assert!(norm > 0.75, "nothing is clipped otherwise");
            expected.iter_mut().zip(&g).for_each(|(e, v)| *e += f64::from(*v) * 0.75 / norm / 4.0);
        }
        assert!(clipped.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6));
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let session = Session::join().unwrap();
    let none = Correction::default();
    let refusal = |method: Method, correction: Correction| {
        session.gradients(&layout(), method.corrected(correction)).err().unwrap().to_string()
    };
    let spardl = Method::spardl();
    assert!(refusal(spardl.clone(), Correction { momentum: 1.0, ..none }).contains("below 1"));
    assert!(
        refusal(spardl.clone(), Correction { mask: true, ..none }).contains("without momentum correction")
    );
    assert!(refusal(spardl.clone(), Correction { clip: Some(0.0), ..none }).contains("above 0"));
    assert!(refusal(Method::auto(), Correction { warm_up: 5, ..none }).contains("method auto"));
    assert!(refusal(spardl.clone(), Correction { decay: Some(1.5), ..none }).contains("above 0 and up to 1"));
    assert!(refusal(Method::ring(), Correction { decay: Some(0.5), ..none }).contains("with a dense method"));
    let method = Method::ring().corrected(Correction { momentum: 0.5, ..none });
    let most = session.reducer_of("most", 4, method, Reduction::<f32>::Max).err().unwrap().to_string();
    assert!(most.contains("choose the sum"), "{most}");

    // A checkpoint without velocities is of another method.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    session.gradients(&layout(), spardl.clone()).unwrap().save(&path).unwrap();
    let mut moving =
        session.gradients(&layout(), spardl.corrected(Correction { momentum: 0.5, ..none })).unwrap();
    let other = moving.load(&path).unwrap_err().to_string();
    assert!(other.contains("0.5 momentum correction"), "{other}");
}

/// Another type of values is corrected in its own arithmetic.
#[test]
fn reducers_of_other_types_are_corrected() {
    fn check<T: Element>() {
        let session = Session::join().unwrap();
        let method = Method::ring().corrected(Correction { momentum: 0.5, ..Correction::default() });
        let mut reducer = session.reducer_of("r", 2, method, Reduction::Sum).unwrap();
        let values: Vec<T> = [1.0, -4.0].map(T::from_f64).to_vec();
        let deliver = |reducer: &mut gleaner_runtime::Reducer<T>| {
            let update = reducer.start(&values).unwrap().wait().unwrap();
            update.values("r").unwrap().iter().map(|v| v.to_f64()).collect::<Vec<f64>>()
        };
        assert_eq!(deliver(&mut reducer), [1.0, -4.0], "{}", T::NAME);
        assert_eq!(deliver(&mut reducer), [1.5, -6.0], "{}", T::NAME);
    }
    check::<f64>();
    check::<half::bf16>();
    check::<half::f16>();
}
