//! Courses through synthetic forecasts and times.

use gleaner_algorithms::Method;
use gleaner_algorithms::forecast::{Model, Network, Speed};
use gleaner_statistics::random;

use super::*;

/// What auto may choose among six workers, with these forecasts in seconds: one method for each, the dense ones only
/// where they are asked for by name.
fn forecasts(named: &[(&str, f64)]) -> Vec<Forecast> {
    let network = Network { latency: Duration::from_micros(100), bytes_per_second: 1e8 };
    let speed = Speed::of([1.0; 5]);
    let model = Model::new(network, speed, &Method::auto(), 10_000).unwrap();
    let all = model.rank(&Method::auto(), 6, 10_000).unwrap();
    let forecast = |&(name, seconds): &(&str, f64)| {
        let found = all.iter().find(|forecast| forecast.to_string() == name).unwrap();
        Forecast { seconds, ..found.clone() }
    };
    named.iter().map(forecast).collect()
}

/// Methods of which no two have the same name, then SparDL with teams.
const NAMES: [&str; 15] = [
    "gtopk",
    "topka",
    "topkdsa",
    "oktopk",
    "ssar-recursive-double",
    "ssar-split-all-gather",
    "dsar-split-all-gather",
    "ring",
    "rabenseifner",
    "recursive-doubling",
    "spardl",
    "spardl with 2 teams by R-SAG",
    "spardl with 2 teams by B-SAG",
    "spardl with 3 teams by B-SAG",
    "spardl with 6 teams by B-SAG",
];

/// Drives a course until it has chosen: three ranks, of which another one is the slowest in every step, and whose first steps
/// with a method take long. `truth` says what a step takes in the try of this number of the method at this place. Gives the
/// places in the order in which they ran; fails where it does not end.
fn drive(course: &mut Course, truth: impl Fn(usize, usize) -> f64) -> Vec<usize> {
    let mut order = Vec::new();
    while !course.has_chosen() {
        let place = course.running;
        let number = order.iter().filter(|earlier| **earlier == place).count();
        order.push(place);
        assert!(order.len() < 1000, "no end: {order:?}");
        let mut steps = 0;
        while !course.is_due() {
            let took = if steps < TRANSIENT { 100.0 } else { truth(place, number) };
            course.record(Duration::from_secs_f64(took));
            steps += 1;
        }
        assert_eq!(steps, 10);
        let own: Vec<f64> = course.counted().collect();
        assert!(own.iter().all(|seconds| *seconds < 100.0), "the first steps count: {own:?}");
        let rank = |rank: usize| {
            own.iter()
                .enumerate()
                .map(move |(i, seconds)| if i % 3 == rank { *seconds } else { seconds / 7.0 })
        };
        let ranks: Vec<Vec<f64>> = (0..3).map(|r| rank(r).collect()).collect();
        course.conclude(&ranks.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    order
}

/// A random number in [0, 1).
fn chance(seed: u64, i: usize) -> f64 {
    random::unit(random::at(seed, i as u64))
}

/// All names with forecasts that rise from 1 to `last` seconds.
fn rising(last: f64) -> Vec<Forecast> {
    let step = (last - 1.0) / (NAMES.len() - 1) as f64;
    let named: Vec<(&str, f64)> =
        NAMES.iter().enumerate().map(|(i, name)| (*name, 1.0 + step * i as f64)).collect();
    forecasts(&named)
}

/// Whatever the forecasts and the truth: the end comes within 230 steps, nothing is tried twice before the turns, those within
/// 1.25 times of the fastest, at most four, take three turns each, and what remains is the fastest of what was tried.
#[test]
fn it_chooses_the_fastest_that_it_tried() {
    let mut longest = 0;
    for seed in 0..500 {
        let spread = 1.0 + 4.0 * chance(seed, 99);
        let ranking = rising(spread);
        let error = 1.0 + 2.0 * chance(seed, 98);
        let truth: Vec<f64> = (ranking.iter().enumerate())
            .map(|(i, forecast)| forecast.seconds * error.powf(2.0 * chance(seed, i) - 1.0))
            .collect();
        let mut course = Course::new(ranking);
        let order = drive(&mut course, |place, _| truth[place]);
        longest = longest.max(order.len() * 10);

        let tries = order.iter().enumerate().find(|(i, place)| order[..*i].contains(place));
        let tries = tries.map_or(order.len(), |(i, _)| i);
        assert!(tries <= 11, "{seed}: {order:?}");
        let mut tried: Vec<usize> = order[..tries].to_vec();
        tried.sort_by(|a, b| truth[*a].total_cmp(&truth[*b]));
        assert_eq!(course.running, tried[0], "{seed}: {order:?} of {truth:?}");
        let mut close = tried.clone();
        close.retain(|place| truth[*place] < 1.25 * truth[tried[0]]);
        close.truncate(4);
        let turns = if close.len() > 1 { close.repeat(3) } else { Vec::new() };
        assert_eq!(order[tries..], turns, "{seed}: {order:?} of {truth:?}");
    }
    assert_eq!(longest, 230, "11 tries and 12 turns of 10 steps");
}

/// Where forecasts are right, the cheapest come first, and no more than ten beside the first.
#[test]
fn the_most_promising_are_tried_first() {
    let ranking = rising(2.0);
    let truth: Vec<f64> = ranking.iter().map(|forecast| forecast.seconds).collect();
    let order = drive(&mut Course::new(ranking), |place, _| truth[place]);
    assert_eq!(order[..11], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert!(order[11..].iter().all(|place| *place < 11), "{order:?}");
}

/// Teams resemble each other: SparDL's factor goes for all its teams, however small the factor of other methods is.
#[test]
fn what_is_learnt_of_one_number_of_teams_goes_for_the_others() {
    let (two, three) = ("spardl with 2 teams by B-SAG", "spardl with 3 teams by B-SAG");
    // gTopk takes 0.95 of its forecast and SparDL all of its own, so that TopkA moves before SparDL's teams.
    let ranking = forecasts(&[("gtopk", 1.0), ("spardl", 1.1), (two, 1.15), ("topka", 1.2)]);
    let truth = [0.95, 1.1, 1.15, 1.2];
    let order = drive(&mut Course::new(ranking), |place, _| truth[place]);
    assert_eq!(order[..4], [0, 1, 3, 2]);
    // gTopk takes a third, so that all others may. SparDL does not, and so its teams cannot come near.
    let ranking = forecasts(&[("gtopk", 3.0), ("spardl", 4.0), ("topka", 4.2), (two, 5.0), (three, 6.0)]);
    let truth = [1.0, 4.0, 1.4, 5.0, 6.0];
    let order = drive(&mut Course::new(ranking), |place, _| truth[place]);
    assert_eq!(order, [0, 1, 2]);
}

/// A forecast that is too low by any factor is found out: what is really faster stays.
#[test]
fn a_wrong_forecast_is_revised() {
    for factor in [1.3, 2.0, 3.0, 10.0] {
        let ranking = forecasts(&[("topka", 1.0), ("gtopk", 1.1), ("spardl", 1.2), ("ring", 1.25)]);
        let truth = [factor, 1.1 * factor, 1.2, 1.25 * factor];
        let mut course = Course::new(ranking);
        drive(&mut course, |place, _| truth[place]);
        assert_eq!(course.running, 2, "wrong by {factor}");
        let summary = course.summary();
        assert!(
            summary.starts_with("auto chooses spardl: 1200 ms a step measured (1200 ms expected)"),
            "{summary}"
        );
        assert!(summary.contains(&format!("topka: {:.0} ms", 1e3 * factor)), "{summary}");
    }
}

/// A forecast that is too high by less than three times is found out, too; beyond that nothing is checked.
#[test]
fn three_times_the_best_time_is_tried_and_more_is_not() {
    for (forecast, is_tried) in [(1.5, true), (2.9, true), (3.1, false)] {
        let ranking = forecasts(&[("topka", 1.0), ("ring", forecast)]);
        let mut course = Course::new(ranking);
        let order = drive(&mut course, |place, _| [1.0, 0.5][place]);
        assert_eq!(order.contains(&1), is_tried, "{forecast}: {order:?}");
        assert_eq!(course.running, usize::from(is_tried));
        let verb = if is_tried { "auto chooses ring" } else { "auto stays with topka" };
        assert!(course.summary().starts_with(verb), "{}", course.summary());
    }
}

/// One good moment is not enough: over all turns it has to be the fastest.
#[test]
fn a_lucky_try_is_found_out_in_the_turns() {
    let ranking = forecasts(&[("topka", 1.0), ("gtopk", 1.1)]);
    let mut course = Course::new(ranking);
    let order = drive(&mut course, |place, number| match (place, number) {
        (0, _) => 1.1,
        (_, 0) => 1.0,
        _ => 1.2,
    });
    assert_eq!(order, [0, 1, 1, 0, 1, 0, 1, 0]);
    assert_eq!(course.running, 0);
}

/// A job is as fast as its slowest rank in each step, whichever that is.
#[test]
fn the_slowest_rank_counts_whichever_it_is() {
    // In the first method's steps, one rank takes 3 seconds and the others 1; in the second's, all take 2.
    let fast = [1.0; COUNTED];
    let slow = [3.0; COUNTED];
    // In turns, too.
    let odd = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0];
    let even = [3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0];
    let rows: [[&[f64]; 3]; 4] =
        [[&slow, &fast, &fast], [&fast, &slow, &fast], [&fast, &fast, &slow], [&odd, &fast, &even]];
    for first in rows {
        let mut course = Course::new(forecasts(&[("topka", 1.0), ("gtopk", 1.5)]));
        assert!(course.conclude(&first), "the second was not tried");
        assert_eq!(course.seconds(0), Some(3.0));
        let second: [&[f64]; 3] = [&[2.0; COUNTED]; 3];
        assert!(!course.conclude(&second), "went back to the slower one");
        assert!(course.has_chosen());
        assert_eq!(course.seconds(1), Some(2.0));
    }
}

fn announced(ranking: Vec<Forecast>, bytes_per_second: f64) -> String {
    let network = Network { latency: Duration::from_micros(250), bytes_per_second };
    let probed = Probed::alike(network);
    Course::new(ranking).announce(&probed)
}

/// The line says what is taken, what it will take, and what was found of the network.
#[test]
fn one_line_says_what_is_expected() {
    let sparse = announced(forecasts(&[("gtopk", 0.0123), ("topka", 0.02), ("ring", 0.25)]), 125e6);
    let start = "auto takes gtopk: 12.3 ms a step expected (dense ring: 250 ms), 500 entries delivered";
    assert_eq!(sparse, format!("{start}; 1000 Mbit/s, 250 µs"));
    assert_eq!(sparse.lines().count(), 1);
    let dense = announced(forecasts(&[("ring", 0.0123), ("topka", 0.02)]), f64::INFINITY);
    let start = "auto takes ring: 12.3 ms a step expected, for dense is faster here than any sparse method (topka: 20.0 ms)";
    assert_eq!(dense, format!("{start}, 10000 entries delivered"));
}

/// A dense method that is really the fastest stays, though a sparse one was forecast to be.
#[test]
fn dense_is_taken_where_it_is_measured_faster() {
    let mut course = Course::new(forecasts(&[("topka", 1.0), ("spardl", 1.1), ("ring", 1.4)]));
    drive(&mut course, |place, _| [2.0, 2.2, 1.4][place]);
    assert!(!course.present().method.collective().is_sparse());
    assert!(course.summary().starts_with("auto chooses ring"), "{}", course.summary());
}

/// Of one candidate nothing is tried.
#[test]
fn one_candidate_is_not_measured() {
    let mut course = Course::new(forecasts(&[("ring", 1.0)]));
    assert!(course.has_chosen() && drive(&mut course, |_, _| 1.0).is_empty());
}

/// A checkpoint's method runs on, whatever the forecasts, and one that is no candidate changes nothing.
#[test]
fn a_method_is_resumed_by_name() {
    let ranking = forecasts(&[("topka", 1.0), ("gtopk", 1.1), ("ring", 1.2)]);
    let name = ranking[1].method.to_string();
    let mut course = Course::new(ranking);
    assert!(course.resume(&name));
    assert_eq!(course.running, 1);
    assert!(!course.resume("nothing") && course.running == 1);
}
