//! The invariants of gradients that are sparse already.

use super::{InvariantError, Outcome, STEPS, Trial, whole};
use crate::bag::Coding;
use crate::collectives::RoutineError;
use crate::{Element, Method};

/// Tests the invariants for a method that takes gradients of n entries as [entries alone](Method::for_sparse), among this many workers:
/// conservation and one update in each step, and update and residuals that have the bits of the same steps of all values.
/// Without a density nothing waits after any step.
///
/// # Errors
/// The first invariant that it breaks, and a method that does not take them.
pub fn check_sparse(method: &Method, workers: u32, n: usize) -> Result<(), InvariantError> {
    let mut entries = Trial::<f32>::sparse(method, workers, n)?;
    let mut all = Trial::<f32>::new(method.for_sparse(workers, n).map_err(RoutineError::from)?, workers, n)?;
    for step in 0..STEPS {
        let gradients: Vec<Vec<f32>> = (0..workers as usize).map(|rank| few(rank, step, n)).collect();
        let (found, expected) = (entries.step(&gradients)?, all.step(&gradients)?);
        found.check()?;
        are_equal(&found, &expected)?;
        let is_whole = method.asked().is_none() && method.clone().density(1.0).values() == Coding::Exact;
        if is_whole && let Some((rank, entry)) = entries.waiting()? {
            return Err(InvariantError::Waits { steps: 0, entry, rank });
        }
    }
    Ok(())
}

/// A gradient with few entries, some of them on all workers, and some that cancel between two of them.
fn few(rank: usize, step: u64, n: usize) -> Vec<f32> {
    let value = |entry: usize| match (entry + step as usize) % 9 {
        0 => whole(rank, step, entry),
        1 if rank < 2 => (1.0 - 2.0 * rank as f32) * whole(0, step, entry),
        2 if rank == entry % 3 => whole(rank, step, entry),
        _ => 0.0,
    };
    (0..n).map(value).collect()
}

fn are_equal(found: &Outcome<f32>, expected: &Outcome<f32>) -> Result<(), InvariantError> {
    let step = found.step;
    let vectors =
        [("the update", &found.delivered, &expected.delivered), ("the residual", &found.new, &expected.new)];
    for (what, found_by_rank, expected_by_rank) in vectors {
        for (rank, (found, expected)) in found_by_rank.iter().zip(expected_by_rank).enumerate() {
            // Adding zero leaves one zero, as in every update that is handed out.
            let bits = |value: &f32| (value + 0.0).bits();
            let differs = |(found, expected): (&f32, &f32)| bits(found) != bits(expected);
            if let Some(entry) = found.iter().zip(expected).position(differs) {
                let (found, expected) = (f64::from(found[entry]), f64::from(expected[entry]));
                return Err(InvariantError::Sparse { step, rank, entry, what, found, expected });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::MethodError;

    /// Those that deliver all entries without a density.
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

    #[test]
    fn listed_methods_keep_the_invariants_of_sparse_gradients() {
        for workers in 1..=9 {
            for n in [1, 7, 60, 333] {
                for method in Method::all() {
                    let name = method.collective().name();
                    match check_sparse(&method, workers, n) {
                        Err(InvariantError::Routine(RoutineError::Method(MethodError::NotSparse {
                            ..
                        }))) => {
                            assert!(!TAKE.contains(&name), "{name}, P {workers}, n {n}");
                        }
                        checked => {
                            assert_eq!(checked, Ok(()), "{name}, P {workers}, n {n}");
                            assert!(TAKE.contains(&name), "{name}, P {workers}, n {n}");
                        }
                    }
                }
            }
        }
    }

    /// With a density that was asked for, the others wait, as entries.
    #[test]
    fn with_a_density_the_others_wait() {
        for workers in [1, 2, 3, 5, 8] {
            for method in Method::all().map(|method| method.density(0.1)) {
                assert_eq!(check_sparse(&method, workers, 120), Ok(()), "{method}, P {workers}");
                let coded = method.coding(Coding::ALL[workers as usize % Coding::ALL.len()]);
                if coded.shape(workers, 120).is_ok() {
                    assert_eq!(check_sparse(&coded, workers, 120), Ok(()), "{coded}, P {workers}");
                }
            }
        }
    }
}
