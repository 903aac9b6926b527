//! Whatever one rank does, every rank ends with an error that names it.

use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Failure, Layout};

use crate::job::{self, BOTH, gradient};

const N: usize = 2000;

/// What every rank is told when rank 2 of 5 misbehaves at step 3.
fn failures(
    over: job::Over,
    misbehave: impl Fn(&mut gleaner_runtime::Gradients) -> Option<Error> + Sync,
) -> Vec<Failure> {
    let started = Instant::now();
    let failures = job::run(over, 5, |session| {
        let method = Method::spardl().density(0.05);
        let mut gradients = session.gradients(&Layout::new().parameter("w", N), method).unwrap();
        for step in 0.. {
            if session.rank() == 2 && step == 3 {
                match misbehave(&mut gradients) {
                    Some(Error::Failed(failure)) => return Some(failure),
                    Some(other) => panic!("another error: {other}"),
                    None => return None,
                }
            }
            let result =
                gradients.ready("w", &gradient(N, session.rank(), step)).and_then(|()| gradients.wait());
            if let Err(error) = result {
                let again = gradients.wait().unwrap_err();
                assert_eq!(again.to_string(), error.to_string(), "the handle stays failed");
                match error {
                    Error::Failed(failure) => return Some(failure),
                    other => panic!("another error: {other}"),
                }
            }
        }
        None
    });
    assert!(started.elapsed() < Duration::from_secs(8), "nobody waits for a time-out");
    failures.into_iter().flatten().collect()
}

#[test]
fn a_gradient_that_is_not_finite_is_refused_everywhere() {
    for over in BOTH {
        for (poison, word) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
            let failures = failures(over, |gradients| {
                let mut g = gradient(N, 2, 3);
                [1234, 1300, N - 1].into_iter().for_each(|i| g[i] = poison);
                gradients.ready("w", &g).err()
            });
            assert_eq!(failures.len(), 5);
            for failure in failures {
                assert_eq!((failure.rank, failure.step), (2, Some(3)), "{failure}");
                let found = format!("'w' has {word} at entry 1234, the first of 3 entries");
                assert!(failure.reason.contains(&found), "{failure}");
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_in_the_middle_is_named_by_all_others() {
    for over in BOTH {
        let failures = failures(over, |_| None);
        assert_eq!(failures.len(), 4);
        for failure in failures {
            assert_eq!((failure.rank, failure.step), (2, Some(3)), "{failure}");
            assert!(failure.reason.contains("left the job"), "{failure}");
        }
    }
}
