//! What options give, and which are refused.

use super::*;
use clap::Parser;
use gleaner_algorithms::Sparsity;
use gleaner_trainer::optimizer::Descent;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    train: TrainArgs,
}

fn settings(options: &[&str]) -> TrainResult<Settings> {
    Command::try_parse_from([&["train"], options].concat()).unwrap().train.settings()
}

#[test]
fn defaults_follow_the_data() {
    let text = settings(&[]).unwrap();
    assert_eq!((text.model, text.method.sparsity()), (ModelKind::Lstm, Sparsity::Density(0.05)));
    let images = settings(&["--data", "cifar10:x", "--k", "500"]).unwrap();
    assert_eq!((images.model, images.method.sparsity()), (ModelKind::Resnet20, Sparsity::K(500)));
}

#[test]
fn the_learning_rate_drops_at_shares_of_the_run() {
    let settings = settings(&["--steps", "100", "--lr", "0.1", "--lr-drops", "0.5,0.75"]).unwrap();
    let rates = [0, 49, 50, 74, 75, 99].map(|step| (settings.learning_rate(step) * 1e4).round());
    assert_eq!(rates, [1000.0, 1000.0, 100.0, 100.0, 10.0, 10.0]);
}

#[test]
fn numbers_are_read_as_people_write_them_or_refused_in_a_sentence() {
    assert_eq!(settings(&["--momentum", "90%"]).unwrap().momentum, 0.9);
    for (option, text, words) in [
        ("--lr", "five", "'five' is no number; expected one such as 0.1 or 1e-3"),
        ("--clip", "1kk", "'1kk' is no number"),
        ("--momentum", "most", "'most' is no share"),
    ] {
        let refusal = Command::try_parse_from(["train", option, text]).err().unwrap().to_string();
        assert!(refusal.contains(words), "{option} {text}: {refusal}");
    }
    let refusal = settings(&["--lr", "-1"]).unwrap_err().to_string();
    assert!(refusal.contains("--lr: expected a number above 0, found -1"), "{refusal}");
}

#[test]
fn momentum_is_either_the_optimizers_or_the_workers() {
    assert_eq!(settings(&[]).unwrap().momentum, 0.9);
    let corrected = settings(&["--momentum-correction", "0.8", "--mask-momentum"]).unwrap();
    let correction = Correction { momentum: 0.8, mask: true, ..Correction::default() };
    assert_eq!((corrected.momentum, *corrected.method.correction()), (0.0, correction));
    assert!(settings(&["--momentum-correction", "0.8", "--momentum", "0"]).is_ok());
    let ef21 = settings(&["--momentum-correction", "0.8", "--ef21"]).unwrap();
    assert!(ef21.momentum == 1.0 && ef21.method.correction().ef21);
    for (options, named) in [
        (&["--momentum-correction", "0.8", "--momentum", "0.9"][..], "--momentum: expected 0"),
        (&["--momentum-correction", "1"], "expected a number from 0 to below 1"),
        (&["--mask-momentum"], "without momentum correction"),
        (&["--ef21"], "without momentum correction"),
        (&["--momentum-correction", "0.8", "--ef21", "--mask-momentum"], "with masking"),
        (&["--momentum-correction", "0.8", "--ef21", "--weight-decay", "0.1"], "--weight-decay: expected 0"),
        (&["--momentum-correction", "0.8", "--ef21", "--optimizer", "adam"], "--optimizer: expected sgd"),
        (
            &["--momentum-correction", "0.8", "--ef21", "--clip-update", "1"],
            "--clip-update: expected nothing",
        ),
        (&["--clip-local", "0"], "expected a number above 0"),
        (&["--residual-decay", "1.5"], "expected a number above 0 and up to 1"),
        (&["--residual-decay", "0.9", "--momentum-correction", "0.8"], "with momentum correction"),
        (&["--residual-decay", "0.9", "--method", "ring"], "with a dense method"),
        (&["--sign-update", "--optimizer", "adam"], "--sign-update: expected --optimizer sgd"),
        (&["--sign-update", "--clip-update", "1"], "--sign-update: expected nothing of --clip-update"),
        (&["--sign-update", "--rate-in-residual"], "--sign-update: expected nothing of --clip-update"),
    ] {
        let refusal = settings(options).unwrap_err().to_string();
        assert!(refusal.contains(named), "{options:?}: {refusal}");
    }
}

#[test]
fn clipping_by_the_norm_of_the_whole_gradient_merges_all_layers() {
    let merge = |options: &[&str]| settings(options).map(|settings| settings.merge.name());
    assert_eq!(merge(&[]).unwrap(), "optimal");
    assert_eq!(merge(&["--merge", "layer-wise"]).unwrap(), "layer-wise");
    for (clip, value) in [("--clip", "1"), ("--clip-local", "1"), ("--dct", "64")] {
        assert_eq!(merge(&[clip, value]).unwrap(), "single");
        assert_eq!(merge(&[clip, value, "--merge", "single"]).unwrap(), "single");
        let refusal = merge(&[clip, value, "--merge", "optimal"]).unwrap_err().to_string();
        assert!(
            refusal.starts_with("--merge: expected single") && refusal.contains("found optimal"),
            "{refusal}"
        );
    }
    assert_eq!(merge(&["--clip", "0"]).unwrap(), "optimal");
    for (wrong, named) in [("best", "choose one of layer-wise"), ("threshold/0", "threshold/8192")] {
        let refusal = merge(&["--merge", wrong]).unwrap_err().to_string();
        assert!(refusal.starts_with("--merge: ") && refusal.contains(named), "{refusal}");
    }
}

#[test]
fn all_entries_are_delivered_before_drops_and_at_the_end() {
    let whole = |options: &[&str]| settings(options).map(|settings| settings.method.delivers_whole().clone());
    let run = ["--steps", "100", "--lr-drops", "0.5,0.75", "--deliver-all"];
    let found = whole(&[&run[..], &["drops,end,every/30"]].concat()).unwrap();
    assert_eq!((found.every.map(u64::from), found.at), (Some(30), vec![49, 74, 99]));
    assert!(whole(&run[..4]).unwrap().is_none());
    for (options, named) in [
        (&["--deliver-all", "every/3,every/5"][..], "every/STEPS once"),
        (&["--rate-in-residual", "--optimizer", "adam"], "--rate-in-residual: expected --optimizer sgd"),
        (&["--rate-in-residual", "--clip-local", "1"], "--clip-local: expected nothing beside"),
        (&["--data", "fresh-clicks", "--target-accuracy", "0.7"], "found fresh-clicks"),
    ] {
        let refusal = settings(options).unwrap_err().to_string();
        assert!(refusal.contains(named), "{options:?}: {refusal}");
    }
    let refusal = Command::try_parse_from(["train", "--deliver-all", "every/0"]).err().unwrap().to_string();
    assert!(refusal.contains("at least one step"), "{refusal}");
}

/// In the last step before each of them, as the trainer's loop has them, and in no other.
#[test]
fn all_entries_are_delivered_before_evaluations_and_checkpoints() {
    for (steps, evaluate, keep, words) in [
        (12, 4, 5, "evaluations"),
        (14, 4, 5, "checkpoints"),
        (31, 12, 4, "evaluations,checkpoints"),
        (20, 10, 5, "evaluations,checkpoints,end"),
        (23, 6, 6, "checkpoints,every/3,evaluations"),
        (3, 7, 14, "evaluations,checkpoints"),
    ] {
        let run = format!("--steps {steps} --evaluate-every {evaluate} --checkpoint-every {keep}");
        let options = format!("{run} --checkpoint kept --deliver-all {words}");
        let settings = settings(&options.split(' ').collect::<Vec<_>>()).unwrap();
        let whole = settings.method.delivers_whole();
        for step in 0..steps {
            let done = step + 1;
            let before =
                |word: &str, every: u64| words.contains(word) && (done % every == 0 || done == steps);
            let counted = words.contains("every/3") && done % 3 == 0;
            let expected = before("evaluations", evaluate) || before("checkpoints", keep) || counted;
            assert_eq!(whole.contains(step), expected, "{options}, step {step}");
        }
    }
    for (word, option) in [("evaluations", "--evaluate-every"), ("checkpoints", "--checkpoint-every")] {
        let refusal = settings(&["--deliver-all", word]).unwrap_err().to_string();
        assert!(
            refusal.starts_with(&format!("--deliver-all: expected {option} beside {word}, found none")),
            "{refusal}"
        );
    }
    let apart = ["--evaluate-every", "30", "--deliver-all", "evaluations,every/20"];
    let refusal = settings(&apart).unwrap_err().to_string();
    assert!(refusal.contains("found intervals of 20 and 30 steps"), "{refusal}");
    let local = |when| settings(&["--synchrony", "local/4", "--deliver-all", when]);
    let refusal = local("every/4,end").unwrap_err().to_string();
    assert!(refusal.contains("every/STEPS alone beside --synchrony local"), "{refusal}");
    assert!(local("every/4").is_ok());
}

#[test]
fn groups_compete_where_the_largest_entries_are_selected() {
    let over = |options: &[&str]| settings(options).map(|settings| settings.method.selects_over().name());
    assert_eq!(over(&[]).unwrap(), "group");
    assert_eq!(over(&["--select-over", "gradient", "--method", "topka"]).unwrap(), "gradient");
    for method in
        [&["--method", "ring"][..], &["--method", "auto"], &["--method", "topka", "--selector", "random"]]
    {
        let refusal = over(&[&["--select-over", "gradient"], method].concat()).unwrap_err().to_string();
        assert!(refusal.contains(method[1]) && refusal.contains("select over each group"), "{refusal}");
        assert!(over(method).is_ok());
    }
}

#[test]
fn the_density_follows_a_share_of_the_norm_where_it_can() {
    let share = |options: &[&str]| {
        let options = [&["--norm-share"], options].concat();
        settings(&options).map(|settings| settings.method.follows_norm_share())
    };
    assert_eq!(share(&["0.5"]).unwrap(), Some(0.5));
    for (options, named) in [
        (&["1"][..], "is 1; expected a number above 0 and below 1"),
        (&["NaN"], "is NaN; expected"),
        (&["0.5", "--method", "ring"], "with ring, which delivers every entry"),
        (&["0.5", "--method", "auto"], "with the method auto"),
        (&["0.5", "--warmup-density", "10"], "with a density warm-up"),
        (&["0.5", "--select-over", "gradient"], "with selection over the whole gradient"),
    ] {
        let refusal = share(options).unwrap_err().to_string();
        assert!(refusal.contains(named), "{options:?}: {refusal}");
    }
}

#[test]
fn options_that_need_every_step_are_refused_beside_another_synchrony() {
    assert_eq!(
        settings(&["--synchrony", "osp/lgp=off", "--clip", "1"]).unwrap().synchrony.name(),
        "osp/lgp=off"
    );
    for (option, value) in [
        ("--merge", "layer-wise"),
        ("--record", "x"),
        ("--layer-times", "x"),
        ("--on-nonfinite", "skip"),
        ("--select-over", "gradient"),
        ("--momentum-correction", "0.5"),
        ("--optimizer", "adam"),
        ("--clip-update", "1"),
        ("--norm-share", "0.5"),
        ("--residual-decay", "0.9"),
        ("--dct", "64"),
    ] {
        let other = if option == "--momentum-correction" { "local/4" } else { "osp" };
        let options = [option, value, "--method", "topka", "--synchrony"];
        let refusal = settings(&[&options[..], &[other]].concat()).unwrap_err().to_string();
        assert!(refusal.starts_with(option) && refusal.contains("synchrony"), "{refusal}");
        assert!(settings(&[&options[..], &["bsp"]].concat()).is_ok());
    }
    let plain = settings(&["--plain-momentum", "--synchrony", "osp"]).unwrap_err().to_string();
    assert!(plain.starts_with("--plain-momentum") && plain.contains("synchrony"), "{plain}");
    let ef21 = ["--momentum-correction", "0.5", "--ef21", "--synchrony"];
    let refusal = settings(&[&ef21[..], &["osp"]].concat()).unwrap_err().to_string();
    assert!(refusal.starts_with("--ef21") && refusal.contains("synchrony"), "{refusal}");
    assert!(settings(&[&ef21[..], &["bsp"]].concat()).is_ok());
    let unknown = settings(&["--synchrony", "bulk"]).unwrap_err().to_string();
    assert!(unknown.starts_with("--synchrony: ") && unknown.contains("choose one of bsp"), "{unknown}");
    let none = settings(&["--synchrony", "local/0"]).unwrap_err().to_string();
    assert!(none.contains("local steps between two exchanges, at least 1"), "{none}");
}

#[test]
fn adam_has_no_momentum_of_its_own_where_entries_wait() {
    let momentum = |options: &[&str]| settings(options).unwrap().momentum;
    for (options, expected) in [
        (&["--optimizer", "adam"][..], 0.0),
        (&["--optimizer", "adam", "--method", "ring"], 0.9),
        (&["--optimizer", "adam", "--momentum", "0.5"], 0.5),
        (&[], 0.9),
        (&["--momentum-correction", "0.9"], 0.0),
        (&["--residual-decay", "0.99"], 0.0),
    ] {
        assert_eq!(momentum(options), expected, "{options:?}");
    }
}

/// Where entries wait, and an entry of an update is the sum of the gradients since it came last.
#[test]
fn momentum_counts_waiting_where_updates_hold_sums_of_gradients() {
    for (options, counts) in [
        (&[][..], true),
        (&["--rate-in-residual"], true),
        (&["--plain-momentum"], false),
        (&["--method", "ring"], false),
        (&["--momentum", "0"], false),
        (&["--optimizer", "adam", "--momentum", "0.9"], false),
        (&["--momentum-correction", "0.9", "--ef21"], false),
        (&["--dct", "64"], false),
        (&["--sign-update"], false),
        (&["--residual-decay", "0.99", "--momentum", "0.9"], false),
    ] {
        let descent = settings(options).unwrap().descent();
        assert_eq!(matches!(descent, Descent::LateSgd(_)), counts, "{options:?}");
    }
}

#[test]
fn impossible_options_are_refused_by_name() {
    for (option, value) in [
        ("--lr", "-1"),
        ("--lr-drops", "0.5,2"),
        ("--momentum", "1"),
        ("--weight-decay", "-0.1"),
        ("--clip", "NaN"),
        ("--target-accuracy", "1.5"),
        ("--target-accuracy", "0.5"),
        ("--clip-update", "0"),
    ] {
        let refusal = settings(&[&format!("{option}={value}")]).unwrap_err().to_string();
        assert!(refusal.starts_with(option), "{option} {value}: {refusal}");
    }
}
