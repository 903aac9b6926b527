//! Sums that are completed in a second exchange, over real links.

use gleaner_algorithms::Method;
use gleaner_algorithms::residual::Correction;
use gleaner_runtime::{Gradients, Layout, Session};

use crate::job::{self, NETWORKS, Over, gradient};

const WORKERS: u32 = 3;
const N: usize = 500;

fn made(session: &Session, method: &Method) -> Gradients {
    session.gradients(&Layout::new().parameter("all", N), method.clone()).unwrap()
}

/// One step: the entries of the update, and its values.
fn step(session: &Session, gradients: &mut Gradients, number: u64) -> Vec<f32> {
    gradients.ready("all", &gradient(N, session.rank(), number)).unwrap();
    gradients.wait().unwrap().values("all").unwrap()
}

/// In the first step nothing has waited, so an entry of the update is the mean of the gradients there.
#[test]
fn an_entry_has_what_all_workers_have_there() {
    for over in NETWORKS {
        for name in ["spardl", "topka", "gtopk", "oktopk", "ssar-recursive-double", "exdyna"] {
            let method = Method::named(name).unwrap().k(25);
            let found = job::run(over, WORKERS, |session| {
                let mut plain = made(&session, &method);
                let mut completed = made(&session, &method.clone().complete_sums());
                let found = (step(&session, &mut plain, 0), step(&session, &mut completed, 0));
                let more = if name == "exdyna" { 0 } else { 4 };
                assert_eq!(completed.rounds(), plain.rounds() + more, "{name}");
                found
            });
            let (plain, completed) = &found[0];
            assert!(found.iter().all(|other| other.1 == *completed), "{name}, {over:?}");
            let own: Vec<Vec<f32>> = (0..WORKERS as usize).map(|rank| gradient(N, rank, 0)).collect();
            let mut parts = 0;
            for i in 0..N {
                assert_eq!(plain[i] == 0.0, completed[i] == 0.0, "{name}, {over:?}, entry {i}");
                let mean = own.iter().map(|of| of[i]).sum::<f32>() / WORKERS as f32;
                let off = (completed[i] - mean).abs();
                assert!(completed[i] == 0.0 || off < 1e-5, "{name}, {over:?}, entry {i}: off by {off}");
                parts += usize::from((plain[i] - completed[i]).abs() > 1e-5);
            }
            assert_eq!(parts > 0, name != "exdyna", "{name}, {over:?}");
        }
    }
}

/// The steps after a checkpoint are the same bit by bit, also with rounded values and velocities.
#[test]
fn a_job_goes_on_bit_by_bit() {
    let correction = Correction { momentum: 0.5, mask: true, ..Correction::default() };
    let method = Method::spardl().corrected(correction).complete_sums();
    let folder = tempfile::tempdir().unwrap();
    let run = |first: u64| {
        job::run(Over::Memory, WORKERS, |session| {
            let file = folder.path().join(format!("rank-{}.safetensors", session.rank()));
            let mut gradients = made(&session, &method);
            if first > 0 {
                gradients.load(&file).unwrap();
            }
            let steps = (first..12).map(|number| {
                if number == 6 && first == 0 {
                    gradients.save(&file).unwrap();
                }
                step(&session, &mut gradients, number)
            });
            steps.collect::<Vec<_>>()
        })
    };
    let (uninterrupted, resumed) = (run(0), run(6));
    for (whole, resumed) in uninterrupted.iter().zip(&resumed) {
        assert!(whole[6..] == resumed[..]);
    }
}
