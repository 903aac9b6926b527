//! How long a step of a method will take, and which method will take the least.
//!
//! The α-β model of the papers (SparCML, §5; SparDL, §3), with what they leave out: the processor. A step takes
//!
//! > n·select + s·encode + rounds·α + messages·o + bytes/β + s·merge + e·add
//!
//! with s the sparse and e the dense entries along the critical path ([`Collective::cost`](crate::collectives::Collective::cost)), α the latency of a
//! round, o the work of a message (LogP's overhead) and β the bytes per second. Everything adds up: that exchanges of
//! long bags overlap with merging them is left out, for all methods alike.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gleaner_statistics::random;

use crate::collectives::{MethodError, Routine, RoutineError};
use crate::residual::Residual;
use crate::schedule::lockstep;
use crate::{Membership, Method, Rank};

/// What a network does to a round of messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// How long a round of small messages takes, α.
    pub latency: Duration,
    /// What a worker receives in a second while it sends as much.
    pub bytes_per_second: f64,
}

/// What a worker's processor takes, with the cores shared as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Nanoseconds per entry of the gradient: added to the residual and compared with a threshold.
    pub select: f64,
    /// Nanoseconds per sparse entry sent: chosen among the candidates and encoded.
    pub encode: f64,
    /// Nanoseconds per sparse entry received: decoded, added, and committed.
    pub merge: f64,
    /// Nanoseconds per dense entry received.
    pub add: f64,
    /// Nanoseconds per message.
    pub message: f64,
}

/// The parts of a [`Speed`] by name, in the order in which they are printed.
pub const PARTS: [&str; 5] = ["select", "encode", "merge", "add", "message"];

impl Speed {
    /// In the order of [`PARTS`].
    pub fn parts(&self) -> [f64; 5] {
        [self.select, self.encode, self.merge, self.add, self.message]
    }

    /// From what [`parts`](Self::parts) gave.
    pub fn of([select, encode, merge, add, message]: [f64; 5]) -> Self {
        Self { select, encode, merge, add, message }
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = PARTS.iter().zip(self.parts()).map(|(n, v)| format!("{n}={v}")).collect();
        f.write_str(&parts.join(","))
    }
}

/// Half-way between workers that all choose the same entries and workers of which no two do. Gradients lie between, and
/// where they lie is not known before a step.
pub const OVERLAP: f64 = 0.5;

/// Everything that a forecast depends on besides the method and the sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// The network.
    pub network: Network,
    /// The processor.
    pub speed: Speed,
    /// From 0, where no two workers choose the same entries, to 1, where all do.
    pub overlap: f64,
    /// What an entry of a sparse bag takes on the wire; see [`bytes_per_entry`].
    pub bytes_per_entry: f64,
}

/// What a step of a method is expected to cost.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// The method, resolved.
    pub method: Method,
    /// The whole step, in seconds: the sum of the three parts.
    pub seconds: f64,
    /// Accumulating, choosing and encoding, in seconds.
    pub select: f64,
    /// On the network, in seconds.
    pub exchange: f64,
    /// Of that, the latency of the rounds, in which the links are free for others.
    pub latency: f64,
    /// Taking in what was received, in seconds.
    pub merge: f64,
    /// Latency rounds.
    pub rounds: u64,
    /// Messages of the busiest worker.
    pub messages: u64,
    /// 32-bit words along the critical path.
    pub words: u64,
    /// Bytes that the busiest worker receives.
    pub bytes_received: u64,
    /// Entries delivered: where all workers choose the same ones, and where no two do.
    pub delivered: (u64, u64),
}

impl Model {
    /// The model for this method's density and values, with [`OVERLAP`].
    ///
    /// # Errors
    /// As [`bytes_per_entry`].
    pub fn new(network: Network, speed: Speed, method: &Method, n: usize) -> Result<Self, RoutineError> {
        let bytes_per_entry = bytes_per_entry(method, n)?;
        Ok(Self { network, speed, overlap: OVERLAP, bytes_per_entry })
    }

    /// What a step of this method costs among this many workers.
    ///
    /// # Errors
    /// As [`Method::shape`] and [`Method::cost`].
    pub fn forecast(&self, method: Method, workers: u32, n: usize) -> Result<Forecast, RoutineError> {
        let shape = method.shape(workers, n)?;
        let range = method.cost(&shape)?;
        let between = |low: u64, high: u64| {
            let (low, high) = (low as f64, high as f64);
            high - self.overlap * (high - low)
        };
        let words = between(range.low.words_critical, range.high.words_critical);
        let received = between(range.low.words_received, range.high.words_received);
        let rounds = range.low.rounds.max(range.high.rounds);
        let messages = range.low.messages.max(range.high.messages);
        let all_dense = match method.collective().is_sparse() {
            true => method.collective().dense_words(&shape) as f64,
            false => f64::INFINITY,
        };
        let (dense, sparse) = self.entries(words, all_dense);
        let (dense_received, sparse_received) = self.entries(received, all_dense);
        let bytes = |dense: f64, sparse: f64| 4.0 * dense + self.bytes_per_entry * sparse;
        let Speed { select, encode, merge, add, message } = self.speed;
        let select = (n as f64 * select + sparse * encode) * 1e-9;
        let latency = rounds as f64 * self.network.latency.as_secs_f64();
        let exchange =
            latency + messages as f64 * message * 1e-9 + bytes(dense, sparse) / self.network.bytes_per_second;
        let merge = (sparse * merge + dense * add) * 1e-9;
        let delivered = method.collective().delivers(&shape);
        Ok(Forecast {
            method,
            seconds: select + exchange + merge,
            select,
            exchange,
            latency,
            merge,
            rounds,
            messages,
            words: words.round() as u64,
            bytes_received: bytes(dense_received, sparse_received).round() as u64,
            delivered,
        })
    }

    /// How many dense and how many sparse entries this many words are.
    fn entries(&self, words: f64, dense: f64) -> (f64, f64) {
        let dense = dense.min(words);
        (dense, (words - dense) / 2.0)
    }

    /// What each of a choice's [candidates](Method::candidates) costs, the cheapest first; of equal ones that which
    /// delivers more, and then in the order in which they are listed. At least one. Equal models give equal rankings on every worker.
    ///
    /// # Errors
    /// As [`Method::candidates`] and [`forecast`](Self::forecast).
    pub fn rank(&self, choice: &Method, workers: u32, n: usize) -> Result<Vec<Forecast>, RoutineError> {
        self.rank_all(choice.candidates(workers, n)?, workers, n)
    }

    /// What each of a choice's [candidates](Method::sparse_candidates) for sparse gradients costs, the cheapest first, where each
    /// worker brings this many entries of n; no more than a density that was asked for. Selecting takes as long as there are entries.
    ///
    /// # Errors
    /// As [`Method::sparse_candidates`] and [`forecast`](Self::forecast).
    pub fn rank_sparse(
        &self,
        choice: &Method,
        workers: u32,
        n: usize,
        entries: usize,
    ) -> Result<Vec<Forecast>, RoutineError> {
        let speed = Speed { select: self.speed.select * entries as f64 / n.max(1) as f64, ..self.speed };
        let most = choice.asked().map_or(Ok(n), |asked| asked.k(n)).map_err(MethodError::from)?;
        let k = entries.clamp(1, most.max(1)).min(n);
        let own = choice.sparse_candidates(workers, n)?;
        let of_entries = own.iter().map(|method| method.clone().k(k)).collect();
        let model = Self { speed, bytes_per_entry: bytes_per_entry(&choice.clone().k(k), n)?, ..*self };
        let mut ranking = model.rank_all(of_entries, workers, n)?;
        for forecast in &mut ranking {
            // As it runs, whatever is met in a step.
            let runs = own.iter().find(|method| method.title() == forecast.method.title());
            forecast.method = runs.unwrap_or(&forecast.method).clone();
        }
        Ok(ranking)
    }

    /// As [`rank`](Self::rank), of these methods.
    ///
    /// # Errors
    /// As [`forecast`](Self::forecast).
    pub fn rank_all(
        &self,
        methods: Vec<Method>,
        workers: u32,
        n: usize,
    ) -> Result<Vec<Forecast>, RoutineError> {
        let mut ranking = methods
            .into_iter()
            .map(|method| self.forecast(method, workers, n))
            .collect::<Result<Vec<_>, _>>()?;
        // For the same time, more is better.
        ranking.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(b.delivered.0.cmp(&a.delivered.0)));
        Ok(ranking)
    }
}

/// The method's title.
impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.method.title())
    }
}

/// Entries that are encoded to see how many bytes they take, where the gradient has as many.
const SAMPLE: f64 = 1024.0;

/// The longest gradient that they are selected from.
const LONGEST: f64 = (1 << 20) as f64;

/// The bytes on the wire of an entry of a sparse bag, header included, where entries are spread evenly at this method's
/// density and encoded by its coding: two workers exchange a bag, and what they receive is counted.
///
/// # Errors
/// A sparsity that n entries do not have, or a coding that is not known.
pub fn bytes_per_entry(method: &Method, n: usize) -> Result<f64, RoutineError> {
    let k = method.sparsity().k(n).map_err(MethodError::from)?;
    if k == 0 {
        return Ok(0.0);
    }
    let density = k as f64 / n as f64;
    let len = (SAMPLE / density).clamp(1.0, LONGEST.min(n as f64).max(1.0)).ceil();
    let method = Method::named("topka")?.coding(method.values()).k((len * density).ceil() as usize);
    let executions = (0..2u32).map(|rank| {
        let routine = Routine::new(method.clone(), Membership::first(Rank(rank), 2), len as usize, 0)?;
        let gradient = (0..len as u64).map(|i| noise(i * 2 + u64::from(rank))).collect();
        let residual =
            Residual::<f32>::new(routine.prepared().program.schedule().partition.clone(), Vec::new());
        let blocks = residual.partition().blocks();
        Ok(routine.begin(Arc::new(gradient), vec![Default::default(); blocks]))
    });
    let executions = executions.collect::<Result<Vec<_>, RoutineError>>()?;
    let done = lockstep(executions)?;
    let (bytes, words) =
        done.runs.iter().fold((0, 0), |(b, w), r| (b + r.bytes_received, w + r.words_received));
    Ok(2.0 * bytes as f64 / words.max(1) as f64)
}

/// A random number in (0, 1].
fn noise(i: u64) -> f32 {
    ((random::at(0, i.wrapping_add(1)) >> 40) as f32 + 1.0) / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPEED: Speed = Speed { select: 0.8, encode: 10.0, merge: 20.0, add: 1.5, message: 4000.0 };

    fn model(latency: f64, bytes_per_second: f64) -> Model {
        let network = Network { latency: Duration::from_secs_f64(latency), bytes_per_second };
        Model { network, speed: SPEED, overlap: OVERLAP, bytes_per_entry: 8.0 }
    }

    fn of(model: &Model, name: &str, workers: u32, n: usize) -> Forecast {
        model.forecast(Method::named(name).unwrap().density(0.01), workers, n).unwrap()
    }

    proptest! {
        /// No network makes any method faster by being worse; the parts are the whole.
        #[test]
        fn worse_is_slower(workers in 1u32..70, n in 1000usize..1_000_000, latency in 1e-6..0.1, rate in 1e5..1e10) {
            let (better, slow, narrow) =
                (model(latency, rate), model(2.0 * latency, rate), model(latency, rate / 2.0));
            for method in Method::auto().candidates(workers, n).unwrap() {
                let of = |model: &Model| model.forecast(method.clone(), workers, n).unwrap();
                let best = of(&better);
                prop_assert!(best.seconds <= of(&slow).seconds && best.seconds <= of(&narrow).seconds);
                prop_assert!((best.seconds - best.select - best.exchange - best.merge).abs() <= 1e-9 * best.seconds);
                prop_assert!(best.delivered.0 <= best.delivered.1 && best.delivered.1 <= n as u64);
                let more = better.forecast(method.clone(), workers, 2 * n).unwrap();
                prop_assert!(best.seconds <= more.seconds, "{best} of {n} entries");
            }
        }

        /// A ranking holds every candidate once, in order, and is the same for equal models.
        #[test]
        fn a_ranking_is_sorted_and_repeats(workers in 1u32..70, n in 1000usize..100_000) {
            let model = model(1e-4, 1e8);
            let names = |ranking: &[Forecast]| ranking.iter().map(Forecast::to_string).collect::<Vec<_>>();
            let ranking = model.rank(&Method::auto(), workers, n).unwrap();
            prop_assert!(ranking.windows(2).all(|pair| pair[0].seconds <= pair[1].seconds));
            prop_assert_eq!(names(&ranking), names(&model.rank(&Method::auto(), workers, n).unwrap()));
            let mut once = names(&ranking);
            once.sort();
            once.dedup();
            prop_assert_eq!(once.len(), ranking.len());
            prop_assert_eq!(ranking.len(), Method::auto().candidates(workers, n).unwrap().len());
        }

        /// What bags take on the wire: never more than an index and a value, never less than a value.
        #[test]
        fn an_entry_takes_a_value_and_at_most_an_index(k in 1000usize..20_000, n in 100_000usize..10_000_000) {
            let bytes = bytes_per_entry(&Method::auto().k(k), n).unwrap();
            prop_assert!((4.0..8.1).contains(&bytes), "{bytes} bytes for {k} of {n}");
        }
    }

    /// SparDL, equation 3, and the dense ring, with the processor's part written out.
    #[test]
    fn forecasts_are_the_papers_formulas() {
        let (p, n, k) = (8.0, 800_000.0, 8000.0);
        let model = model(1e-3, 1e7);
        let sparse = of(&model, "spardl", 8, 800_000);
        let entries = 2.0 * k * (p - 1.0) / p;
        let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-9 * b, "{a} against {b}");
        close(sparse.exchange, 6.0 * (1e-3 + 4e-6) + 8.0 * entries / 1e7);
        close(sparse.select, (0.8 * n + 10.0 * entries) * 1e-9);
        close(sparse.merge, 20.0 * entries * 1e-9);
        let words = 2.0 * n * (p - 1.0) / p;
        let dense = of(&model, "ring", 8, 800_000);
        close(dense.exchange, 14.0 * (1e-3 + 4e-6) + 4.0 * words / 1e7);
        close(dense.merge, 1.5 * words * 1e-9);
    }

    /// A narrow network wants few bytes, a fast one few entries handled, a far one few rounds.
    #[test]
    fn networks_decide() {
        let best = |model: Model, method: Method| model.rank(&method, 16, 1_000_000).unwrap().remove(0);
        let is_dense = |forecast: &Forecast| !forecast.method.collective().is_sparse();
        assert!(!is_dense(&best(model(5e-5, 1e6), Method::auto())));
        // Nearly everything selected, on a network faster than any processor: dense.
        assert!(is_dense(&best(model(1e-6, 1e12), Method::auto().density(0.4))));
        let far = best(model(1.0, 1e9), Method::auto());
        let rounds = model(1.0, 1e9).rank(&Method::auto(), 16, 1_000_000).unwrap();
        assert_eq!(Some(far.rounds), rounds.iter().map(|forecast| forecast.rounds).min());
    }

    #[test]
    fn options_are_kept_to() {
        let auto = |teams| Method::auto().with("teams", teams).unwrap();
        let teams = auto("3").candidates(6, 1000).unwrap();
        let sparse = teams.iter().filter(|m| m.collective().is_sparse());
        assert!(sparse.clone().count() > 0 && sparse.clone().all(|m| m.option("teams").unwrap() == "3"));
        assert!(teams.len() > sparse.count(), "dense methods have no teams, and are compared all the same");
        assert!(auto("4").candidates(6, 1000).unwrap_err().to_string().contains("choose 1, 2, 3 or 6"));
        assert!(Method::auto().density(2.0).candidates(6, 1000).is_err());
        assert!(Method::auto().shape(6, 1000).is_err());
    }
}
