//! Groups that compete for k of the whole gradient.

use std::path::{Path, PathBuf};

use gleaner_algorithms::bag::Coding;
use gleaner_algorithms::residual::{Correction, OnNonFinite};
use gleaner_algorithms::shares::FLOOR;
use gleaner_algorithms::{Method, SelectOver, Sparsity};
use gleaner_runtime::{Gradients, Layout, Update};
use safetensors::SafeTensors;

use crate::job::{self, NETWORKS, Over, gradient};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Entries of each parameter.
const EACH: usize = 400;
/// A tenth of all entries.
const K: usize = 160;
/// What the floor leaves a group of one parameter.
const LEAST: usize = (K / 4).div_ceil(FLOOR);

fn method() -> Method {
    Method::spardl().density(0.1).select_over(SelectOver::Gradient)
}

/// Every parameter a group of its own.
fn apart() -> Layout {
    NAMES.iter().fold(Layout::new(), |layout, name| layout.group().parameter(*name, EACH))
}

fn together() -> Layout {
    NAMES.iter().fold(Layout::new(), |layout, name| layout.parameter(*name, EACH))
}

/// A step in which one parameter's gradient is a hundred times as large.
fn step(gradients: &mut Gradients, rank: usize, step: u64, large: usize) -> Update {
    for (i, name) in NAMES.iter().enumerate().rev() {
        let mut values = gradient(EACH, rank, 10 * step + i as u64);
        if i == large {
            values.iter_mut().for_each(|value| *value *= 100.0);
        }
        gradients.ready(name, &values).unwrap();
    }
    gradients.wait().unwrap()
}

fn ks(gradients: &Gradients) -> Vec<usize> {
    let k = |method: &Method| match method.sparsity() {
        Sparsity::K(k) => k,
        Sparsity::Density(density) => panic!("a group at density {density}"),
    };
    gradients.methods().iter().map(k).collect()
}

fn bits(update: &Update) -> Vec<u32> {
    let values = NAMES.iter().flat_map(|name| update.values(name).unwrap());
    values.map(f32::to_bits).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(ranks: Vec<T>) -> T {
    let first = ranks.into_iter().reduce(|first, other| {
        assert_eq!(first, other, "all ranks have the same");
        first
    });
    first.unwrap()
}

#[test]
fn the_group_with_the_largest_gradient_gets_most_of_k() {
    for over in NETWORKS {
        let (before, after, later) = same(job::run(over, 4, |session| {
            let mut gradients = session.gradients(&apart(), method()).unwrap();
            let before = ks(&gradients);
            step(&mut gradients, session.rank(), 0, 2);
            let after = ks(&gradients);
            // Another one is large from now on, and for a count in step 20 at the latest.
            let later: Vec<_> = (1..22)
                .map(|s| (bits(&step(&mut gradients, session.rank(), s, 0)), ks(&gradients)))
                .collect();
            (before, after, later)
        }));
        assert_eq!(before, [K / 4; 4]);
        assert_eq!(after, [LEAST, LEAST, K - 3 * LEAST, LEAST]);
        assert!(later.iter().all(|(_, ks)| ks.iter().sum::<usize>() == K));
        assert!(later[20].1[0] > K / 2, "{:?}", later[20].1);
        let changes = later.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        assert!(changes <= 2, "{changes} changes in 21 steps");
    }
}

/// All that was waiting or is given is delivered or waits, while shares change and groups do; then nothing is given, and
/// within the steps that the floor allows nothing waits.
#[test]
fn nothing_is_lost_and_nothing_waits_for_ever() {
    const WORKERS: usize = 4;
    const STEPS: u64 = 45;
    // Small whole numbers, so that sums are exact. Another parameter is large every fifteen steps.
    let given = |rank: usize, step: u64, i: usize| -> Vec<f32> {
        let large = if step / 15 == i as u64 { 64.0 } else { 1.0 };
        let values = gradient(EACH, rank, 10 * step + i as u64);
        values.iter().map(|value| large * (4.0 * value).round()).collect()
    };
    let regrouped = || {
        Layout::new()
            .parameter("c", EACH)
            .parameter("a", EACH)
            .group()
            .parameter("d", EACH)
            .parameter("b", EACH)
    };
    // A step sends at least LEAST entries of each group, and `Shape::passes` counts P · n of them twice over.
    let drained = 2 * (WORKERS * EACH).div_ceil(LEAST);
    let folder = tempfile::tempdir().unwrap();
    let (sums, seen) = same(job::run(Over::Memory, WORKERS as u32, |session| {
        let mut gradients = session.gradients(&apart(), method()).unwrap();
        let mut sums = vec![0.0f64; NAMES.len() * EACH];
        let mut seen = vec![ks(&gradients)];
        for s in 0..STEPS + drained as u64 {
            if s == 25 || s == 35 {
                gradients.regroup(&if s == 25 { regrouped() } else { apart() }).unwrap();
                assert_eq!(ks(&gradients).iter().sum::<usize>(), K);
            }
            for (i, name) in NAMES.iter().enumerate() {
                let zeros = vec![0.0; EACH];
                gradients.ready(name, &if s < STEPS { given(session.rank(), s, i) } else { zeros }).unwrap();
            }
            let update = gradients.wait().unwrap();
            let values = NAMES.iter().flat_map(|name| update.values(name).unwrap());
            sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += f64::from(v) * WORKERS as f64);
            seen.push(ks(&gradients));
        }
        gradients.save(file(folder.path(), session.rank())).unwrap();
        (sums, seen)
    }));
    assert!(seen.iter().all(|ks| ks.iter().sum::<usize>() == K), "{seen:?}");
    assert!(seen.windows(2).filter(|pair| pair[0] != pair[1]).count() > 5, "{seen:?}");
    for (i, name) in NAMES.iter().enumerate() {
        let mut expected = vec![0.0f64; EACH];
        for (rank, s) in (0..WORKERS).flat_map(|rank| (0..STEPS).map(move |s| (rank, s))) {
            expected.iter_mut().zip(given(rank, s, i)).for_each(|(sum, v)| *sum += f64::from(v));
        }
        assert_eq!(sums[i * EACH..][..EACH], expected, "{name}");
        for rank in 0..WORKERS {
            let bytes = std::fs::read(file(folder.path(), rank)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let residual = tensors.tensor(&format!("residual.{name}")).unwrap();
            let waits = residual.data().as_chunks::<4>().0.iter().any(|b| f32::from_le_bytes(*b) != 0.0);
            assert!(!waits, "{name} of rank {rank}");
        }
    }
}

fn file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

#[test]
fn a_single_group_has_the_bits_of_selection_over_each_group() {
    let correction = Correction { warm_up: 12, ..Correction::default() };
    for method in [method(), method().corrected(correction), method().k(70)] {
        let run = |over| {
            same(job::run(Over::Memory, 3, |session| {
                let mut gradients = session.gradients(&together(), method.clone().select_over(over)).unwrap();
                (0..22).map(|s| bits(&step(&mut gradients, session.rank(), s, 1))).collect::<Vec<_>>()
            }))
        };
        assert_eq!(run(SelectOver::Gradient), run(SelectOver::Group), "{method}");
    }
}

/// Counted is the last step of a warm-up first. A step that is skipped does not count.
#[test]
fn shares_begin_with_the_end_of_a_warm_up() {
    let warm = Correction { warm_up: 8, ..Correction::default() };
    for (warm, skips, first) in [(warm, false, 7), (warm, true, 8), (Correction::default(), true, 1)] {
        let seen = same(job::run(Over::Memory, 3, |session| {
            let method = method().corrected(warm).on_nonfinite(OnNonFinite::Skip);
            let mut gradients = session.gradients(&apart(), method).unwrap();
            let mut seen = Vec::new();
            for s in 0..10 {
                if s == 0 && skips {
                    let bad = if session.rank() == 1 { f32::NAN } else { 1.0 };
                    NAMES.iter().for_each(|name| gradients.ready(name, &[bad; EACH]).unwrap());
                    assert!(gradients.wait().unwrap().skipped().is_some());
                } else {
                    step(&mut gradients, session.rank(), s, 3);
                }
                seen.push(ks(&gradients));
            }
            seen
        }));
        assert!(seen[..first].iter().all(|ks| *ks == [K / 4; 4]), "{seen:?}");
        assert!(seen[first..].iter().all(|ks| *ks == [LEAST, LEAST, LEAST, K - 3 * LEAST]), "{seen:?}");
    }
}

/// B-SAG carries what it has learnt over to another k.
#[test]
fn a_resumed_job_has_the_same_shares_and_bits() {
    let bruck = Method::spardl().with("teams", "2").and_then(|method| method.with("sag", "bruck")).unwrap();
    let warm = Correction { warm_up: 9, momentum: 0.5, ..Correction::default() };
    for of in [method(), method().corrected(warm), bruck.density(0.1).select_over(SelectOver::Gradient)] {
        for saved in [5, 14, 21] {
            let folder = tempfile::tempdir().unwrap();
            let steps = |gradients: &mut Gradients, rank: usize, steps: std::ops::Range<u64>| -> Vec<_> {
                let large = |s: u64| if s < 12 { 1 } else { 3 };
                steps.map(|s| (bits(&step(gradients, rank, s, large(s))), ks(gradients))).collect()
            };
            let whole = same(job::run(Over::Memory, 4, |session| {
                let mut gradients = session.gradients(&apart(), of.clone()).unwrap();
                steps(&mut gradients, session.rank(), 0..saved);
                gradients.save(file(folder.path(), session.rank())).unwrap();
                steps(&mut gradients, session.rank(), saved..28)
            }));
            let resumed = same(job::run(Over::Memory, 4, |session| {
                let mut gradients = session.gradients(&apart(), of.clone()).unwrap();
                gradients.load(file(folder.path(), session.rank())).unwrap();
                steps(&mut gradients, session.rank(), saved..28)
            }));
            assert_eq!(whole, resumed, "{of} after {saved} steps");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    job::run(Over::Memory, 1, |session| {
        let gradients = session.gradients(&apart(), method()).unwrap();
        gradients.save(file(folder.path(), 0)).unwrap();
        let mut other = session.gradients(&apart(), method().select_over(SelectOver::Group)).unwrap();
        let refusal = other.load(file(folder.path(), 0)).unwrap_err().to_string();
        assert!(
            refusal.contains("its method is") && refusal.contains("over the whole gradient"),
            "{refusal}"
        );
    });
}

#[test]
fn other_groups_share_by_what_their_parameters_held() {
    let seen = same(job::run(Over::Memory, 2, |session| {
        let mut gradients = session.gradients(&apart(), method()).unwrap();
        step(&mut gradients, session.rank(), 0, 2);
        let rest = Layout::new().parameter("d", EACH).parameter("a", EACH).group();
        gradients.regroup(&rest.parameter("b", EACH).group().parameter("c", EACH)).unwrap();
        let three = ks(&gradients);
        gradients.regroup(&together()).unwrap();
        let one = gradients.methods()[0].sparsity();
        gradients.regroup(&apart()).unwrap();
        (three, one, ks(&gradients))
    }));
    let two = (K / 2).div_ceil(FLOOR);
    let four = vec![LEAST, LEAST, K - 3 * LEAST, LEAST];
    assert_eq!(seen, (vec![two, LEAST, K - two - LEAST], Sparsity::Density(0.1), four));
}

#[test]
fn what_does_not_select_the_largest_is_refused() {
    let session = gleaner_runtime::Session::join().unwrap();
    let refusal = |method: Method| {
        let refused = session.gradients(&apart(), method.select_over(SelectOver::Gradient));
        refused.err().map(|error| error.to_string())
    };
    let refused: Vec<&str> = Method::all()
        .chain([Method::auto()])
        .filter_map(|method| refusal(method.clone()).map(|sentence| (method.collective().name(), sentence)))
        .map(|(name, sentence)| {
            let begins =
                "selection over the whole gradient needs a method that selects its k largest entries, and ";
            assert!(sentence.starts_with(&format!("{begins}{name} ")), "{sentence}");
            name
        })
        .collect();
    let dense = ["ring", "rabenseifner", "recursive-doubling"];
    assert_eq!(
        refused,
        [&["oktopk", "exdyna", "exdyna-printed", "random-k"], &dense[..], &["auto"]].concat()
    );
    let topka = Method::named("topka").unwrap().selector("sampled".parse().unwrap());
    assert!(refusal(topka).unwrap().contains("topka with the selector sampled was asked for"));
}

/// Unless it is said how many, a small group delivers 256 entries, a smaller one all that it has, and a large one 5%; and ranks that differ in
/// this are refused.
#[test]
fn by_default_small_groups_deliver_more() {
    const LENGTHS: [usize; 3] = [64, 1000, 20_000];
    let layout =
        LENGTHS.iter().zip(NAMES).fold(Layout::new(), |layout, (&n, name)| layout.group().parameter(name, n));
    let said = || Method::spardl().density(0.05).coding(Coding::Qsgd4);
    let (by_default, asked) = same(job::run(Over::Memory, 3, |session| {
        let of = |method: Method| {
            let mut gradients = session.gradients(&layout, method).unwrap();
            for (&n, name) in LENGTHS.iter().zip(NAMES) {
                gradients.ready(name, &gradient(n, session.rank(), 1)).unwrap();
            }
            let update = gradients.wait().unwrap();
            let bits: Vec<u32> =
                NAMES[..3].iter().flat_map(|name| update.values(name).unwrap()).map(f32::to_bits).collect();
            let ks = gradients.methods().into_iter().zip(LENGTHS).map(|(m, n)| m.sparsity().k(n).unwrap());
            (ks.collect::<Vec<_>>(), bits)
        };
        (of(Method::spardl()), of(said()))
    }));
    assert_eq!((by_default.0, asked.0), (vec![64, 256, 1000], vec![3, 50, 1000]));
    let differ = job::run(Over::Memory, 2, |session| {
        let method = if session.rank() == 1 { said() } else { Method::spardl() };
        session.gradients(&layout, method).err().unwrap().to_string()
    });
    assert!(differ.iter().all(|sentence| sentence.contains("at least 256 of a group")), "{differ:?}");
}
