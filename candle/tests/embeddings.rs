//! Embeddings, of which a step uses some rows, among several workers in one process.

#![allow(clippy::unwrap_used)]

mod job;

use candle_core::{DType, Device::Cpu, Tensor, Var};
use gleaner_algorithms::residual::Correction;
use gleaner_algorithms::{Method, merging};
use gleaner_candle::{Overlap, OverlapError};
use gleaner_runtime::Session;
use job::job;

const ROWS: usize = 40;
const WIDTH: usize = 3;

fn table() -> Var {
    let values = (0..ROWS * WIDTH).map(|i| (i * 7919 % 1009) as f32 / 504.5 - 1.0).collect();
    Var::from_vec(values, (ROWS, WIDTH), &Cpu).unwrap()
}

fn weight() -> Var {
    Var::new(&[[0.5_f32], [-1.0], [2.0]], &Cpu).unwrap()
}

fn overlap<'s>(
    session: &'s Session,
    table: &Var,
    weight: &Var,
    method: Method,
) -> Result<Overlap<'s>, OverlapError> {
    let dense = [("weight".to_owned(), weight.clone())];
    let strategy = merging::named("layer-wise").unwrap().into();
    Overlap::with_embeddings(session, dense, [("table".to_owned(), table.clone())], method, strategy)
}

/// Some rows, one of them twice.
fn numbers(rank: usize, step: usize) -> Tensor {
    let number = |i: usize| ((i * 13 + step * 7 + rank * 5) % ROWS) as u32;
    Tensor::new(&[number(0), number(1), number(0), number(2)], &Cpu).unwrap()
}

fn loss(rows: &Tensor, others: &Tensor, weight: &Tensor) -> Tensor {
    let outputs = (rows.matmul(weight).unwrap() + others.matmul(weight).unwrap()).unwrap();
    (outputs - 1.0).unwrap().sqr().unwrap().mean_all().unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Rows that are selected twice in a step and twice in one selection: the sum over the workers of candle's gradients, whatever the
/// method does with other parameters.
#[test]
fn gradients_of_rows_are_candles() {
    let sparse = Method::spardl().density(0.4);
    // With small parameters that travel whole, no other parameter is left to be selected from.
    let whole = sparse.clone().dense_below(10);
    for (workers, method) in [(1, Method::ring()), (3, Method::ring()), (3, sparse), (3, whole)] {
        job(workers, |session| {
            let (table, weight) = (table(), weight());
            let mut overlap = overlap(&session, &table, &weight, method.clone()).unwrap();
            for step in 0..3 {
                let mut expected = Tensor::zeros((ROWS, WIDTH), DType::F32, &Cpu).unwrap();
                for rank in 0..workers as usize {
                    let select = |step| table.index_select(&numbers(rank, step), 0).unwrap();
                    let loss = loss(&select(step), &select(step + 9), &weight);
                    let gradients = loss.backward().unwrap();
                    expected = (expected + gradients.get(&table).unwrap()).unwrap();
                }
                let rows = overlap.rows("table").unwrap();
                let watched = overlap.watch("weight").unwrap();
                let select = |step| rows.select(&numbers(session.rank(), step)).unwrap();
                overlap.backward(&loss(&select(step), &select(step + 9), &watched)).unwrap();
                let update = overlap.wait().unwrap();
                let expected: Vec<f32> = values(&expected).iter().map(|sum| sum / workers as f32).collect();
                let found = update.values("table").unwrap();
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found - expected).abs() <= 1e-6 * (1.0 + expected.abs()), "{found} {expected}");
                }
                // At most eight rows a worker are not zero, of which two are one.
                assert!(update.sparse("table").unwrap().len() <= 6 * WIDTH * workers as usize);
                assert_eq!(values(overlap.means(&update).unwrap().get(&table).unwrap()), found);
                table
                    .set(
                        &(table.as_tensor()
                            - (Tensor::from_vec(found, (ROWS, WIDTH), &Cpu).unwrap() * 0.1).unwrap())
                        .unwrap(),
                    )
                    .unwrap();
            }
        });
    }
}

/// An embedding that the model does not use has no entries; one that it uses without its rows is handed over nevertheless.
#[test]
fn embeddings_may_be_used_directly_or_not_at_all() {
    let session = Session::join().unwrap();
    let (table, weight) = (table(), weight());
    let mut overlap = overlap(&session, &table, &weight, Method::ring()).unwrap();
    let watched = overlap.watch("weight").unwrap();
    overlap.backward(&watched.sqr().unwrap().sum_all().unwrap()).unwrap();
    assert_eq!(overlap.wait().unwrap().sparse("table").unwrap().len(), 0);
    let direct = || table.index_select(&numbers(0, 0), 0).unwrap();
    let gradients = loss(&direct(), &direct(), &weight).backward().unwrap();
    overlap.hand_over(&gradients).unwrap();
    let update = overlap.wait().unwrap();
    assert_eq!(update.values("table").unwrap(), values(gradients.get(&table).unwrap()));
    // Without any other parameter.
    let strategy = || merging::named("optimal").unwrap().into();
    let embeddings = [("only".to_owned(), table.clone())];
    let mut alone = Overlap::with_embeddings(&session, [], embeddings, Method::spardl(), strategy()).unwrap();
    let rows = alone.rows("only").unwrap().select(&numbers(0, 0)).unwrap();
    alone.backward(&rows.sum_all().unwrap()).unwrap();
    assert_eq!(alone.wait().unwrap().sparse("only").unwrap().len(), 3 * WIDTH);
}

#[test]
fn what_cannot_be_is_refused_in_a_sentence() {
    let refused = |act: &dyn Fn(&mut Overlap, &Var) -> Option<OverlapError>| {
        let session = Session::join().unwrap();
        let (table, weight) = (table(), weight());
        let mut overlap = overlap(&session, &table, &weight, Method::ring()).unwrap();
        act(&mut overlap, &table).unwrap().to_string()
    };
    assert!(refused(&|overlap, _| overlap.rows("weight").err()).contains("no embedding named 'weight'"));
    let stale = refused(&|overlap, _| {
        let rows = overlap.rows("table").unwrap();
        overlap.backward(&rows.select(&numbers(0, 0)).unwrap().sum_all().unwrap()).unwrap();
        overlap.wait().unwrap();
        overlap.backward(&rows.select(&numbers(0, 0)).unwrap().sum_all().unwrap()).err()
    });
    assert!(stale.contains("in an earlier step"), "{stale}");
    let two_ways = refused(&|overlap, table| {
        let rows = overlap.rows("table").unwrap().select(&numbers(0, 0)).unwrap();
        overlap.backward(&(rows.sum_all().unwrap() + table.sum_all().unwrap()).unwrap()).err()
    });
    assert!(two_ways.contains("both as watched and directly"), "{two_ways}");

    let session = Session::join().unwrap();
    let flat = Var::zeros(4, DType::F32, &Cpu).unwrap();
    let refusal = overlap(&session, &flat, &weight(), Method::ring()).err().unwrap().to_string();
    assert!(refusal.contains("expected a matrix"), "{refusal}");
    let session = Session::join().unwrap();
    let correction = Correction { momentum: 0.5, ..Correction::default() };
    let moved = Method::spardl().corrected(correction);
    let refusal = overlap(&session, &table(), &weight(), moved).err().unwrap().to_string();
    assert!(refusal.contains("momentum correction"), "{refusal}");
}
