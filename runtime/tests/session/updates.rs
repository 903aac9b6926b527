//! What comes out of a session is what the lock-step interpreter says, bit by bit.

use gleaner_algorithms::collectives::Ensemble;
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::lockstep;
use gleaner_algorithms::{Block, Method};
use gleaner_runtime::Layout;
use gleaner_statistics::random::Generator;

use crate::job::{self, NETWORKS, Over, gradient};

/// The sums of some steps by the interpreter, as dense vectors.
fn expected(
    method: Method,
    workers: u32,
    n: usize,
    steps: u64,
    of: impl Fn(usize, u64) -> Vec<f32>,
) -> Vec<Vec<u32>> {
    let mut ensemble = Ensemble::new(method.clone(), workers, n).unwrap();
    (0..steps)
        .map(|step| {
            let executions = (0..workers as usize).map(|rank| {
                ensemble.residuals[rank].accumulate(0, &of(rank, step)).unwrap();
                ensemble.begin(rank).unwrap()
            });
            let run = lockstep(executions.collect()).unwrap();
            let partition = ensemble.partition().clone();
            let mut sum = vec![0u32; n];
            for committed in ensemble.commit(run, method.collection()).unwrap() {
                for (b, bag) in committed.update.iter().enumerate() {
                    let start = partition.range(Block(b as u32)).start;
                    bag.iter().for_each(|(i, v)| sum[start + i as usize] = v.to_bits());
                }
            }
            sum
        })
        .collect()
}

#[test]
fn every_method_gives_the_interpreters_bits_on_every_rank() {
    let (n, steps) = (3000, 4);
    for over in NETWORKS {
        for workers in [1, 2, 3, 5, 6] {
            for listed in Method::all() {
                let method = listed.clone().density(0.05);
                let wanted =
                    expected(method.clone(), workers, n, steps, |rank, step| gradient(n, rank, step));
                let results = job::run(over, workers, |session| {
                    let layout = Layout::new().parameter("a", 1000).parameter("b", 0).parameter("c", 2000);
                    let mut gradients = session.gradients(&layout, method.clone()).unwrap();
                    (0..steps)
                        .map(|step| {
                            let g = gradient(n, session.rank(), step);
                            gradients.ready("c", &g[1000..]).unwrap();
                            gradients.ready("a", &g[..1000]).unwrap();
                            gradients.ready("b", &[]).unwrap();
                            let update = gradients.wait().unwrap();
                            let mut sum = vec![0.0f32; n];
                            let p = session.world_size() as f32;
                            update.add_to("a", &mut sum[..1000], p).unwrap();
                            update.add_to("c", &mut sum[1000..], p).unwrap();
                            sum.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
                        })
                        .collect::<Vec<_>>()
                });
                for (rank, result) in results.iter().enumerate() {
                    assert_eq!(
                        result,
                        &wanted,
                        "{} over {over:?}, rank {rank} of {workers}",
                        listed.collective().name()
                    );
                }
            }
        }
    }
}

/// Memory goes round between the program and the steps where nothing is selected, and is copied elsewhere: the bits are the same.
#[test]
fn a_gradient_may_be_given_in_place() {
    let (n, steps) = (3000, 4);
    for listed in Method::all() {
        let method = listed.density(0.05);
        let wanted = expected(method.clone(), 3, n, steps, |rank, step| gradient(n, rank, step));
        let results = job::run(Over::Memory, 3, |session| {
            // The second group has two parameters, so they are copied.
            let layout = Layout::new().parameter("w", n).group().parameter("a", 2).parameter("b", 2);
            let mut gradients = session.gradients(&layout, method.clone()).unwrap();
            let mut memory = Vec::new();
            let step = |step| {
                memory.clear();
                memory.extend(gradient(n, session.rank(), step));
                let given = memory.as_ptr();
                gradients.ready_in_place("w", &mut memory).unwrap();
                assert_eq!(memory.len(), n);
                let moved = memory.as_ptr() != given;
                let mut small = vec![1.0, 2.0];
                gradients.ready_in_place("a", &mut small).unwrap();
                gradients.ready("b", &[3.0, 4.0]).unwrap();
                let mut sum = vec![0.0f32; n];
                gradients.wait().unwrap().add_to("w", &mut sum, session.world_size() as f32).unwrap();
                (sum.iter().map(|v| v.to_bits()).collect::<Vec<u32>>(), moved)
            };
            (0..steps).map(step).collect::<Vec<_>>()
        });
        for result in results {
            let (sums, moved): (Vec<_>, Vec<bool>) = result.into_iter().unzip();
            assert_eq!(sums, wanted, "{method}");
            // From the second step on something waits in the residuals of the others.
            assert_eq!(moved[1..], [!method.collective().is_sparse(); 3], "{method}");
        }
    }
}

/// Bags of more entries than the I/O thread takes in by itself: compute threads do, and messages wait meanwhile.
#[test]
fn large_bags_give_the_interpreters_bits() {
    let (n, steps) = (150_000, 3);
    for name in ["spardl", "topka", "gtopk", "oktopk"] {
        let method = Method::named(name).unwrap().density(0.3);
        let wanted = expected(method.clone(), 3, n, steps, |rank, step| gradient(n, rank, step));
        let results = job::run(Over::Adverse, 3, |session| {
            let mut gradients = session.gradients(&Layout::new().parameter("w", n), method.clone()).unwrap();
            let step = |step| {
                gradients.ready("w", &gradient(n, session.rank(), step)).unwrap();
                let mut sum = vec![0.0f32; n];
                gradients.wait().unwrap().add_to("w", &mut sum, session.world_size() as f32).unwrap();
                sum.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
            };
            (0..steps).map(step).collect::<Vec<_>>()
        });
        assert!(results.iter().all(|result| *result == wanted), "{}", method.collective().name());
    }
}

#[test]
fn a_large_dense_gradient_passes_in_pieces() {
    let n = 700_001;
    let method = Method::ring();
    let wanted = expected(method.clone(), 3, n, 1, |rank, step| gradient(n, rank, step));
    let results = job::run(Over::Tcp, 3, |session| {
        let mut gradients = session.gradients(&Layout::new().parameter("w", n), method.clone()).unwrap();
        gradients.ready("w", &gradient(n, session.rank(), 0)).unwrap();
        let mut sum = vec![0.0; n];
        gradients.wait().unwrap().add_to("w", &mut sum, 3.0).unwrap();
        sum.iter().map(|v| v.to_bits()).collect::<Vec<u32>>()
    });
    results.iter().for_each(|result| assert!(result == &wanted[0]));
}

#[test]
fn groups_may_become_ready_in_any_order_on_any_rank() {
    let (groups, len, steps, workers) = (6usize, 400usize, 10u64, 5u32);
    let method = Method::spardl().density(0.1);
    let part = |rank: usize, step: u64, group: usize| gradient(len, rank, step * 100 + group as u64);
    let wanted: Vec<Vec<Vec<u32>>> = (0..groups)
        .map(|group| expected(method.clone(), workers, len, steps, |rank, step| part(rank, step, group)))
        .collect();
    for over in NETWORKS {
        let results = job::run(over, workers, |session| {
            let layout =
                (0..groups).fold(Layout::new(), |layout, g| layout.group().parameter(format!("g{g}"), len));
            let mut gradients = session.gradients(&layout, method.clone()).unwrap();
            let mut wanted_all = true;
            for step in 0..steps {
                // Another order on every rank and in every step.
                let mut order: Vec<u32> = (0..groups as u32).collect();
                Generator::new(step, "order", session.rank() as u64).shuffle(&mut order);
                for group in order.into_iter().map(|group| group as usize) {
                    gradients.ready(&format!("g{group}"), &part(session.rank(), step, group)).unwrap();
                }
                let update = gradients.wait().unwrap();
                assert_eq!(update.step(), step);
                for (group, wanted) in wanted.iter().enumerate() {
                    let mut sum = vec![0.0f32; len];
                    update.add_to(&format!("g{group}"), &mut sum, workers as f32).unwrap();
                    let bits: Vec<u32> = sum.iter().map(|v| v.to_bits()).collect();
                    wanted_all &= bits == wanted[step as usize];
                }
            }
            wanted_all
        });
        assert_eq!(results, vec![true; workers as usize], "over {over:?}");
    }
}

#[test]
fn links_are_few() {
    // SparDL among 16 workers: 4 distances, both ways, and rank 0.
    let links = job::run(Over::Tcp, 16, |session| {
        let method = Method::spardl().density(0.1).residual(Collection::Global);
        let mut gradients = session.gradients(&Layout::new().parameter("w", 500), method).unwrap();
        for step in 0..2 {
            gradients.ready("w", &gradient(500, session.rank(), step)).unwrap();
            gradients.wait().unwrap();
        }
        session.barrier().unwrap();
        session.traffic().links
    });
    for (rank, &links) in links.iter().enumerate().skip(1) {
        assert!(links <= 2 * 4 + 1, "rank {rank} has {links} links");
    }
}

#[test]
fn notes_reach_all_ranks_in_the_order_of_the_ranks() {
    for over in NETWORKS {
        let results = job::run(over, 4, |session| {
            session.barrier().unwrap();
            let first = session.all_gather(format!("rank {}", session.rank()).as_bytes()).unwrap();
            session.barrier().unwrap();
            let second = session.all_gather(&vec![session.rank() as u8; 300_000]).unwrap();
            (first, second.iter().map(|note| (note.len(), note[0])).collect::<Vec<_>>())
        });
        let large = job::run(over, 8, |session| {
            let notes = session.all_gather(&vec![session.rank() as u8; 1_000_000]).unwrap();
            notes
                .iter()
                .enumerate()
                .all(|(rank, note)| note.len() == 1_000_000 && note[999_999] == rank as u8)
        });
        assert_eq!(large, [true; 8]);
        for (first, second) in results {
            assert_eq!(first, ["rank 0", "rank 1", "rank 2", "rank 3"].map(|s| s.as_bytes().to_vec()));
            assert_eq!(second, (0..4).map(|r| (300_000, r)).collect::<Vec<_>>());
        }
    }
}

/// What is selected from is gradient and residual, in the order of the layout and not of the groups, while a step is under way.
#[test]
fn the_accumulated_gradient_can_be_read_before_the_update() {
    let seen = job::run(Over::Memory, 1, |session| {
        let layout = Layout::new().parameter("a", 4).group().parameter("b", 2);
        let mut gradients = session.gradients(&layout, Method::spardl().density(0.5)).unwrap();
        gradients.keep_accumulated(true);
        let step = || {
            let before = gradients.accumulated();
            gradients.ready("b", &[0.1, -3.0]).unwrap();
            let early = gradients.accumulated();
            gradients.ready("a", &[4.0, 0.2, 0.0, 0.3]).unwrap();
            let accumulated = gradients.accumulated().unwrap();
            gradients.wait().unwrap();
            assert_eq!((before, early), (None, None));
            accumulated
        };
        std::iter::repeat_with(step).take(3).collect::<Vec<_>>()
    });
    // 4, 0.3 and -3 are delivered first; then 4, 0.4 and -3, of the residuals 0.2 and 0.1.
    let first = [4.0, 0.2, 0.0, 0.3, 0.1, -3.0];
    let second = [4.0, 0.4, 0.0, 0.3, 0.2, -3.0];
    let third = [4.0, 0.2, 0.0, 0.6, 0.1 + 0.2, -3.0];
    assert_eq!(seen, [vec![first.to_vec(), second.to_vec(), third.to_vec()]]);
}

#[test]
fn groups_without_parameters_do_not_count() {
    let layout = Layout::new().group().parameter("a", 4).group().group().parameter("b", 3).group();
    let results = job::run(Over::Memory, 3, |session| {
        let mut gradients = session.gradients(&layout, Method::spardl().density(1.0)).unwrap();
        let (mut a, mut b) = ([0.0; 4], [0.0; 3]);
        for _ in 0..2 {
            gradients.ready("b", &[1.0, 2.0, 3.0]).unwrap();
            gradients.ready("a", &[4.0, 5.0, 6.0, 7.0]).unwrap();
            let update = gradients.wait().unwrap();
            update.add_to("a", &mut a, 1.0).unwrap();
            update.add_to("b", &mut b, 1.0).unwrap();
        }
        (a, b)
    });
    for (a, b) in results {
        assert_eq!((a, b), ([8.0, 10.0, 12.0, 14.0], [2.0, 4.0, 6.0]));
    }
}

/// A share that rounds to nothing would leave a small group out for ever. With k = 0 nothing is delivered anywhere.
#[test]
fn no_group_goes_without_an_entry() {
    let layout =
        Layout::new().parameter("scale", 1).group().parameter("w", 1000).group().parameter("shift", 2);
    for (k, wanted) in [(0, [0, 0, 0]), (1, [1, 1, 1]), (10, [1, 9, 1]), (1003, [1, 1000, 2])] {
        let results = job::run(Over::Memory, 2, |session| {
            let mut gradients = session.gradients(&layout, Method::spardl().k(k)).unwrap();
            for (name, len) in [("scale", 1), ("w", 1000), ("shift", 2)] {
                gradients.ready(name, &vec![1.0; len]).unwrap();
            }
            let update = gradients.wait().unwrap();
            [("scale", 1), ("w", 1000), ("shift", 2)].map(|(name, len)| {
                let mut sum = vec![0.0f32; len];
                update.add_to(name, &mut sum, 1.0).unwrap();
                sum.iter().filter(|value| **value != 0.0).count()
            })
        });
        for found in results {
            assert!(
                found.iter().zip(wanted).all(|(found, wanted)| found.abs_diff(wanted) <= 1),
                "k = {k}: {found:?}"
            );
            assert_eq!(found.map(|count| count > 0), wanted.map(|count| count > 0), "k = {k}: {found:?}");
        }
    }
}
