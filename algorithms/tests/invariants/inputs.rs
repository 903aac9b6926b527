//! Gradients that are hard in one way or another, from a seed.

use gleaner_algorithms::Method;
use gleaner_statistics::random::Generator;
use proptest::prelude::*;

/// Numbers from a seed: the same seed gives the same gradients on every machine.
pub struct Random(Generator);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Generator::seeded(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// In [-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// How the gradients of the workers look and meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every entry of every worker is something.
    Full,
    /// One entry in ten, the same ones on every worker.
    Overlapping,
    /// Every entry belongs to one worker.
    Disjoint,
    /// Pairs of workers have opposite values: whole sums, or parts of them, are exactly zero.
    Cancelling,
    /// Small integers: ties everywhere, and sums that happen to be zero.
    Integers,
    /// Powers of two that are opposite on two workers and nothing on others, and small integers behind them.
    Opposite,
    /// From 1e-30 to 1e30 in size.
    Wide,
    /// Zeros of both signs and a few numbers too small to be normal.
    Tiny,
    /// Nothing at all.
    Zero,
}

pub const PATTERNS: [Pattern; 9] = [
    Pattern::Full,
    Pattern::Overlapping,
    Pattern::Disjoint,
    Pattern::Cancelling,
    Pattern::Integers,
    Pattern::Opposite,
    Pattern::Wide,
    Pattern::Tiny,
    Pattern::Zero,
];

impl Pattern {
    /// The gradients of all workers.
    pub fn gradients(self, workers: usize, n: usize, random: &mut Random) -> Vec<Vec<f32>> {
        let shared: Vec<u64> = (0..n).map(|_| random.next()).collect();
        (0..workers)
            .map(|w| {
                (0..n)
                    .map(|i| match self {
                        Pattern::Full => random.unit(),
                        Pattern::Overlapping if shared[i].is_multiple_of(10) => random.unit(),
                        Pattern::Disjoint if shared[i] % workers as u64 == w as u64 => random.unit(),
                        Pattern::Cancelling => {
                            let size = Random::new(shared[i] + w as u64 / 2).unit();
                            // Some pairs are broken, so that something remains.
                            let sign = if w % 2 == 0 || random.below(8) == 0 { 1.0 } else { -1.0 };
                            sign * size
                        }
                        Pattern::Opposite if shared[i].is_multiple_of(2) => {
                            let size = (64 << (shared[i] >> 8 & 3)) as f32;
                            let first = (shared[i] >> 16) as usize % workers;
                            let second = (first + 1) % workers;
                            if w == first {
                                size
                            } else if w == second {
                                -size
                            } else {
                                0.0
                            }
                        }
                        Pattern::Integers | Pattern::Opposite => random.below(5) as f32 - 2.0,
                        Pattern::Wide => random.unit() * 10f32.powi(random.below(61) as i32 - 30),
                        Pattern::Tiny => {
                            [0.0, -0.0, f32::from_bits(1), -f32::MIN_POSITIVE, 3e-40, -0.0][random.below(6)]
                        }
                        Pattern::Overlapping | Pattern::Disjoint | Pattern::Zero => 0.0,
                    })
                    .collect()
            })
            .collect()
    }
}

/// How many entries are asked for.
#[derive(Clone, Copy, Debug)]
pub enum Share {
    Density(f64),
    /// k as a share of n, in thousandths.
    K(usize),
}

impl Share {
    pub fn of(self, method: Method, n: usize) -> Method {
        match self {
            Share::Density(density) => method.density(density),
            Share::K(thousandths) => method.k(n * thousandths / 1000),
        }
    }

    /// The k that is meant, computed here: round(density · n), at least 1 unless nothing is asked for.
    pub fn k(self, n: usize) -> usize {
        match self {
            Share::Density(0.0) => 0,
            Share::Density(density) => ((density * n as f64).round() as usize).max(1).min(n),
            Share::K(thousandths) => n * thousandths / 1000,
        }
    }
}

pub fn pattern() -> impl Strategy<Value = Pattern> {
    proptest::sample::select(&PATTERNS[..])
}

pub fn share() -> impl Strategy<Value = Share> {
    prop_oneof![
        proptest::sample::select(&[0.0, 1e-9, 0.01, 0.1, 0.5, 0.9, 1.0][..]).prop_map(Share::Density),
        (0.0f64..=1.0).prop_map(Share::Density),
        (0usize..=1000).prop_map(Share::K),
    ]
}

/// Numbers of entries for P workers: none, fewer than P, and more, divisible or not.
pub fn entries(workers: usize) -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        2 => 1..=workers,
        3 => (1usize..20).prop_map(move |each| each * workers),
        6 => 1usize..240,
    ]
}
