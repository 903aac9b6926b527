use super::*;

/// Steps in which the values of a group are as these say, before and after: a look in each seventeenth.
fn watched(entries: usize, k: usize, steps: u64, look: impl Fn(u64) -> (f64, f64)) -> Health {
    let mut watch = Watch::new(entries);
    for step in 0..steps {
        let looked = watch.is_due().then(|| look(step));
        assert_eq!(looked.is_some(), step % 17 == 16);
        watch.end_step(k, looked);
    }
    [&watch].into_iter().collect()
}

/// What a step brings and delivers is the same in each, so a value waits for as many steps as there are such amounts waiting.
#[test]
fn a_value_waits_as_littles_law_says() {
    let health = watched(1000, 50, 100, |_| (140.0, 120.0));
    assert_eq!((health.looks, health.waiting, health.delivered), (5, 120.0, 20.0));
    assert_eq!((health.waits(), health.density), (6.0, 0.05));
    assert_eq!(health.findings(0.9), []);
    let nothing = watched(1000, 1000, 100, |_| (20.0, 0.0));
    assert_eq!((nothing.waits(), nothing.findings(0.9)), (0.0, vec![]));
}

#[test]
fn a_sample_is_spread_over_all_values() {
    // A quarter of the values are 2, in stretches that no sample of the first ones would meet.
    let n = 4_000_000;
    let values: Vec<f32> = (0..n).map(|i| if i / 1_000 % 4 == 3 { -2.0 } else { 0.0 }).collect();
    let looked = std::cell::Cell::new(0);
    let amount = Watch::new(n).amount::<f32, _>(|range| {
        looked.set(looked.get() + range.len());
        &values[range]
    });
    assert!(looked.get() <= SAMPLE, "{}", looked.get());
    assert!((amount / 2e6 - 1.0).abs() < 0.05, "{amount}");
    // Few values are all looked at.
    let few = Watch::new(100).amount::<f32, _>(|range| &values[3_950..][range]);
    assert_eq!(few, 100.0);
}

#[test]
fn what_waits_long_is_stale_and_comes_to_momentum_as_a_late_sum() {
    let waiting = |steps: f64| watched(10_000, 50, 200, move |_| (10.0 * steps + 10.0, 10.0 * steps));
    assert_eq!(waiting(19.0).findings(0.9), []);
    let momentum = Finding::Momentum { waits: 21.0, momentum: 0.9 };
    assert_eq!(waiting(21.0).findings(0.9), [momentum]);
    assert_eq!(waiting(21.0).findings(0.0), []);
    assert_eq!(waiting(101.0).findings(0.0), [Finding::Stale { waits: 101.0 }]);
    assert_eq!(waiting(101.0).findings(0.5).len(), 2);
    assert_eq!(
        waiting(120.0).findings(0.0)[0].to_string(),
        "most of an update is of old gradients: a value waits for about 120 steps until it is delivered; choose a higher density, a \
         density that falls to it in a warm-up, or steps that deliver everything, and if the rate drops, the rate in the residual"
    );
}

#[test]
fn what_is_not_delivered_grows_without_bound() {
    // A step is set to deliver one entry in a hundred, and a value waits for more than two hundred steps.
    let grown = watched(10_000, 100, 200, |step| (step as f64 + 1.0, step as f64 + 1.0));
    assert_eq!(grown.findings(0.9), [Finding::Unbounded { waits: f64::INFINITY, density: 0.01 }]);
    let said = grown.findings(0.0)[0].to_string();
    assert!(
        said.contains("waits for more steps than a training has") && said.contains("1% of the entries"),
        "{said}"
    );
    // As much as before is no growth.
    let stands = watched(10_000, 100, 200, |_| (1.0, 1.0));
    assert_eq!(stands.findings(0.0), [Finding::Stale { waits: f64::INFINITY }]);
    // What delivers something takes four windows, of a hundred steps, to be found.
    let slowly = |steps| watched(10_000, 100, steps, |step| (2.0 * step as f64 + 1.0, 2.0 * step as f64));
    let found = slowly(420).findings(0.0);
    assert!(
        matches!(found[..], [Finding::Unbounded { waits, .. }] if waits > 200.0 && waits < 1000.0),
        "{found:?}"
    );
    assert!(slowly(380).findings(0.0).iter().all(|finding| finding.name() == "stale"));
}

/// A quarter of the steps deliver next to nothing, and what waits goes up and down: in the last looks a value waits for too long, and over all no longer
/// than by the density.
#[test]
fn what_waits_long_at_times_does_not_grow_without_bound() {
    let wavering = |step: u64| {
        let waiting = 1000.0 + 100.0 * ((step / 17 * 7) % 5) as f64;
        (waiting + if step / 68 % 4 == 3 { 1.0 } else { 15.0 }, waiting)
    };
    let health = watched(10_000, 100, 544, wavering);
    assert!(health.waits() > 2.0 / health.density, "{health:?}");
    assert_eq!(health.findings(0.0).iter().map(Finding::name).collect::<Vec<_>>(), ["stale"]);
    for steps in 68..2000 {
        let found = watched(10_000, 100, steps, wavering).findings(0.0);
        assert!(found.iter().all(|finding| finding.name() != "unbounded"), "{steps}: {found:?}");
    }
}

/// Windows have a hundred steps at a density of 1%, in which looks are taken in each seventeenth.
#[test]
fn residuals_that_double_are_found_and_a_warm_up_is_not() {
    let doubled = |base: f64| move |step: u64| (2.0 * base.powi(step as i32), base.powi(step as i32));
    let found = watched(10_000, 100, 420, doubled(1.01)).findings(0.0);
    assert!(matches!(found[..], [Finding::Doubling { steps: 100 }]), "{found:?}");
    assert_eq!(watched(10_000, 100, 420, doubled(1.005)).findings(0.0), []);
    // A density that falls lets more wait.
    let mut watch = Watch::new(10_000);
    for step in 0..420 {
        let looked = watch.is_due().then(|| doubled(1.01)(step));
        watch.end_step(if step < 200 { 400 } else { 100 }, looked);
    }
    let health: Health = [&watch].into_iter().collect();
    assert_eq!(health.findings(0.0), []);
}
