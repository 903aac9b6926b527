//! Bad schedules, one for every way to be bad, and the checker's reason to refuse each.

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::collectives::{RoutineError, Structure};
use gleaner_algorithms::schedule::{CheckError, Memory, Note, Rule, Schedule, Step, check};
use gleaner_algorithms::{Allotment, Block, Partition, Rank, SparsityError};

use super::by_hand::{self, add, copy, exchange, give, keep, place, schedules, slots, swap};

/// Why the checker refuses: 8 entries, in this many blocks.
fn refused(blocks: usize, steps: Vec<Vec<Step>>) -> CheckError {
    check(schedules(8, blocks, steps)).unwrap_err()
}

fn send(send: gleaner_algorithms::schedule::Send) -> Step {
    exchange(vec![send], vec![])
}

fn receive(receive: gleaner_algorithms::schedule::Receive) -> Step {
    exchange(vec![], vec![receive])
}

#[test]
fn a_good_one_is_accepted() {
    let proof = check(schedules(8, 1, vec![vec![swap(1)], vec![swap(0)]])).unwrap();
    assert_eq!((proof.cost.rounds, proof.cost.words_critical), (1, 8));
    assert!(check(schedules(8, 1, vec![vec![]])).is_ok(), "one worker has nothing to do");
}

#[test]
fn schedules_that_do_not_belong_together() {
    let good = || schedules(8, 1, vec![vec![swap(1)], vec![swap(0)]]);
    let refused = |change: fn(&mut Vec<Schedule>)| {
        let mut schedules = good();
        change(&mut schedules);
        check(schedules.clone()).unwrap_err()
    };
    let misplaced = |position, rank, workers| CheckError::Misplaced { position, rank: Rank(rank), workers };
    assert_eq!(refused(|s| s.swap(0, 1)), misplaced(0, 1, 2));
    assert_eq!(refused(|s| s[1].workers = 3), misplaced(1, 1, 3));
    assert_eq!(refused(|s| s[1].partition = Partition::even(9, 1)), misplaced(1, 1, 2));
    assert_eq!(refused(|s| drop(s.pop())), misplaced(0, 0, 2));
}

#[test]
fn peers_and_slots_that_do_not_exist() {
    let nowhere = |steps: Step, slots| {
        let found = refused(2, vec![vec![steps], vec![]]);
        assert_eq!(found, CheckError::Nowhere { rank: Rank(0), step: 0, slots });
    };
    nowhere(send(copy(2, slots(0, 1))), slots(0, 1));
    nowhere(send(copy(0, slots(0, 1))), slots(0, 1));
    nowhere(receive(add(2, slots(0, 1))), slots(0, 1));
    nowhere(receive(add(0, slots(0, 1))), slots(0, 1));
    for bad in [slots(2, 1), slots(0, 0), slots(1, 3), slots(u32::MAX, 1), slots(0, u32::MAX)] {
        nowhere(send(copy(1, bad)), bad);
        nowhere(receive(add(1, bad)), bad);
        nowhere(keep(bad, 1, 2), bad);
    }
    // k must be given for every block.
    nowhere(keep(slots(0, 1), 1, 1), slots(0, 1));
    nowhere(keep(slots(0, 1), 1, 3), slots(0, 1));
}

#[test]
fn blocks_that_left_or_are_already_there() {
    let fault = |second: Step| {
        let first = send(give(1, slots(0, 1)));
        match refused(2, vec![vec![first, second], vec![receive(add(0, slots(0, 1)))]]) {
            CheckError::Slot { rank: Rank(0), step: 1, block: Block(0), fault } => fault,
            other => panic!("{other}"),
        }
    };
    assert_eq!(fault(send(copy(1, slots(0, 1)))), "uses what it does not hold:");
    assert_eq!(fault(send(copy(1, slots(1, 2)))), "uses what it does not hold:");
    assert_eq!(fault(keep(slots(0, 1), 1, 2)), "uses what it does not hold:");
    // Twice in one exchange.
    let twice = exchange(vec![give(1, slots(0, 1)), copy(1, slots(0, 1))], vec![]);
    assert!(matches!(refused(2, vec![vec![twice], vec![]]), CheckError::Slot { step: 0, .. }));
    // On top of what is held, and to what is not.
    let one = |how: fn(u32, gleaner_algorithms::schedule::Slots) -> gleaner_algorithms::schedule::Receive| {
        refused(
            1,
            vec![
                vec![exchange(vec![give(1, slots(0, 1))], vec![]), receive(add(1, slots(0, 1)))],
                vec![exchange(vec![copy(0, slots(0, 1))], vec![how(0, slots(0, 1))])],
            ],
        )
    };
    let slot = |rank, step, fault| CheckError::Slot { rank: Rank(rank), step, block: Block(0), fault };
    assert_eq!(one(place), slot(1, 0, "places a bag where it already holds"));
    assert_eq!(one(add), slot(0, 1, "adds to what it does not hold:"));
}

#[test]
fn slots_that_do_not_match() {
    let pair = |sent, received| refused(4, vec![vec![send(give(1, sent))], vec![receive(add(0, received))]]);
    for (sent, received) in [((0, 1), (1, 1)), ((0, 1), (0, 2)), ((0, 4), (1, 4)), ((3, 2), (3, 1))] {
        let (found, expected) = (slots(sent.0, sent.1), slots(received.0, received.1));
        let mismatch = CheckError::Mismatch { rank: Rank(1), step: 0, from: Rank(0), expected, found };
        assert_eq!(pair(found, expected), mismatch);
    }
}

#[test]
fn two_that_wait_for_each_other() {
    let all = slots(0, 1);
    // Both want to receive before they send.
    let waits = |peer| vec![receive(add(peer, all)), send(copy(peer, all))];
    let deadlock = |rank, step, from| CheckError::Deadlock { rank: Rank(rank), step, from: Rank(from) };
    assert_eq!(refused(1, vec![waits(1), waits(0)]), deadlock(0, 0, 1));
    // A ring of three, and one that waits for a worker that is done.
    assert_eq!(refused(1, vec![waits(1), waits(2), waits(0)]), deadlock(0, 0, 1));
    assert_eq!(refused(1, vec![vec![], vec![receive(add(0, all))]]), deadlock(1, 0, 0));
    // No worker finishes a step before rank 0 has what the others sent in theirs: that is no deadlock.
    let asks = |rank| vec![exchange(vec![give(0, all)], vec![place(rank, all)])];
    let serves = vec![
        exchange(vec![], vec![add(1, all), add(2, all)]),
        exchange(vec![copy(1, all), copy(2, all)], vec![]),
    ];
    assert!(check(schedules(8, 1, vec![serves, asks(0), asks(0)])).is_ok());
    // It is not the order of ranks that makes it one: one side sends first, and all is well.
    let polite = vec![send(copy(1, all)), receive(add(1, all))];
    assert!(check(schedules(8, 1, vec![polite, vec![swap(0)]])).is_ok());
}

#[test]
fn a_message_that_no_worker_receives() {
    let all = slots(0, 1);
    let steps = vec![vec![swap(1), send(copy(1, all))], vec![swap(0)]];
    assert_eq!(refused(1, steps), CheckError::Unreceived { from: Rank(0), to: Rank(1), slots: all });
}

#[test]
fn a_contribution_that_is_missing_or_counted_twice() {
    let all = slots(0, 1);
    // Rank 1 gives its own away and gets nothing but the sum of the others back: rank 2's is never asked for.
    let missing = vec![
        vec![send(copy(1, all))],
        vec![send(give(2, all)), receive(place(0, all))],
        vec![receive(add(1, all))],
    ];
    assert!(matches!(refused(1, missing), CheckError::Differs { .. }));
    // No worker exchanges anything in block 1.
    let half = |peer| vec![exchange(vec![copy(peer, slots(0, 1))], vec![add(peer, slots(0, 1))])];
    let differs = CheckError::Differs { rank: Rank(1), block: Block(1) };
    assert_eq!(refused(2, vec![half(1), half(0)]), differs);
    // Swapping twice counts everything twice, everywhere alike.
    let twice = |peer| vec![swap(peer), swap(peer)];
    let counted = |rank, times| CheckError::Counted { rank: Rank(rank), block: Block(0), times };
    let error = refused(1, vec![twice(1), twice(0)]);
    assert!(error == counted(0, 2) || error == counted(1, 2), "{error}");
    // Rank 1's own is lost: all end with the same, and it is rank 0's alone.
    let three = vec![
        vec![receive(add(1, all)), exchange(vec![copy(1, all), copy(2, all)], vec![])],
        vec![send(give(0, all)), receive(place(0, all))],
        vec![send(give(1, all)), receive(place(0, all))],
    ];
    assert!(matches!(refused(1, three), CheckError::Unreceived { from: Rank(2), .. }));
}

/// (a + b) + c and a + (b + c) are other bits: all must end with one expression, not just with one set of
/// contributions. a + b and b + a are the same.
#[test]
fn sums_in_another_order() {
    let all = slots(0, 1);
    let everyone = |order: [[u32; 2]; 3]| {
        let steps = order.into_iter().enumerate().map(|(w, others)| {
            let sends = (0..3).filter(|&to| to != w as u32).map(|to| copy(to, all)).collect();
            vec![exchange(sends, others.into_iter().map(|from| add(from, all)).collect())]
        });
        check(schedules(8, 1, steps.collect()))
    };
    // (0 + 1) + 2, (1 + 0) + 2, (2 + 0) + 1.
    let differs = CheckError::Differs { rank: Rank(2), block: Block(0) };
    assert_eq!(everyone([[1, 2], [0, 2], [0, 1]]).unwrap_err(), differs);
    let differs = CheckError::Differs { rank: Rank(1), block: Block(0) };
    assert_eq!(everyone([[1, 2], [2, 0], [0, 1]]).unwrap_err(), differs);
    // A worker that ends without the sum.
    let gone = vec![vec![exchange(vec![give(1, all)], vec![])], vec![receive(add(0, all))]];
    assert_eq!(refused(1, gone), CheckError::Differs { rank: Rank(0), block: Block(0) });
    // One of two that hold the same sum selects from it, or both select unequally.
    let one = vec![vec![swap(1), keep(all, 2, 1)], vec![swap(0)]];
    let two = vec![vec![swap(1), keep(all, 2, 1)], vec![swap(0), keep(all, 3, 1)]];
    let differs = CheckError::Differs { rank: Rank(1), block: Block(0) };
    assert_eq!(refused(1, one), differs);
    assert_eq!(refused(1, two), differs);
}

/// What a worker selected cannot vanish: it stays, or it is received, and then it is part of what some worker ends with.
/// So every attempt fails for another reason.
#[test]
fn what_is_kept_goes_somewhere() {
    let all = slots(0, 1);
    let select = || keep(all, 2, 1);
    // Sent to where no step receives it.
    let thrown = vec![vec![select(), send(give(1, all)), receive(place(1, all))], vec![send(copy(0, all))]];
    assert!(matches!(refused(1, thrown), CheckError::Unreceived { .. }));
    // Kept by a copy of what the sum is made of, while the sum goes on without it.
    let beside = vec![vec![swap(1), select()], vec![swap(0), send(copy(0, all))]];
    assert!(matches!(refused(1, beside), CheckError::Unreceived { .. }));
    // Added to what another worker ends with.
    let added = vec![
        vec![exchange(vec![copy(1, all)], vec![]), select(), send(give(1, all)), receive(place(1, all))],
        vec![receive(add(0, all)), exchange(vec![copy(0, all)], vec![add(0, all)])],
    ];
    assert!(matches!(refused(1, added), CheckError::Differs { .. }));
}

#[test]
fn what_is_refused_has_no_cost() {
    let all = slots(0, 1);
    let method = by_hand::method(schedules(8, 1, vec![vec![send(copy(1, all))], vec![]]), Memory::default());
    let cost = method.cost(&method.shape(2, 8).unwrap());
    let unreceived = CheckError::Unreceived { from: Rank(0), to: Rank(1), slots: all };
    assert_eq!(cost, Err(RoutineError::Check(unreceived)));
}

/// Block b has the cut of part b.
#[test]
fn as_many_parts_are_cut_as_there_are_blocks() {
    let all = slots(0, 2);
    let with = |parts| {
        let steps = |peer| {
            let note = Step::Annotate { slots: all, note: Note::Cut(parts) };
            vec![keep(all, 2, 2), note, exchange(vec![copy(peer, all)], vec![add(peer, all)])]
        };
        check(schedules(8, 2, vec![steps(1), steps(0)]))
    };
    assert!(with(2).is_ok());
    let fault = "cuts into another number of parts than there are blocks, in";
    for parts in [0, 1, 3, u32::MAX] {
        let refused = CheckError::Slot { rank: Rank(0), step: 1, block: Block(0), fault };
        assert_eq!(with(parts).unwrap_err(), refused);
    }
}

/// More entries than a partition has are refused, and not shared out to fewer in silence; and so is a rule with an allotment of
/// other blocks.
#[test]
fn more_entries_than_there_are_fit_nowhere() {
    let allotment = |k| Structure::of(Partition::even(5, 2), k, 0).map(|structure| structure.allotment);
    assert_eq!(allotment(6), Err(SparsityError::MoreThanAll { k: 6, n: 5 }.into()));
    let with = |allotment| {
        let keep = Step::Keep { slots: slots(0, 2), rule: Rule::Top(allotment), coding: Coding::Exact };
        check(schedules(5, 2, vec![vec![keep]]))
    };
    assert!(with(allotment(5).unwrap()).is_ok());
    let nowhere = CheckError::Nowhere { rank: Rank(0), step: 0, slots: slots(0, 2) };
    assert_eq!(with(Allotment::default()).unwrap_err(), nowhere);
}
