//! Numbers that were computed by hand, and pictures that any reader of XML understands.

mod left_out;
mod references;

use serde_json::{Value, json};

use super::figure::{Point, Series};
use super::plot::pictures;
use super::*;
use crate::record::{Outcome, Record};
use gleaner_statistics::Spread;

fn record(case: Value, turn: u32, done: Value) -> Record {
    let command = vec!["gleaner".into(), case.to_string()];
    let of_case = crate::record::tests::record(&case, json!({ "done": done }));
    Record { turn, started: turn.into(), command, ..of_case }
}

/// What its program printed.
fn printed(record: &mut Record) -> &mut Value {
    let Outcome::Done(done) = &mut record.outcome else { panic!("it is done") };
    done
}

fn run(records: Vec<Record>) -> Run {
    Run {
        name: "run".into(),
        title: None,
        description: None,
        directory: "run".into(),
        records,
        notes: Vec::new(),
    }
}

fn bench(method: &str, workers: u32, density: Option<f64>, turn: u32, seconds: f64) -> Record {
    let mut case = json!({"command": "bench", "method": method, "workers": workers});
    let k = density.map_or(1000.0, |d| d * 1000.0);
    if let Some(density) = density {
        case["density"] = density.into();
    }
    let done = json!({"seconds": seconds, "params": 1000, "k": k, "entries_per_step": k, "steps": 5});
    record(case, turn, done)
}

fn figure(records: Vec<Record>, id: &str) -> Figure {
    let figures = figures(&[run(records)]);
    figures.into_iter().find(|f| f.id == id).unwrap_or_else(|| panic!("no figure {id}"))
}

fn series<'a>(figure: &'a Figure, panel: usize, label: &str) -> &'a Series {
    figure.panels[panel].series.iter().find(|s| s.label == label).unwrap()
}

fn spreads(series: &Series) -> Vec<(Option<f64>, Spread)> {
    series.points.iter().map(|Point { x, spread, .. }| (*x, *spread)).collect()
}

#[test]
fn a_dense_method_is_beside_every_density() {
    let records = vec![
        bench("spardl", 4, Some(0.01), 0, 1.0),
        bench("spardl", 4, Some(0.1), 0, 2.0),
        bench("ring", 4, None, 0, 8.0),
    ];
    let step = figure(records.clone(), "step-time");
    assert_eq!(step.panels.len(), 2);
    for panel in 0..2 {
        assert_eq!(series(&step, panel, "ring").points[0].spread, Spread::exact(8.0));
    }
    let density = figure(records, "density");
    assert_eq!(density.panels.len(), 1);
    let lines = spreads(series(&density, 0, "spardl"));
    assert_eq!(lines, [(Some(0.01), Spread::exact(1.0)), (Some(0.1), Spread::exact(2.0))]);
    assert_eq!(spreads(series(&density, 0, "ring")), [(None, Spread::exact(8.0))]);
}

/// Axes that a measurement states as options of its method follow the name, as those of listed methods do where early
/// measurements state none. Other axes make settings of their own.
#[test]
fn options_follow_the_name() {
    let with = |method: &str, axis: &str, value: u64, stated: bool| {
        let mut record = bench(method, 4, Some(0.1), 0, 1.0 + value as f64);
        record.case.insert(axis.into(), value.into());
        if stated {
            printed(&mut record)["options"] = json!({axis: value.to_string()});
        }
        record
    };
    for (method, axis, stated) in [("star", "root", true), ("spardl", "teams", false)] {
        let step = figure(vec![with(method, axis, 1, stated), with(method, axis, 2, stated)], "step-time");
        assert_eq!(step.panels.len(), 1);
        for value in [1, 2] {
            let label = format!("{method}, {axis} {value}");
            assert_eq!(series(&step, 0, &label).points[0].spread, Spread::exact(1.0 + f64::from(value)));
        }
    }
    let apart = figure(vec![with("star", "root", 1, false), with("star", "root", 2, false)], "step-time");
    assert_eq!(apart.panels.len(), 2);
}

#[test]
fn without_a_ring_a_method_is_compared_with_itself() {
    let records = vec![bench("spardl", 2, Some(0.1), 0, 1.0), bench("spardl", 8, Some(0.1), 0, 4.0)];
    let scaling = figure(records, "speed-up");
    assert_eq!(scaling.value.name, "weak scaling efficiency");
    let points = spreads(series(&scaling, 0, "spardl"));
    assert_eq!(points, [(Some(2.0), Spread::exact(1.0)), (Some(8.0), Spread::exact(0.25))]);
}

/// What was disturbed on purpose says nothing of how a method scales.
#[test]
fn weak_scaling_leaves_out_what_was_disturbed() {
    let with = |workers: u32, seconds: f64, chaos: &[&str]| {
        let mut record = bench("spardl", workers, Some(0.1), 0, seconds);
        record.case.insert("faults".into(), "slow".into());
        record.chaos = chaos.iter().map(|event| (*event).to_owned()).collect();
        record
    };
    let slow = ["1.00 s, step 2: slow rank 1 to 0.05"];
    let scaling = figure(vec![with(2, 80.0, &slow), with(4, 1.0, &[]), with(8, 4.0, &[])], "speed-up");
    assert_eq!(scaling.value.name, "weak scaling efficiency");
    let points = spreads(series(&scaling, 0, "spardl"));
    assert_eq!(points, [(Some(4.0), Spread::exact(1.0)), (Some(8.0), Spread::exact(0.25))]);
}

/// A ring that was disturbed on purpose is slow for another reason than its method's.
#[test]
fn nothing_is_compared_with_a_ring_that_was_disturbed() {
    let mut ring = bench("ring", 4, None, 0, 80.0);
    ring.chaos = vec!["1.00 s, step 2: slow rank 1 to 0.05".into()];
    let mut records = vec![ring.clone()];
    for workers in [2, 4] {
        records.push(bench("spardl", workers, Some(0.1), 0, 1.0));
    }
    let alone = figure(records.clone(), "speed-up");
    assert_eq!(alone.value.name, "weak scaling efficiency");
    for workers in [2, 4] {
        records.push(bench("ring", workers, None, 0, 8.0));
    }
    let beside = figure(records, "speed-up");
    assert_eq!(beside.value.name, "speed-up over the dense ring");
    let points = spreads(series(&beside, 0, "spardl"));
    assert_eq!(points, [(Some(2.0), Spread::exact(8.0)), (Some(4.0), Spread::exact(8.0))]);
}

#[test]
fn among_as_many_workers_speed_ups_are_rows() {
    let of_turn =
        |turn| [bench("ring", 4, None, turn, 8.0), bench("gloo", 4, None, turn, f64::from(4 + turn))];
    let figure = figure((0..3).flat_map(of_turn).collect(), "step-speed-up");
    assert_eq!(figure.panels[0].series.len(), 1);
    let expected = Spread { value: 1.6, low: 8.0 / 6.0, high: 2.0 };
    assert_eq!(spreads(series(&figure, 0, "gloo")), [(None, expected)]);
}

/// The title and the description are shown; what was planned and did not happen is marked; what failed as it was to fail is no failure.
#[test]
fn a_page_says_what_was_planned() {
    let mut missed = bench("spardl", 4, Some(0.1), 0, 1.0);
    missed.missed = vec!["kill rank 1 at step 20: the job ended before, after 1.00 s, at step 5".into()];
    let mut killed = bench("ring", 4, None, 0, 1.0);
    killed.chaos = vec!["1.00 s, step 2: kill rank 1".into()];
    killed.outcome = Outcome::Failed { exit_code: 1, reason: "rank 1 died".into() };
    killed.failed_on_purpose = true;
    let mut run = run(vec![missed, killed]);
    run.title = Some("Workers that die".into());
    run.description = Some("What a dead worker costs.".into());
    let runs = [run];
    let figures = figures(&runs);
    let summary = summary(&runs, &figures);
    assert!(summary.failures.is_empty() && summary.chaos.len() == 2);
    assert_eq!((summary.runs[0].done, summary.runs[0].failed, summary.runs[0].failed_on_purpose), (1, 0, 1));
    let page = page(&runs, &summary).unwrap();
    for words in [
        "<h1>Workers that die</h1>",
        "What a dead worker costs.",
        "Did not happen: ",
        "none failed, 1 failed on purpose",
        "<td>failed on purpose</td>",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn dense_methods_are_no_news_in_the_density_delivered() {
    // An experiment may name a density for all of its methods.
    let mut ring = bench("ring", 4, Some(0.1), 0, 1.0);
    printed(&mut ring)["k"] = 1000.into();
    let delivered = figure(vec![ring, bench("spardl", 4, Some(0.1), 0, 1.0)], "delivered");
    assert_eq!(delivered.panels[0].series.len(), 1);
    assert_eq!(series(&delivered, 0, "spardl").points[0].spread, Spread::exact(0.1));
}

#[test]
fn parts_add_up_to_the_mean_step() {
    let with = |turn: u32, parts: [f64; 3], seconds: f64| {
        let mut record = bench("spardl", 4, Some(0.1), turn, seconds);
        for (name, part) in ["slowest_select", "slowest_exchange", "slowest_merge"].into_iter().zip(parts) {
            printed(&mut record)[name] = part.into();
        }
        record
    };
    let split = figure(vec![with(0, [1.0, 2.0, 0.5], 4.0), with(1, [3.0, 2.0, 0.5], 6.0)], "split");
    let parts: Vec<f64> = series(&split, 0, "spardl").points.iter().map(|p| p.spread.value).collect();
    assert_eq!(parts, [2.0, 2.0, 0.5, 0.5]);
}

#[test]
fn strategies_of_merging_stand_beside_each_other_with_the_parts_of_their_iterations() {
    let with = |merge: &str, parts: [f64; 4]| {
        let mut record = training("spardl", 1, 1.0, &[4.0]);
        record.case.insert("merge".into(), merge.into());
        let names = ["seconds_iteration", "seconds_forward", "seconds_backward", "seconds_exposed"];
        for (name, part) in names.into_iter().zip(parts) {
            printed(&mut record)[name] = part.into();
        }
        record
    };
    let records = vec![with("single", [9.0, 1.0, 2.0, 5.0]), with("optimal", [6.0, 1.0, 2.5, 2.0])];
    let iteration = figure(records, "iteration");
    assert_eq!(iteration.panels.len(), 1);
    let parts = |label: &str| -> Vec<(&str, f64)> {
        let points = &series(&iteration, 0, label).points;
        points.iter().map(|p| (p.part.unwrap(), p.spread.value)).collect()
    };
    let named = |values: [f64; 4]| {
        ["forward", "backward", "exposed", "between"].into_iter().zip(values).collect::<Vec<_>>()
    };
    assert_eq!(parts("spardl, merge single"), named([1.0, 2.0, 5.0, 1.0]));
    assert_eq!(parts("spardl, merge optimal"), named([1.0, 2.5, 2.0, 0.5]));
}

#[test]
fn bytes_of_an_interface_need_the_warm_up_and_a_job_of_ones_own() {
    let with = |turn: u32, method: &str, command: &[&str]| {
        let mut record = bench(method, 4, Some(0.1), turn, 1.0);
        record.command = command.iter().map(|word| (*word).to_owned()).collect();
        let traffic = |host: &str, received| crate::record::Traffic { host: host.into(), received, sent: 0 };
        record.traffic = vec![traffic("a", 700), traffic("b", 800)];
        record
    };
    let interface = |records: Vec<Record>| -> Vec<f64> {
        let figures = figures(&[run(records)]);
        let points =
            figures.iter().filter(|f| f.id == "bytes").flat_map(|f| &f.panels).flat_map(|p| &p.series);
        points.flat_map(|s| &s.points).map(|p| p.spread.value).collect()
    };
    // 5 steps and 3 before them; the busiest host.
    assert_eq!(interface(vec![with(0, "spardl", &["gleaner", "bench", "--warmup", "3"])]), [100.0]);
    assert_eq!(interface(vec![with(0, "spardl", &["gleaner", "bench", "--warmup=3"])]), [100.0]);
    assert!(interface(vec![with(0, "spardl", &["gleaner", "bench"])]).is_empty());
    let together = ["gleaner", "bench", "--method", "spardl,topka", "--warmup", "3"];
    assert!(interface(vec![with(0, "spardl", &together), with(0, "topka", &together)]).is_empty());
}

fn training(method: &str, seed: u32, seconds_step: f64, losses: &[f64]) -> Record {
    let evaluation = |(i, loss): (usize, &f64)| {
        let training = (i > 0).then_some(loss / 2.0);
        json!({"step": 10 * i, "seconds": seconds_step * 10.0 * i as f64, "held_out_loss": loss, "held_out_accuracy": null,
            "training_loss": training, "bytes_received": 1000 * i * (1 + seed as usize)})
    };
    let evaluations: Vec<Value> = losses.iter().enumerate().map(evaluation).collect();
    let case = json!({"command": "train", "method": method, "workers": 2, "model": "lstm", "seed": seed});
    record(case, 0, json!({"seconds_run": 1.0, "steps": 10, "evaluations": evaluations}))
}

#[test]
fn curves_are_means_over_seeds_while_all_of_them_go_on() {
    let records = vec![
        training("spardl", 1, 1.0, &[4.0, 3.0, 1.0]),
        training("spardl", 2, 2.0, &[4.0, 2.0]),
        training("ring", 1, 5.0, &[4.0, 2.0]),
    ];
    let loss = figure(records.clone(), "time-to-loss");
    let points = spreads(series(&loss, 0, "spardl"));
    let second = Spread { value: 2.5, low: 2.0, high: 3.0 };
    assert_eq!(points, [(Some(0.0), Spread::exact(4.0)), (Some(15.0), second)]);
    let along = |id: &str| spreads(series(&figure(records.clone(), id), 0, "spardl"));
    assert_eq!(along("steps-to-loss"), [(Some(0.0), Spread::exact(4.0)), (Some(10.0), second)]);
    // Before the first step none have been received that say anything, and there is no training loss.
    assert_eq!(along("bytes-to-loss"), [(Some(2500.0), second)]);
    let half = Spread { value: 1.25, low: 1.0, high: 1.5 };
    assert_eq!(along("training-loss"), [(Some(10.0), half)]);
    // The ring reaches 2, SparDL on average 2.5: so 2.5 is what both reach.
    let reached = figure(records, "time-to-target");
    assert_eq!(reached.panels[0].setting["until held-out loss"], "2.50");
    assert_eq!(series(&reached, 0, "spardl").points[0].spread, Spread { value: 15.0, low: 10.0, high: 20.0 });
    assert_eq!(series(&reached, 0, "ring").points[0].spread, Spread::exact(50.0));
}

#[test]
fn a_frontier_goes_along_densities_and_numbers_of_names() {
    let of = |method: &str, density: Option<f64>, bytes: f64, loss: f64| {
        let mut record = training(method, 1, 1.0, &[4.0, loss]);
        if let Some(density) = density {
            record.case.insert("density".into(), density.into());
        }
        printed(&mut record)["bytes_per_step"] = bytes.into();
        record
    };
    let records = vec![
        of("spardl", Some(0.1), 20.0, 1.0),
        of("spardl", Some(0.01), 2.0, 2.0),
        of("powersgd-2", None, 4.0, 1.5),
        of("powersgd-1", None, 3.0, 3.0),
        of("ring", None, 50.0, 0.5),
    ];
    let frontier = figure(records, "frontier");
    assert_eq!(frontier.panels.len(), 1);
    let at = |label: &str| spreads(series(&frontier, 0, label));
    let point = |x, value| (Some(x), Spread::exact(value));
    assert_eq!(at("spardl"), [point(2.0, 2.0), point(20.0, 1.0)]);
    assert_eq!(at("powersgd"), [point(3.0, 3.0), point(4.0, 1.5)]);
    assert_eq!(at("ring"), [point(50.0, 0.5)]);
}

/// Whatever the names and the numbers are, a picture is XML with a title and a description, and its numbers are finite.
#[test]
fn pictures_are_well_formed() {
    let names =
        ["a", "<b> & \"c\" 'd'", "ünï – ☃", "a name that is much longer than there is room for it", ""];
    let numbers = [0.0, 1e-12, 0.5, 3.0, 1e12, f64::MAX, -1.0];
    let mut records = Vec::new();
    for (i, name) in names.iter().enumerate() {
        for (j, number) in numbers.iter().enumerate() {
            for density in [None, Some(0.01), Some(0.1)] {
                let mut record = bench(name, 2 + 2 * j as u32, density, 0, *number);
                let done = printed(&mut record);
                done["bytes_per_step"] = (*number).into();
                for part in ["slowest_select", "slowest_exchange", "slowest_merge"] {
                    done[part] = (number / 5.0).into();
                }
                records.push(record);
            }
            records.push(training(name, j as u32, 1.0 + i as f64, &[*number, number / 2.0, 0.1]));
        }
    }
    let figures = figures(&[run(records)]);
    assert!(figures.len() > 8, "{:?}", figures.iter().map(|f| f.id).collect::<Vec<_>>());
    for figure in &figures {
        for (i, panel) in figure.panels.iter().enumerate() {
            for svg in pictures(figure, panel, &format!("{}-{i}", figure.id), false).unwrap() {
                let xml = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{e}: {svg}"));
                for tag in ["title", "desc"] {
                    let words = xml
                        .root_element()
                        .children()
                        .find(|n| n.has_tag_name(tag) || n.tag_name().name() == tag);
                    assert!(words.is_some_and(|w| w.text().is_some()), "{}: no {tag}", figure.id);
                }
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}: {svg}", figure.id);
            }
        }
    }
}

/// Whatever a record holds or lacks, the table of all measurements has it, and the others are shown as without it.
#[test]
fn every_record_is_in_a_table() {
    let cases = [
        json!({}),
        json!({"method": "spardl"}),
        json!({"command": "train", "workers": "many", "x": [1, null]}),
    ];
    let outcomes = [
        json!({"done": null}),
        json!({"done": [1]}),
        json!({"done": {"seconds": "soon", "params": 0, "steps": 0, "seconds_steps": [], "evaluations": [{}]}}),
        json!({"done": {"seconds": 1.5, "method": {"name": 1}}}),
        json!({"failed": {"exit_code": -1, "reason": "</td><script>"}}),
    ];
    let mut records = vec![bench("spardl", 4, Some(0.1), 0, 1.0)];
    for case in &cases {
        for outcome in &outcomes {
            let mut odd = record(case.clone(), 7, Value::Null);
            odd.outcome = serde_json::from_value(outcome.clone()).unwrap();
            odd.started = f64::MAX;
            records.push(odd);
        }
    }
    let count = records.len();
    let runs = [run(records)];
    let figures = figures(&runs);
    let page = page(&runs, &summary(&runs, &figures)).unwrap();
    assert_eq!(page.matches("<tr class=\"record\">").count(), count);
    assert!(!page.contains("<script>"));
    let spardl = figures.iter().find(|f| f.id == "step-time").unwrap();
    let shown = spardl.panels.iter().flat_map(|p| &p.series).flat_map(|s| &s.points);
    assert!(shown.into_iter().any(|p| p.spread == Spread::exact(1.0)));
}

#[test]
fn every_colour_has_one_for_dark_screens() {
    let style = include_str!("style.css");
    for colour in (0..24).map(|number| gleaner_charts::Look::new(number).colour) {
        let (r, g, b) = (colour.0, colour.1, colour.2);
        let name = format!("#{r:02X}{g:02X}{b:02X}");
        for attribute in ["fill", "stroke"] {
            assert!(style.contains(&format!("svg [{attribute}=\"{name}\"]")), "{attribute} {name}");
        }
    }
}

/// The metrics of synchronies are distinguished by synchrony and by where servers are, and only where an experiment names a synchrony.
#[test]
fn metrics_of_synchronies_are_means_over_seeds() {
    let trained = |synchrony: &str, seed: u32, throughput: f64| {
        let case = json!({"command": "train", "method": "ring", "workers": 8, "servers": 1, "synchrony": synchrony, "seed": seed});
        record(
            case,
            0,
            json!({"throughput": throughput, "throughput_at_bound": null, "seconds_batch_synchronisation": 0.5,
            "seconds_batch_computation": 0.25, "seconds_batch_computation_apart": 0.125, "best_step": 40, "held_out_loss": 1.0}),
        )
    };
    let records = vec![trained("bsp", 1, 10.0), trained("osp", 1, 14.0), trained("osp", 2, 18.0)];
    let throughput = figure(records.clone(), "throughput");
    let osp = &series(&throughput, 0, "ring, synchrony osp").points;
    assert_eq!((osp.len(), osp[0].measurements), (1, 2));
    assert_eq!(osp[0].spread, Spread { value: 16.0, low: 14.0, high: 18.0 });
    let computing = figure(records.clone(), "batch-computation");
    assert_eq!(series(&computing, 0, "ring, synchrony bsp").points[0].spread, Spread::exact(0.125));
    let ids = |records| figures(&[run(records)]).iter().map(|figure| figure.id).collect::<Vec<_>>();
    let of_synchronies = ids(records);
    assert!(of_synchronies.contains(&"best-after") && !of_synchronies.contains(&"throughput-at-bound"));
    assert!(!ids(vec![training("ring", 1, 1.0, &[2.0, 1.0])]).contains(&"throughput"));
}
