//! The method `auto`: measuring, choosing, and going over to another method.

use std::time::Duration;

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::forecast::Model;
use gleaner_algorithms::{Element, Method, Reduction};
use gleaner_runtime::{Gradients, Layout, Probed};

use crate::job::{NETWORKS, Over, gradient, run};

/// Measures, and says how long that took.
fn measure(over: Over) -> Duration {
    let probed = run(over, 3, |session| session.probe(100_000).unwrap());
    for other in &probed {
        let all = |probed: &Probed| (probed.network, probed.speed, probed.handling);
        assert_eq!(all(other), all(&probed[0]), "{over:?}");
    }
    let (network, speed) = (probed[0].network, probed[0].speed);
    assert!(network.bytes_per_second.is_finite() && network.bytes_per_second > 1e6, "{network:?}");
    assert!(network.latency > Duration::ZERO, "{network:?}");
    assert!(speed.parts().iter().all(|part| part.is_finite() && *part > 0.0), "{speed:?}");
    // Nothing carries a byte for nothing, and no core takes a microsecond for one.
    let handling = probed[0].handling;
    assert!((1e-12..1e-6).contains(&handling) || cfg!(not(target_os = "linux")), "{handling}");
    probed.iter().map(|probed| probed.took).max().unwrap()
}

/// At least once in a few times, on a machine that does other things, too.
#[test]
fn all_ranks_measure_the_same_in_less_than_two_seconds() {
    for over in NETWORKS {
        let long = (0..5).map(|_| measure(over)).take_while(|took| *took >= Duration::from_secs(2));
        let long: Vec<_> = long.collect();
        assert!(long.len() < 5, "{over:?}: {long:?}");
    }
}

/// Whatever is tried in turn, entry by entry all that was given was delivered or is still here, and the updates are equal.
#[test]
fn changing_methods_loses_nothing() {
    const N: usize = 3000;
    const STEPS: u64 = 230;
    for (over, workers) in [(Over::Memory, 4), (Over::Tcp, 3)] {
        let layout = Layout::new().parameter("a", N);
        let ranks = run(over, workers, |session| {
            let mut gradients = session.gradients(&layout, Method::auto().density(0.02)).unwrap();
            let mut methods = vec![gradients.methods()[0].to_string()];
            let mut sum = vec![0.0f64; N];
            for step in 0..STEPS {
                gradients.ready("a", &gradient(N, session.rank(), step)).unwrap();
                let mut delivered = vec![0.0; N];
                gradients.wait().unwrap().add_to("a", &mut delivered, workers as f32).unwrap();
                sum.iter_mut().zip(delivered).for_each(|(sum, d)| *sum += f64::from(d));
                methods.push(gradients.methods()[0].to_string());
            }
            (methods, sum, residual(&gradients))
        });
        let (methods, sum, _) = &ranks[0];
        assert!(methods.windows(2).any(|pair| pair[0] != pair[1]), "nothing was tried beside {}", methods[0]);
        for (others, theirs, _) in &ranks {
            assert_eq!((others, theirs), (methods, sum));
        }
        let mut given = vec![(0.0, 0.0); N];
        for (rank, step) in (0..workers as usize).flat_map(|rank| (0..STEPS).map(move |step| (rank, step))) {
            for ((total, size), g) in given.iter_mut().zip(gradient(N, rank, step)) {
                *total += f64::from(g);
                *size += f64::from(g.abs());
            }
        }
        for (i, (total, size)) in given.into_iter().enumerate() {
            let kept: f64 = ranks.iter().map(|(_, _, residual)| f64::from(residual[i])).sum();
            let error = (total - sum[i] - kept).abs();
            assert!(error <= 1e-5 * size, "entry {i}: {total} given, {} delivered, {kept} kept", sum[i]);
        }
    }
}

/// The residual of the parameter "a", as a checkpoint has it.
fn residual(gradients: &Gradients) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    gradients.save(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let name = tensors.names().into_iter().find(|name| name.starts_with("residual")).unwrap();
    let words = tensors.tensor(name).unwrap().data().chunks_exact(4).map(|b| b.try_into().unwrap());
    words.map(f32::from_le_bytes).collect()
}

/// A checkpoint names what was chosen: a session that chooses goes on with it, and so does one that is given it.
#[test]
fn a_checkpoint_brings_its_method_along() {
    let layout = Layout::new().parameter("a", 500);
    run(Over::Memory, 2, |session| {
        let mut gradients = session.gradients(&layout, Method::auto().density(0.1)).unwrap();
        // In the middle of a try, probably of another method than the first.
        for step in 0..13 {
            gradients.ready("a", &gradient(500, session.rank(), step)).unwrap();
            gradients.wait().unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        gradients.save(&path).unwrap();
        let chosen = gradients.methods()[0].clone();
        for method in [Method::auto().density(0.1), chosen.clone()] {
            let mut again = session.gradients(&layout, method).unwrap();
            again.load(&path).unwrap();
            assert_eq!(again.methods()[0].to_string(), chosen.to_string());
            assert_eq!(residual(&again), residual(&gradients));
        }
        // The others' folders are still needed until all are here.
        session.barrier().unwrap();
    });
}

/// A worker alone has no rank to send to.
#[test]
fn one_worker_alone_chooses_too() {
    let layout = Layout::new().parameter("a", 50);
    run(Over::Memory, 1, |session| {
        let mut gradients = session.gradients(&layout, Method::auto()).unwrap();
        for step in 0..20 {
            gradients.ready("a", &gradient(50, 0, step)).unwrap();
            gradients.wait().unwrap();
        }
        assert!(!gradients.methods()[0].is_auto());
    });
}

/// Ranks that choose and ranks that do not are distinguished before anything is measured.
#[test]
fn all_ranks_choose_or_none_does() {
    let layout = Layout::new().parameter("a", 50);
    run(Over::Memory, 2, |session| {
        let method = if session.rank() == 0 { Method::auto() } else { Method::ring() };
        let Err(error) = session.gradients(&layout, method) else { panic!("they agreed") };
        assert!(error.to_string().contains("rank 1"), "{error}");
    });
}

/// A reducer takes the cheapest by forecast and stays with it, so it does what a reducer does that names that method.
#[test]
fn a_reducer_takes_the_cheapest_forecast_and_stays_with_it() {
    const N: usize = 2000;
    for over in NETWORKS {
        let chosen = run(over, 3, |session| {
            let choice = Method::auto().density(0.05);
            let mut reducer = session.reducer("a", N, choice.clone()).unwrap();
            let probed = session.probe(N).unwrap();
            let model = Model::new(probed.network, probed.speed, &choice, N).unwrap();
            let cheapest = model.rank(&choice, 3, N).unwrap()[0].method.clone();
            assert_eq!(reducer.method().to_string(), cheapest.to_string());
            let mut named = session.reducer("a", N, cheapest).unwrap();
            for step in 0..30 {
                let values = gradient(N, session.rank(), step);
                let update = reducer.start(&values).unwrap().wait().unwrap();
                let expected = named.start(&values).unwrap().wait().unwrap();
                assert_eq!(
                    update.values("a").unwrap(),
                    expected.values("a").unwrap(),
                    "{over:?}, step {step}"
                );
            }
            assert_eq!(reducer.residual().unwrap(), named.residual().unwrap());
            reducer.method().to_string()
        });
        assert!(chosen.iter().all(|method| *method == chosen[0]), "{over:?}: {chosen:?}");
    }
}

/// What leaves entries out has no maximum, so a choice passes it over; and options are checked before anything is measured.
#[test]
fn a_reducer_chooses_only_what_can_reduce() {
    run(Over::Memory, 3, |session| {
        let rank = session.rank() as f32;
        let choice = Method::auto().density(0.001);
        let mut most = session.reducer_of("most", 10_000, choice.clone(), Reduction::Max).unwrap();
        assert!(!most.method().collective().is_sparse(), "{}", most.method());
        let values: Vec<f32> =
            (0..10_000).map(|i| if i % 3 == session.rank() { 5.0 } else { rank }).collect();
        let update = most.start(&values).unwrap().wait().unwrap();
        assert_eq!(update.values("most").unwrap(), vec![5.0f32; 10_000]);

        let coded = choice.coding(Coding::Bf16);
        let refused = session.reducer_of("sum", 100, coded, Reduction::<f64>::Sum).err().unwrap().to_string();
        assert!(refused.contains(&format!("values of type {}", f64::NAME)), "{refused}");
    });
}

/// Ranks of which one chooses and another does not are distinguished here, too.
#[test]
fn all_ranks_choose_a_reducer_or_none_does() {
    run(Over::Memory, 2, |session| {
        let method = if session.rank() == 0 { Method::auto() } else { Method::ring() };
        let Err(error) = session.reducer("a", 50, method) else { panic!("they agreed") };
        assert!(error.to_string().contains("rank 1"), "{error}");
    });
}
