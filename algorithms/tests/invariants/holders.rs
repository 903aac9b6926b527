//! Drops that several workers make alike, and other schedules that no listed method has yet.

use gleaner_algorithms::Rank;
use gleaner_algorithms::schedule::{Holders, Step, check, lockstep};

use super::by_hand::{add, copy, exchange, give, keep, place, schedules, slots, swap};
use super::harness::{COLLECTIONS, Team};
use super::inputs::{PATTERNS, Pattern, Random};

/// Four workers, two rounds of pairwise exchange, a selection on all after each: the heart of SparDL's R-SAG (§3.3).
fn r_sag(k: u32) -> Vec<Vec<Step>> {
    let select = || keep(slots(0, 1), k, 1);
    (0..4).map(|w: u32| vec![swap(w ^ 1), select(), swap(w ^ 2), select()]).collect()
}

/// Every worker sends everything to rank 0, which adds, selects, and sends the sum back: a server.
fn server(workers: u32, k: u32, selects_first: bool) -> Vec<Vec<Step>> {
    let all = slots(0, 1);
    let others = || 1..workers;
    (0..workers)
        .map(|w| {
            let mut steps = if selects_first { vec![keep(all, k, 1)] } else { vec![] };
            if w == 0 {
                steps.push(exchange(vec![], others().map(|r| add(r, all)).collect()));
                steps.push(keep(all, k, 1));
                steps.push(exchange(others().map(|r| copy(r, all)).collect(), vec![]));
            } else {
                steps.push(exchange(vec![give(0, all)], vec![place(0, all)]));
            }
            steps
        })
        .collect()
}

/// Steps that obey the invariants under every collection, on inputs of every kind.
fn obey_the_invariants(n: usize, steps: &[Vec<Step>]) {
    for collection in COLLECTIONS {
        for pattern in PATTERNS {
            let mut team = Team::checked(schedules(n, 1, steps.to_vec()), collection).unwrap();
            let mut random = Random::new(11);
            for _ in 0..3 {
                team.step(&pattern.gradients(steps.len(), n, &mut random)).assert_invariants();
            }
        }
    }
}

/// In exchange t, 2^(t+1) workers hold and discard the same bag: each keeps one part in so many, not one half.
#[test]
fn holders_double_in_every_exchange() {
    let proof = check(schedules(12, 1, r_sag(3))).unwrap();
    for rank in (0..4).map(Rank) {
        let program = proof.program(rank);
        let counts = |holders: &Vec<Holders>| holders.iter().map(|h| h.count).collect::<Vec<_>>();
        let facts = program.facts().iter().map(|facts| counts(&facts.holders));
        assert_eq!(facts.collect::<Vec<_>>(), [vec![], vec![2], vec![], vec![4]]);
    }
}

/// Integers are exact in sums, and so are their halves and quarters: conservation without any tolerance, and the values
/// written out.
#[test]
fn shares_are_exact() {
    for k in 0..=12 {
        let mut team = Team::checked(schedules(12, 1, r_sag(k)), COLLECTIONS[0]).unwrap();
        let mut random = Random::new(u64::from(k));
        for _ in 0..6 {
            let outcome = team.step(&Pattern::Integers.gradients(4, 12, &mut random));
            outcome.assert_conserved_exactly();
            outcome.assert_invariants();
        }
    }
    // Entry 0 wins everywhere. Entry 1 is selected by ranks 2 and 3 alone: ranks 0 and 1 discard 4 + 4 there, half each.
    // Then all discard entry 2 from 9 + 9 with the same sum on every worker, one quarter each.
    let mut team = Team::checked(schedules(4, 1, r_sag(2)), COLLECTIONS[0]).unwrap();
    let lower = vec![16.0, 4.0, 9.0, 0.0];
    let upper = vec![16.0, 20.0, 9.0, 0.0];
    let outcome = team.step(&[lower.clone(), lower, upper.clone(), upper]);
    assert_eq!(outcome.delivered, vec![vec![64.0, 40.0, 0.0, 0.0]; 4]);
    assert_eq!(outcome.new[0], [0.0, 4.0, 9.0, 0.0]);
    assert_eq!(outcome.new[1], [0.0, 4.0, 9.0, 0.0]);
    assert_eq!(outcome.new[2], [0.0, 0.0, 9.0, 0.0]);
    // The same again, only that entry 2 is part of the first sums and not of the last.
    let mut team = Team::checked(
        schedules(3, 1, vec![vec![swap(1), keep(slots(0, 1), 2, 1)], vec![swap(0), keep(slots(0, 1), 2, 1)]]),
        COLLECTIONS[0],
    )
    .unwrap();
    let outcome = team.step(&[vec![8.0, 1.0, 3.0], vec![8.0, 1.0, 3.0]]);
    assert_eq!(outcome.delivered[0], [16.0, 0.0, 6.0]);
    assert_eq!(outcome.new, [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]);
}

/// Whatever the number of holders, their shares add up to what they share.
#[test]
fn shares_add_up() {
    let mut random = Random::new(9);
    for count in 1..=64 {
        for _ in 0..1000 {
            // 20 bits: those that are left hold what division by 64 and the first holder's remainder need.
            let value = (random.below(1 << 20) as f32 - 524_288.0) * 2f32.powi(random.below(40) as i32 - 20);
            let share = |is_first| Holders { count, is_first }.share(value);
            let sum = f64::from(share(true)) + f64::from(count - 1) * f64::from(share(false));
            assert_eq!(sum, f64::from(value), "{value} among {count}");
            assert!((share(true) - share(false)).abs() <= f32::EPSILON * share(true).abs() * count as f32);
        }
    }
}

#[test]
fn r_sag_obeys_the_invariants() {
    for k in [0, 1, 3, 6, 7, 11, 12] {
        obey_the_invariants(12, &r_sag(k));
    }
}

/// Workers that never select, beside one that does: what it drops must come back to some worker.
#[test]
fn a_server_obeys_the_invariants() {
    for workers in [2, 3, 5] {
        for k in [0, 1, 5, 6, 7, 11, 12] {
            obey_the_invariants(12, &server(workers, k, false));
            obey_the_invariants(12, &server(workers, k, true));
        }
    }
}

/// One of two selects before both add. Where the other brings −0, the sum has the same sign on both.
#[test]
fn zeros_have_one_sign() {
    let steps = [vec![swap(1)], vec![keep(slots(0, 1), 2, 1), swap(0)]];
    obey_the_invariants(8, &steps);
    let steps = [
        vec![swap(1), keep(slots(0, 1), 5, 1)],
        vec![keep(slots(0, 1), 2, 1), swap(0), keep(slots(0, 1), 5, 1)],
    ];
    obey_the_invariants(8, &steps);
}

/// The sum of two sparse bags that turns dense on the way is looked at, too.
#[test]
fn a_sum_of_bags_out_of_range_is_reported() {
    let mut team = Team::checked(schedules(4, 1, r_sag(2)), COLLECTIONS[0]).unwrap();
    let half = f32::MAX / 2.0;
    let gradients =
        [[half, half, 0.0, 0.0], [half, half, 0.0, 0.0], [0.0, half, half, 0.0], [0.0, half, half, 0.0]];
    let executions = gradients.iter().enumerate().map(|(w, g)| team.begin(w, g, 4)).collect();
    let error = lockstep(executions).unwrap_err();
    assert!(
        matches!(error, gleaner_algorithms::schedule::ExecutionError::Overflow { entry: 1, .. }),
        "{error}"
    );
}
