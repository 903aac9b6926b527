//! Models whose gradients are exchanged while the backward pass goes on, among several workers in one process.

#![allow(clippy::unwrap_used)]

mod job;

use std::time::Instant;

use candle_core::{CpuStorage, CustomOp1, Device::Cpu, Layout, Shape, Tensor, Var};
use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_algorithms::{Method, SelectOver, merging};
use gleaner_candle::{Overlap, OverlapError};
use gleaner_runtime::{Error, Failure, Session};
use job::{TIMEOUT, job};

const LAYERS: [(usize, usize); 3] = [(8, 48), (48, 32), (32, 1)];

fn name(layer: usize) -> String {
    format!("layer{layer}")
}

fn weights() -> Vec<(String, Var)> {
    let weight = |(layer, (inputs, outputs)): (usize, (usize, usize))| {
        let value = |i: usize| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * (3.0 / inputs as f32).sqrt();
        let values = (0..inputs * outputs).map(value).collect();
        (name(layer), Var::from_vec(values, (inputs, outputs), &Cpu).unwrap())
    };
    LAYERS.into_iter().enumerate().map(weight).collect()
}

fn inputs(rank: usize, step: usize) -> Tensor {
    let own = |i: usize| ((i * 31 + step * 17 + rank * 101) % 97) as f32 / 48.0 - 1.0;
    Tensor::from_vec((0..16 * 8).map(own).collect(), (16, 8), &Cpu).unwrap()
}

/// The mean squared error of a perceptron that is to add its inputs up.
fn loss(inputs: &Tensor, weights: &[Tensor]) -> Tensor {
    let mut values = inputs.clone();
    for (layer, weight) in weights.iter().enumerate() {
        values = values.matmul(weight).unwrap();
        if layer + 1 < weights.len() {
            values = values.relu().unwrap();
        }
    }
    (values - inputs.sum_keepdim(1).unwrap()).unwrap().sqr().unwrap().mean_all().unwrap()
}

fn watched(overlap: &mut Overlap) -> Vec<Tensor> {
    (0..LAYERS.len()).map(|layer| overlap.watch(&name(layer)).unwrap()).collect()
}

fn plain(weights: &[(String, Var)]) -> Vec<Tensor> {
    weights.iter().map(|(_, weight)| weight.as_tensor().clone()).collect()
}

/// Takes an update up.
fn learn(overlap: &Overlap, update: &gleaner_runtime::Update, weights: &[(String, Var)]) {
    let gradients = overlap.means(update).unwrap();
    for (_, weight) in weights {
        if let Some(gradient) = gradients.get(weight) {
            weight.set(&(weight.as_tensor() - (gradient * 0.02).unwrap()).unwrap()).unwrap();
        }
    }
}

fn bits(weights: &[(String, Var)]) -> Vec<u32> {
    let of = |(_, weight): &(String, Var)| {
        weight
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
            .into_iter()
            .map(f32::to_bits)
            .collect::<Vec<_>>()
    };
    weights.iter().flat_map(of).collect()
}

fn overlap<'s>(session: &'s Session, weights: &[(String, Var)], method: &Method, merge: &str) -> Overlap<'s> {
    let merge = merging::named(merge).unwrap().into();
    Overlap::new(session, weights.to_vec(), method.clone(), merge).unwrap()
}

/// The parameters of each rank after this many steps, and how many groups there are.
fn train(workers: u32, method: &Method, merge: &str, steps: usize, overlaps: bool) -> Vec<(Vec<u32>, usize)> {
    job(workers, |session| {
        let weights = weights();
        let mut overlap = overlap(&session, &weights, method, merge);
        let first = loss(&inputs(0, 0), &watched(&mut overlap));
        overlap.arrange(&first).unwrap();
        for step in 0..steps {
            let tensors = if overlaps { watched(&mut overlap) } else { plain(&weights) };
            overlap.backward(&loss(&inputs(session.rank(), step), &tensors)).unwrap();
            let update = overlap.wait().unwrap();
            learn(&overlap, &update, &weights);
        }
        (bits(&weights), overlap.grouping().unwrap().groups())
    })
}

#[test]
fn parameters_are_the_same_bit_by_bit_whether_exchanges_overlap_or_not() {
    let sparse = Method::spardl().density(0.05);
    let whole = sparse.clone().dense_below(100);
    // The last weight has too few entries to select to be a layer by itself where the method is sparse.
    for (workers, method, merge, groups) in [
        (2, &sparse, "layer-wise", 2),
        (3, &sparse, "layer-wise", 2),
        (3, &whole, "layer-wise", 2),
        (3, &Method::ring(), "layer-wise", 3),
        (2, &Method::ring(), "threshold/1000", 2),
    ] {
        let beside = train(workers, method, merge, 200, true);
        let after = train(workers, method, merge, 200, false);
        assert!(beside == after, "{workers} workers, {method}, {merge}");
        assert!(beside.iter().all(|rank| *rank == beside[0] && rank.1 == groups), "{merge}");
    }
}

#[test]
fn the_optimum_is_taken_on_all_ranks_alike() {
    let ranks = train(3, &Method::spardl().density(0.05), "optimal", 30, true);
    assert!(ranks.iter().all(|rank| *rank == ranks[0]));
}

#[test]
fn a_weight_in_several_places_or_none_or_not_watched_is_exact() {
    let ranks = job(2, |session| {
        let square = |seed: usize| {
            let values = (0..36).map(|i| ((i * seed) % 13) as f32 / 13.0).collect();
            Var::from_vec(values, (6, 6), &Cpu).unwrap()
        };
        let parameters = [("shared", square(5)), ("unused", square(7)), ("direct", square(11))]
            .map(|(name, var)| (name.to_owned(), var));
        let mut overlap = overlap(&session, &parameters, &Method::ring(), "layer-wise");
        for step in 0..3 {
            let inputs = inputs(session.rank(), step).narrow(1, 0, 6).unwrap();
            let of = |shared: [&Tensor; 2]| {
                let values =
                    inputs.matmul(shared[0]).unwrap().matmul(&parameters[2].1).unwrap().relu().unwrap();
                values.matmul(shared[1]).unwrap().sqr().unwrap().mean_all().unwrap()
            };
            let var = parameters[0].1.as_tensor();
            let expected = of([var, var]).backward().unwrap();
            let own = [0, 2].map(|p: usize| expected.get(&parameters[p].1).unwrap().clone());
            let (first, second) = (overlap.watch("shared").unwrap(), overlap.watch("shared").unwrap());
            overlap.backward(&of([&first, &second])).unwrap();
            let update = overlap.wait().unwrap();
            assert_eq!(update.values("unused").unwrap(), [0.0; 36]);
            for (name, own) in ["shared", "direct"].into_iter().zip(own) {
                let own: Vec<f32> = own.flatten_all().unwrap().to_vec1().unwrap();
                let all: Vec<Vec<f32>> = session
                    .all_gather(&own.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
                    .unwrap()
                    .iter()
                    .map(|note| {
                        note.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
                    })
                    .collect();
                let mean: Vec<f32> = all[0].iter().zip(&all[1]).map(|(a, b)| (a + b) / 2.0).collect();
                assert_eq!(update.values(name).unwrap(), mean, "{name}");
            }
        }
        true
    });
    assert_eq!(ranks, [true, true]);
}

/// The error of every rank where rank 1 of 3 does something else in step 2.
fn failures(
    misuse: impl Fn(&mut Overlap, Vec<Tensor>, &[(String, Var)]) -> Result<(), OverlapError> + Sync,
) -> Vec<String> {
    let method = Method::spardl().density(0.6);
    job(3, |session| {
        let weights = weights();
        let mut overlap = overlap(&session, &weights, &method, "layer-wise");
        let mut before = Vec::new();
        for step in 0..5 {
            let tensors = watched(&mut overlap);
            let passed = if session.rank() == 1 && step == 2 {
                misuse(&mut overlap, before, &weights)
            } else {
                overlap.backward(&loss(&inputs(session.rank(), step), &tensors))
            };
            match passed.and_then(|()| overlap.wait()) {
                Ok(update) => learn(&overlap, &update, &weights),
                Err(error) => return error.to_string(),
            }
            before = tensors;
        }
        "nothing".into()
    })
}

#[test]
fn misuse_gets_a_sentence_on_every_rank() {
    let own = || inputs(1, 2);
    let stale = failures(|overlap, before, _| overlap.backward(&loss(&own(), &before)));
    let two_ways = failures(|overlap, _, weights| {
        let tensors = watched(overlap);
        let mixed = loss(&own(), &tensors) + loss(&own(), &plain(weights));
        overlap.backward(&mixed.unwrap())
    });
    let twice = failures(|overlap, _, _| {
        let tensors = watched(overlap);
        overlap.backward(&loss(&own(), &tensors))?;
        overlap.backward(&loss(&own(), &tensors))
    });
    let not_finite = failures(|overlap, _, _| {
        let tensors = watched(overlap);
        overlap.backward(&(loss(&own(), &tensors) * f64::INFINITY).unwrap())
    });
    let not_at_all = failures(|_, _, _| Ok(()));
    for (said, words) in [
        (stale, "watched in an earlier step"),
        (two_ways, "both as watched and directly"),
        (twice, "backward was called twice in one step"),
        (not_finite, "'layer2' has"),
        (not_at_all, "before the gradients of 'layer2', 'layer1', 'layer0' were ready"),
    ] {
        for (rank, said) in said.iter().enumerate() {
            assert!(said.contains(words), "rank {rank}: {said}");
            assert!(rank == 1 || said.contains("rank 1 failed at step 2"), "rank {rank}: {said}");
        }
    }
}

#[test]
fn layers_in_another_order_on_one_rank_get_a_sentence_on_every_rank() {
    let said = job(2, |session| {
        let square = |i: usize| Var::from_vec(vec![0.5f32 + i as f32; 16], (4, 4), &Cpu).unwrap();
        let parameters = [("a".to_owned(), square(0)), ("b".to_owned(), square(1))];
        let mut overlap = overlap(&session, &parameters, &Method::ring(), "layer-wise");
        let order = if session.rank() == 0 { ["a", "b"] } else { ["b", "a"] };
        let inputs = Tensor::ones((2, 4), candle_core::DType::F32, &Cpu).unwrap();
        let values = order.iter().fold(inputs, |x, name| x.matmul(&overlap.watch(name).unwrap()).unwrap());
        overlap.backward(&values.sum_all().unwrap()).unwrap_err().to_string()
    });
    assert!(
        said.iter().all(|said| said.contains("parameter 'a'") || said.contains("parameter 'b'")),
        "{said:?}"
    );
}

#[test]
fn parameters_that_cannot_be_watched_are_refused() {
    let session = Session::join().unwrap();
    let of = |var: Var| {
        let merge = merging::named("single").unwrap().into();
        Overlap::new(&session, [("w".to_owned(), var)], Method::ring(), merge)
    };
    let refusal = of(Var::zeros(3, candle_core::DType::F64, &Cpu).unwrap()).err().unwrap().to_string();
    assert!(refusal.contains("'w' is of F64") && refusal.contains("expected f32"), "{refusal}");
    let mut overlap = of(Var::zeros(3, candle_core::DType::F32, &Cpu).unwrap()).unwrap();
    assert!(overlap.watch("v").unwrap_err().to_string().contains("no parameter named 'v'"));
    // Outside of a step, what is watched is the parameter.
    let gradients = overlap.watch("w").unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(gradients.get_ids().count(), 1);
}

#[test]
fn a_step_that_is_skipped_has_no_means() {
    let method = Method::ring().on_nonfinite(OnNonFinite::Skip);
    let empty = job(2, |session| {
        let weights = weights();
        let mut overlap = overlap(&session, &weights, &method, "layer-wise");
        let means = (0..3).map(|step| {
            let poison = if session.rank() == 1 && step == 1 { f64::INFINITY } else { 1.0 };
            let loss = (loss(&inputs(session.rank(), step), &watched(&mut overlap)) * poison).unwrap();
            overlap.backward(&loss).unwrap();
            let update = overlap.wait().unwrap();
            overlap.means(&update).unwrap().get_ids().count()
        });
        means.collect::<Vec<usize>>()
    });
    assert_eq!(empty, vec![[3, 0, 3]; 2]);
}

/// The identity, whose backward pass fails.
struct Trap;

impl CustomOp1 for Trap {
    fn name(&self) -> &'static str {
        "trap"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(storage.as_slice::<f32>()?.to_vec()), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        candle_core::bail!("the trap is shut")
    }
}

/// A rank goes in the middle of its backward pass, when the groups of two layers are in flight: by an error, or by leaving.
#[test]
fn survivors_have_the_parameters_of_a_whole_step() {
    const WHOLE: usize = 6;
    let method = Method::spardl().density(0.6);
    let expected = train(3, &method, "layer-wise", WHOLE, true);
    for leaves in [false, true] {
        let started = Instant::now();
        let ranks = job(3, |session| {
            let weights = weights();
            let mut overlap = overlap(&session, &weights, &method, "layer-wise");
            for step in 0.. {
                if step == WHOLE {
                    // A rank that is slow may still be in the step before.
                    session.barrier().unwrap();
                }
                let mut tensors = watched(&mut overlap);
                let goes = session.rank() == 2 && step == WHOLE;
                if goes && leaves {
                    for layer in [2, 1] {
                        let entries = LAYERS[layer].0 * LAYERS[layer].1;
                        overlap.gradients().ready(&name(layer), &vec![1.0; entries]).unwrap();
                    }
                    return (step, bits(&weights), None);
                }
                if goes {
                    tensors[0] = tensors[0].apply_op1(Trap).unwrap();
                }
                let passed = overlap.backward(&loss(&inputs(session.rank(), step), &tensors));
                match passed.and_then(|()| overlap.wait()) {
                    Ok(update) => learn(&overlap, &update, &weights),
                    Err(error) => return (step, bits(&weights), Some(error)),
                }
            }
            unreachable!("the loop has no end")
        });
        assert!(started.elapsed() < TIMEOUT / 2, "no rank waits for a timeout");
        for (rank, (step, parameters, error)) in ranks.into_iter().enumerate() {
            assert_eq!(step, WHOLE);
            assert!(parameters == expected[rank].0, "rank {rank}, leaves: {leaves}");
            match error {
                Some(OverlapError::Runtime(Error::Failed(Failure { rank: 2, reason, .. }))) => {
                    let words = if leaves {
                        "gave a step up before the gradients of 'layer0'"
                    } else {
                        "the trap is shut"
                    };
                    assert!(reason.contains(words), "rank {rank}: {reason}");
                }
                Some(OverlapError::Candle(_)) => assert_eq!((rank, leaves), (2, false)),
                None => assert_eq!((rank, leaves), (2, true)),
                Some(error) => panic!("rank {rank}: another error: {error}"),
            }
        }
    }
}

/// Groups compete for k of the whole gradient while a backward pass goes on, and keep their parameters' shares when they are merged.
#[test]
fn a_layer_with_a_larger_gradient_sends_more() {
    const ENTRIES: usize = 2000;
    let ranks = job(4, |session| {
        let weights: Vec<(String, Var)> =
            (0..3).map(|i| (name(i), Var::zeros(ENTRIES, candle_core::DType::F32, &Cpu).unwrap())).collect();
        let method = Method::spardl().density(0.03).select_over(SelectOver::Gradient);
        let mut overlap = overlap(&session, &weights, &method, "layer-wise");
        let mut ks = Vec::new();
        for step in 0..14 {
            let mut loss = Tensor::new(0f32, &Cpu).unwrap();
            for layer in 0..3 {
                let scale = if layer == 1 { 100.0 } else { 1.0 };
                let value =
                    |i: usize| scale * (((i * 7919 + step * 31 + session.rank() * 13) % 1009) as f32 - 504.0);
                let inputs =
                    Tensor::from_vec((0..ENTRIES).map(value).collect::<Vec<f32>>(), ENTRIES, &Cpu).unwrap();
                loss = (loss + (overlap.watch(&name(layer)).unwrap() * inputs).unwrap().sum_all().unwrap())
                    .unwrap();
            }
            overlap.backward(&loss).unwrap();
            let update = overlap.wait().unwrap();
            learn(&overlap, &update, &weights);
            let k = |method: &Method| method.sparsity().k(ENTRIES).unwrap();
            ks.push(overlap.gradients().methods().iter().map(k).collect::<Vec<_>>());
        }
        (ks, bits(&weights))
    });
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "the same on all ranks");
    // k = 0.03 · 6000, of which the other two keep an eighth of a third each.
    let (floor, k) = (8, 180);
    assert!(ranks[0].0.iter().all(|ks| ks.iter().sum::<usize>() == k && ks.len() == 3));
    assert!(ranks[0].0[0].iter().filter(|&&k| k == floor).count() == 2, "{:?}", ranks[0].0);
    assert!(ranks[0].0[0].contains(&(k - 2 * floor)), "{:?}", ranks[0].0);
}

/// Groups would be sent before the norm is known. One group trains as before.
#[test]
fn local_clipping_takes_one_group() {
    let clips =
        Method::spardl().density(0.5).corrected(Correction { clip: Some(0.5), ..Correction::default() });
    let weights = weights();
    let session = Session::join().unwrap();
    let new = |method: &Method, strategy: &str| {
        Overlap::new(&session, weights.clone(), method.clone(), merging::named(strategy).unwrap().into())
    };
    for strategy in ["layer-wise", "threshold/100", "mg-wfbp", "omgs", "omgs-printed", "optimal"] {
        let refused = new(&clips, strategy).err().unwrap().to_string();
        let name = strategy.split('/').next().unwrap();
        assert!(refused.contains(&format!("'{name}' would exchange groups")), "{refused}");
        assert!(refused.contains("expected the merging strategy 'single'"), "{refused}");
        assert!(new(&Method::spardl().density(0.5), strategy).is_ok());
    }
    let mut overlap = new(&clips, "single").unwrap();
    let loss = loss(&inputs(0, 0), &watched(&mut overlap));
    overlap.backward(&loss).unwrap();
    let update = overlap.wait().unwrap();
    let squares = weights.iter().map(|(name, _)| update.values(name).unwrap());
    let norm = squares.flatten().map(|value: f32| value * value).sum::<f32>().sqrt();
    assert!(norm > 0.0 && norm <= 0.5 + 1e-5, "{norm}");
}
