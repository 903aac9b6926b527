//! Gradients that are sparse already: the sums of dense reducers, bit by bit, from entries alone.

use gleaner_algorithms::Method;
use gleaner_algorithms::bag::Entries;

use crate::job::{self, Over, gradient};

/// Methods that deliver all entries of sparse gradients.
const TAKE: [&str; 10] = [
    "spardl",
    "ssar-recursive-double",
    "ssar-split-all-gather",
    "dsar-split-all-gather",
    "topka",
    "topkdsa",
    "gtopk",
    "ring",
    "rabenseifner",
    "recursive-doubling",
];

/// Few entries of a gradient, others on each rank, some of them shared, and some that cancel between two ranks.
fn few(n: usize, rank: usize, step: u64) -> Vec<f32> {
    let all = gradient(n, rank, step);
    let share = |(i, value): (usize, f32)| match i % 11 {
        _ if i % 11 == rank % 11 => value,
        9 => gradient(n, 77, step)[i],
        10 if rank < 2 => {
            if rank == 0 {
                1.5
            } else {
                -1.5
            }
        }
        _ => 0.0,
    };
    all.into_iter().enumerate().map(share).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_are_those_of_dense_reducers() {
    for workers in [1, 2, 3, 4, 5, 8] {
        for n in [1usize, 23, 700] {
            job::run(Over::Memory, workers, |session| {
                for name in TAKE {
                    let method = Method::named(name).unwrap();
                    let mut sparse = session.sparse_reducer("w", n, method.clone()).unwrap();
                    let mut dense = session.reducer("w", n, method.density(1.0)).unwrap();
                    for step in 0..3 {
                        let values = few(n, session.rank(), step);
                        let expected = dense.start(&values).unwrap().wait().unwrap();
                        let found = sparse.start(&Entries::from_dense(&values)).unwrap().wait().unwrap();
                        let values = expected.values("w").unwrap();
                        assert_eq!(
                            bits(&found.values("w").unwrap()),
                            bits(&values),
                            "{name}, {workers}, {n}"
                        );
                        assert_eq!(found.sparse("w").unwrap(), Entries::from_dense(&values), "{name}");
                        assert_eq!(expected.sparse("w").unwrap(), Entries::from_dense(&values), "{name}");
                        let mut sums = vec![0.0; n];
                        expected.add_to("w", &mut sums, workers as f32).unwrap();
                        assert_eq!(found.sparse_sum("w").unwrap(), Entries::from_dense(&sums), "{name}");
                        assert_eq!(sparse.residual().unwrap(), Entries::default(), "{name}");
                    }
                }
            });
        }
    }
}

/// Whoever would leave entries out or name all n says so, and takes them with a density.
#[test]
fn methods_that_leave_entries_out_are_refused() {
    job::run(Over::Memory, 3, |session| {
        for method in Method::all().filter(|method| !TAKE.contains(&method.collective().name())) {
            let name = method.collective().name();
            let error = session.sparse_reducer("w", 1000, method.clone()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("without a density"), "{error}");
            session.sparse_reducer("w", 1000, method.density(0.1)).unwrap();
        }
    });
}
