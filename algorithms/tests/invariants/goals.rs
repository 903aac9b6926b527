//! Programs that achieve something else than an all-reduce: who brings something and who ends with the sums is a parameter of
//! the check.

use std::sync::Arc;

use gleaner_algorithms::residual::{Collection, Lent, Residual};
use gleaner_algorithms::schedule::{CheckError, Execution, Goal, Schedule, Step, check, check_for, lockstep};
use gleaner_algorithms::{Block, Partition, Rank};

use super::by_hand::{add, copy, exchange, give, keep, place, schedules, slots, swap};

/// What each rank ends with where rank r has 2^r in every entry: of every block the sum, None where it ends without.
fn run(goal: &Goal, schedules: Vec<Schedule>) -> Result<Vec<Vec<Option<f32>>>, CheckError> {
    let n = schedules[0].partition.entries();
    let proof = check_for(goal.clone(), schedules)?;
    let executions = (0..proof.workers()).map(|rank| {
        let program = Arc::new(proof.program(Rank(rank)));
        let candidates = vec![Default::default(); program.schedule().partition.blocks()];
        Execution::new(program, Arc::new(vec![f32::from(1u8 << rank); n]), candidates)
    });
    let done = lockstep(executions.collect()).unwrap();
    let value = |bag: &gleaner_algorithms::bag::Bag| bag.iter().next().map(|(_, value)| value);
    Ok(done.runs.iter().map(|run| run.finished.update.iter().map(value).collect()).collect())
}

fn owners(workers: u32) -> Vec<Rank> {
    (0..workers).map(Rank).collect()
}

/// Every worker sends each other one its block and adds up its own.
fn scatter(workers: u32) -> Vec<Schedule> {
    let others = |w: u32| (1..workers).map(move |d| (w + d) % workers);
    let steps = |w: u32| {
        let sends = others(w).map(|to| give(to, slots(to, 1))).collect();
        let receives = (1..workers).map(|d| (w + workers - d) % workers).map(|from| add(from, slots(w, 1)));
        vec![exchange(sends, receives.collect())]
    };
    schedules(12, workers as usize, (0..workers).map(steps).collect())
}

#[test]
fn a_reduce_scatter() {
    for workers in 1..=6 {
        let sum = f32::from((1u8 << workers) - 1);
        let ends = run(&Goal::reduce_scatter(owners(workers)), scatter(workers)).unwrap();
        for (rank, blocks) in ends.iter().enumerate() {
            let expected = (0..workers as usize).map(|block| (block == rank).then_some(sum));
            assert_eq!(*blocks, expected.collect::<Vec<_>>(), "rank {rank} of {workers}");
        }
        if workers > 1 {
            assert!(
                matches!(check(scatter(workers)), Err(CheckError::Differs { .. })),
                "it is no all-reduce"
            );
        }
    }
}

#[test]
fn an_all_gather() {
    let workers = 4;
    let steps = |w: u32| {
        let others = || (1..workers).map(move |d| (w + d) % workers);
        let sends = others().map(|to| copy(to, slots(w, 1))).collect();
        vec![exchange(sends, others().map(|from| place(from, slots(from, 1))).collect())]
    };
    let all = || schedules(12, workers as usize, (0..workers).map(steps).collect());
    let goal = Goal::all_gather(owners(workers));
    assert_eq!(run(&goal, all()).unwrap(), vec![[1.0, 2.0, 4.0, 8.0].map(Some).to_vec(); 4]);
    // A block that goes to one rank less; one that no worker brings.
    let mut less = all();
    let Step::Exchange { sends, .. } = &mut less[1].steps[0] else { panic!("an exchange") };
    sends.pop();
    assert!(matches!(check_for(goal, less), Err(CheckError::Deadlock { .. })));
    let missing = Goal::all_gather([0, 1, 2, 2].map(Rank));
    assert!(matches!(check_for(missing, all()), Err(CheckError::Slot { rank: Rank(3), .. })));
}

/// Two workers and two servers, each of which has one of two blocks.
#[test]
fn push_and_pull() {
    let servers = [2, 3].map(Rank);
    let worker = || vec![exchange(vec![give(2, slots(0, 1)), give(3, slots(1, 1))], vec![])];
    let server = |block| vec![exchange(vec![], vec![place(0, slots(block, 1)), add(1, slots(block, 1))])];
    let push = || schedules(12, 2, vec![worker(), worker(), server(0), server(1)]);
    let ends = run(&Goal::push(servers), push()).unwrap();
    assert_eq!(ends, [vec![None, None], vec![None, None], vec![Some(3.0), None], vec![None, Some(3.0)]]);

    let worker = || vec![exchange(vec![], vec![place(2, slots(0, 1)), place(3, slots(1, 1))])];
    let server = |block| vec![exchange(vec![copy(0, slots(block, 1)), give(1, slots(block, 1))], vec![])];
    let pull = schedules(12, 2, vec![worker(), worker(), server(0), server(1)]);
    let ends = run(&Goal::pull(servers), pull).unwrap();
    assert_eq!(ends[..2], vec![vec![Some(4.0), Some(8.0)]; 2]);
    assert_eq!(ends[2..], vec![vec![None, None]; 2]);

    // What a worker selects and sends is the server's alone, and the rest waits with the worker.
    let worker =
        || vec![keep(slots(0, 2), 2, 2), exchange(vec![give(2, slots(0, 1)), give(3, slots(1, 1))], vec![])];
    let server = |block| vec![exchange(vec![], vec![place(0, slots(block, 1)), add(1, slots(block, 1))])];
    let pushed = schedules(12, 2, vec![worker(), worker(), server(0), server(1)]);
    let proof = check_for(Goal::push(servers), pushed).unwrap();
    let gradient = |rank: u32| (0..12).map(|i| ((i * 5 + rank) % 12) as f32 + 1.0).collect::<Vec<f32>>();
    let partition = Partition::even(12, 2);
    let mut residuals = [0, 1, 2, 3].map(|_| Residual::<f32>::new(partition.clone(), vec![None; 2]));
    let mut executions = Vec::new();
    for (rank, residual) in (0..).zip(&mut residuals) {
        let brings = if rank < 2 { gradient(rank) } else { vec![0.0; 12] };
        residual.accumulate(0, &brings).unwrap();
        let Lent { accumulator, candidates, .. } = residual.begin().unwrap();
        executions.push(Execution::new(Arc::new(proof.program(Rank(rank))), accumulator, candidates));
    }
    let mut delivered = vec![0.0; 12];
    for (run, residual) in lockstep(executions).unwrap().runs.into_iter().zip(&mut residuals) {
        for (block, bag) in (0..).map(Block).zip(&run.finished.update) {
            bag.iter().for_each(|(i, value)| delivered[partition.range(block).start + i as usize] += value);
        }
        residual.commit(0, run.finished, Collection::Global).unwrap();
    }
    for (i, delivered) in delivered.into_iter().enumerate() {
        let waits: f32 = residuals.iter().map(|residual| residual.read(i..i + 1).unwrap()[0]).sum();
        assert_eq!(delivered + waits, gradient(0)[i] + gradient(1)[i], "entry {i}");
    }

    // A worker that is left out, and one that is counted although it brings nothing.
    assert!(matches!(check_for(Goal::push([1, 3].map(Rank)), push()), Err(CheckError::Slot { .. })));
    let both = vec![vec![swap(1)], vec![swap(0)]];
    let alone = Goal { brings: Goal::push([Rank(0)]).brings, ends: Goal::ALL_REDUCE.ends };
    assert!(check_for(alone, schedules(8, 1, both)).is_err());
}
