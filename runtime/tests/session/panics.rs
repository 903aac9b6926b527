//! A panic in what the user brings ends the job with a sentence that names the rank, on every rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use gleaner_algorithms::{Method, Reduction};
use gleaner_runtime::{Error, Session};
use gleaner_transport::memory::{self, MemoryNetwork};
use gleaner_transport::{Counters, LinkEvent, Network, Peer};

use crate::job::{self, NETWORKS, TIMEOUT};

/// One rank meets the thousand first, and passes nothing on.
fn careful(a: f32, b: f32) -> f32 {
    assert!(a < 1000.0 && b < 1000.0, "a thousand is too much");
    a + b
}

#[test]
fn a_panic_in_a_reduction_is_reported_to_all_ranks() {
    // What is met by chance is merged on the I/O thread; of several thousand entries a compute thread commits.
    for (over, n) in NETWORKS.into_iter().flat_map(|over| [(over, 40), (over, 100_000)]) {
        let ends = job::run(over, 4, |session| {
            let careful = Reduction::Custom { name: "careful", neutral: 0.0f32, combine: careful };
            let mut reducer = session.reducer_of("r", n, Method::ring(), careful).unwrap();
            for step in 0..10 {
                let mut values = vec![1.0; n];
                if session.rank() == 1 && step == 3 {
                    values[n / 2] = 1000.0;
                }
                match reducer.start(&values).and_then(|handle| handle.wait()) {
                    Ok(_) => {}
                    Err(Error::Failed(failure)) => return failure,
                    Err(other) => panic!("another error: {other}"),
                }
            }
            panic!("nothing failed")
        });
        for failure in &ends {
            assert_eq!((failure.rank, failure.step), (ends[0].rank, Some(3)), "{failure}");
            let sentence = "it panicked: a thousand is too much";
            assert!(failure.reason.starts_with(sentence), "{failure}");
        }
    }
}

/// However a program ends, the others are told what it said.
#[test]
fn a_program_that_panics_or_gives_up_is_named_with_what_it_said() {
    let panics = |session: Session| {
        let dropped = catch_unwind(AssertUnwindSafe(move || {
            let _session = session;
            panic!("no file {}", 7);
        }));
        assert!(dropped.is_err());
    };
    let gives_up = |session: Session| {
        let error = session.abort(&"no file 7").to_string();
        assert_eq!(error, "rank 1 failed at step 3: its program failed: no file 7");
    };
    let ends: [(&str, &(dyn Fn(Session) + Sync)); 2] =
        [("its program panicked: no file 7", &panics), ("its program failed: no file 7", &gives_up)];
    for (over, (said, end)) in NETWORKS.into_iter().flat_map(|over| ends.map(|end| (over, end))) {
        let failures = job::run(over, 3, |session| {
            let mut reducer = session.reducer("r", 40, Method::ring()).unwrap();
            for step in 0..10 {
                if session.rank() == 1 && step == 4 {
                    drop(reducer);
                    end(session);
                    return None;
                }
                match reducer.start(&[1.0; 40]).and_then(|handle| handle.wait()) {
                    Ok(_) => {}
                    Err(Error::Failed(failure)) => return Some(failure),
                    Err(other) => panic!("another error: {other}"),
                }
            }
            panic!("nothing failed")
        });
        let failures: Vec<_> = failures.into_iter().flatten().collect();
        assert_eq!(failures.len(), 2);
        for failure in failures {
            assert_eq!((failure.rank, failure.reason.as_str()), (1, said), "{failure}");
        }
    }
}

/// A network a part of which panics on request.
struct Breaks(MemoryNetwork, Arc<AtomicBool>);

impl Network for Breaks {
    fn peer(&self) -> Peer {
        self.0.peer()
    }

    fn workers(&self) -> u32 {
        self.0.workers()
    }

    fn open(&mut self, peer: Peer) {
        self.0.open(peer);
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        if self.1.swap(false, Ordering::Relaxed) {
            return Poll::Ready(Some(LinkEvent::Panicked { reason: "no more descriptors".into() }));
        }
        self.0.poll_event(context)
    }

    fn counters(&self) -> Arc<Counters> {
        self.0.counters()
    }
}

#[test]
fn a_panic_in_a_network_is_reported_to_all_ranks() {
    let ranks: Vec<_> = memory::networks(3)
        .into_iter()
        .map(|network| {
            std::thread::spawn(move || {
                let (rank, breaks) = (network.peer().0, Arc::new(AtomicBool::new(false)));
                let network = Breaks(network, Arc::clone(&breaks));
                let session = Session::over(async { Ok(network) }, TIMEOUT).unwrap();
                let mut reducer = session.reducer("r", 100, Method::ring()).unwrap();
                for step in 0.. {
                    breaks.store(rank == 1 && step == 3, Ordering::Relaxed);
                    if let Err(error) = reducer.start(&[1.0; 100]).and_then(|handle| handle.wait().map(drop))
                    {
                        return error.to_string();
                    }
                }
                unreachable!("the job fails")
            })
        })
        .collect();
    for rank in ranks {
        let said = rank.join().unwrap();
        assert!(
            said.starts_with("rank 1 failed at step")
                && said.ends_with("its network panicked: no more descriptors"),
            "{said}"
        );
    }
}
