//! Whatever one rank does, every rank ends with an error that names it.

use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Failure, Layout, Session};
use gleaner_transport::{LinkError, Message, Network, Peer, memory};

use crate::changed::{Change, Changed};
use crate::job::{self, NETWORKS, gradient};

const N: usize = 2000;

/// The sentence of every rank when rank 2 of 5 misbehaves at step 3.
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
    assert!(started.elapsed() < Duration::from_secs(8), "no rank waits for a timeout");
    failures.into_iter().flatten().collect()
}

#[test]
fn a_gradient_that_is_not_finite_is_refused_everywhere() {
    for over in NETWORKS {
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
    for over in NETWORKS {
        let failures = failures(over, |_| None);
        assert_eq!(failures.len(), 4);
        for failure in failures {
            assert_eq!((failure.rank, failure.step), (2, Some(3)), "{failure}");
            assert!(failure.reason.contains("left the job"), "{failure}");
        }
    }
}

/// The rank that reads what was never sent knows it first-hand, and all name the other end.
#[test]
fn damage_on_the_way_is_reported_by_all_ranks_alike() {
    fn damage(message: Message) -> Result<Message, LinkError> {
        let is_damaged = !message.tag.is_control() && message.tag.0 & 0xff_ffff == 3;
        let damaged = LinkError::Damaged { peer: Peer(2), what: "a record does not open".into() };
        if is_damaged { Err(damaged) } else { Ok(message) }
    }
    for workers in 2..=4 {
        // In a ring, rank 0 reads bags of the last rank alone.
        let networks = memory::networks(workers).into_iter();
        let ranks: Vec<_> = networks
            .map(|network| {
                std::thread::spawn(move || {
                    let change: Change = if network.peer() == Peer(0) { damage } else { Ok };
                    let network = Changed(network, change);
                    let session = Session::over(async { Ok(network) }, job::TIMEOUT).unwrap();
                    let mut reducer = session.reducer("r", 8, Method::ring()).unwrap();
                    let mut steps = (0..9).map(|_| reducer.start(&[1.0; 8])?.wait().map(drop));
                    steps.find_map(Result::err).unwrap()
                })
            })
            .collect();
        let failures: Vec<_> = (ranks.into_iter())
            .map(|rank| match rank.join().unwrap() {
                Error::Failed(failure) => failure,
                other => panic!("{other}"),
            })
            .collect();
        for failure in &failures {
            assert_eq!(failure, &failures[0], "all ranks tell the same");
            assert_eq!(failure.rank, workers - 1, "{failure}");
            // What does not open does not tell its step. The sender may be a step ahead of the reader.
            assert!(matches!(failure.step, Some(2 | 3)), "{failure}");
            assert!(failure.reason.contains("a record does not open"), "{failure}");
        }
    }
}
