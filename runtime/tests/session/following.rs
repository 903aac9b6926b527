//! A density that follows the share of the norm which a step delivers.

use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};

use gleaner_algorithms::residual::{Correction, OnNonFinite, WholeSteps};
use gleaner_algorithms::{Method, Sparsity};
use gleaner_runtime::{Gradients, Layout, Session, Update};
use gleaner_statistics::random::Generator;
use safetensors::SafeTensors;

use crate::job::{self, NETWORKS, Over, gradient};

const NAMES: [&str; 3] = ["a", "b", "c"];
const EACH: usize = 1000;
const N: usize = NAMES.len() * EACH;
/// A twentieth of all entries.
const K: usize = N / 20;

fn method(share: f64) -> Method {
    Method::spardl().density(0.05).norm_share(share)
}

fn apart() -> Layout {
    NAMES.iter().fold(Layout::new(), |layout, name| layout.group().parameter(*name, EACH))
}

fn together() -> Layout {
    NAMES.iter().fold(Layout::new(), |layout, name| layout.parameter(*name, EACH))
}

/// A gradient in which one entry in fifty holds nearly all of the norm at first, and no entry much of it from step 200 on. All ranks have the same
/// entries, of other sizes.
fn turning(rank: usize, step: u64) -> Vec<f32> {
    let mut all = Generator::new(step, "turning", 0);
    let (large, size) = (if step < 200 { 64.0 } else { 1.0 }, 1.0 + rank as f32 / 4.0);
    (0..N).map(|i| size * all.symmetric() * if i % 50 == 7 { large } else { 1.0 }).collect()
}

fn step_with(gradients: &mut Gradients, values: &[f32]) -> Update {
    for (name, values) in NAMES.iter().zip(values.chunks(EACH)).rev() {
        gradients.ready(name, values).unwrap();
    }
    gradients.wait().unwrap()
}

/// How many entries the next step selects, of all groups.
fn k(gradients: &Gradients) -> usize {
    let of = |method: &Method| match method.sparsity() {
        Sparsity::K(k) => k,
        Sparsity::Density(density) => panic!("a group at density {density}"),
    };
    gradients.methods().iter().map(of).sum()
}

fn values(update: &Update) -> Vec<f32> {
    NAMES.iter().flat_map(|name| update.values(name).unwrap()).collect()
}

fn bits(update: &Update) -> Vec<u32> {
    values(update).into_iter().map(f32::to_bits).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(ranks: Vec<T>) -> T {
    let first = ranks.into_iter().reduce(|first, other| {
        assert_eq!(first, other, "all ranks have the same");
        first
    });
    first.unwrap()
}

fn file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

/// The same k and the same bits on all ranks in every step, and never more than the budget in the mean over the steps so far.
#[test]
fn all_ranks_select_as_many_and_no_more_than_the_budget() {
    for over in NETWORKS {
        let (seen, mean) = same(job::run(over, 3, |session| {
            let mut gradients = session.gradients(&apart(), method(0.5)).unwrap();
            let step = |s| {
                let k = k(&gradients);
                (k, bits(&step_with(&mut gradients, &turning(session.rank(), s))))
            };
            let seen: Vec<_> = (0..500).map(step).collect();
            (seen, gradients.mean_density().unwrap())
        }));
        let ks: Vec<usize> = seen.iter().map(|(k, _)| *k).collect();
        let mut spent = 0;
        for (step, k) in ks.iter().enumerate() {
            spent += k;
            assert!(spent <= (step + 1) * K, "step {step}: {spent} entries of {}", (step + 1) * K);
        }
        assert!((mean - spent as f64 / (500 * N) as f64).abs() < 1e-9, "{mean}");
        let (least, most) = (ks.iter().min().unwrap(), ks.iter().max().unwrap());
        assert!(*least < K && *most > K, "from {least} to {most}");
    }
}

/// What is given is delivered or waits, entry by entry, while the density changes and groups do.
#[test]
fn nothing_is_lost_while_the_density_changes() {
    const WORKERS: usize = 3;
    const STEPS: u64 = 300;
    // Small whole numbers, so that sums are exact.
    let given = |rank, step| turning(rank, step).into_iter().map(|v| (8.0 * v).round()).collect::<Vec<f32>>();
    for method in Method::all().filter(|method| method.collective().is_sparse()) {
        let folder = tempfile::tempdir().unwrap();
        let (sums, ks) = same(job::run(Over::Memory, WORKERS as u32, |session| {
            let mut gradients =
                session.gradients(&apart(), method.clone().density(0.05).norm_share(0.5)).unwrap();
            let (mut sums, mut ks) = (vec![0.0f64; N], Vec::new());
            for s in 0..STEPS {
                if s == 130 || s == 170 {
                    let before = k(&gradients);
                    gradients.regroup(&if s == 130 { together() } else { apart() }).unwrap();
                    assert_eq!(k(&gradients), before);
                }
                let update = values(&step_with(&mut gradients, &given(session.rank(), s)));
                sums.iter_mut().zip(update).for_each(|(sum, v)| *sum += f64::from(v) * WORKERS as f64);
                ks.push(k(&gradients));
            }
            gradients.save(file(folder.path(), session.rank())).unwrap();
            (sums, ks)
        }));
        // What is chosen at random delivers less than was asked for, and nothing is saved.
        let follows = method.collective().name() != "random-k";
        assert_eq!(ks.windows(2).any(|pair| pair[0] != pair[1]), follows, "{method}");
        let mut found = sums;
        for rank in 0..WORKERS {
            let bytes = std::fs::read(file(folder.path(), rank)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            for (name, found) in NAMES.iter().zip(found.chunks_mut(EACH)) {
                let residual = tensors.tensor(&format!("residual.{name}")).unwrap();
                let waits = residual.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                found.iter_mut().zip(waits).for_each(|(sum, v)| *sum += f64::from(v));
            }
        }
        let mut expected = vec![0.0f64; N];
        for (rank, s) in (0..WORKERS).flat_map(|rank| (0..STEPS).map(move |s| (rank, s))) {
            expected.iter_mut().zip(given(rank, s)).for_each(|(sum, v)| *sum += f64::from(v));
        }
        // The mean over three workers is rounded.
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 0.05, "{method}: off by {off}");
    }
}

/// The share that a step delivers, as the gradients and what waits before and after it say.
fn delivered(session: &Session, gradients: &mut Gradients, step: u64, folder: &Path) -> (f64, f64) {
    gradients.keep_accumulated(true);
    let given = gradient(N, session.rank(), step);
    for (name, values) in NAMES.iter().zip(given.chunks(EACH)) {
        gradients.ready(name, values).unwrap();
    }
    let squares = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let before = squares(&gradients.accumulated().unwrap());
    gradients.wait().unwrap();
    let file = file(folder, session.rank());
    gradients.save(&file).unwrap();
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let left = NAMES.iter().map(|name| {
        let residual = tensors.tensor(&format!("residual.{name}")).unwrap();
        let values: Vec<f32> =
            residual.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        squares(&values)
    });
    (before, left.sum())
}

/// With gradients of one distribution the share that is delivered comes as near to what was asked for as levels are apart, where the budget
/// suffices; where it does not, the density is the budget.
#[test]
fn the_delivered_share_comes_near_what_was_asked_for() {
    for share in [0.15, 0.3, 0.9] {
        let folder = tempfile::tempdir().unwrap();
        let ranks = job::run(Over::Memory, 3, |session| {
            let mut gradients =
                session.gradients(&apart(), Method::spardl().density(0.2).norm_share(share)).unwrap();
            for s in 0..600 {
                step_with(&mut gradients, &gradient(N, session.rank(), s));
            }
            let sums: Vec<_> =
                (600..640).map(|s| delivered(&session, &mut gradients, s, folder.path())).collect();
            let said = gradients.delivered_norm_share().unwrap();
            (sums, gradients.mean_density().unwrap(), said)
        });
        let sums = ranks.iter().flat_map(|(sums, ..)| sums);
        let (before, left) = sums.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (found, mean) = (1.0 - left / before, ranks[0].1);
        println!("asked for {share}, delivered {found}, mean density {mean}");
        // What they say of step 639.
        let last = ranks
            .iter()
            .map(|(sums, ..)| sums[39])
            .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let expected = 1.0 - last.1 / last.0;
        assert!(
            ranks.iter().all(|(_, _, said)| (said - expected).abs() < 1e-6),
            "{ranks:?}, expected {expected}"
        );
        let odds = |share: f64| share / (1.0 - share);
        match share < 0.5 {
            true => {
                assert!(mean < 0.2);
                assert!((0.6..1.6).contains(&(odds(found) / odds(share))), "{found} of {share}");
            }
            false => assert!((mean - 0.2).abs() < 1e-3 && found < share, "{found} of {share}, at {mean}"),
        }
    }
}

/// With all that may change the density or the steps that are counted.
#[test]
fn a_resumed_job_has_the_same_densities_and_bits() {
    let bruck = Method::spardl().with("teams", "2").and_then(|method| method.with("sag", "bruck")).unwrap();
    let corrected = Correction { momentum: 0.5, mask: true, clip: Some(5.0), ..Correction::default() };
    let whole = WholeSteps { every: NonZeroU64::new(20), at: vec![38] };
    let default = || Method::spardl().norm_share(0.5);
    for of in
        [default(), default().corrected(corrected).whole_steps(whole), bruck.density(0.05).norm_share(0.4)]
    {
        for saved in [30, 210] {
            let folder = tempfile::tempdir().unwrap();
            let steps = |gradients: &mut Gradients, rank: usize, steps: Range<u64>| -> Vec<_> {
                steps.map(|s| (bits(&step_with(gradients, &turning(rank, s))), k(gradients))).collect()
            };
            let whole = same(job::run(Over::Memory, 4, |session| {
                let mut gradients = session.gradients(&apart(), of.clone()).unwrap();
                steps(&mut gradients, session.rank(), 0..saved);
                gradients.save(file(folder.path(), session.rank())).unwrap();
                (steps(&mut gradients, session.rank(), saved..320), gradients.mean_density())
            }));
            let resumed = same(job::run(Over::Memory, 4, |session| {
                let mut gradients = session.gradients(&apart(), of.clone()).unwrap();
                gradients.load(file(folder.path(), session.rank())).unwrap();
                (steps(&mut gradients, session.rank(), saved..320), gradients.mean_density())
            }));
            assert!(whole == resumed, "{of} after {saved} steps");
            assert!(whole.0.windows(2).any(|pair| pair[0].1 != pair[1].1), "{of}: one density");
        }
    }
}

/// A step that is left out is not counted, and has no norm.
#[test]
fn a_skipped_step_does_not_count() {
    let run = |skips: bool| {
        same(job::run(Over::Memory, 3, |session| {
            let method = method(0.5).on_nonfinite(OnNonFinite::Skip);
            let mut gradients = session.gradients(&apart(), method).unwrap();
            let mut ks = Vec::new();
            for s in 0..100 {
                if skips && [0, 19, 20, 50].contains(&s) {
                    let bad = if session.rank() == 1 { f32::NAN } else { 1.0 };
                    assert!(step_with(&mut gradients, &[bad; N]).skipped().is_some());
                }
                step_with(&mut gradients, &turning(session.rank(), s));
                ks.push(k(&gradients));
            }
            (ks, gradients.mean_density())
        }))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn what_has_no_density_to_follow_is_refused() {
    let session = Session::join().unwrap();
    let refusal =
        |refused: Option<gleaner_runtime::Error>| refused.map(|error| error.to_string()).unwrap_or_default();
    let gradients = |method: Method| refusal(session.gradients(&apart(), method).err());
    assert!(
        gradients(method(1.5))
            .contains("the share of the norm is 1.5; expected a number above 0 and below 1")
    );
    assert!(gradients(Method::auto().norm_share(0.5)).contains("with the method auto"));
    assert!(gradients(Method::ring().norm_share(0.5)).contains("with ring, which delivers every entry"));
    assert!(refusal(session.reducer("r", 100, method(0.5)).err()).contains("with a reducer"));
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), 0);
    let fixed = session.gradients(&apart(), Method::spardl().density(0.05)).unwrap();
    assert_eq!((fixed.mean_density(), fixed.delivered_norm_share()), (None, None));
    fixed.save(&path).unwrap();
    let mut follows = session.gradients(&apart(), method(0.5)).unwrap();
    let other = follows.load(&path).unwrap_err().to_string();
    assert!(other.contains("its method is") && other.contains("as many as hold 0.5 of the norm"), "{other}");
}
