//! Residuals, state and step survive a restart bit by bit.

use std::path::Path;

use gleaner_algorithms::Method;
use gleaner_runtime::{Gradients, Layout, Session};

use crate::job::{self, Over, gradient};

const N: usize = 900;

fn layout() -> Layout {
    Layout::new().parameter("late", 300).group().parameter("early", 600)
}

fn steps(session: &Session, gradients: &mut Gradients, steps: std::ops::Range<u64>) -> Vec<u32> {
    let mut bits = Vec::new();
    for step in steps {
        assert_eq!(gradients.step(), step);
        let g = gradient(N, session.rank(), step);
        gradients.ready("early", &g[300..]).unwrap();
        gradients.ready("late", &g[..300]).unwrap();
        let update = gradients.wait().unwrap();
        let mut mean = vec![0.0f32; N];
        update.add_to("late", &mut mean[..300], 1.0).unwrap();
        update.add_to("early", &mut mean[300..], 1.0).unwrap();
        bits.extend(mean.iter().map(|v| v.to_bits()));
    }
    bits
}

fn file(folder: &Path, session: &Session) -> std::path::PathBuf {
    folder.join(format!("rank-{}.safetensors", session.rank()))
}

#[test]
fn a_resumed_job_goes_on_bit_by_bit() {
    for method in [Method::spardl().density(0.05), Method::ring()] {
        let whole = job::run(Over::Memory, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            steps(&session, &mut gradients, 0..8)
        });
        let folder = tempfile::tempdir().unwrap();
        job::run(Over::Memory, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            steps(&session, &mut gradients, 0..5);
            gradients.save(&file(folder.path(), &session)).unwrap();
        });
        let rest = job::run(Over::Memory, 3, |session| {
            let mut gradients = session.gradients(&layout(), method.clone()).unwrap();
            gradients.load(&file(folder.path(), &session)).unwrap();
            steps(&session, &mut gradients, 5..8)
        });
        for (whole, rest) in whole.iter().zip(rest) {
            assert!(whole[5 * N..] == rest);
        }
    }
}

#[test]
fn a_checkpoint_of_another_job_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    let session = Session::join().unwrap();
    let mut gradients = session.gradients(&layout(), Method::spardl().density(0.05)).unwrap();
    gradients.ready("late", &[0.5; 300]).unwrap();
    assert!(gradients.save(&path).unwrap_err().to_string().contains("between steps"));
    gradients.ready("early", &[0.5; 600]).unwrap();
    gradients.wait().unwrap();
    gradients.save(&path).unwrap();

    let refusal = |layout: Layout, method: Method| {
        let mut other = session.gradients(&layout, method).unwrap();
        let sentence = other.load(&path).unwrap_err().to_string();
        assert_eq!(other.step(), 0);
        sentence
    };
    let method = refusal(layout(), Method::ring());
    assert!(method.contains("its method is spardl") && method.contains("here it is ring"), "{method}");
    let spardl = Method::spardl().density(0.05);
    let length = refusal(Layout::new().parameter("late", 300).parameter("early", 601), spardl.clone());
    assert!(length.contains("length of 'early' is 600, here it is 601"), "{length}");
    let name = refusal(Layout::new().parameter("late", 300).parameter("soon", 600), spardl.clone());
    assert!(name.contains("length of 'soon' is missing"), "{name}");
    // Another grouping of the same parameters finds its residuals again.
    let mut regrouped =
        session.gradients(&Layout::new().parameter("late", 300).parameter("early", 600), spardl).unwrap();
    regrouped.load(&path).unwrap();
    assert_eq!(regrouped.step(), 1);
}

#[test]
fn neither_half_a_step_nor_a_failed_one_is_saved_or_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.safetensors");
    let session = Session::join().unwrap();
    let mut gradients = session.gradients(&layout(), Method::spardl().density(0.05)).unwrap();
    steps(&session, &mut gradients, 0..1);
    gradients.save(&path).unwrap();
    gradients.ready("late", &[0.5; 300]).unwrap();
    assert!(gradients.load(&path).unwrap_err().to_string().contains("between steps"));
    let mut poisoned = [0.5; 600];
    poisoned[599] = f32::NAN;
    assert!(gradients.ready("early", &poisoned).unwrap_err().to_string().contains("NaN"));
    let saved = std::fs::read(&path).unwrap();
    assert!(gradients.save(&path).unwrap_err().to_string().contains("NaN"), "the job has failed");
    assert!(gradients.load(&path).unwrap_err().to_string().contains("NaN"));
    assert!(std::fs::read(&path).unwrap() == saved);
}
