//! Updates are applied where parameters and gradients lie, as on the host.

#![allow(clippy::unwrap_used)]

mod devices;

use devices::{FORMATS, Program, Random, bits_of, bytes, on_each, rounded};
use gleaner_algorithms::bag::Entries;
use gleaner_algorithms::device::{Apply, Device, Format};

/// What the host makes of it, as bits: each operation rounded to f32, and the result to the format.
fn expected(held: &[f32], update: &[Option<f32>], how: Apply, format: Format) -> Vec<u32> {
    let applied = held.iter().zip(update).map(|(&held, &given)| match (how, given) {
        (Apply::Write { divisor }, Some(given)) => given / divisor as f32 + 0.0,
        (Apply::Write { .. }, None) => 0.0,
        (Apply::Add { scale }, Some(given)) => held + scale * given,
        (Apply::Add { .. }, None) => held,
    });
    bits_of(&bytes(&applied.collect::<Vec<_>>(), format), format)
}

const WAYS: [Apply; 5] = [
    Apply::Write { divisor: 1 },
    Apply::Write { divisor: 3 },
    Apply::Add { scale: 1.0 },
    Apply::Add { scale: -0.1 },
    Apply::Add { scale: 0.0 },
];

#[test]
fn entries_and_dense_values_are_applied_as_on_the_host() {
    on_each(|cuda| {
        let mut random = Random::new(1);
        for format in FORMATS {
            for how in WAYS {
                for (start, len) in [(0, 5000), (3, 4097), (1, 0), (5, 1)] {
                    let program: Vec<f32> = (0..5010).map(|_| random.cube()).collect();
                    let given: Vec<f32> =
                        (0..len).map(|i| if i % 50 == 0 { -0.0 } else { random.cube() }).collect();
                    let held = rounded(&program, format);
                    let sparse: Entries = (0..len).step_by(7).map(|i| (i as u32, given[i])).collect();
                    for is_sparse in [false, true] {
                        let into = Program::new(cuda, &program, format);
                        let slice = into.slice(start..start + len);
                        let update: Vec<Option<f32>> = match is_sparse {
                            true => (0..len).map(|i| (i % 7 == 0).then_some(given[i])).collect(),
                            false => given.iter().copied().map(Some).collect(),
                        };
                        match is_sparse {
                            true => cuda.apply(&slice, &sparse, how).unwrap(),
                            false => cuda.apply_dense(&slice, &given, how).unwrap(),
                        }
                        // Around it nothing changes.
                        let mut all = bits_of(&bytes(&program, format), format);
                        all[start..start + len].copy_from_slice(&expected(
                            &held[start..start + len],
                            &update,
                            how,
                            format,
                        ));
                        assert_eq!(into.bits(), all, "{format:?}, {how:?}, {len} from {start}");
                    }
                }
            }
        }
    });
}

#[test]
fn more_than_a_buffer_is_applied_piece_by_piece() {
    on_each(|cuda| {
        let mut random = Random::new(2);
        let len = (1 << 20) + 70_000;
        let values: Vec<f32> = (0..len).map(|_| random.cube()).collect();
        let entries = Entries { indices: (0..len as u32).collect(), values: values.clone() };
        for format in [Format::Float32, Format::Float16] {
            for how in [Apply::Write { divisor: 4 }, Apply::Add { scale: 0.5 }] {
                let update: Vec<Option<f32>> = values.iter().copied().map(Some).collect();
                let expected = expected(&vec![1.0; len], &update, how, format);
                let into = Program::new(cuda, &vec![1.0; len], format);
                cuda.apply_dense(&into.slice(0..len), &values, how).unwrap();
                assert!(into.bits() == expected, "{format:?}, {how:?}");
                let into = Program::new(cuda, &vec![1.0; len], format);
                cuda.apply(&into.slice(0..len), &entries, how).unwrap();
                assert!(into.bits() == expected, "{format:?}, {how:?}");
            }
        }
    });
}
