//! Jobs of several workers in one process: what they give, and what they refuse.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_regress::data::{Shape, Source};
use gleaner_regress::objective::{Loss, Penalty};
use gleaner_regress::settings::{Algorithm, Descent, Schedule, Settings};
use gleaner_regress::{RegressError, Trained, predict, train};
use gleaner_runtime::{Roles, Session};
use gleaner_transport::memory;
use tempfile::TempDir;

fn run<T: Send>(workers: u32, worker: impl Fn(Session) -> T + Sync) -> Vec<T> {
    let worker = &worker;
    std::thread::scope(|scope| {
        let start = |network| {
            let session = async { Ok(network) };
            scope.spawn(move || {
                worker(Session::over_as(session, Duration::from_secs(20), Roles::default()).unwrap())
            })
        };
        let threads: Vec<_> = memory::networks(workers).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn descent() -> Descent {
    Descent {
        batch: 8,
        rate: Some(0.125),
        schedule: Schedule::Constant,
        decay: 1.0,
        staleness: 0,
        threads: 1,
        shuffles: true,
    }
}

fn settings(data: Source, loss: Loss, algorithm: Algorithm) -> Settings {
    Settings {
        data,
        held_out: None,
        features: None,
        bias: None,
        loss,
        penalty: Penalty::default(),
        algorithm,
        epochs: 2,
        seed: 1,
        method: Method::among(Method::all(), "ssar-split-all-gather").unwrap(),
    }
}

fn generated(samples: u64) -> Source {
    Source::Generated { shape: Shape::Url, samples }
}

/// The result of all workers, which is the same.
fn trained(workers: u32, settings: &Settings) -> Trained {
    let all = run(workers, |session| train(&session, settings, |_, _, _| {}).unwrap());
    assert!(all.iter().all(|of| of.model == all[0].model && of.digest == all[0].digest));
    all.into_iter().next().unwrap()
}

/// The error of each worker.
fn refused(workers: u32, settings: impl Fn(usize) -> Settings + Sync) -> Vec<String> {
    run(workers, |session| {
        let error = train(&session, &settings(session.rank()), |_, _, _| {}).unwrap_err();
        let sentence = error.to_string();
        if error.of_all().is_none() {
            drop(session.abort(&error));
        }
        sentence
    })
}

/// Values and rates that are powers of two, so that all sums are exact: then the number of workers makes no difference to any bit.
#[test]
fn workers_come_to_the_bits_of_one_worker() {
    for (loss, penalty) in [
        (Loss::Hinge, Penalty::default()),
        (Loss::Hinge, Penalty { l1: 0.0078125, l2: 0.0 }),
        (Loss::Squares, Penalty::default()),
        (Loss::SquaredHinge, Penalty { l1: 0.00390625, l2: 0.0078125 }),
    ] {
        // Of the losses whose slopes are no whole numbers, one step is exact and more are not.
        let epochs = if loss == Loss::Hinge { 3 } else { 1 };
        let of = |workers: u32, samples: u64| {
            let steps = if loss == Loss::Hinge { 4 } else { 1 };
            let batch = samples as usize / workers as usize / steps;
            let descent = Descent { batch, shuffles: false, rate: Some(0.0078125), ..descent() };
            let settings = settings(generated(samples), loss, Algorithm::Sgd(descent));
            trained(workers, &Settings { penalty, epochs, features: Some(1000), ..settings })
        };
        let alone = of(1, 96);
        assert!(alone.model.weights.len() > 100);
        for workers in [2, 3, 4] {
            let found = of(workers, 96);
            assert_eq!((found.model, found.digest), (alone.model.clone(), alone.digest.clone()), "{loss}");
        }
    }
}

fn objective(settings: &Settings) -> f64 {
    trained(1, settings).objective
}

/// Both algorithms reach the same minimum, with any number of workers.
#[test]
fn both_algorithms_come_to_the_same_minimum() {
    for (loss, penalty) in [
        (Loss::Logistic, Penalty { l1: 0.0, l2: 0.1 }),
        (Loss::SquaredHinge, Penalty { l1: 0.01, l2: 0.1 }),
        (Loss::Squares, Penalty { l1: 0.02, l2: 0.1 }),
    ] {
        let with = |algorithm, epochs| {
            let settings = settings(generated(60), loss, algorithm);
            Settings { penalty, epochs, features: Some(200), bias: Some(1.0), ..settings }
        };
        let all = Descent { batch: 60, rate: None, ..descent() };
        let descended = objective(&with(Algorithm::Sgd(all), 8000));
        for workers in [1, 2, 4] {
            let by_coordinates = trained(workers, &with(Algorithm::Scd { coordinates: 10 }, 200));
            let found = by_coordinates.objective;
            assert!((found - descended).abs() < 1e-6, "{loss}, {workers} workers: {found}, {descended}");
            // But for rounding, once there is nothing left to fall.
            let rises = by_coordinates
                .epochs
                .windows(2)
                .filter(|two| two[1].objective > two[0].objective.map(|o| o + 1e-7));
            assert!(rises.count() < 5, "{loss}, {workers} workers");
        }
    }
}

/// Samples whose features are all alike: without caution, workers that change them together overshoot for ever.
#[test]
fn coordinates_that_meet_do_not_diverge() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("alike.svm");
    let row: String = (1..=16).map(|index| format!(" {index}:1")).collect();
    fs::write(&path, format!("1{row}\n-1{row}\n3{row}\n1{row}\n")).unwrap();
    let settings = settings(Source::File(path), Loss::Squares, Algorithm::Scd { coordinates: 1 });
    let found = trained(4, &Settings { epochs: 400, ..settings });
    // The mean of the labels is 1, and the mean of the squares around it 2.
    assert!((found.objective - 1.0).abs() < 1e-6, "{}", found.objective);
}

#[test]
fn stale_steps_learn_too() {
    for workers in [1, 3] {
        let of = |staleness| {
            let descent = Descent { staleness, batch: 20, rate: Some(0.02), ..descent() };
            let settings = settings(generated(600), Loss::Logistic, Algorithm::Sgd(descent));
            trained(workers, &Settings { epochs: 4, features: Some(2000), ..settings })
        };
        let (fresh, stale) = (of(0), of(3));
        assert_ne!(fresh.model, stale.model);
        assert!(stale.objective < 0.5 && stale.objective < fresh.objective + 0.1, "{}", stale.objective);
    }
}

/// A file's samples, as a worker of many or alone, are those that were written; and the model predicts them in order.
#[test]
fn a_model_is_applied_in_the_order_of_the_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("data.svm");
    let label = |i: usize| if i.is_multiple_of(3) { "2" } else { "5" };
    let line = |i: usize| format!("{} 1:{} {}:1\n", label(i), 1 + i % 3 % 2, 2 + i % 5);
    fs::write(&path, (0..90).map(line).collect::<String>()).unwrap();
    let descent = Descent { batch: 10, ..descent() };
    let settings = settings(Source::File(path.clone()), Loss::Logistic, Algorithm::Sgd(descent));
    let settings = Settings { epochs: 60, bias: Some(1.0), held_out: Some(path.clone()), ..settings };
    let found = trained(3, &settings);
    assert_eq!((found.samples, found.model.features, found.model.classes), (90, 6, Some([2.0, 5.0])));
    let held_out = found.epochs.last().unwrap().held_out.unwrap();
    let file = folder.path().join("model");
    fs::write(&file, found.model.to_bytes().unwrap()).unwrap();
    let applied = |workers, path: &Path| {
        let all = run(workers, |session| predict(&session, &file, path, None).unwrap());
        assert!(
            all.iter()
                .all(|(model, predicted)| *model == found.model && predicted.margins == all[0].1.margins)
        );
        all.into_iter().next().unwrap().1
    };
    let alone = applied(1, &path);
    let evaluation = alone.evaluation.unwrap();
    assert!((evaluation.loss - held_out.loss).abs() < 1e-9);
    assert_eq!((evaluation.accuracy, evaluation.auc), (held_out.accuracy, held_out.auc));
    assert_eq!(alone.margins.len(), 90);
    assert_eq!(alone.margins, applied(4, &path).margins);
}

fn written(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

/// Every rank has a sentence that says what is wrong, and where.
#[test]
fn bad_data_are_refused_on_every_rank() {
    let folder = TempDir::new().unwrap();
    let good = "1 1:1\n-1 2:1\n1 3:1\n";
    let sgd = || Algorithm::Sgd(descent());
    let of = |path: PathBuf| settings(Source::File(path), Loss::Logistic, sgd());
    let cases = [
        (
            "1 1:1\n-1 2:1 2:3\n",
            None,
            "line 2, column 8: expected an index above 2, the one before it, found \"2\"",
        ),
        (
            "1 1:1\n-1 2:nan\n",
            None,
            "line 2, column 6: expected a value that is a finite number, found \"nan\"",
        ),
        (
            "1 1:1\n-1 9:1\n",
            Some(8),
            "line 2, column 4: expected an index from 1 to the number of features, 8, found \"9\"",
        ),
        (
            "1 1:1\n1 2:1\n1 3:1\n",
            None,
            "expected labels of two classes for --loss-function logistic, found 1 alone",
        ),
        ("1 1:1\n2 2:1\n-0.5 3:1\n", None, "found -0.5, 1, 2"),
        ("", None, "expected at least one sample for each of 3 workers, found no sample"),
        ("1 1:1\n-1 2:1\n", None, "expected at least one sample for each of 3 workers, found 2"),
        ("1\n-1\n1\n", None, "expected at least one feature, found labels alone"),
    ];
    for (number, (text, features, expected)) in cases.into_iter().enumerate() {
        let path = written(&folder, &format!("{number}.svm"), text);
        let errors = refused(3, |_| Settings { features, ..of(path.clone()) });
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
    // Of files that differ, also where each is good by itself.
    for (rank, text) in [good, good, "1 1:1\n-1 7:1\n"].into_iter().enumerate() {
        written(&folder, &format!("good-{rank}.svm"), text);
    }
    let own = folder.path().join("good-{rank}.svm");
    let errors = refused(3, |_| of(own.clone()));
    let expected =
        "number of features on every worker, found indices up to 3 on rank 0 and up to 7 on rank 2";
    assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    trained(3, &Settings { features: Some(7), ..of(own.clone()) });
    for rank in 0..2 {
        written(&folder, &format!("part-{rank}.svm"), if rank == 0 { good } else { "" });
    }
    let parts = folder.path().join("part-{rank}.svm");
    let errors = refused(2, |_| Settings { features: Some(3), ..of(parts.clone()) });
    assert!(errors.iter().all(|error| error.contains("found none in that of rank 1")), "{errors:?}");
    let empty = Some(folder.path().join("part-1.svm"));
    let errors = refused(2, |_| Settings { held_out: empty.clone(), ..of(folder.path().join("good-0.svm")) });
    assert!(errors.iter().all(|error| error.contains("expected a sample or more to evaluate")), "{errors:?}");
    let errors = refused(3, |rank| of(folder.path().join(format!("good-{rank}.svm"))));
    assert!(
        errors.iter().all(|error| error.contains("same data on every worker") && error.contains("rank 2")),
        "{errors:?}"
    );
    let errors =
        refused(2, |rank| Settings { features: Some(7 + rank), ..of(folder.path().join("good-0.svm")) });
    assert!(
        errors.iter().all(|error| error.contains("--features") && error.contains("Some(8) on rank 1")),
        "{errors:?}"
    );
    let errors = refused(2, |_| Settings { algorithm: Algorithm::Scd { coordinates: 1 }, ..of(own.clone()) });
    assert!(errors.iter().all(|error| error.contains("coordinate descent needs all samples")), "{errors:?}");
}

/// A model of other data, and what is no model.
#[test]
fn models_that_do_not_fit_are_refused_on_every_rank() {
    let folder = TempDir::new().unwrap();
    let data = written(&folder, "data.svm", "1 1:1\n-1 2:1\n1 3:1\n-1 5:1\n");
    let settings = settings(Source::File(data.clone()), Loss::Hinge, Algorithm::Sgd(descent()));
    let model = folder.path().join("model");
    fs::write(&model, trained(1, &settings).model.to_bytes().unwrap()).unwrap();
    let refused = |model: &Path, data: &Path, features| -> Vec<String> {
        run(2, |session| {
            let error: RegressError = predict(&session, model, data, features).unwrap_err();
            error.to_string()
        })
    };
    let wide = written(&folder, "wide.svm", "1 1:1\n-1 6:1\n");
    let empty = written(&folder, "empty.svm", "");
    for (errors, expected) in [
        (
            refused(&model, &data, Some(9)),
            "expected a model of 9 features, as --features says, found one of 5",
        ),
        (
            refused(&model, &wide, None),
            "line 2, column 4: expected an index from 1 to the number of features, 5",
        ),
        (refused(&model, &empty, None), "empty.svm: expected a sample or more, found none"),
        (refused(&data, &data, None), "expected a model that gleaner regress --model wrote"),
        (refused(&folder.path().join("none"), &data, None), "none: could not be read"),
    ] {
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
    // Each rank has a model that fits, and they are not the same.
    for rank in 0..2 {
        let one = Settings { epochs: 1 + rank, ..settings.clone() };
        let bytes = trained(1, &one).model.to_bytes().unwrap();
        fs::write(folder.path().join(format!("model-{rank}")), bytes).unwrap();
        fs::copy(&data, folder.path().join(format!("data-{rank}.svm"))).unwrap();
    }
    let errors: Vec<String> = run(2, |session| {
        let model = folder.path().join(format!("model-{}", session.rank()));
        predict(&session, &model, &data, None).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("the same model on every worker")), "{errors:?}");
    // Of files that each rank has for itself.
    let own = folder.path().join("data-{rank}.svm");
    let margins = run(2, |session| predict(&session, &model, &own, None).unwrap().1.margins);
    assert_eq!((margins[0].len(), &margins[0][..4]), (8, &margins[0][4..]));
    assert_eq!(margins[0], margins[1]);
}
