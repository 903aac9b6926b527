//! The runtime names no method: it runs a schedule that it has never seen.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::{Collective, Shape, Structure};
use gleaner_algorithms::schedule::{After, How, Receive, Rule, Send, Slots, Step};
use gleaner_algorithms::{Method, Rank};
use gleaner_runtime::{Error, Layout};

use crate::job::{self, NETWORKS, gradient};

/// Every rank sends its largest entries to the last rank, one after the other, which adds, selects, and sends the sum to all.
#[derive(Clone, Debug)]
struct LastRankServes;

impl Collective for LastRankServes {
    type State = ();

    fn name(&self) -> &'static str {
        "last-rank-serves"
    }

    fn summary(&self) -> &'static str {
        "a star around the last rank"
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn blocks(&self, _: &Shape) -> u32 {
        2
    }

    fn steps(&self, rank: Rank, shape: &Shape, structure: &Structure) -> Vec<Step> {
        let workers = shape.workers;
        let all = Slots::range(0, 2);
        let rule = Rule::Top(structure.allotment.clone());
        let keep = Step::Keep { slots: all, rule, coding: Coding::Exact };
        let others = || (0..workers - 1).map(Rank);
        let server = Rank(workers - 1);
        if rank == server {
            let receives = others().map(|from| Receive { from, slots: all, how: How::Add }).collect();
            let sends = others().map(|to| Send { to, slots: all, after: After::Retain }).collect();
            let exchange = |sends, receives| Step::Exchange { sends, receives };
            return vec![exchange(vec![], receives), keep, exchange(sends, vec![])];
        }
        let push = Send { to: server, slots: all, after: After::Drop };
        let pull = Receive { from: server, slots: all, how: How::Place };
        vec![keep, Step::Exchange { sends: vec![push], receives: vec![pull] }]
    }
}

/// Rank 1 forgets to add what it receives anywhere: no all-reduce.
#[derive(Clone, Debug)]
struct Nonsense;

impl Collective for Nonsense {
    type State = ();

    fn name(&self) -> &'static str {
        "nonsense"
    }

    fn summary(&self) -> &'static str {
        "no all-reduce"
    }

    fn is_sparse(&self) -> bool {
        false
    }

    fn blocks(&self, _: &Shape) -> u32 {
        1
    }

    fn steps(&self, _: Rank, _: &Shape, _: &Structure) -> Vec<Step> {
        Vec::new()
    }
}

#[test]
fn a_schedule_never_seen_before_runs() {
    let (n, k, workers) = (1000, 50, 4);
    for over in NETWORKS {
        let results = job::run(over, workers, |session| {
            let method = Method::of(LastRankServes).k(k);
            let mut gradients = session.gradients(&Layout::new().parameter("w", n), method).unwrap();
            let mut given = vec![0.0f64; n];
            let mut delivered = vec![0.0f32; n];
            for step in 0..5 {
                let g = gradient(n, session.rank(), step);
                given.iter_mut().zip(&g).for_each(|(sum, g)| *sum += f64::from(*g));
                gradients.ready("w", &g).unwrap();
                let update = gradients.wait().unwrap();
                assert_eq!(update.entries(), k);
                update.add_to("w", &mut delivered, 1.0).unwrap();
            }
            assert_eq!(gradients.lost(), 0.0);
            // One dense step more with nothing new delivers what is left, so that conservation can be seen from outside.
            (given, delivered)
        });
        let first: Vec<u32> = results[0].1.iter().map(|v| v.to_bits()).collect();
        for (_, delivered) in &results {
            assert_eq!(delivered.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), first);
        }
    }
}

#[test]
fn what_is_no_all_reduce_is_refused() {
    let results = job::run(NETWORKS[0], 2, |session| {
        match session.gradients(&Layout::new().parameter("w", 10), Method::of(Nonsense)) {
            Err(Error::Schedule(error)) => error.to_string(),
            Err(other) => panic!("another error: {other}"),
            Ok(_) => panic!("accepted"),
        }
    });
    assert!(results[0].contains("rank 1 ends with another sum in block 0"), "{}", results[0]);
}
