//! Whole runs of one worker.

use super::*;
use crate::train::levers::Optimizer;
use clap::Parser;
use gleaner_algorithms::Method;
use gleaner_algorithms::merging;
use gleaner_algorithms::residual::{Correction, WholeSteps};
use gleaner_trainer::models::ModelKind;
use safetensors::SafeTensors;
use std::fs;
use std::num::NonZeroU64;
use std::path::Path;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Command {
    #[command(flatten)]
    train: TrainArgs,
}

/// Grey images of 8 × 8 whose upper half is the class, in the files of MNIST.
fn small_images(directory: &Path) {
    for (part, count) in [("train", 40_u32), ("t10k", 10)] {
        let labels: Vec<u8> = (0..count).map(|number| (number % 10) as u8).collect();
        let pixels = labels
            .iter()
            .flat_map(|&label| (0..64).map(move |at| if at < 32 { 25 * label } else { at * label }));
        let mut images: Vec<u8> = [0x803, count, 8, 8].iter().flat_map(|word| word.to_be_bytes()).collect();
        images.extend(pixels);
        fs::write(directory.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        let head: Vec<u8> = [0x801, count].iter().flat_map(|word| word.to_be_bytes()).collect();
        fs::write(directory.join(format!("{part}-labels-idx1-ubyte")), [head, labels].concat()).unwrap();
    }
}

/// A short run. Of an option that is given twice, the last counts.
const SHORT: [[&str; 2]; 11] = [
    ["--data", "digits"],
    ["--model", "resnet20"],
    ["--density", "0.01"],
    ["--steps", "12"],
    ["--batch", "4"],
    ["--lr", "0.1"],
    ["--lr-drops", "0.75"],
    ["--momentum", "0.9"],
    ["--weight-decay", "1e-4"],
    ["--seed", "3"],
    ["--evaluate-every", "4"],
];

/// It with more options.
fn of(options: &[&str]) -> Settings {
    let words = [&["train"], SHORT.as_flattened(), options].concat();
    Command::try_parse_from(words).unwrap().train.settings().unwrap()
}

fn settings(data: &Path, checkpoints: Option<&Path>) -> Settings {
    let data = format!("mnist:{}", data.display());
    let mut options = vec!["--data", data.as_str()];
    if let Some(folder) = checkpoints {
        options.extend(["--checkpoint-every", "5", "--checkpoint", folder.to_str().unwrap()]);
    }
    of(&options)
}

fn run(settings: &Settings) -> TrainResult<Summary> {
    train(&Session::join()?, settings, |_| {})
}

/// Of strategies that need times, a single worker has one group; those of several workers measure again.
#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for merge in ["optimal", "layer-wise", "threshold/20000"] {
        resumed_ends_with_the_same_bits(merge);
    }
}

fn resumed_ends_with_the_same_bits(merge: &str) {
    let (data, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    small_images(data.path());
    let of = |checkpoints| Settings {
        merge: merging::named(merge).unwrap().into(),
        ..settings(data.path(), checkpoints)
    };
    let plain = run(&of(None)).unwrap();
    let mut settings = of(Some(kept.path()));
    let whole = run(&settings).unwrap();
    assert_eq!(whole.parameters_digest, plain.parameters_digest);
    let mut names: Vec<String> = fs::read_dir(kept.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["rank-0.step-10.safetensors", "rank-0.step-12.safetensors"]);

    // As if the run had been interrupted before it wrote its last checkpoint.
    fs::remove_file(kept.path().join("rank-0.step-12.safetensors")).unwrap();
    settings.options.resume = true;
    let resumed = run(&settings).unwrap();
    assert_eq!(resumed.first_step, 10);
    assert_eq!(resumed.parameters_digest, whole.parameters_digest);
    assert_eq!(resumed.loss_curve, whole.loss_curve);
    assert_eq!(resumed.held_out_accuracy, whole.held_out_accuracy);
    assert_eq!(resumed.loss_curve.iter().map(|(step, _)| *step).collect::<Vec<u64>>(), [0, 4, 8, 12]);
    // What this process evaluated; the clock of a resumed run begins again.
    let evaluated = |summary: &Summary| summary.evaluations.iter().map(|e| e.step).collect::<Vec<u64>>();
    assert_eq!((evaluated(&whole), evaluated(&resumed)), (vec![0, 4, 8, 12], vec![12]));
    assert!(whole.evaluations.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
    assert!(whole.evaluations.last().unwrap().seconds < whole.seconds_run);
}

#[test]
fn checkpoints_of_other_runs_and_damaged_ones_are_refused() {
    let (data, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    small_images(data.path());
    let mut settings = settings(data.path(), Some(kept.path()));
    settings.steps = 5;
    settings.options.resume = true;
    let refusal = |settings: &Settings| run(settings).unwrap_err().to_string();
    assert!(refusal(&settings).contains("found none as the newest on rank 0"), "{}", refusal(&settings));
    settings.options.resume = false;
    run(&settings).unwrap();
    assert!(refusal(&settings).contains("add --resume"), "{}", refusal(&settings));
    settings.options.resume = true;
    let change = |change: fn(&mut Settings)| {
        let mut changed = settings.clone();
        change(&mut changed);
        refusal(&changed)
    };
    let found = change(|settings| settings.model = ModelKind::Mlp);
    assert!(found.contains("its model is resnet20, here it is mlp; bring back"), "{found}");
    assert!(change(|settings| settings.method = Method::ring()).contains("here it is ring"));
    let found = change(|settings| settings.method = Method::spardl().k(5));
    assert!(
        found.contains("its method is spardl") && found.contains("here it is spardl with k = 5"),
        "{found}"
    );
    assert!(change(|settings| settings.options.seed = 4).contains("its seed is 3, here it is 4"));
    let labels = data.path().join("train-labels-idx1-ubyte");
    let good = fs::read(&labels).unwrap();
    let mut other = good.clone();
    other[20] = 9;
    fs::write(&labels, other).unwrap();
    assert!(refusal(&settings).contains("here it is mnist with SHA-256"));
    fs::write(&labels, good).unwrap();

    let file = kept.path().join("rank-0.step-5.safetensors");
    let content = fs::read(&file).unwrap();
    for length in [0, 7, 1000, content.len() - 1] {
        fs::write(&file, &content[..length]).unwrap();
        assert!(refusal(&settings).contains("damaged"), "{length} bytes: {}", refusal(&settings));
    }
}

#[test]
fn training_lowers_the_loss_and_reports_progress() {
    let data = tempfile::tempdir().unwrap();
    small_images(data.path());
    let mut settings = settings(data.path(), None);
    settings.model = ModelKind::Mlp;
    settings.method = Method::spardl().density(0.1);
    settings.lr = 0.02;
    settings.lr_drops.clear();
    settings.steps = 60;
    let mut reports = Vec::new();
    let summary = train(&Session::join().unwrap(), &settings, |progress| reports.push(progress)).unwrap();
    assert!(summary.held_out_loss < 0.7 * summary.held_out_loss_first, "{summary:?}");
    assert_eq!(reports.last().unwrap().done, 60);
    settings.lr = 1e30;
    assert!(run(&settings).unwrap_err().to_string().contains("lower --lr"));
    // The first update makes every later gradient NaN.
    settings.method = settings.method.on_nonfinite(OnNonFinite::Skip);
    settings.steps = 5;
    let summary = run(&settings).unwrap();
    assert!((3..5).contains(&summary.account.steps_skipped), "{summary:?}");
    // Of the last one, which is skipped, nothing is recorded.
    let record = tempfile::tempdir().unwrap();
    settings.options.record = Some(record.path().into());
    let refusal = run(&settings).unwrap_err().to_string();
    assert!(refusal.contains("gradient-0.npy, found none"), "{refusal}");
    assert_eq!(fs::read_dir(record.path()).unwrap().count(), 0);
}

/// With every entry delivered, each worker's momentum before the exchange is the optimizer's after it; and so is the sum of its changes.
#[test]
fn momentum_correction_is_momentum() {
    let data = tempfile::tempdir().unwrap();
    small_images(data.path());
    let mut settings = settings(data.path(), None);
    settings.model = ModelKind::Mlp;
    (settings.method, settings.options.weight_decay, settings.lr) = (Method::ring(), 0.0, 0.02);
    settings.lr_drops.clear();
    let optimizer = run(&settings).unwrap().loss_curve;
    let correction = Correction { momentum: 0.9, ..Correction::default() };
    (settings.method, settings.momentum) = (settings.method.corrected(correction), 0.0);
    let corrected = run(&settings).unwrap().loss_curve;
    let ef21 = Correction { ef21: true, ..correction };
    (settings.method, settings.momentum) = (settings.method.corrected(ef21), 1.0);
    let changes = run(&settings).unwrap().loss_curve;
    (settings.method, settings.momentum) = (Method::ring(), 0.0);
    let without = run(&settings).unwrap().loss_curve;
    assert!(far(&optimizer, &corrected) < 1e-4, "{optimizer:?} {corrected:?}");
    assert!(far(&optimizer, &changes) < 1e-4, "{optimizer:?} {changes:?}");
    assert!(far(&optimizer, &without) > 1e-2, "{optimizer:?} {without:?}");
}

#[test]
fn the_seed_decides_the_result() {
    let data = tempfile::tempdir().unwrap();
    small_images(data.path());
    let mut settings = settings(data.path(), None);
    settings.model = ModelKind::Mlp;
    let digest = |settings: &Settings| run(settings).unwrap().parameters_digest;
    let first = digest(&settings);
    assert_eq!(first, digest(&settings));
    settings.options.seed += 1;
    assert_ne!(first, digest(&settings));
}

/// Of every optimiser, with all that may wait or be shortened, and of a model whose largest gradient is sparse.
#[test]
fn a_resumed_run_ends_with_the_same_bits_whatever_keeps_its_accuracy() {
    let whole = WholeSteps { every: NonZeroU64::new(4), at: vec![8, 11] };
    let clicks = of(&["--data", "fresh-clicks", "--model", "clicks"]);
    let residual = of(&["--model", "cnn", "--rate-in-residual", "--clip-update", "0.01", "--lr", "0.02"]);
    let adam = of(&["--model", "cnn", "--optimizer", "adam", "--lr", "0.01"]);
    let signs = ["--model", "cnn", "--dct", "16", "--sign-update", "--lr", "0.001"];
    let demo = of(&[&signs[..], &["--residual-decay", "0.9", "--norm-share", "0.5"]].concat());
    let none = ["--model", "cnn", "--lr", "0.005", "--momentum", "0", "--weight-decay", "0"];
    let ef21 = of(&[&none[..], &["--momentum-correction", "0.9", "--ef21"]].concat());
    for settings in [clicks, residual, adam, demo, ef21] {
        let kept = tempfile::tempdir().unwrap();
        let mut settings = Settings {
            merge: merging::named("layer-wise").unwrap().into(),
            method: settings.method.clone().whole_steps(whole.clone()).dense_below(100),
            ..settings
        };
        (settings.options.checkpoint, settings.options.checkpoint_every) =
            (Some(kept.path().into()), Some(5));
        let uninterrupted = run(&settings).unwrap();
        fs::remove_file(kept.path().join("rank-0.step-12.safetensors")).unwrap();
        settings.options.resume = true;
        let resumed = run(&settings).unwrap();
        let model = settings.model;
        assert_eq!((resumed.first_step, uninterrupted.first_step), (10, 0), "{model}");
        assert_eq!(resumed.parameters_digest, uninterrupted.parameters_digest, "{model}");
        let refused = |what: &str, change: &dyn Fn(&mut TrainArgs)| {
            let mut changed = settings.clone();
            change(&mut changed.options);
            let refusal = run(&changed).unwrap_err().to_string();
            assert!(refusal.contains(what), "{refusal}");
        };
        let is_sgd = settings.options.optimizer == Optimizer::Sgd;
        refused("optimizer", &|options| {
            options.optimizer = if is_sgd { Optimizer::Adam } else { Optimizer::Sgd };
            options.levers.rate_in_residual = false;
        });
        let is_usual = settings.options.levers.sign_update || settings.options.levers.ef21;
        if settings.momentum > 0.0 && is_sgd && !is_usual {
            refused("counting how long", &|options| options.levers.plain_momentum = true);
        }
        if is_sgd {
            refused("rate in residual", &|options| options.levers.rate_in_residual ^= true);
        }
    }
}

/// Where everything is delivered before a checkpoint, nothing waits in it; and a run that goes on from it delivers everything in the same steps.
#[test]
fn nothing_waits_in_a_checkpoint_before_which_all_is_delivered() {
    for (words, waits) in [("evaluations", true), ("evaluations,checkpoints", false)] {
        let kept = tempfile::tempdir().unwrap();
        let checkpoints = ["--checkpoint-every", "2", "--checkpoint", kept.path().to_str().unwrap()];
        let mut settings = of(&[&["--model", "mlp", "--deliver-all", words][..], &checkpoints].concat());
        let whole = run(&settings).unwrap();
        for (step, waits) in [(10, waits), (12, false)] {
            let file = kept.path().join(format!("rank-0.step-{step}.safetensors"));
            let residuals = saved(&file, "residual.");
            assert!(!residuals.is_empty());
            assert_eq!(residuals.iter().any(|value| *value != 0.0), waits, "{words}, step {step}");
        }
        fs::remove_file(kept.path().join("rank-0.step-12.safetensors")).unwrap();
        settings.options.resume = true;
        let resumed = run(&settings).unwrap();
        assert_eq!((resumed.first_step, resumed.parameters_digest), (10, whole.parameters_digest), "{words}");
    }
}

/// With everything delivered nothing has waited.
#[test]
fn momentum_counts_waiting_where_entries_wait() {
    let digest = |method: Method, plain_momentum, momentum| {
        let mut digits = of(&["--model", "mlp"]);
        digits.options.levers.plain_momentum = plain_momentum;
        run(&Settings { method, momentum, ..digits }).unwrap().parameters_digest
    };
    let sparse = || Method::spardl().density(0.05);
    assert_eq!(digest(Method::ring(), false, 0.9), digest(Method::ring(), true, 0.9));
    assert_ne!(digest(sparse(), false, 0.9), digest(sparse(), true, 0.9));
    assert_eq!(digest(sparse(), false, 0.0), digest(sparse(), true, 0.0));
}

/// How far apart losses are at most.
fn far(a: &[(u64, f64)], b: &[(u64, f64)]) -> f64 {
    a.iter().zip(b).map(|((_, a), (_, b))| (a - b).abs()).fold(0.0, f64::max)
}

/// Without momentum, rates in residuals change nothing as long as the rate is the same; when it drops, what waits keeps the old one.
/// With everything delivered they change nothing at all.
#[test]
fn what_waits_keeps_its_rate_when_the_rate_drops() {
    let losses = |rate_in_residual, method: Method, lr_drops: &[u64]| {
        let often = ["--model", "mlp", "--evaluate-every", "1", "--lr", "0.05"];
        let mut digits = of(&[&often[..], &["--momentum", "0", "--weight-decay", "0"]].concat());
        digits.options.levers.rate_in_residual = rate_in_residual;
        run(&Settings { method, lr_drops: lr_drops.into(), ..digits }).unwrap().loss_curve
    };
    let sparse = || Method::spardl().density(0.05);
    assert!(far(&losses(false, sparse(), &[]), &losses(true, sparse(), &[])) < 1e-4);
    assert!(far(&losses(false, Method::ring(), &[6]), &losses(true, Method::ring(), &[6])) < 1e-4);
    let (without, with) = (losses(false, sparse(), &[6]), losses(true, sparse(), &[6]));
    assert!(far(&without[..7], &with[..7]) < 1e-4, "{without:?} {with:?}");
    // What waits of six steps has ten times the weight of the steps that follow.
    assert!(far(&without, &with) > 1e-2, "{without:?} {with:?}");
}

/// Where every entry is delivered, a transform that is taken back changes nothing but the last bits; where some wait, others do.
#[test]
fn a_transform_changes_what_waits_and_nothing_else() {
    let losses = |dct, method: Method| {
        let mut digits = of(&["--model", "mlp", "--evaluate-every", "1", "--lr", "0.05"]);
        digits.options.levers.dct = dct;
        run(&Settings { method, ..digits }).unwrap().loss_curve
    };
    assert!(far(&losses(None, Method::ring()), &losses(Some(64), Method::ring())) < 1e-4);
    let sparse = || Method::spardl().density(0.05);
    assert!(far(&losses(None, sparse()), &losses(Some(64), sparse())) > 1e-3);
}

/// The parameters after one step of the perceptron without momentum, in the order of their names.
fn after_a_step(options: &[&str]) -> Vec<f32> {
    let kept = tempfile::tempdir().unwrap();
    let plain = ["--model", "mlp", "--momentum", "0", "--weight-decay", "0", "--steps", "1", "--checkpoint"];
    run(&of(&[&plain[..], &[kept.path().to_str().unwrap()], options].concat())).unwrap();
    saved(&kept.path().join("rank-0.step-1.safetensors"), "values.parameter/")
}

/// What a file holds in tensors whose names begin so, in the order of the names.
fn saved(file: &Path, beginning: &str) -> Vec<f32> {
    let bytes = fs::read(file).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    tensors.retain(|(name, _)| name.starts_with(beginning));
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    let words = tensors.iter().flat_map(|(_, tensor)| tensor.data().as_chunks::<4>().0);
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

/// A rate of which nothing is left once it is added to a parameter.
const NOTHING: &str = "1e-30";

/// One step by signs moves each parameter by the rate, or not at all.
#[test]
fn signs_move_each_parameter_by_the_rate() {
    let at = |rate: &str| after_a_step(&["--method", "ring", "--sign-update", "--lr", rate]);
    let moved: Vec<f32> = at(NOTHING).iter().zip(at("0.5")).map(|(a, b)| (a - b).abs()).collect();
    assert!(moved.iter().all(|&by| by == 0.0 || (by - 0.5).abs() < 1e-5), "{moved:?}");
    assert!(moved.iter().any(|&by| by > 0.0));
}

/// A step of stochastic gradient descent is as long as the rate times the norm that updates are shortened to; a shorter update is left alone.
#[test]
fn updates_are_shortened_to_a_norm() {
    const RATE: f64 = 0.5;
    let start = after_a_step(&["--lr", NOTHING]);
    let length = |after: &[f32]| {
        let squares = start.iter().zip(after).map(|(a, b)| (f64::from(*b) - f64::from(*a)).powi(2));
        squares.sum::<f64>().sqrt()
    };
    let shortened = |norm: f64| {
        let (rate, norm) = (RATE.to_string(), norm.to_string());
        after_a_step(&["--lr", rate.as_str(), "--clip-update", norm.as_str()])
    };
    let plain = after_a_step(&["--lr", RATE.to_string().as_str()]);
    let norm = length(&plain) / RATE;
    assert!(norm > 0.0);
    for norm in [0.5 * norm, 0.01 * norm] {
        let found = length(&shortened(norm));
        assert!(
            (found / (RATE * norm) - 1.0).abs() < 1e-3,
            "{found} with the rate {RATE} and the norm {norm}"
        );
    }
    assert!(shortened(2.0 * norm) == plain);
}

/// Data that are new in every step have the same loss in training and on held-out examples; what evaluations report adds up.
#[test]
fn training_losses_are_reported_beside_held_out_ones() {
    let fresh = ["--data", "fresh-digits", "--model", "mlp", "--method", "ring", "--lr", "1e-6"];
    let often = ["--steps", "40", "--evaluate-every", "20"];
    let summary = run(&of(&[&fresh[..], &often].concat())).unwrap();
    let losses: Vec<Option<f64>> = summary.evaluations.iter().map(|e| e.training_loss).collect();
    assert!(losses[0].is_none() && losses[1].is_some(), "{losses:?}");
    assert_eq!(summary.training_loss, losses[2]);
    assert!((summary.training_loss.unwrap() - summary.held_out_loss).abs() < 0.1, "{summary:?}");
    let bytes: Vec<u64> = summary.evaluations.iter().map(|e| e.bytes_received).collect();
    assert!(bytes.is_sorted(), "{bytes:?}");
    let lowest = summary.evaluations.iter().map(|e| e.held_out_loss).fold(f64::INFINITY, f64::min);
    assert_eq!(summary.lowest_held_out_loss, lowest);
    assert!(summary.evaluations.iter().any(|e| e.step == summary.lowest_held_out_loss_step));
}
