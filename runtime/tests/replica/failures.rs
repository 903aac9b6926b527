//! A worker that dies while units travel in the background: all ranks are told why, and nothing is half applied.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Error, Pass};

use crate::job::{self, NETWORKS};
use crate::problem::{self, SAMPLES, bits, gradient, initial, layout, options, places, rate};

/// Rank 1 panics when its pass is over, while all units are under way: the others have either all of them or none.
#[test]
fn a_panic_while_units_are_under_way_is_reported_to_all_and_leaves_nothing_half_applied() {
    let synchrony = options("osp/lgp=off,cap=1,budget=1", Method::ring());
    let whole = problem::run(NETWORKS[0], 4, &synchrony, 5);
    for over in NETWORKS {
        let (started, together) = (Instant::now(), Barrier::new(4));
        let ends = job::run(over, 4, |session| {
            let mut replica = session.replica(&layout(), &initial(), synchrony.clone()).unwrap();
            problem::steps(&session, &mut replica, 0..3);
            // A rank that is still in an earlier step when rank 1 panics would be notified there.
            together.wait();
            if session.rank() == 1 {
                let dropped = catch_unwind(AssertUnwindSafe(move || {
                    let (_replica, _session) = (replica, session);
                    panic!("no file 7");
                }));
                assert!(dropped.is_err());
                return None;
            }
            for step in 3.. {
                let gradient = gradient(replica.parameters(), session.rank(), step);
                let given = places().try_for_each(|(name, place)| replica.ready(&name, &gradient[place]));
                let pass = Pass { rate: rate(step), samples: SAMPLES, loss: 1.0 };
                let Err(error) = given.and_then(|()| replica.step(pass)) else { continue };
                let again = replica.flush().unwrap_err().to_string();
                assert_eq!(again, error.to_string(), "the replica stays failed");
                let Error::Failed(failure) = error else { panic!("another error: {error}") };
                return Some((failure, bits(replica.parameters())));
            }
            None
        });
        assert!(started.elapsed() < Duration::from_secs(8), "no rank waits for a timeout");
        let ends: Vec<_> = ends.into_iter().flatten().collect();
        assert_eq!(ends.len(), 3);
        for (failure, parameters) in ends {
            assert_eq!((failure.rank, failure.reason.as_str()), (1, "its program panicked: no file 7"));
            // As after three steps, or with the update that was under way then.
            assert!(whole[0][2..4].contains(&parameters), "half of an update");
        }
    }
}
