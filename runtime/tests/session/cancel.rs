//! Giving a step up: all ranks decide the same, and nothing is lost.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Cancelled, Error, Handle, Reducer, Session, Update};
use gleaner_statistics::random::Generator;

use crate::job::{self, NETWORKS, Over, gradient};

const NAME: &str = "embedding";

/// The update, or who cancelled.
fn end_of(handle: Handle) -> Result<Update, Cancelled> {
    match handle.wait() {
        Ok(update) => Ok(update),
        Err(Error::Cancelled(cancelled)) => Err(cancelled),
        Err(other) => panic!("another error: {other}"),
    }
}

/// What one rank gave and what it has, to see that nothing is lost.
struct Books {
    given: Vec<f64>,
    size: Vec<f64>,
    delivered: Vec<f64>,
    residual: Vec<f32>,
}

impl Books {
    fn new(n: usize) -> Self {
        Self { given: vec![0.0; n], size: vec![0.0; n], delivered: vec![0.0; n], residual: Vec::new() }
    }

    fn give(&mut self, values: &[f32]) {
        for (i, v) in values.iter().enumerate() {
            self.given[i] += f64::from(*v);
            self.size[i] += f64::from(v.abs());
        }
    }

    fn take(&mut self, update: &Update, workers: usize) {
        for (sum, mean) in self.delivered.iter_mut().zip(update.values(NAME).unwrap()) {
            *sum += f64::from(mean) * workers as f64;
        }
    }

    /// Gradients = delivered + residuals, summed over the workers, entry by entry.
    fn balance(all: &[Books]) {
        for i in 0..all[0].given.len() {
            let sum = |of: fn(&Books, usize) -> f64| all.iter().map(|books| of(books, i)).sum::<f64>();
            let (given, size) = (sum(|b, i| b.given[i]), sum(|b, i| b.size[i]));
            let here = all[0].delivered[i] + sum(|b, i| f64::from(b.residual[i]));
            assert!((given - here).abs() <= 1e-5 * size, "entry {i}: {given} given, {here} found");
        }
    }
}

/// The result of a step: the bits of the update, or the rank that cancelled.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Delivered(Vec<u32>),
    Cancelled(u32),
}

fn reducer(session: &Session, n: usize, method: Method) -> Reducer {
    session.reducer(NAME, n, method).unwrap()
}

#[test]
fn a_cancelled_step_names_who_asked_and_leaves_everything_in_the_residuals() {
    let n = 900;
    for over in NETWORKS {
        for listed in Method::all() {
            for (asks, late) in [(2, 0), (0, 3), (3, 2)] {
                let asked = Barrier::new(2);
                let books = job::run(over, 4, |session| {
                    let rank = session.rank();
                    let mut reducer = reducer(&session, n, listed.clone().density(0.05));
                    let mut books = Books::new(n);
                    let start = |reducer: &mut Reducer, step, books: &mut Books| {
                        let values = gradient(n, rank, step);
                        books.give(&values);
                        reducer.start(&values).unwrap()
                    };
                    let first = end_of(start(&mut reducer, 0, &mut books)).unwrap();
                    books.take(&first, 4);
                    let before = reducer.residual().unwrap();

                    if rank == late {
                        // No rank can finish without it, and it learns of the cancelled step when it begins it.
                        asked.wait();
                    }
                    let handle = start(&mut reducer, 1, &mut books);
                    if rank == asks {
                        handle.cancel();
                    }
                    let cancelled = end_of(handle).unwrap_err();
                    if rank == asks {
                        asked.wait();
                    }
                    let wanted = Cancelled { rank: asks as u32, step: 1, reducer: NAME.into() };
                    assert_eq!(cancelled, wanted);
                    let sentence = format!("rank {asks} cancelled step 1 of 'embedding'");
                    assert!(cancelled.to_string().starts_with(&sentence), "{cancelled}");
                    let waiting = reducer.residual().unwrap();
                    for ((waits, old), new) in waiting.iter().zip(&before).zip(gradient(n, rank, 1)) {
                        assert_eq!(waits.to_bits(), (old + new).to_bits(), "all of it, and nothing else");
                    }

                    for step in 2..5 {
                        let update = end_of(start(&mut reducer, step, &mut books)).unwrap();
                        assert_eq!(update.step(), step);
                        books.take(&update, 4);
                    }
                    books.residual = reducer.residual().unwrap();
                    books
                });
                Books::balance(&books);
            }
        }
    }
}

/// Ranks cancel at any time, often several at once, while others are early or late.
#[test]
fn any_cancelling_rank_at_any_time_leaves_all_ranks_equal() {
    let (n, steps) = (2000, 60u64);
    let (mut cancelled, mut delivered, mut late) = (0, 0, 0);
    for over in NETWORKS {
        for workers in [1u32, 2, 5] {
            for listed in Method::all() {
                let method = listed.clone().density(0.05);
                let ends = job::run(over, workers, |session| {
                    let rank = session.rank() as u64;
                    let mut reducer = reducer(&session, n, method.clone());
                    let mut books = Books::new(n);
                    let (mut history, mut asked) = (Vec::new(), Vec::new());
                    let mut random = Generator::seeded(rank);
                    let mut below = |limit: u32| u64::from(random.below(limit));
                    for step in 0..steps {
                        let values = gradient(n, session.rank(), step);
                        books.give(&values);
                        let pause = |micros| std::thread::sleep(Duration::from_micros(micros));
                        if below(8) == 0 {
                            pause(below(2000));
                        }
                        let handle = reducer.start(&values).unwrap();
                        let asks = below(2 * workers) == 0;
                        if asks {
                            pause(below(600));
                            handle.cancel();
                        }
                        asked.push(asks);
                        history.push(match end_of(handle) {
                            Ok(update) => {
                                assert_eq!(update.step(), step);
                                books.take(&update, workers as usize);
                                let values = update.values(NAME).unwrap();
                                Step::Delivered(values.iter().map(|v| v.to_bits()).collect())
                            }
                            Err(c) => Step::Cancelled(c.rank),
                        });
                    }
                    books.residual = reducer.residual().unwrap();
                    (history, asked, books)
                });
                for step in 0..steps as usize {
                    let first = &ends[0].0[step];
                    assert!(ends.iter().all(|end| end.0[step] == *first), "step {step} over {over:?}");
                    let asked = ends.iter().any(|end| end.1[step]);
                    match first {
                        Step::Cancelled(rank) => {
                            assert!(ends[*rank as usize].1[step], "rank {rank} did not ask");
                            cancelled += 1;
                        }
                        Step::Delivered(_) => {
                            delivered += 1;
                            late += usize::from(asked);
                        }
                    }
                }
                Books::balance(&ends.into_iter().map(|end| end.2).collect::<Vec<_>>());
            }
        }
    }
    // Everything happens, or nothing is tested.
    assert!(cancelled > 20 && delivered > 20 && late > 5, "{cancelled} {delivered} {late}");
}

/// One rank begins only when the others have begun and cancelled many steps: what they sent takes none of their credit, and
/// is not taken for parts of later steps.
#[test]
fn many_cancelled_steps_take_no_credit() {
    let (n, steps, before) = (20_000, 40u64, 30);
    for over in NETWORKS {
        for listed in Method::all() {
            for late in [0, 1, 3] {
                let method = listed.clone().density(0.5);
                let given_up = AtomicU64::new(0);
                let ends = job::run(over, 4, |session| {
                    let mut reducer = reducer(&session, n, method.clone());
                    let (mut books, mut cancelled) = (Books::new(n), 0);
                    while session.rank() == late && given_up.load(Ordering::Relaxed) < before {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    for step in 0..steps {
                        let values = gradient(n, session.rank(), step);
                        books.give(&values);
                        let handle = reducer.start(&values).unwrap();
                        if session.rank() == 2 {
                            // Time for the others to send what they can.
                            std::thread::sleep(Duration::from_micros(500));
                            handle.cancel();
                        }
                        match end_of(handle) {
                            Ok(update) => books.take(&update, 4),
                            Err(by) => {
                                assert_eq!((by.rank, by.step), (2, step));
                                cancelled += 1;
                            }
                        }
                        if session.rank() == 2 {
                            given_up.store(cancelled, Ordering::Relaxed);
                        }
                    }
                    let update = end_of(reducer.start(&vec![0.0; n]).unwrap()).unwrap();
                    books.take(&update, 4);
                    books.residual = reducer.residual().unwrap();
                    (cancelled, books)
                });
                // No rank can finish a step that one rank has not begun.
                let cancelled: Vec<u64> = ends.iter().map(|(cancelled, _)| *cancelled).collect();
                assert!(cancelled.iter().all(|c| *c == cancelled[0] && *c >= before), "{cancelled:?}");
                Books::balance(&ends.into_iter().map(|(_, books)| books).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn cancelling_a_step_that_is_over_does_nothing() {
    let n = 300;
    let ends = job::run(Over::Tcp, 3, |session| {
        let mut reducer = reducer(&session, n, Method::ring());
        let mut sums = Vec::new();
        for step in 0..20 {
            let mut handle = reducer.start(&gradient(n, session.rank(), step)).unwrap();
            let update = loop {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                match std::pin::Pin::new(&mut handle).poll(&mut context) {
                    std::task::Poll::Ready(result) => break result.unwrap(),
                    std::task::Poll::Pending => std::thread::yield_now(),
                }
            };
            if session.rank() as u64 == step % 3 {
                handle.cancel();
            }
            sums.push(update.values(NAME).unwrap());
        }
        sums
    });
    assert!(ends.iter().all(|sums| sums == &ends[0]));
}

#[test]
fn others_are_not_touched_when_one_step_is_cancelled() {
    let n = 400;
    let asked = Barrier::new(2);
    let ends = job::run(Over::Memory, 4, |session| {
        let mut first = session.reducer("first", n, Method::spardl().density(0.1)).unwrap();
        let mut second = session.reducer("second", n, Method::spardl().density(0.1)).unwrap();
        let mut alone = session.reducer("alone", n, Method::spardl().density(0.1)).unwrap();
        let mut cancels = 0;
        for step in 0..10 {
            let values = gradient(n, session.rank(), step);
            let wanted = alone.start(&values).unwrap().wait().unwrap().values("alone").unwrap();
            if session.rank() == 3 {
                asked.wait();
            }
            let cancelled = first.start(&values).unwrap();
            let kept = second.start(&values).unwrap();
            if session.rank() == 1 {
                cancelled.cancel();
                asked.wait();
            }
            assert_eq!(kept.wait().unwrap().values("second").unwrap(), wanted);
            match cancelled.wait() {
                Ok(_) => {}
                Err(Error::Cancelled(c)) => {
                    assert_eq!((c.rank, c.reducer.as_str()), (1, "first"));
                    cancels += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        session.barrier().unwrap();
        cancels
    });
    // Rank 3 is late, so no rank can finish before it is asked for.
    assert!(ends.iter().all(|cancels| *cancels == ends[0] && *cancels >= 5), "{ends:?}");
}

/// Some receive the decision and leave before others receive it: that makes no failure.
#[test]
fn the_last_step_of_a_job_may_be_cancelled() {
    let mut cancelled = 0;
    for run in 0..60 {
        let asked = Barrier::new(2);
        let ends = job::run(Over::Memory, 5, |session| {
            let mut reducer = reducer(&session, 100, Method::ring());
            if session.rank() == 4 && run % 2 == 0 {
                // No rank can finish without it.
                asked.wait();
            }
            let handle = reducer.start(&gradient(100, session.rank(), 0)).unwrap();
            if session.rank() == 2 {
                handle.cancel();
                if run % 2 == 0 {
                    asked.wait();
                }
            }
            end_of(handle).map(drop).map_err(|cancelled| cancelled.rank)
        });
        assert!(ends.iter().all(|end| *end == ends[0] && matches!(end, Ok(()) | Err(2))), "{ends:?}");
        cancelled += usize::from(ends[0].is_err());
    }
    assert!(cancelled >= 15, "{cancelled} of 60 were cancelled");
}

/// A rank that leaves instead of taking part fails the job, no matter which rank cancels meanwhile.
#[test]
fn a_failure_counts_more_than_a_request_to_cancel() {
    let n = 500;
    for over in NETWORKS {
        for leaves in 0..4 {
            let started = Instant::now();
            let ends = job::run(over, 4, |session| {
                let mut reducer = reducer(&session, n, Method::ring());
                for step in 0..1000 {
                    if session.rank() == leaves && step == 3 {
                        return None;
                    }
                    let handle = reducer.start(&gradient(n, session.rank(), step));
                    let failed = handle.and_then(|handle| {
                        if step >= 3 && session.rank() == (leaves + 1) % 4 {
                            handle.cancel();
                        }
                        handle.wait()
                    });
                    match failed {
                        Ok(_) | Err(Error::Cancelled(_)) => {}
                        Err(Error::Failed(failure)) => return Some(failure),
                        Err(other) => panic!("{other}"),
                    }
                }
                panic!("the job goes on without rank {leaves}")
            });
            assert!(started.elapsed() < Duration::from_secs(8), "no rank waits for a timeout");
            let failures: Vec<_> = ends.into_iter().flatten().collect();
            assert_eq!(failures.len(), 3);
            for failure in failures {
                assert_eq!(failure.rank, leaves as u32, "{failure}");
                assert!(failure.reason.contains("left the job"), "{failure}");
            }
        }
    }
}
