use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::synchrony::Sgd;

use super::super::shard::{Push, Shard, Update};
use super::*;

fn description(server: u32, servers: u32, entries: usize) -> Description {
    let (run, units) = ("0123456789abcdef".repeat(2), vec![("w".into(), entries)]);
    Description { run, generation: 0, server, servers, workers: 2, units, slices: Vec::new() }
}

/// One of some servers of four entries: as the first job has it, or as it is found.
fn server(directory: &Path, number: u32, servers: u32, is_first: bool) -> Shard {
    let each = 4 / servers as usize;
    let range = number as usize * each..(number as usize + 1) * each;
    let slices = vec![Slice { part: 0, range: 0..each, applied: vec![0; 2] }];
    let state = State { updates: 0, parts: vec![(vec![0.0; each], vec![0.0; each])], slices };
    let fresh = is_first.then_some(state);
    let (state, store, _) = take_up(directory, description(number, servers, 4), &[range], fresh).unwrap();
    let mut shard = Shard::new(Sgd { momentum: 0.5, ..Sgd::default() }, (false, false), state);
    shard.keep_in(store);
    shard
}

/// Applies what some workers push in a step, and gives the parameters.
fn apply(shard: &mut Shard, step: u64, workers: Range<u32>) -> Vec<f32> {
    let push = |worker| {
        let gradient = vec![(worker + 1) as f32 * (step + 1) as f32; shard.parts[0].parameters.len()];
        Push { worker, step, samples: 8, bags: vec![(0, Bag::Dense(gradient.into()))] }
    };
    let pushes: Vec<Push> = workers.map(push).collect();
    shard.apply(Update { rate: 0.25, workers: pushes.len() as u32, pushes, gone: Vec::new() }).unwrap();
    shard.parts[0].parameters.to_vec()
}

/// Any bit of the description or of the state that changes on a disk is found when the file is read.
#[test]
fn a_changed_bit_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let slices = vec![Slice { part: 0, range: 0..3, applied: vec![4, 5] }];
    let state = State { updates: 9, parts: vec![(vec![1.0, 2.0, 3.0], vec![0.5; 3])], slices };
    let ranges = [Range { start: 0, end: 3 }];
    let (_, store, _) = take_up(directory.path(), description(0, 1, 3), &ranges, Some(state)).unwrap();
    let found = read(&store.path, None).unwrap();
    assert_eq!((found.updates, found.applied), (9, vec![vec![4, 5]]));
    assert_eq!((found.parameters, found.velocities), (vec![1.0, 2.0, 3.0], vec![0.5; 3]));
    let whole = fs::read(&store.path).unwrap();
    let text = u32::from_le_bytes(whole[MARK.len()..MARK.len() + 4].try_into().unwrap()) as usize;
    let written = store.start + store.slot;
    let state = written..written + HEAD + 8 * 2 + 8 * 3;
    for byte in (0..MARK.len() + 4 + text).chain(state) {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[byte] ^= 1 << bit;
            fs::write(&store.path, changed).unwrap();
            assert!(read(&store.path, None).is_err(), "byte {byte}, bit {bit}");
        }
    }
}

/// Under a barrier servers are at most one step apart. All resume from the parameters of one step, whether they are cut again or not.
#[test]
fn servers_that_were_interrupted_within_a_step_go_on_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = [0, 1].map(|number| server(directory.path(), number, 2, true));
    let before = servers.each_mut().map(|server| apply(server, 0, 0..2));
    let after = apply(&mut servers[1], 1, 0..2);
    drop(servers);
    let ranges = [Range { start: 2, end: 4 }];
    // Its own file alone does not say that the other is behind.
    for _ in 0..2 {
        let mut own = server(directory.path(), 1, 2, false);
        assert_eq!((own.next(), own.parts[0].parameters.to_vec()), (2, after.clone()));
        own.go_back(1, &ranges).unwrap();
        assert_eq!((own.next(), own.updates), (1, 1));
        assert_eq!(own.parts[0].parameters.to_vec(), before[1]);
        // It can be killed at once: both states are still there.
    }
    let mut own = server(directory.path(), 1, 2, false);
    own.go_back(1, &ranges).unwrap();
    assert_eq!(apply(&mut own, 1, 0..2), after);
    drop(own);
    let one = server(directory.path(), 0, 1, false);
    assert_eq!((one.next(), one.slices.len()), (1, 1));
    assert_eq!(one.parts[0].parameters.to_vec(), before.concat());
}

/// Where workers are in different steps, nothing is undone that the slowest of them has not gone past.
#[test]
fn what_one_worker_was_ahead_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mut servers = [0, 1].map(|number| server(directory.path(), number, 2, true));
    let before = apply(&mut servers[0], 0, 0..2);
    apply(&mut servers[1], 0, 0..2);
    let ahead = apply(&mut servers[1], 1, 0..1);
    drop(servers);
    let one = server(directory.path(), 0, 1, false);
    assert_eq!((one.next(), one.slices.len()), (1, 2));
    assert_eq!(one.parts[0].parameters.to_vec(), [before, ahead].concat());
}
