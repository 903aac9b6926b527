//! A rank of a large job is ready soon: what it prepares is proved for all ranks, in every step of a method.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gleaner_algorithms::collectives::{COLLECTIVES, Routine};
use gleaner_algorithms::{Block, Membership, Method, Rank};

const WORKERS: u32 = 1024;

/// The processor time of this thread, or where the system does not report it the time: other processes and tests take some of that.
fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let text = fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    // In hundredths of a second, by programs and by the kernel for them.
    let ticks: Vec<u64> = after_name.skip(11).take(2).filter_map(|ticks| ticks.parse().ok()).collect();
    if let [user, system] = ticks[..] {
        return Duration::from_millis(10 * (user + system));
    }
    START.elapsed()
}

/// Whether some work is done in time, at least once in a few times. The tests of this file take turns: two threads of one core take longer
/// each, by the processor's time too.
fn in_time(limit: Duration, mut work: impl FnMut()) -> bool {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (0..5).any(|_| {
        let start = now();
        work();
        now() - start < limit
    })
}

#[test]
fn a_rank_of_a_thousand_is_ready_within_a_second() {
    for method in COLLECTIVES {
        // A method that is made again has no proof yet in this process.
        let ready = in_time(Duration::from_secs(1), || {
            let membership = Membership::first(Rank(5), WORKERS);
            let routine = Routine::new(method(), membership, 14_728_266, 0).unwrap();
            // What peers may send, whatever is learnt, is known too.
            routine.volumes::<f32>().unwrap();
        });
        assert!(ready, "{}", method());
    }
}

/// Ok-Topk balances where its regions have become unequal: as many lanes as workers.
#[test]
fn a_rank_that_balances_is_ready_as_soon() {
    let membership = Membership::first(Rank(5), WORKERS);
    let ready = in_time(Duration::from_secs(1), || {
        let mut routine = Routine::new(Method::named("oktopk").unwrap(), membership, 14_728_266, 0).unwrap();
        let mut memory = routine.memory().clone();
        (memory.steps, memory.agreed[0], memory.agreed[1]) = (1, 0.6, 1.0);
        assert!(routine.restore(memory).unwrap());
    });
    assert!(ready);
}

/// Blocks of other lengths than those that no step was made for before.
#[test]
fn a_rank_with_uneven_cuts_is_ready_as_soon() {
    let (membership, n) = (Membership::first(Rank(5), WORKERS), 14_728_266);
    for (name, first) in [("oktopk", 2), ("exdyna", 4)] {
        let ready = in_time(Duration::from_secs(1), || {
            let mut routine = Routine::new(Method::named(name).unwrap(), membership, n, 0).unwrap();
            let mut memory = routine.memory().clone();
            (memory.steps, memory.agreed[0]) = (1, 0.6);
            let cuts = memory.agreed[first..].iter_mut().take(WORKERS as usize - 1);
            for (part, cut) in (1..).zip(cuts) {
                *cut = (n as f64 * (f64::from(part) / f64::from(WORKERS)).powi(2)).floor();
            }
            assert!(routine.restore(memory).unwrap());
            let partition = &routine.prepared().program.schedule().partition;
            assert!(partition.block_len(Block(0)) < partition.block_len(Block(WORKERS - 1)), "{name}");
        });
        assert!(ready, "{name}");
    }
}

/// CLT-k's workers take turns: all turns are one proof, which is rotated.
#[test]
fn a_turn_is_no_new_proof() {
    let membership = Membership::first(Rank(5), WORKERS);
    let mut routine = Routine::new(Method::named("clt-k").unwrap(), membership, 14_728_266, 0).unwrap();
    let mut turn = 1.0;
    let ready = in_time(Duration::from_millis(200), || {
        let mut memory = routine.memory().clone();
        memory.agreed[0] = turn;
        assert!(routine.restore(memory).unwrap());
        turn += 1.0;
    });
    assert!(ready);
}
