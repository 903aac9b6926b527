use std::collections::BTreeSet;

use gleaner_algorithms::synchrony::named;

use super::*;

/// 100 layers of 2,500 entries: a megabyte at 8 MB/s, which one worker pushes in 125 ms.
fn job(workers: usize) -> Served {
    Served {
        layers: vec![2_500; 100],
        passes: vec![1.0; workers],
        rate: 8e6,
        latency: 0.0,
        servers: 1,
        steps: 40,
        seed: 1,
    }
}

fn course(job: &Served, synchrony: &str) -> Course {
    served(job, &*named(synchrony).unwrap()).unwrap()
}

fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-6 * expected.abs().max(1e-3), "{found}, expected {expected}");
}

/// All push at the server's one link, and then all pull: 4 · 125 ms each way.
#[test]
fn bulk_synchronous_steps_by_hand() {
    let bsp = course(&job(4), "bsp");
    assert_close(bsp.synchronising, 1.0);
    assert_close(bsp.step, 2.0);
    assert_close(bsp.rate, 2.0);
    assert_eq!((bsp.background, bsp.most), (0.0, None));
    // Two servers share it, until the workers' own links are the narrowest.
    for (servers, expected) in [(2, 0.5), (4, 0.25), (8, 0.25)] {
        assert_close(course(&Served { servers, ..job(4) }, "bsp").synchronising, expected);
    }
    let late = Served { latency: 0.1, ..job(1) };
    assert_close(course(&late, "bsp").synchronising, 0.45);
}

/// The exchange takes as long as the pass, so that four fifths of it fit into the next, and a fifth is waited for.
#[test]
fn two_stages_by_hand() {
    let osp = course(&job(4), "osp/budget=bound");
    assert_close(osp.most.unwrap(), 0.8);
    assert_close(osp.background, 0.8);
    assert_close(osp.synchronising, 0.2);
    assert_close(osp.step, 1.2);
    // The ceiling of equation 5 at x = 1.
    assert_close(course(&job(4), "bsp").step / osp.step, 2.0 / 1.2);
    // With twice the workers half of it fits: (1 + x) / (1 + x - 1).
    let twice = course(&job(8), "osp/budget=bound");
    assert_close(twice.most.unwrap(), 0.5);
    assert_close(twice.step, 2.0);
    // Nothing in the background is BSP.
    assert_close(course(&job(4), "osp/budget=0").step, 2.0);
    // What does not end within the pass is waited for.
    let more = course(&Served { passes: vec![0.5; 4], ..job(4) }, "osp/budget=0.8");
    assert_close(more.step, 1.0);
}

/// One push and one pull at a time: while one worker is answered the next one pushes. Eight workers take 8 · 125 ms, in which the pass of 0.75 s
/// of each lies.
#[test]
fn round_robin_uses_both_directions() {
    let round = course(&Served { passes: vec![0.75; 8], ..job(8) }, "r2sp");
    assert_close(round.step, 1.0);
    let bulk = course(&Served { passes: vec![0.75; 8], ..job(8) }, "bsp");
    assert_close(bulk.step, 2.75);
}

/// No worker waits for a slow one but where the synchrony says so.
#[test]
fn a_slow_worker_holds_up_whom_the_synchrony_lets_wait() {
    let slow = Served { passes: vec![1.0, 1.0, 1.0, 3.0], rate: 8e9, steps: 60, ..job(4) };
    let rate = |synchrony: &str| course(&slow, synchrony).rate;
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 0.05 * expected, "{found}");
    near(rate("bsp"), 4.0 / 3.0);
    near(rate("osp/budget=bound"), 4.0 / 3.0);
    near(rate("asp"), 3.0 + 1.0 / 3.0);
    assert!(rate("ssp/3") >= rate("bsp") && rate("ssp/3") <= rate("asp"));
}

/// Layers are indivisible: a budget that fits none of them is of no use.
#[test]
fn layers_that_do_not_fit_stay() {
    let one = Served { layers: vec![250_000], ..job(4) };
    assert_close(course(&one, "osp/budget=bound").step, 2.0);
    let split = |step| split(&job(4), step, 200_000);
    assert_eq!(split(0).iter().filter(|background| **background).count(), 80);
    assert_ne!(split(0), split(1));
    let all: BTreeSet<Vec<bool>> = (0..5).map(split).collect();
    assert_eq!(all.len(), 5);
}
