//! Training in an async program: `cargo run --example async_trainer`, or among four workers
//! `gleaner launch -n 4 -- target/debug/examples/async_trainer`. A task counts seconds meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gleaner::{Error, Layout, Method, Session};

const N: usize = 10_000;

/// Pulls every weight towards 1, each rank from another side.
async fn train(session: &Session) -> Result<f32, Error> {
    let layout = Layout::new().parameter("weights", N);
    let method = Method::spardl().density(0.1);
    // All ranks agree on it: their threads are blocked until the last has come.
    let mut gradients = tokio::task::block_in_place(|| session.gradients(&layout, method))?;
    let offset = session.rank() as f32 - (session.world_size() - 1) as f32 / 2.0;
    let mut weights = vec![0.0f32; N];
    for _step in 0..400 {
        let gradient: Vec<f32> = weights.iter().map(|weight| weight - 1.0 + 0.1 * offset).collect();
        gradients.ready("weights", &gradient)?;
        gradients.updated().await?.add_to("weights", &mut weights, -0.02)?;
    }
    Ok(weights.iter().map(|weight| (weight - 1.0).abs()).fold(0.0, f32::max))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let ticks = Arc::new(AtomicU32::new(0));
    let ticking = Arc::clone(&ticks);
    let ticker = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            ticking.fetch_add(1, Ordering::Relaxed);
        }
    });
    let session = tokio::task::block_in_place(Session::join)?;
    let worst = train(&session).await?;
    ticker.abort();
    println!(
        "rank {} of {}: no weight is further than {worst:.4} from 1; {} ticks of 10 ms meanwhile",
        session.rank(),
        session.world_size(),
        ticks.load(Ordering::Relaxed)
    );
    // Its leave messages are sent on a thread that may wait.
    tokio::task::block_in_place(|| drop(session));
    Ok(())
}
