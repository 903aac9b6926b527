//! What is particular to each method, beside what its paper says.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use gleaner_algorithms::bag::Bag;
use gleaner_algorithms::collectives::{MethodError, Sag};
use gleaner_algorithms::schedule::{Execution, Progress, Schedule, Step, Work, lockstep};
use gleaner_algorithms::selectors::Selector;
use gleaner_algorithms::{Block, Method, Rank};

use super::harness::{Team, spardl, variants};
use super::inputs::{Pattern, Random};

/// Gradients that keep the places of their large entries and change a little from step to step.
fn drifting(workers: usize, n: usize, step: usize) -> Vec<Vec<f32>> {
    let gradient = |w: usize| {
        let mut shared = Random::new(7);
        let mut own = Random::new(1000 + (w * 7919 + step * 31) as u64);
        let entry = |_| {
            let large = shared.below(1000) as f32 / 100.0 - 5.0;
            let noise = own.below(1000) as f32 / 1000.0 - 0.5;
            large * large * large / 25.0 + noise
        };
        (0..n).map(entry).collect()
    };
    (0..workers).map(gradient).collect()
}

/// The entries of largest magnitude, the lower index first.
fn top(values: &[f64], k: usize) -> BTreeMap<usize, f64> {
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| values[i] != 0.0).collect();
    order.sort_by(|&a, &b| values[b].abs().total_cmp(&values[a].abs()).then(a.cmp(&b)));
    order.into_iter().take(k).map(|i| (i, values[i])).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// Small whole numbers, whose sums are exact.
fn whole_numbers(workers: usize, n: usize, seed: u64) -> Vec<Vec<f32>> {
    Pattern::Integers.gradients(workers, n, &mut Random::new(seed))
}

#[test]
fn teams_of_different_sizes_are_refused_with_the_divisors() {
    let refused = |workers, teams| spardl(teams, Sag::Auto).shape(workers, 100).unwrap_err();
    let sentence = refused(12, 5).to_string();
    assert_eq!(sentence, "12 workers cannot be divided into 5 equal teams; choose 1, 2, 3, 4, 6 or 12");
    assert_eq!(refused(7, 3).to_string(), "7 workers cannot be divided into 3 equal teams; choose 1 or 7");
    assert!(refused(7, 0).to_string().contains("0 equal teams; choose 1 or 7"));
    let recursive = spardl(3, Sag::Recursive).shape(6, 100).unwrap_err().to_string();
    assert!(recursive.starts_with("R-SAG needs a number of teams that is a power of two, and 3 is not"));
    let said = |method: Result<Method, MethodError>| method.unwrap_err().to_string();
    let ring = said(Method::ring().with("teams", "2"));
    assert_eq!(ring, "ring has no teams, and 2 was asked for; only spardl has teams");
    assert_eq!(
        said(Method::named("ring/2")),
        "ring has no options, and 2 was asked for; no method has options"
    );
    let sag = said(Method::spardl().with("sag", "x"));
    assert_eq!(sag, "spardl has no sag of 'x'; expected auto, recursive or bruck");
    let label = Method::named("spardl/3").unwrap().with("sag", "bruck").unwrap();
    assert_eq!((label.label(), label.title()), ("spardl/3".into(), "spardl with 3 teams by B-SAG".into()));
}

/// At powers of two, the tree of the paper: pairs at distance 1, 2, 4, … add and select k again; rank 0's are delivered.
#[test]
fn gtopk_is_the_published_tree() {
    for p in [2usize, 4, 8, 16] {
        let (n, k) = (60, 7);
        let gradients = whole_numbers(p, n, p as u64);
        let mut held: Vec<BTreeMap<usize, f64>> = gradients.iter().map(|g| top(&wide(g), k)).collect();
        let mut distance = 1;
        while distance < p {
            for w in (0..p).step_by(2 * distance) {
                let mut sum = vec![0.0; n];
                for (i, v) in held[w].iter().chain(&held[w + distance]) {
                    sum[*i] += v;
                }
                held[w] = top(&sum, k);
            }
            distance *= 2;
        }
        let mut team = Team::of(Method::named("gtopk").unwrap().k(k), p, n);
        let outcome = team.step(&gradients);
        let delivered = wide(&outcome.delivered[0]).into_iter().enumerate().filter(|(_, v)| *v != 0.0);
        assert_eq!(delivered.collect::<BTreeMap<_, _>>(), held[0], "P {p}");
    }
}

/// TopkA, TopkDSA and SparCML's three deliver the sum of every worker's k largest, whatever P is.
#[test]
fn nothing_is_selected_from_the_sum_where_the_papers_do_not() {
    let names =
        ["topka", "topkdsa", "ssar-recursive-double", "ssar-split-all-gather", "dsar-split-all-gather"];
    for p in 1..=17 {
        let (n, k) = (90, 8);
        let gradients = whole_numbers(p, n, p as u64);
        let mut expected = vec![0.0; n];
        gradients.iter().flat_map(|g| top(&wide(g), k)).for_each(|(i, v)| expected[i] += v);
        for name in names {
            let mut team = Team::of(Method::named(name).unwrap().k(k), p, n);
            assert_eq!(wide(&team.step(&gradients).delivered[0]), expected, "{name}, P {p}");
        }
    }
}

/// Of every 512 consecutive entries the same share, and of the 100 that are left over theirs.
#[test]
fn buckets_give_their_share_each() {
    let (n, workers) = (512 * 6 + 100, 1);
    let gradients = Pattern::Full.gradients(workers, n, &mut Random::new(3));
    let method = Method::named("topka").unwrap().density(8.0 / 512.0).selector(Selector::Bucketed(512));
    let outcome = Team::of(method, workers, n).step(&gradients);
    let counts = outcome.delivered[0].chunks(512).map(|bucket| bucket.iter().filter(|v| **v != 0.0).count());
    assert_eq!(counts.collect::<Vec<_>>(), [8, 8, 8, 8, 8, 8, 2]);
}

/// Ok-Topk: exact thresholds deliver k; between them counts stay within 2k/3 to 4k/3 most of the time; the cuts make the
/// regions' counts more even than equal lengths do.
#[test]
fn oktopk_keeps_its_counts_and_evens_its_regions() {
    let (p, n, k) = (6, 3000, 240);
    let mut team = Team::of(Method::named("oktopk").unwrap().k(k), p, n);
    let mut within = 0;
    // Large entries cluster at the start of the gradient.
    let clustered = |step: usize| -> Vec<Vec<f32>> {
        let mut gradients = drifting(p, n, step);
        let scale = |i: usize| 1.0 + 9.0 * (1.0 - i as f32 / n as f32).powi(3);
        gradients.iter_mut().for_each(|g| g.iter_mut().enumerate().for_each(|(i, v)| *v *= scale(i)));
        gradients
    };
    let imbalance = |update: &[Bag]| {
        let counts: Vec<usize> = update.iter().map(Bag::nonzeros).collect();
        *counts.iter().max().unwrap() as f64 * counts.len() as f64 / counts.iter().sum::<usize>() as f64
    };
    let mut first = 0.0;
    let mut last = 0.0;
    for step in 0..192 {
        let outcome = team.step(&clustered(step));
        let count: usize = outcome.update[0].iter().map(Bag::nonzeros).sum();
        if step % 32 == 0 {
            assert_eq!(count, k, "step {step} finds its thresholds exactly");
        }
        assert!(count <= 3 * k, "step {step} delivers {count} entries");
        within += usize::from((2 * k / 3..=4 * k / 3).contains(&count));
        if step == 0 {
            first = imbalance(&outcome.update[0]);
        }
        last = imbalance(&outcome.update[0]);
    }
    assert!(first > 2.0 && last < 1.0 + (first - 1.0) / 2.0, "imbalance from {first} to {last}");
    assert!(within > 96, "{within} of 192 steps deliver between 2k/3 and 4k/3");
}

/// Ok-Topk: a worker whose gradient was zero in the step of exact thresholds finds its own in the next one.
#[test]
fn oktopk_finds_a_threshold_after_a_gradient_of_zeros() {
    let (p, n, k) = (4, 2000, 100);
    let mut team = Team::of(Method::named("oktopk").unwrap().k(k), p, n);
    for step in 0..24 {
        let mut gradients = Pattern::Full.gradients(p, n, &mut Random::new(step));
        if step == 0 {
            gradients[1].fill(0.0);
        }
        let executions = (0..p).map(|w| team.begin(w, &gradients[w], usize::MAX)).collect();
        let finished = lockstep(executions).unwrap();
        let own = finished.runs[1].finished.observed().own.entries;
        match step {
            0 => assert_eq!(own, 0),
            // Whatever there is, up to the bound.
            1 => assert_eq!(own, 2 * k),
            20.. => assert!(own < 2 * k, "step {step} selects {own} entries"),
            _ => {}
        }
        let collection = team.collection();
        team.ensemble.commit(finished, collection).unwrap();
    }
}

/// The k entries of each worker, as (position, value).
fn only(n: usize, entries: &[(usize, f32)]) -> Vec<f32> {
    let mut gradient = vec![0.0; n];
    entries.iter().for_each(|&(i, value)| gradient[i] = value);
    gradient
}

/// Ok-Topk's regions: each boundary is the mean over the workers of where their own selections are cut into equal counts.
#[test]
fn oktopk_cuts_its_regions_where_the_selections_are() {
    for p in [2usize, 3, 5, 8, 13] {
        let (n, k) = (4000, 10 * p + 3);
        let mut random = Random::new(p as u64);
        // Most positions are in the first tenth, others on every worker.
        let mut positions: Vec<Vec<usize>> = Vec::new();
        for _ in 0..p {
            let mut own = std::collections::BTreeSet::new();
            while own.len() < k {
                own.insert(random.below(if own.len() % 4 == 0 { n } else { n / 10 }));
            }
            positions.push(own.into_iter().collect());
        }
        let gradient = |own: &Vec<usize>| only(n, &own.iter().map(|&i| (i, 1.0)).collect::<Vec<_>>());
        let gradients: Vec<Vec<f32>> = positions.iter().map(gradient).collect();
        let mut team = Team::of(Method::named("oktopk").unwrap().k(k), p, n);
        team.step(&gradients);
        let expected: Vec<usize> =
            (1..p).map(|j| positions.iter().map(|own| own[k * j / p]).sum::<usize>() / p).collect();
        let starts = (1..p as u32).map(|b| team.partition().range(Block(b)).start);
        assert_eq!(starts.collect::<Vec<_>>(), expected, "P {p}");
        let even = (1..p).map(|j| n * j / p).collect::<Vec<_>>();
        assert_ne!(expected, even);
    }
}

/// Where all that is chosen lies in one region, the step after balances: each owner spreads its entries evenly before they
/// are gathered. It delivers and keeps the same, and instead of 2k words in each of ⌈log2 P⌉ rounds, 2k words come in all.
#[test]
fn oktopk_balances_a_region_that_is_too_full() {
    for (p, log) in [(5usize, 3), (6, 3), (8, 3), (16, 4)] {
        let k = 4 * p;
        let n = 4 * p * k;
        let value = |j: usize| 1.0 + j as f32 / k as f32;
        let evenly: Vec<_> = (0..k).map(|j| (j * (n / k), value(j))).collect();
        let gradients = vec![only(n, &evenly); p];
        let mut team = Team::of(Method::named("oktopk").unwrap().k(k), p, n);
        let balances = |team: &Team| {
            let splits = |s: &Schedule| s.steps.iter().any(|step| matches!(step, Step::Split { .. }));
            let schedules: Vec<_> =
                team.ensemble.prepared().map(|prepared| prepared.program.schedule()).collect();
            assert_eq!(schedules.iter().filter(|s| splits(s)).count() % p, 0, "all workers or none");
            schedules.iter().all(|s| splits(s))
        };
        for _ in 0..3 {
            assert!(!balances(&team));
            assert_eq!(team.step(&gradients).delivered_by_block().iter().sum::<usize>(), k);
        }
        // The same values, all in one region.
        let start = team.partition().range(Block(2)).start;
        let clustered: Vec<_> = (0..k).map(|j| (start + j, value(j))).collect();
        let gradients = vec![only(n, &clustered); p];
        assert!(team.partition().range(Block(2)).len() >= k && !balances(&team));
        let before = team.step(&gradients);
        assert!(balances(&team), "P {p}: {:?} by region", before.delivered_by_block());
        let after = team.step(&gradients);
        assert_eq!(after.delivered, before.delivered, "P {p}");
        assert_eq!(after.new, before.new, "P {p}");
        let (split, k) = (2 * k as u64 * (p as u64 - 1), k as u64);
        assert_eq!(before.words_critical, split + log * 2 * k, "P {p}");
        assert_eq!(after.words_critical, split + 2 * k, "P {p}");
        // And back again, when they are even.
        team.step(&vec![only(n, &evenly); p]);
        assert!(!balances(&team));
    }
}

/// Messages of different peers may arrive in any order: what a worker makes of them does not depend on it.
#[test]
fn sums_do_not_depend_on_the_order_of_arrival() {
    for workers in [2, 3, 5, 6, 8] {
        let n = 120;
        for method in variants(workers) {
            let method = method.density(0.2);
            let gradients = Pattern::Full.gradients(workers, n, &mut Random::new(5));
            let expected = Team::of(method.clone(), workers, n).step(&gradients);
            for seed in 0..3 {
                let mut team = Team::of(method.clone(), workers, n);
                let runs = (0..workers).map(|w| team.begin(w, &gradients[w], usize::MAX)).collect();
                let updates = in_random_order(runs, &mut Random::new(seed));
                for update in updates {
                    assert_eq!(update, expected.update[0], "{method}, P {workers}");
                }
            }
        }
    }
}

/// Runs workers and delivers messages at random, in order only on each link. The work of a step is done on threads of its own,
/// in any order.
fn in_random_order(mut runs: Vec<Execution>, random: &mut Random) -> Vec<Vec<Bag>> {
    let mut links: HashMap<(Rank, usize), VecDeque<Bytes>> = HashMap::new();
    // What has come and is not yet wanted.
    let mut mail: HashMap<(Rank, usize), VecDeque<Bytes>> = HashMap::new();
    let mut done = vec![false; runs.len()];
    let mut works: Vec<Vec<Work>> = runs.iter().map(|_| Vec::new()).collect();
    while done.contains(&false) {
        let w = random.below(runs.len());
        let mut outbox = Vec::new();
        match runs[w].advance(&mut outbox).unwrap() {
            Progress::Finished => done[w] = true,
            Progress::Work(work) => works[w].push(work),
            Progress::Working => {
                let some = random.below(works[w].len());
                let work = works[w].swap_remove(some);
                runs[w].complete(std::thread::spawn(|| work.run()).join().unwrap().unwrap());
            }
            Progress::Waiting(from) => {
                if let Some(payload) = mail.get_mut(&(from, w)).and_then(VecDeque::pop_front) {
                    runs[w].receive(from, payload, &mut outbox).unwrap();
                }
            }
        }
        for message in outbox {
            links.entry((Rank(w as u32), message.to.index())).or_default().push_back(message.payload);
        }
        let mut open: Vec<_> = links.keys().copied().collect();
        open.sort();
        if !open.is_empty() {
            let link = open[random.below(open.len())];
            if let Some(payload) = links.get_mut(&link).and_then(VecDeque::pop_front) {
                mail.entry(link).or_default().push_back(payload);
            }
        }
    }
    runs.into_iter().map(|run| run.finish().unwrap().update).collect()
}

/// What a method says of its structures decides how much credit its peers have.
#[test]
fn structures_change_where_a_method_says_so_and_nowhere_else() {
    let bruck = [4, 3].map(|teams| spardl(teams, Sag::Bruck));
    for method in Method::all().chain(bruck) {
        let (workers, n) = (12, 600);
        let mut team = Team::of(method.clone().density(0.05), workers, n);
        let structure = |team: &Team| {
            let structure = method.structure(team.ensemble.shape(), &team.ensemble.memories()[0]).unwrap();
            (structure.partition, structure.allotment, structure.kind)
        };
        let first = structure(&team);
        let mut changed = false;
        for step in 0..2 * workers {
            team.step(&drifting(workers, n, step));
            changed |= structure(&team) != first;
        }
        assert_eq!(changed, !method.collective().kinds(team.ensemble.shape()).is_empty(), "{method}");
    }
}
