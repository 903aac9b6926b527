//! Thousands of workers come together: what that costs the coordinator, and every other rank.

use std::thread;
use std::time::{Duration, Instant};

use gleaner_algorithms::Method;
use gleaner_runtime::{Layout, Session};
use gleaner_transport::memory;

/// Messages and bytes that each rank sent until it could begin its first step.
fn joined(workers: u32, method: &Method) -> Vec<(u64, u64)> {
    let ranks: Vec<_> = memory::networks(workers)
        .into_iter()
        .map(|network| {
            let method = method.clone();
            let join = move || {
                let session = Session::over(async { Ok(network) }, Duration::from_secs(120)).unwrap();
                session.barrier().unwrap();
                let layout = Layout::new().parameter("w", 4000);
                let gradients = session.gradients(&layout, method).unwrap();
                let traffic = session.traffic();
                session.barrier().unwrap();
                drop(gradients);
                (traffic.messages_sent, traffic.bytes_sent)
            };
            thread::Builder::new().stack_size(256 << 10).spawn(join).unwrap()
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

#[test]
fn the_coordinator_of_thousands_sends_no_more_than_its_children_need() {
    let clock = Instant::now();
    let method = Method::spardl().density(0.01);
    let few = joined(100, &method);
    let many = joined(2000, &method);
    println!("rank 0 of 100 sent {:?}, rank 0 of 2000 {:?} messages and bytes", few[0], many[0]);
    println!("the most that any of 2000 sent: {:?}", many.iter().max().unwrap());
    println!("in {:.1} s", clock.elapsed().as_secs_f64());
    // Children, credit and heartbeats, not one for each rank.
    assert!(
        many.iter().all(|(messages, bytes)| *messages < 200 && *bytes < 64 << 10),
        "{:?}",
        many.iter().max()
    );
}
