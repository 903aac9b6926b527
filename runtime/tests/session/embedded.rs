//! A session within an async program: made, used, failed and dropped in tasks of a tokio runtime.

use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_runtime::{Config, Error, Layout, Session};

use crate::job::{configs, gradient};

const N: usize = 3000;

/// The result of a rank in a job whose workers are tasks; all calls are made in the middle of one.
async fn work(config: Config) -> Result<Vec<f32>, Error> {
    let session = Session::join_as(config)?;
    session.barrier()?;
    assert_eq!(session.all_gather(&[session.rank() as u8])?.len(), session.world_size());
    let layout = Layout::new().parameter("w", N);
    let mut gradients = session.gradients(&layout, Method::spardl().density(0.05))?;
    let mut reducer = session.reducer("r", N, Method::ring())?;
    let mut sums = vec![0.0; N];
    for step in 0..5 {
        let values = gradient(N, session.rank(), step);
        gradients.ready("w", &values)?;
        gradients.updated().await?.add_to("w", &mut sums, 1.0).unwrap();
        reducer.start(&values)?.await?.add_to("r", &mut sums, 1.0).unwrap();
        // The blocking calls are there, too.
        gradients.ready("w", &values)?;
        gradients.wait()?.add_to("w", &mut sums, 1.0).unwrap();
        reducer.start(&values)?.wait()?.add_to("r", &mut sums, 1.0).unwrap();
    }
    Ok(sums)
}

/// Each worker has a thread of its own, since calls that wait for the others block it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

#[test]
fn a_session_lives_and_ends_in_tasks() {
    let sums: Vec<Vec<f32>> = runtime().block_on(async {
        let tasks: Vec<_> =
            configs(3, Duration::from_secs(10)).into_iter().map(work).map(tokio::spawn).collect();
        let mut sums = Vec::new();
        for task in tasks {
            sums.push(task.await.unwrap().unwrap());
        }
        sums
    });
    assert!(sums.iter().all(|sum| *sum == sums[0]) && sums[0].iter().any(|v| *v != 0.0));
}

#[tokio::test]
async fn a_job_of_one_lives_in_a_runtime_of_one_thread() {
    let config = Config::alone(Duration::from_secs(5));
    assert_eq!(work(config).await.unwrap().len(), N);
}

#[test]
fn joining_and_steps_fail_with_their_sentences_in_tasks() {
    runtime().block_on(async {
        // No other rank comes.
        let alone = configs(2, Duration::from_millis(300)).swap_remove(0);
        let failed = tokio::spawn(async { Session::join_as(alone).map(drop) }).await.unwrap();
        let sentence = failed.unwrap_err().to_string();
        assert!(sentence.contains("rank 1"), "{sentence}");

        let mut ranks = configs(2, Duration::from_secs(10)).into_iter();
        let (zero, one) = (ranks.next().unwrap(), ranks.next().unwrap());
        let leaves = tokio::spawn(async { Session::join_as(one).map(drop) });
        let stays = tokio::spawn(async move {
            let session = Session::join_as(zero)?;
            session.barrier()
        });
        leaves.await.unwrap().unwrap();
        let error = stays.await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("rank 1 failed: it left the job"), "{error}");
        assert_eq!(format!("{error:?}"), error.to_string(), "a main that returns it shows the sentence");
    });
}

/// A link may come up, or have come up with joining, at the moment at which this worker leaves.
#[test]
fn who_leaves_right_after_joining_sends_its_leave_message() {
    for _ in 0..50 {
        let mut ranks = configs(2, Duration::from_secs(10)).into_iter();
        let (zero, one) = (ranks.next().unwrap(), ranks.next().unwrap());
        let leaves = std::thread::spawn(move || Session::join_as(one).map(drop));
        let error = Session::join_as(zero).and_then(|session| session.barrier()).unwrap_err();
        leaves.join().unwrap().unwrap();
        assert!(error.to_string().starts_with("rank 1 failed: it left the job"), "{error}");
    }
}
