use std::thread;
use std::time::Duration;

use gleaner_algorithms::forecast::{Network, OVERLAP, Speed};
use gleaner_algorithms::merging::{self, Costs, Predicted};
use gleaner_transport::memory;

use super::cores::{Found, Shared};
use super::*;

/// A network on which an exchange of 30,000 dense entries among three workers takes about 40 ms.
fn model() -> Model {
    let network = Network { latency: Duration::from_millis(1), bytes_per_second: 4e6 };
    let speed = Speed { select: 0.8, encode: 10.0, merge: 20.0, add: 1.5, message: 4000.0 };
    Model { network, speed, overlap: OVERLAP, bytes_per_entry: 6.0 }
}

fn planner(workers: u32, strategy: &str) -> Planner {
    let strategy = merging::named(strategy).unwrap().into();
    let planner = Planner::new(strategy, workers, vec![10_000, 10_000, 10_000]).unwrap();
    Planner { model: Some(model()), ..planner }
}

fn step(rank: usize, layers: [f64; 3], exchange: f64) -> Measured {
    // Each rank is somewhat slower than the one before.
    let own = 1.0 + 0.1 * rank as f64;
    Measured {
        forward: 0.01,
        layers: layers.iter().map(|seconds| own * seconds).collect(),
        under_way: own * exchange,
        work: 0.0,
        iteration: 0.0,
    }
}

/// Runs a planner on three ranks, by the times of each step, and gives the groups after each step on each rank.
fn run(times: &(dyn Fn(usize) -> ([f64; 3], f64) + Sync), steps: usize) -> Vec<Vec<String>> {
    let rank = |network| {
        let session = Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
        let mut planner = planner(3, "optimal");
        let mut groups = Vec::new();
        for number in 0..steps {
            let (layers, exchange) = times(number);
            let before = planner.grouping().clone();
            let changed =
                planner.conclude(&session, &Method::ring(), step(session.rank(), layers, exchange)).unwrap();
            assert_eq!(changed, before != *planner.grouping());
            groups.push(planner.grouping().to_string());
        }
        groups
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            memory::networks(3).into_iter().map(|network| scope.spawn(move || rank(network))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_switch_at_the_same_step_when_layer_times_drift() {
    // First a backward pass that takes a moment, behind which nothing can be hidden; then a slow one.
    let slow_from = FIRST + STEADY + WINDOW + 3;
    let times = |number: usize| (if number < slow_from { [1e-5; 3] } else { [0.03, 0.03, 0.03] }, 0.02);
    let ranks = run(&times, FIRST + 6 * WINDOW);
    assert_eq!(ranks[0], ranks[1]);
    assert_eq!(ranks[0], ranks[2]);
    let groups = &ranks[0];
    assert!(groups[..slow_from].iter().all(|groups| groups == "3"), "{groups:?}");
    // Most steps of the window after that are slow.
    let switch = FIRST + STEADY + 2 * WINDOW - 1;
    assert_eq!(groups[switch - 1], "3");
    assert_eq!(groups[switch], "1 + 1 + 1");
    assert!(groups[switch..].iter().all(|later| *later == groups[switch]), "{groups:?}");
}

#[test]
fn all_ranks_switch_when_exchanges_take_another_time() {
    // Exchanges that take next to nothing are not worth hiding, and are once they take a hundred times as long.
    let slow_from = FIRST + STEADY + WINDOW;
    let times = |number: usize| ([0.004; 3], if number < slow_from { 0.0004 } else { 0.04 });
    let ranks = run(&times, FIRST + 5 * WINDOW);
    assert!(ranks.iter().all(|groups| *groups == ranks[0]));
    let (before, after) = (&ranks[0][slow_from], &ranks[0][FIRST + STEADY + 2 * WINDOW]);
    assert_eq!((before.as_str(), after.as_str()), ("3", "1 + 1 + 1"));
}

#[test]
fn what_does_not_drift_stays() {
    // A window of times that are far off in fewer than half of its steps.
    let times = |number: usize| {
        let slow = number >= FIRST + STEADY && number % 5 < 2;
        ([if slow { 0.1 } else { 0.01 }; 3], if slow { 0.1 } else { 0.02 })
    };
    let ranks = run(&times, FIRST + 4 * WINDOW);
    assert!(ranks[0][FIRST..].iter().all(|groups| *groups == ranks[0][FIRST]), "{:?}", ranks[0]);
}

#[test]
fn a_single_worker_and_strategies_without_times_plan_nothing() {
    let session = Session::join().unwrap();
    for (workers, strategy, groups) in [
        (1, "optimal", "3"),
        (3, "layer-wise", "1 + 1 + 1"),
        (3, "threshold/20000", "2 + 1"),
        (3, "single", "3"),
    ] {
        let mut planner = planner(workers, strategy);
        for _ in 0..3 * WINDOW {
            assert!(!planner.conclude(&session, &Method::ring(), step(0, [0.1; 3], 0.1)).unwrap());
        }
        assert_eq!(planner.grouping().to_string(), groups, "{strategy}");
    }
}

#[test]
fn layers_that_cannot_be_are_refused() {
    let of = |entries: Vec<usize>| Planner::new(merging::named("optimal").unwrap().into(), 2, entries);
    assert!(of(vec![]).err().unwrap().to_string().contains("no layers"));
    assert!(of(vec![3, 0]).err().unwrap().to_string().contains("layer 1 has no entries"));
}

/// Ten steps after a plan, what is expected of the same groups is what they are found to take; slow drifts still add up.
#[test]
fn what_is_expected_is_renewed() {
    let session = |network| Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
    let rank = move |network| {
        let session = session(network);
        let mut planner = planner(3, "optimal");
        let mut expected = Vec::new();
        for number in 0..FIRST + STEADY + 3 * WINDOW {
            // Windows become slower by a tenth each, of which the first is put down to the groups; and then by a quarter.
            let slower =
                [1.0, 1.1, 1.2, 1.45, 1.45][[FIRST, 15, 35, 55].partition_point(|&end| end <= number)];
            let times = step(0, [0.03 * slower; 3], 0.02 * slower);
            let changed = planner.conclude(&session, &Method::ring(), times).unwrap();
            expected.push((changed, planner.expected(), planner.planned(), planner.assumed.clone()));
        }
        expected
    };
    let ranks: Vec<_> =
        memory::networks(3).into_iter().map(|network| thread::spawn(move || rank(network))).collect();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let planned_at = |at: usize| {
        let (_, expected, planned, _) = &ranks[0][at];
        (expected.unwrap(), planned.unwrap())
    };
    assert!(
        ranks[0][..FIRST - 1].iter().all(|(_, expected, planned, _)| expected.is_none() && planned.is_none())
    );
    let (first, planned) = planned_at(FIRST - 1);
    assert_eq!(first, planned);
    assert_eq!(planned_at(FIRST + STEADY - 2), (first, planned), "not before its time");
    let (second, still) = planned_at(FIRST + STEADY - 1);
    assert_eq!(still, planned);
    // Both passes, and the last of three groups whose exchanges take as long.
    let takes = |slower: f64| 0.01 + slower * (0.09 + 0.02 / 3.0);
    assert!((second.iteration / takes(1.1) - 1.0).abs() < 1e-3, "{first:?}, {second:?}");
    let (third, still) = planned_at(FIRST + STEADY + WINDOW - 1);
    assert_eq!(still, planned);
    assert!((third.iteration / takes(1.2) - 1.0).abs() < 1e-3, "{first:?}, {third:?}");
    // The groups rest on the first times until the drift is too large.
    let rests_on = |at: usize| ranks[0][at].3.as_ref().unwrap().times.layers[0];
    assert_eq!(rests_on(FIRST + STEADY + WINDOW - 1), rests_on(FIRST - 1));
    assert!(rests_on(FIRST + STEADY + 2 * WINDOW - 1) > 1.3 * rests_on(FIRST - 1));
    assert!(ranks.iter().all(|rank| rank.iter().zip(&ranks[0]).all(|(a, b)| a.1 == b.1 && a.2 == b.2)));
}

fn measured(layers: [f64; 3], under_way: f64) -> Measured {
    Measured { forward: 0.01, layers: layers.to_vec(), under_way, work: 0.0, iteration: 0.0 }
}

/// Three groups of layers that take 20, 1 and 30 ms, with 5 ms of selection each in the backward pass.
fn stalled() -> Assumed {
    let layer = |backward, entries| Layer { backward, entries };
    let pass = Pass::new(0.01, vec![layer(0.02, 10), layer(0.001, 10), layer(0.03, 10)]).unwrap();
    let line = |fixed| merging::Line { fixed, per_entry: 0.0 };
    let costs = Affine { select: line(0.005), exchange: line(0.01) };
    let problem = Problem { pass: &pass, costs: &costs, place: Placement::InBackward };
    let groups = Grouping::new(vec![1, 2, 3], 3).unwrap();
    Assumed::of(&problem, &groups, &measured([0.02, 0.001, 0.03], 0.0)).unwrap()
}

/// What stalls the layers is taken off without a rest, wherever it falls.
#[test]
fn stalls_are_taken_off() {
    let assumed = stalled();
    let under_way = assumed.times.under_way;
    // As planned: 5 ms before the second and the third layer. And all of that before the third.
    for stalled in [[0.02, 0.006, 0.035], [0.02, 0.001, 0.04]] {
        let alone = assumed.without_stalls(measured(stalled, under_way));
        assert!((alone.layers.iter().sum::<f64>() - 0.051).abs() < 1e-12, "{alone:?}");
        assert!(alone.layers.iter().all(|&layer| layer >= 0.0));
        assert!(!assumed.differs(&alone));
    }
    assert!(assumed.differs(&assumed.without_stalls(measured([0.02, 0.006, 0.055], under_way))));
}

/// New groups make the backward pass longer: what was found of that in the first steps with them is no drift of its layers, unless it is far
/// from what was expected. Later, all is drift.
#[test]
fn what_new_groups_take_of_the_passes_is_found() {
    for (layers, is_learnt) in [([0.022, 0.008, 0.033], true), ([0.04, 0.006, 0.05], false)] {
        let mut assumed = stalled();
        let found = measured(layers, assumed.times.under_way);
        // 2 ms more than expected of two groups, or 34 ms, which are no groups'.
        let stall = assumed.renew(&stalled(), &found);
        let expected = if is_learnt { 0.002 * 2.0 / (4.0 + 64.0) } else { 0.0 };
        assert!((stall - expected).abs() < 1e-9, "{stall}");
        assert!(!assumed.is_new);
        let alone = assumed.without_stalls(found.clone());
        let differences = alone.layers.iter().zip([0.02, 0.001, 0.03]).map(|(a, b)| (a - b).abs());
        assert_eq!(differences.sum::<f64>() < 1e-12, is_learnt, "{alone:?}");
        assert_eq!(assumed.differs(&alone), !is_learnt);
        let slower = measured(layers.map(|layer| 1.3 * layer), assumed.times.under_way);
        assumed.renew(&stalled(), &slower);
        assert!(assumed.differs(&assumed.without_stalls(slower)));
    }
}

/// A plan that replaces another one expects as much more of a step as the steps with the other took.
#[test]
fn what_the_model_misses_counts_for_new_groups() {
    let (before, model) = (stalled(), stalled().expected);
    let found = 1.2 * model.iteration;
    let Expected { iteration, hidden_share } = stalled().corrected(&before, found).expected;
    assert!((iteration - found).abs() < 1e-12 && hidden_share == model.hidden_share);
    assert!((stalled().corrected(&before, found).planned.iteration - found).abs() < 1e-12);
    let unknown = stalled().corrected(&before, 0.0);
    assert_eq!((unknown.expected, unknown.planned), (model, model));
}

fn outlook<'a>(model: &'a Model, method: &'a Method) -> Outlook<'a> {
    Outlook {
        entries: &[10_000; 3],
        method,
        workers: 3,
        cores: Cores { place: Placement::InBackward, sharing: 1.5 },
        work: Work { message: 4e-6, byte: 20e-9 },
        model,
        found: Found::NONE,
    }
}

/// What one group takes longer than the model says is taken for latency, which three groups have at the same time. Where three groups take so
/// long that they must have waited for each other, they are found to have held the links.
#[test]
fn what_exchanges_take_longer_is_told_apart_by_several_groups() {
    let (model, method) = (model(), Method::ring());
    let outlook = outlook(&model, &method);
    let groups = |ends: Vec<usize>| Grouping::new(ends, 3).unwrap();
    let (one, three) = (groups(vec![3]), groups(vec![1, 2, 3]));
    let times = measured([1e-5; 3], 0.0);
    let takes = |found, groups| Outlook { found, ..outlook }.assume(groups, &times).unwrap();
    let twice = 2.0 * takes(Found::NONE, &one).times.under_way;
    let first = outlook.fit(&one, &measured([1e-5; 3], twice)).unwrap();
    assert!(first.factor > 1.9 && first.held == 0.0, "{first:?}");
    let spread = takes(first, &three).times.under_way;
    assert!(spread < 0.8 * twice, "{spread} of {twice}");
    let again = Outlook { found: first, ..outlook };
    for held in [0.0, 0.3, 1.0] {
        let expected = takes(Found { held, ..first }, &three).times.under_way;
        let found = again.fit(&three, &measured([1e-5; 3], expected)).unwrap();
        assert!(
            (found.held - held).abs() < 1e-3 && (found.factor / first.factor - 1.0).abs() < 1e-3,
            "{found:?}"
        );
    }
    let more = again.fit(&three, &measured([1e-5; 3], 3.0 * twice)).unwrap();
    assert!(more.held > 0.999 && more.factor > 2.5, "{more:?}");
    // Groups that never wait for each other say nothing of it.
    let far = Outlook { found: Found { held: 0.4, ..first }, ..outlook };
    let apart = far.assume(&three, &measured([10.0; 3], 0.0)).unwrap().times.under_way;
    for share in [0.99, 1.01] {
        let found = far.fit(&three, &measured([10.0; 3], share * apart)).unwrap();
        assert!(found.held == 0.4 && (found.factor / (share * first.factor) - 1.0).abs() < 0.01, "{found:?}");
    }
}

/// Selecting and merging take what was measured with one group, and a stall that was found is one more of each group.
#[test]
fn what_groups_work_is_as_was_measured() {
    let (model, method) = (model(), Method::spardl().density(0.01));
    let outlook = outlook(&model, &method);
    let one = Grouping::new(vec![3], 3).unwrap();
    let forecast = model.forecast(method.clone(), 3, 30_000).unwrap();
    let twice = Measured { work: 2.0 * (forecast.select + forecast.merge), ..measured([0.01; 3], 0.1) };
    let found = outlook.fit(&one, &twice).unwrap();
    assert!((found.work - 2.0).abs() < 1e-9, "{found:?}");
    assert_eq!(outlook.fit(&one, &measured([0.01; 3], 0.1)).unwrap().work, 1.0, "not measured");
    let predicted = Predicted { model: &model, method: &method, workers: 3 };
    let select = |found| {
        let costs = Shared { predicted, cores: outlook.cores, work: outlook.work, found };
        costs.of(10_000).unwrap().select
    };
    let stalled = select(Found { stall: 0.003, ..Found::NONE });
    assert!((stalled - select(Found::NONE) - 0.003).abs() < 1e-12);
}

/// After the first steps with several groups there is one more plan, by what these took, and no third one as long as times do not drift.
#[test]
fn what_several_groups_show_is_planned_with_once() {
    let mut planner = planner(3, "optimal");
    planner.cores = Cores { place: Placement::InBackward, sharing: 2.0 };
    let method = Method::ring();
    assert!(matches!(planner.revise(&method, measured([0.03; 3], 0.02)), Ok(Some(Before::Nothing))));
    assert_eq!(planner.grouping().to_string(), "2 + 1");
    // The second group begins 20 ms late.
    let steps = measured([0.03, 0.03, 0.05], planner.assumed.as_ref().unwrap().times.under_way);
    planner.revise(&method, steps.clone()).unwrap();
    let stall = planner.found.stall;
    assert!(planner.is_shown && stall > 0.0, "{:?}", planner.found);
    let groups = planner.grouping().clone();
    planner.revise(&method, steps).unwrap();
    assert_eq!((planner.found.stall, planner.grouping()), (stall, &groups));
}

/// Whatever groups are under way for, the model is made to say so, also where work of an exchange does not depend on the network; and that an
/// iteration takes no less than was measured.
#[test]
fn exchanges_take_what_was_measured() {
    let method = Method::ring();
    let model = model();
    let outlook = outlook(&model, &method);
    for (groups, times) in [(vec![3], 0.7), (vec![1, 2, 3], 1.6), (vec![1, 3], 3.0)] {
        let grouping = Grouping::new(groups, 3).unwrap();
        let unknown = measured([0.01; 3], 0.0);
        let before = outlook.assume(&grouping, &unknown).unwrap();
        let asked = measured([0.01; 3], times * before.times.under_way);
        let after = |asked: &Measured| {
            let found = outlook.fit(&grouping, asked).unwrap();
            Outlook { found, ..outlook }.assume(&grouping, &unknown).unwrap()
        };
        let found = after(&asked).times.under_way;
        assert!((found / asked.under_way - 1.0).abs() < 1e-4, "{found} instead of {}", asked.under_way);
        let longer = Measured { iteration: 2.0 * before.expected.iteration, ..asked };
        let found = after(&longer).expected.iteration;
        assert!(found > longer.iteration * (1.0 - 1e-4), "{found} instead of {}", longer.iteration);
    }
}

/// Selection runs beside the backward pass as long as every worker of a machine has a core.
#[test]
fn more_workers_than_cores_select_in_the_backward_pass() {
    let cores = thread::available_parallelism().unwrap().get() as u32;
    for (workers, place, sharing) in [
        (1, Placement::Beside, 1.0),
        (cores, Placement::Beside, 1.0),
        (2 * cores, Placement::InBackward, 2.0),
    ] {
        let start = |network| {
            thread::spawn(move || {
                let session = Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
                Cores::agree(&session).unwrap()
            })
        };
        let ranks: Vec<_> = memory::networks(workers).into_iter().map(start).collect();
        let expected = Cores { place, sharing };
        ranks.into_iter().for_each(|rank| assert_eq!(rank.join().unwrap(), expected, "{workers} workers"));
    }
}

/// Where cores are shared, merging, messages and bytes take their time from the backward pass: together as long as before.
#[test]
fn work_of_an_exchange_counts_where_cores_are_shared() {
    let (model, method) = (model(), Method::spardl().density(0.01));
    let predicted = Predicted { model: &model, method: &method, workers: 3 };
    let of = |place, byte| {
        let cores = Cores { place, sharing: 2.0 };
        Shared { predicted, cores, work: Work { message: 4e-6, byte }, found: Found::NONE }
            .of(10_000)
            .unwrap()
    };
    let besides = predicted.of(10_000).unwrap();
    assert_eq!(of(Placement::Beside, 3e-9), besides);
    let forecast = model.forecast(method.clone(), 3, 10_000).unwrap();
    let messages = forecast.messages as f64 * 4e-6;
    let within = of(Placement::InBackward, 3e-9);
    let bytes = forecast.bytes_received as f64 * 6e-9;
    assert!(bytes > 0.0 && messages > 0.0);
    assert!((within.select - besides.select - forecast.merge - messages - bytes).abs() < 1e-12);
    assert!((within.select + within.alone() - besides.select - besides.alone()).abs() < 1e-12);
    // Never more than there is.
    assert_eq!(of(Placement::InBackward, 1.0).alone(), 0.0);
}

/// Workers that share cores take turns to be late: their medians are all alike, and every step waits for one of them. Who begins
/// a step late is late as well.
#[test]
fn a_step_takes_as_long_as_the_last_of_its_ranks() {
    let agreed = |of: fn(usize, usize) -> Measured| {
        let rank = move |network| {
            let session = Session::over(async { Ok(network) }, Duration::from_secs(30)).unwrap();
            let mut planner = planner(3, "optimal");
            planner.steps = (0..6).map(|number| of(number, session.rank())).collect();
            planner.agree(&session).unwrap()
        };
        let ranks: Vec<_> =
            memory::networks(3).into_iter().map(|network| thread::spawn(move || rank(network))).collect();
        let mut agreed: Vec<Measured> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(agreed.iter().all(|measured| *measured == agreed[0]));
        agreed.remove(0)
    };
    let times = |forward: f64, layer: f64, iteration: f64| {
        let layers = vec![layer; 3];
        Measured { forward, layers, under_way: 1.0, work: 0.5, iteration }
    };
    let slow = agreed(|number, rank| {
        let late = if number % 3 == rank { 2.0 } else { 1.0 };
        Measured { forward: late, layers: vec![late; 3], under_way: 1.0, work: 0.5, iteration: 10.0 }
    });
    assert_eq!(slow, times(2.0, 2.0, 10.0));
    let late = agreed(|number, rank| {
        let iteration = if number % 3 == rank { 8.5 } else { 10.0 };
        Measured { forward: 1.0, layers: vec![2.0; 3], under_way: 1.0, work: 0.5, iteration }
    });
    assert_eq!(late, times(2.5, 2.0, 10.0));
}
