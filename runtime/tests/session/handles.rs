//! All-reduces that are not waited for: several at once, on any executor, dropped at any time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Config, Error, Handle, Layout, LayoutError, Session, Update};

use crate::job::{self, NETWORKS, Over, gradient};

/// The smallest executor there is: it knows nothing of tokio.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// Polls this many times at most, and drops what is not ready then.
fn poll_times(mut handle: Handle, times: usize) -> Option<Result<Update, Error>> {
    (0..times).find_map(|_| {
        block_on(poll_fn(|context| {
            Poll::Ready(match std::pin::Pin::new(&mut handle).poll(context) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            })
        }))
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// What the steps of one gradient deliver when they are waited for one after the other.
fn one_by_one(session: &Session, method: Method, n: usize, seed: u64, steps: u64) -> Vec<Vec<u32>> {
    let mut gradients = session.gradients(&Layout::new().parameter("w", n), method).unwrap();
    (0..steps)
        .map(|step| {
            gradients.ready("w", &gradient(n, session.rank(), seed + step)).unwrap();
            bits(&gradients.wait().unwrap().values("w").unwrap())
        })
        .collect()
}

#[test]
fn several_of_different_sizes_and_methods_are_under_way_at_once() {
    let sizes = [1usize, 7, 400, 3000, 70_000];
    // random-k samples others for every reducer, so that no two can be compared.
    let comparable = || Method::all().filter(|m| m.collective().name() != "random-k");
    for over in NETWORKS {
        let equal = job::run(over, 4, |session| {
            let many: Vec<(Method, usize)> =
                sizes.iter().flat_map(|&n| comparable().map(move |m| (m.density(0.05), n))).collect();
            let mut reducers: Vec<_> = many
                .iter()
                .enumerate()
                .map(|(i, (method, n))| session.reducer(&format!("r{i}"), *n, method.clone()).unwrap())
                .collect();
            let mut found = vec![Vec::new(); many.len()];
            for step in 0..3 {
                // Another order on every rank, to start in and to wait in.
                let mut order: Vec<usize> = (0..many.len()).collect();
                order.rotate_left((session.rank() * 5 + step as usize) % many.len());
                let mut handles: Vec<(usize, Handle)> = order
                    .into_iter()
                    .map(|i| {
                        let values = gradient(many[i].1, session.rank(), 1000 * i as u64 + step);
                        (i, reducers[i].start(&values).unwrap())
                    })
                    .collect();
                handles.reverse();
                for (at, (i, handle)) in handles.into_iter().enumerate() {
                    assert_eq!(handle.step(), step);
                    let update = if at % 2 == 0 { block_on(handle) } else { handle.wait() }.unwrap();
                    assert_eq!(update.step(), step);
                    found[i].push(bits(&update.values(&format!("r{i}")).unwrap()));
                }
            }
            many.iter().enumerate().all(|(i, (method, n))| {
                one_by_one(&session, method.clone(), *n, 1000 * i as u64, 3) == found[i]
            })
        });
        assert_eq!(equal, [true; 4], "over {over:?}");
    }
}

#[test]
fn a_handle_is_a_future_for_tokio_too_and_starts_may_stand_between_awaits() {
    let n = 500;
    let sums = job::run(Over::Tcp, 3, |session| {
        let mut reducer = session.reducer("w", n, Method::spardl().density(0.1)).unwrap();
        let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
        executor.block_on(async {
            let mut sums = Vec::new();
            for step in 0..4 {
                let handle = reducer.start(&gradient(n, session.rank(), step)).unwrap();
                sums.extend(bits(&handle.await.unwrap().values("w").unwrap()));
            }
            sums
        })
    });
    assert!(sums.iter().all(|sum| sum == &sums[0]));
}

/// Handles are dropped unpolled, after some polls, or waited for, in another way on every rank; what is delivered in the
/// steps that are waited for, and what stays in the residuals, is as if all had been waited for.
#[test]
fn dropping_a_handle_abandons_the_result_and_not_the_step() {
    let (n, steps, workers) = (600usize, 24u64, 4u32);
    for over in NETWORKS {
        for method in [Method::spardl().density(0.05), Method::ring(), Method::named("rabenseifner").unwrap()]
        {
            let ends = job::run(over, workers, |session| {
                let mut watched = session.reducer("watched", n, method.clone()).unwrap();
                let mut dropped = session.reducer("dropped", n, method.clone()).unwrap();
                let mut wanted = Vec::new();
                for step in 0..steps {
                    let values = gradient(n, session.rank(), step);
                    wanted.push(bits(
                        &watched.start(&values).unwrap().wait().unwrap().values("watched").unwrap(),
                    ));
                    let handle = dropped.start(&values).unwrap();
                    let found = match (session.rank() as u64 * 7 + step) % 6 {
                        0 => None,
                        1 => Some(handle.wait().unwrap()),
                        times => poll_times(handle, times as usize * 20).map(Result::unwrap),
                    };
                    if let Some(update) = found {
                        assert_eq!(bits(&update.values("dropped").unwrap()), wanted[step as usize]);
                    }
                }
                assert_eq!(dropped.step(), steps);
                let (watched, dropped) = (watched.residual().unwrap(), dropped.residual().unwrap());
                bits(&watched) == bits(&dropped)
            });
            assert_eq!(ends, [true; 4], "{method} over {over:?}");
        }
    }
}

#[test]
fn the_values_are_free_and_the_next_start_waits_for_the_step_before() {
    let n = 5000;
    let sums = job::run(Over::Memory, 3, |session| {
        let mut reducer = session.reducer("w", n, Method::ring()).unwrap();
        let mut values = vec![0.0; n];
        let handles: Vec<Handle> = (0..10)
            .map(|step| {
                values.fill((step + 1) as f32 * (session.rank() + 1) as f32);
                let handle = reducer.start(&values).unwrap();
                values.fill(f32::NAN);
                handle
            })
            .collect();
        let delivered = handles.into_iter().map(|handle| handle.wait().unwrap().values("w").unwrap());
        delivered.map(|values| (values[0], values.iter().all(|v| *v == values[0]))).collect::<Vec<_>>()
    });
    for sum in sums {
        assert_eq!(sum, (0..10).map(|step| ((step + 1) as f32 * 2.0, true)).collect::<Vec<_>>());
    }
}

#[test]
fn the_last_step_is_completed_for_the_others_when_its_trainer_has_gone() {
    let n = 4000;
    for over in NETWORKS {
        let ends = job::run(over, 4, |session| {
            let mut reducer = session.reducer("w", n, Method::spardl().density(0.1)).unwrap();
            let values = gradient(n, session.rank(), 0);
            if session.rank() == 2 {
                drop(reducer.start(&values).unwrap());
                return None;
            }
            // The others come late, when that one has dropped all it had.
            std::thread::sleep(std::time::Duration::from_millis(50 + 20 * session.rank() as u64));
            let handle = reducer.start(&values).unwrap();
            Some(bits(&handle.wait().unwrap().values("w").unwrap()))
        });
        let first = ends[0].clone().unwrap();
        assert!(ends.into_iter().flatten().all(|end| end == first), "over {over:?}");
    }
}

#[test]
fn reducers_must_agree_and_their_mistakes_are_named() {
    let sentences = job::run(Over::Memory, 3, |session| {
        let n = if session.rank() == 1 { 11 } else { 10 };
        session.reducer("w", n, Method::ring()).err().unwrap().to_string()
    });
    for sentence in sentences {
        assert!(sentence.starts_with("rank 1 failed"), "{sentence}");
        assert!(
            sentence.contains("reducer 'w' with 11 entries, rank 0 has reducer 'w' with 10"),
            "{sentence}"
        );
    }
    let session = Session::join().unwrap();
    let mut reducer = session.reducer("w", 3, Method::ring()).unwrap();
    let length = reducer.start(&[1.0]).unwrap_err();
    assert!(matches!(length, Error::Layout(LayoutError::Length { expected: 3, found: 1, .. })), "{length}");
    assert_eq!(
        reducer.start(&[1.0, 2.0, 3.0]).unwrap().wait().unwrap().values("w").unwrap(),
        [1.0, 2.0, 3.0]
    );
    let poisoned = reducer.start(&[1.0, f32::NAN, 3.0]).unwrap_err().to_string();
    assert!(
        poisoned.contains("rank 0 failed at step 1") && poisoned.contains("'w' has NaN at entry 1"),
        "{poisoned}"
    );
    assert_eq!(reducer.start(&[1.0, 2.0, 3.0]).unwrap_err().to_string(), poisoned, "it stays failed");
}

#[test]
fn reducers_of_nothing_and_of_one_entry_work() {
    let results = job::run(Over::Memory, 3, |session| {
        Method::all()
            .map(|listed| {
                let method = listed.density(1.0);
                let mut empty = session.reducer("empty", 0, method.clone()).unwrap();
                let mut one = session.reducer("one", 1, method).unwrap();
                let handle = empty.start(&[]).unwrap();
                let one = one.start(&[session.rank() as f32]).unwrap().wait().unwrap().values("one").unwrap();
                (handle.wait().unwrap().entries(), one)
            })
            .collect::<Vec<_>>()
    });
    results.into_iter().flatten().for_each(|result| assert_eq!(result, (0, vec![1.0])));
}

/// The I/O thread ends small steps itself, while others fill its mailbox: it must not wait for room there.
#[test]
fn steps_that_end_while_the_mailbox_is_full_hold_no_rank_up() {
    const THREADS: usize = 8;
    let (ended, ends) = std::sync::mpsc::channel();
    let worker = move || {
        let session = Session::join_as(Config::alone(job::TIMEOUT)).unwrap();
        let dense = || Method::named("ring").unwrap();
        let reducer = |number: usize| session.reducer(&format!("r{number}"), 1, dense()).unwrap();
        let mut reducers: Vec<_> = (0..THREADS * 400).map(reducer).collect();
        std::thread::scope(|scope| {
            for reducers in reducers.chunks_mut(400) {
                scope.spawn(move || {
                    for _ in 0..5 {
                        let handles: Vec<Handle> =
                            reducers.iter_mut().map(|reducer| reducer.start(&[1.0]).unwrap()).collect();
                        handles.into_iter().for_each(|handle| drop(handle.wait().unwrap()));
                    }
                });
            }
        });
        ended.send(()).unwrap();
    };
    std::thread::spawn(worker);
    ends.recv_timeout(Duration::from_secs(120)).expect("all steps end");
}
