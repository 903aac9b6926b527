//! ExDyna: the paper's algorithms written out a second time, and whether the corrected controllers do what the printed ones
//! are meant to do.

use gleaner_algorithms::collectives::{Controllers, Corrected, Ensemble, ExDyna};
use gleaner_algorithms::residual::Collection;
use gleaner_algorithms::schedule::lockstep;
use gleaner_algorithms::{Block, Element, Method};

use super::harness::Team;
use super::inputs::{Pattern, Random};
use super::streams::{Followed, JUMPS, STEPS, follow};

fn named(name: &str) -> Method {
    Method::named(name).unwrap()
}

/// Also where there are fewer entries than blocks, or than workers.
#[test]
fn every_entry_has_an_owner() {
    for name in ["exdyna", "exdyna-printed"] {
        for n in (0usize..40).chain([1023, 1024, 1025, 5000, 32_767, 32_768, 40_000]) {
            for workers in [1, 2, 3, 5, 8, 9] {
                // All entries reach the first threshold.
                let mut team = Team::of(named(name).k(n.div_ceil(4)), workers, n);
                assert_eq!(team.partition().blocks(), workers);
                let outcome = team.step(&vec![vec![1.0; n]; workers]);
                assert_eq!(outcome.delivered[0], vec![workers as f32; n], "{name}, P {workers}, n {n}");
            }
        }
    }
}

/// Algorithms 2, 3 and 5, line by line, with sums of blocks for positions.
struct Paper {
    n: usize,
    sz_blk: usize,
    blk_part: Vec<i64>,
    delta: f64,
    moves: usize,
    branches: [usize; 3],
}

impl Paper {
    const N_B: usize = 1024;

    fn new(n: usize, workers: usize, k: usize) -> Self {
        let temp = n / Self::N_B;
        let sz_blk = temp - temp % 32;
        let (quotient, remainder) = (Self::N_B / workers, Self::N_B % workers);
        let mut blk_part = vec![quotient as i64; workers];
        blk_part[..remainder].iter_mut().for_each(|blocks| *blocks += 1);
        let delta = 1.0 / (2.0 * (k as f64).sqrt());
        Self { n, sz_blk, blk_part, delta, moves: 0, branches: [0; 3] }
    }

    /// The entries of a partition; what lies behind the last block is the last one's.
    fn partition(&self, i: usize) -> std::ops::Range<usize> {
        let position = |i: usize| self.blk_part[..i].iter().sum::<i64>() as usize * self.sz_blk;
        position(i)..if i + 1 == self.blk_part.len() { self.n } else { position(i + 1) }
    }

    fn learn(&mut self, mut k_t: Vec<f64>, k: usize) {
        let (workers, alpha, beta, gamma) = (self.blk_part.len(), 1.05, 1.1, 0.005);
        let selected: f64 = k_t.iter().sum();
        let exam = selected / k as f64;
        if exam > beta {
            self.delta *= 1.0 + gamma;
            self.branches[0] += 1;
        } else if exam > 1.0 / beta {
            self.delta *= 1.0 + 0.25 * gamma;
            self.branches[1] += 1;
        } else {
            self.delta *= 1.0 - gamma;
            self.branches[2] += 1;
        }
        let min_blk = (Self::N_B / (4 * workers)) as i64;
        let mean = selected / workers as f64;
        let k_move = self.sz_blk as f64 * selected / self.n as f64;
        for i in 0..workers - 1 {
            let (left, right) = (k_t[i] / mean, k_t[i + 1] / mean);
            if left > alpha && right < 1.0 / alpha {
                if self.blk_part[i] > min_blk {
                    self.blk_part[i] -= 1;
                    self.blk_part[i + 1] += 1;
                    k_t[i] -= k_move;
                    k_t[i + 1] += k_move;
                    self.moves += 1;
                }
            } else if left < 1.0 / alpha && right > alpha && self.blk_part[i + 1] > min_blk {
                self.blk_part[i] += 1;
                self.blk_part[i + 1] -= 1;
                k_t[i] += k_move;
                k_t[i + 1] -= k_move;
                self.moves += 1;
            }
        }
    }
}

/// Worker w selects in partition (t + w) mod P what reaches δ, and every worker's values at the union are summed up.
#[test]
fn printed_is_what_is_printed() {
    for workers in [1usize, 2, 3, 4, 6] {
        // Blocks of 32, and a tail of 1,232.
        let n = 34_000;
        let k = n / 50;
        let mut team = Team::of(named("exdyna-printed").k(k), workers, n);
        let mut paper = Paper::new(n, workers, k);
        let mut random = Random::new(workers as u64);
        for t in 0..140i32 {
            // Large entries cluster at the start; the scale falls again and again, so that every branch is taken.
            let fallen = 12.0 * paper.delta as f32 * 0.9f32.powi(t % 60);
            let scale = if t < 20 { 0.2 } else { fallen };
            let size = |i: usize| scale / (1.0 + 4.0 * i as f32 / n as f32);
            let entry = |i: usize, random: &mut Random| size(i) * random.unit().powi(9);
            let gradients: Vec<Vec<f32>> =
                (0..workers).map(|_| (0..n).map(|i| entry(i, &mut random)).collect()).collect();
            let accumulators: Vec<Vec<f32>> = (0..workers)
                .map(|w| {
                    let old = team.ensemble.residuals[w].read(0..n).unwrap();
                    old.iter().zip(&gradients[w]).map(|(e, g)| e + g).collect()
                })
                .collect();
            let mut k_t = vec![0.0; workers];
            let mut expected = vec![0.0f64; n];
            for w in 0..workers {
                let partition = (t as usize + w) % workers;
                for i in paper.partition(partition) {
                    if f64::from(accumulators[w][i].abs()) >= f64::from(paper.delta as f32) {
                        k_t[partition] += 1.0;
                        expected[i] = accumulators.iter().map(|a| f64::from(a[i])).sum();
                    }
                }
            }
            let outcome = team.step(&gradients);
            for (i, (&found, &expected)) in outcome.delivered[0].iter().zip(&expected).enumerate() {
                let bound = 1e-6 * accumulators.iter().map(|a| f64::from(a[i].abs())).sum::<f64>();
                assert!(
                    (f64::from(found) - expected).abs() <= bound,
                    "P {workers}, step {t}, entry {i}: {found}, expected {expected}"
                );
            }
            paper.learn(k_t, k);
            assert_eq!(team.ensemble.memories()[0].agreed[0], paper.delta, "P {workers}, step {t}");
            for i in 0..workers {
                let range = team.partition().range(Block(i as u32));
                assert_eq!(range, paper.partition(i), "P {workers}, step {t}, partition {i}");
            }
        }
        assert!(workers == 1 || paper.moves > 20, "P {workers}: {} moves", paper.moves);
        assert!(paper.branches.iter().all(|&times| times > 0), "P {workers}: {:?}", paper.branches);
    }
}

/// Steps at least 100 after the first, and after every jump.
fn steady(followed: &[Followed]) -> impl Iterator<Item = (usize, &Followed)> {
    let is_steady = |t: usize| t >= 100 && JUMPS.iter().all(|(at, _)| !(*at..at + 100).contains(&t));
    followed.iter().enumerate().filter(move |(t, _)| is_steady(*t))
}

/// How far a step is from the density that was set, as a share of it.
fn error(followed: &Followed, k: usize) -> f64 {
    (followed.count() as f64 / k as f64 - 1.0).abs()
}

/// The means of f(t) over 20 steady steps each.
fn imbalances(followed: &[Followed]) -> Vec<f64> {
    let all: Vec<f64> = steady(followed).map(|(_, f)| f.imbalance()).collect();
    all.chunks_exact(20).map(|some| some.iter().sum::<f64>() / 20.0).collect()
}

/// With partitions that never move.
static STATIC: ExDyna = ExDyna {
    name: "exdyna-static",
    controllers: Controllers::Corrected(Corrected { imbalance: f64::INFINITY, ..Corrected::DEFAULT }),
};

const N: usize = 200_000;
const K: usize = 4000;

/// Within 15% of the density that was set after the first 100 steps, and within 100 steps after each jump; and partitions of
/// which the fullest has less than 1.2 times the mean, where partitions of equal lengths have more than 2.
#[test]
fn corrected_controllers_keep_density_and_balance() {
    for workers in [4, 8] {
        let followed = follow(named("exdyna").k(K), workers, N, STEPS).unwrap();
        for (t, step) in steady(&followed) {
            assert!(error(step, K) <= 0.15, "P {workers}, step {t}: {} entries", step.count());
        }
        for (t, step) in steady(&followed) {
            // Nothing builds up: what is delivered is what the partitions selected, less what cancels.
            assert!(step.delivered <= step.count(), "P {workers}, step {t}: {} entries", step.delivered);
        }
        // The threshold follows the global error (Fig. 10 of the paper), whatever the scale.
        let times: Vec<f64> = steady(&followed).map(|(_, step)| step.threshold / step.error).collect();
        let most = times.iter().fold(0.0f64, |most, &times| most.max(times));
        let least = times.iter().fold(f64::INFINITY, |least, &times| least.min(times));
        assert!(most < 3.0 * least, "P {workers}: the threshold is {least} to {most} of the error");
        // Every move makes new schedules.
        let moves = steady(&followed).filter(|(_, step)| step.moved).count();
        assert!(moves < STEPS / 20, "P {workers}: partitions moved in {moves} steps");
        assert!(followed[650].threshold < 0.5 * followed[150].threshold, "P {workers}: it follows the scale");
        let worst = imbalances(&followed).into_iter().fold(0.0, f64::max);
        assert!(worst < 1.2, "P {workers}: f(t) is {worst}");
        let least = imbalances(&follow(Method::of(STATIC).k(K), workers, N, STEPS).unwrap());
        let least = least.into_iter().fold(f64::INFINITY, f64::min);
        assert!(least > 2.0, "P {workers}: f(t) of static partitions is {least}");
    }
}

/// The same stream is too much for the printed ones: that is why there are others.
#[test]
fn printed_controllers_do_not() {
    let followed = follow(named("exdyna-printed").k(K), 4, N, STEPS).unwrap();
    let (outside, all) = steady(&followed)
        .fold((0, 0), |(outside, all), (_, f)| (outside + usize::from(error(f, K) > 0.15), all + 1));
    assert!(2 * outside > all, "outside in {outside} of {all} steps");
}

/// Gradients may vanish and come back: the threshold finds its way, and no step proposes more than 4k in a partition.
#[test]
fn thresholds_are_found_again() {
    let (workers, n, k) = (4, 20_000, 400);
    let mut team = Team::of(named("exdyna").k(k), workers, n);
    let mut random = Random::new(9);
    let mut near = 0;
    for t in 0..400 {
        let scale = match t {
            0..100 => 1e-6,
            100..120 => 0.0,
            120..220 => 1e12,
            220..300 => 1e-20,
            _ => 1.0,
        };
        let mut gradients = Pattern::Full.gradients(workers, n, &mut random);
        gradients.iter_mut().flatten().for_each(|g| *g *= scale);
        let outcome = team.step(&gradients);
        let counts = outcome.delivered_by_block();
        assert!(counts.iter().all(|&count| count <= 4 * k), "step {t}: {counts:?}");
        let count: usize = counts.iter().sum();
        if [80..100, 200..220, 380..400].iter().any(|steady| steady.contains(&t)) {
            near += 1;
            assert!((0.75..=1.25).contains(&(count as f64 / k as f64)), "step {t}: {count} entries");
        }
    }
    assert_eq!(near, 60);
}

/// A step, and how many entries were proposed in each partition.
fn proposed<T: Element>(ensemble: &mut Ensemble<T>, gradients: &[Vec<T>]) -> Vec<usize> {
    let begin = |(worker, gradient): (usize, &Vec<T>)| {
        ensemble.residuals[worker].accumulate(0, gradient).unwrap();
        ensemble.begin(worker).unwrap()
    };
    let step = lockstep(gradients.iter().enumerate().map(begin).collect()).unwrap();
    let proposed = step.runs[0].finished.observed().proposed;
    let counts = proposed.iter().map(|p| p.as_ref().map_or(0, |p| p.len())).collect();
    ensemble.commit(step, Collection::Global).unwrap();
    counts
}

/// A count says little where it is bounded: 4k by what one partition may propose, n or what is not zero by what there is. The
/// threshold finds its way from there too, after gradients vanished and after they became larger or smaller by orders of
/// magnitude, within 100 steps and to within 15% of the density that was set. Where they become smaller, old residuals are the
/// largest entries until all of them are sent, which takes 1/density steps: 100 at 1%, so that there are 50 steps more at 1% and 2%.
#[test]
fn thresholds_are_found_again_where_counts_are_bounded() {
    // What gradients are in each phase. They vanish for 20 steps before the second.
    let scales = [1.0f32, 1.0, 1e3, 1.0, 1e6, 1.0, 1e-6, 1e-3];
    // Of how many entries one is not zero.
    let cases = [(1, 0.01, 1), (4, 0.01, 1), (4, 0.25, 1), (4, 0.3, 1), (4, 0.5, 1), (1, 0.5, 1)];
    let cases = cases.into_iter().chain([(4, 0.05, 10), (1, 0.02, 20)]);
    let mut failures = Vec::new();
    for (workers, density, sparse) in cases {
        let n = if density < 0.1 { 100_000 } else { 20_000 };
        let k = (density * n as f64).round() as usize;
        let mut ensemble = Ensemble::<f32>::new(named("exdyna").k(k), workers as u32, n).unwrap();
        let mut random = Random::new(17);
        for (phase, scale) in scales.into_iter().enumerate() {
            let vanished = if phase == 1 { 20 } else { 0 };
            let falls = phase > 0 && scale < scales[phase - 1];
            let steady = vanished + if falls && density < 0.03 { 150 } else { 100 };
            for t in 0..steady + 20 {
                let now = if t < vanished { 0.0 } else { scale };
                let mut entry = || if random.below(sparse) == 0 { now * random.unit() } else { 0.0 };
                let gradients: Vec<Vec<f32>> =
                    (0..workers).map(|_| (0..n).map(|_| entry()).collect()).collect();
                let counts = proposed(&mut ensemble, &gradients);
                let times = counts.iter().sum::<usize>() as f64 / k as f64;
                if t >= steady && !(0.85..=1.15).contains(&times) {
                    let case = format!("P {workers}, density {density}, one in {sparse}");
                    failures.push(format!("{case}: phase {phase}, step {t}: {times}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Gradients of 64 bits may be larger or smaller than any of 32.
#[test]
fn thresholds_go_as_far_as_gradients() {
    let (workers, n, k) = (4, 20_000, 1000);
    let mut ensemble = Ensemble::<f64>::new(named("exdyna").k(k), workers as u32, n).unwrap();
    let mut random = Random::new(5);
    for scale in [1e50, 1e-50, 1e200, 1e-200] {
        for t in 0..120 {
            let mut gradient = || (0..n).map(|_| scale * f64::from(random.unit())).collect();
            let gradients: Vec<Vec<f64>> = (0..workers).map(|_| gradient()).collect();
            let count: usize = proposed(&mut ensemble, &gradients).iter().sum();
            let near = (0.85..=1.15).contains(&(count as f64 / k as f64));
            assert!(t < 100 || near, "scale {scale}, step {t}: {count} entries");
        }
    }
}
