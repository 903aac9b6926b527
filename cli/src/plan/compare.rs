//! `gleaner plan --compare`: what a step of every method is expected to take, the fastest first.

use std::collections::BTreeMap;
use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::{MethodError, RoutineError};
use gleaner_algorithms::forecast::{Forecast, Model, Network, PARTS, Speed};
use serde::Serialize;

use super::{HIGH, WIDTH};
use crate::choice::{Stated, stated};
use crate::report::{self, counted, ms};
use gleaner_charts::{Axis, DrawError, Key, Line, Lines, Look, Page};
use gleaner_units::{self as units, Rate, grouped};

/// What six workers on the two cores of an Intel Xeon with AVX-512 measured of themselves before a job with a gradient of
/// 269,722 entries, rounded. A job that chooses by itself measures afresh.
pub const SPEED: Speed = Speed { select: 0.3, encode: 20.0, merge: 18.0, add: 0.4, message: 5500.0 };

/// Where the picture ends, or at the number of workers asked for if that is larger.
const MOST_WORKERS: u32 = 4096;

/// Speeds by their names, such as `select=0.5,merge=12`; what is not named stays as in [`SPEED`].
pub fn speed(text: &str) -> Result<Speed, String> {
    let mut parts = SPEED.parts();
    for pair in text.split(',') {
        let expected = || {
            format!(
                "'{pair}' is no speed; expected one of {} and nanoseconds, such as merge=12",
                PARTS.join(", ")
            )
        };
        let (name, value) = pair.split_once('=').ok_or_else(expected)?;
        let place = PARTS.iter().position(|part| *part == name.trim()).ok_or_else(expected)?;
        let value: f64 = units::number(value.trim()).map_err(|_| expected())?;
        parts[place] = Some(value).filter(|v| v.is_finite() && *v >= 0.0).ok_or_else(expected)?;
    }
    Ok(Speed::of(parts))
}

/// What a choice among these methods may be resolved to. One without a formula for its cost is left out where its schedules are
/// too long to be counted.
fn candidates(
    choice: &Method,
    methods: &[Method],
    workers: u32,
    n: usize,
) -> Result<Vec<Method>, MethodError> {
    let mut candidates = choice.candidates_among(methods.iter().cloned(), workers, n)?;
    candidates.retain(|method| has_forecast(method, workers, n));
    Ok(candidates)
}

/// Whether a method's cost has a formula, or can be counted.
pub fn has_forecast(method: &Method, workers: u32, n: usize) -> bool {
    let formula = method.shape(workers, n).is_ok_and(|shape| method.collective().cost(&shape).is_some());
    formula || super::limit(method, workers, n).is_ok()
}

/// A ranking for one number of workers, and what it was computed from.
pub struct Comparison {
    choice: Method,
    methods: Vec<Method>,
    workers: u32,
    n: usize,
    bandwidth: Rate,
    model: Model,
    ranking: Vec<Forecast>,
}

/// A ranking; the names are those of the JSON object.
#[derive(Serialize)]
struct Ranking {
    workers: u32,
    params: usize,
    seconds_latency: f64,
    bandwidth_bits_per_second: f64,
    speed: String,
    overlap: f64,
    bytes_per_entry: f64,
    methods: Vec<Row>,
}

/// A method in it.
#[derive(Serialize)]
struct Row {
    method: &'static str,
    options: Stated,
    rounds: u64,
    messages: u64,
    words_critical: u64,
    payload_bytes_per_step: u64,
    seconds: f64,
    seconds_select: f64,
    seconds_exchange: f64,
    seconds_merge: f64,
    /// If all workers choose the same entries, and if no two do.
    entries_per_step_least: u64,
    entries_per_step_most: u64,
    ratio: f64,
}

/// The times of an all-reduce by numbers of workers.
type Curve = (String, Vec<(f64, f64)>);

impl Comparison {
    /// Ranks the candidates of a choice among methods.
    ///
    /// # Errors
    /// Options that no method takes.
    pub fn new(
        choice: Method,
        methods: Vec<Method>,
        (workers, n): (u32, usize),
        (latency, bandwidth): (Duration, Rate),
        speed: Speed,
    ) -> Result<Self, RoutineError> {
        let network = Network { latency, bytes_per_second: bandwidth.bytes_per_second() };
        let model = Model::new(network, speed, &choice, n)?;
        let ranking = model.rank_all(candidates(&choice, &methods, workers, n)?, workers, n)?;
        Ok(Self { choice, methods, workers, n, bandwidth, model, ranking })
    }

    pub fn best(&self) -> &Forecast {
        &self.ranking[0]
    }

    /// How many times as long as the fastest a method takes.
    fn ratio(&self, forecast: &Forecast) -> f64 {
        forecast.seconds / self.best().seconds.max(f64::MIN_POSITIVE)
    }

    pub fn json(&self) -> String {
        let method = |f: &Forecast| Row {
            method: f.method.collective().name(),
            options: stated(&f.method),
            rounds: f.rounds,
            messages: f.messages,
            words_critical: f.words,
            payload_bytes_per_step: f.bytes_received,
            seconds: f.seconds,
            seconds_select: f.select,
            seconds_exchange: f.exchange,
            seconds_merge: f.merge,
            entries_per_step_least: f.delivered.0,
            entries_per_step_most: f.delivered.1,
            ratio: self.ratio(f),
        };
        let Model { network, speed, overlap, bytes_per_entry } = &self.model;
        report::json(&Ranking {
            workers: self.workers,
            params: self.n,
            seconds_latency: network.latency.as_secs_f64(),
            bandwidth_bits_per_second: 8.0 * network.bytes_per_second,
            speed: speed.to_string(),
            overlap: *overlap,
            bytes_per_entry: *bytes_per_entry,
            methods: self.ranking.iter().map(method).collect(),
        })
    }

    pub fn table(&self) -> String {
        let header = "method rounds messages words received select exchange merge step entries".split(' ');
        let header = header.chain(["/ fastest"]);
        let rows = self.ranking.iter().map(|f| {
            let delivered = match f.delivered {
                (low, high) if low == high => grouped(low),
                (low, high) => format!("{}–{}", grouped(low), grouped(high)),
            };
            let mut cells = vec![f.to_string()];
            cells.extend([f.rounds, f.messages, f.words].map(grouped));
            cells.push(units::bytes(f.bytes_received as f64));
            cells.extend([f.select, f.exchange, f.merge, f.seconds].map(ms));
            cells.extend([delivered, format!("{:.2}", self.ratio(f))]);
            cells
        });
        let (heading, table, bandwidth) = (self.heading(), report::table(header, rows), self.bandwidth);
        let Model { network: Network { latency, .. }, speed, bytes_per_entry, .. } = self.model;
        format!(
            "{heading}; expected times in ms\n\n{table}\nEstimated with {latency:?} a message and {bandwidth} a link, {bytes_per_entry:.2} bytes \
             a sparse entry, and workers that choose half-way between the same entries\nand all different ones. Nanoseconds an entry \
             or message: {speed} (--speed).\n"
        )
    }

    fn heading(&self) -> String {
        format!("{}, {}", counted(self.workers as usize, "worker"), self.entries())
    }

    fn entries(&self) -> String {
        let k = self.choice.sparsity().k(self.n).unwrap_or(self.n);
        format!("n = {}, k = {}", grouped(self.n as u64), grouped(k as u64))
    }

    /// For each all-reduce, the time of its fastest form among so many workers: powers of two.
    fn curves(&self) -> Vec<Curve> {
        let most = MOST_WORKERS.max(self.workers);
        let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for workers in std::iter::successors(Some(2u32), |p| p.checked_mul(2)).take_while(|p| *p <= most) {
            let candidates = candidates(&self.choice, &self.methods, workers, self.n).unwrap_or_default();
            for forecast in self.model.rank_all(candidates, workers, self.n).unwrap_or_default() {
                let points = curves.entry(forecast.method.collective().name()).or_default();
                if points.last().is_none_or(|(last, _)| *last != f64::from(workers)) {
                    points.push((f64::from(workers), forecast.seconds));
                }
            }
        }
        curves.into_iter().map(|(name, points)| (name.to_owned(), points)).collect()
    }

    /// The time of a step against the number of workers, both on logarithmic axes.
    pub fn svg(&self) -> Result<String, DrawError> {
        let mut curves = self.curves();
        // In the order in which their lines end, from top to bottom.
        let end = |(_, points): &Curve| points.last().map_or(0.0, |(_, seconds)| *seconds);
        curves.sort_by(|a, b| end(b).total_cmp(&end(a)));
        let points = || curves.iter().flat_map(|(_, points)| points);
        let times = || points().map(|(_, seconds)| seconds.max(1e-9));
        let (least, most) = (times().fold(f64::MAX, f64::min), times().fold(1e-9, f64::max));
        let duration = |seconds: f64| format!("{:?}", Duration::from_secs_f64(seconds));
        let lines = Lines {
            x: Axis::around("workers, P", points().map(|(workers, _)| *workers).collect()),
            y: Axis::logarithmic("time of a step", least.min(most) / 1.3, most * 1.3).written(duration),
            lines: (0..)
                .zip(&curves)
                .map(|(i, (_, points))| Line::exact(i, points.iter().copied()))
                .collect(),
            marked: Vec::new(),
        };
        let page = Page {
            width: WIDTH,
            heading: format!("A step of {}", self.entries()),
            notes: vec![format!(
                "expected on links of {} with a latency of {:?}; each method with its fastest options",
                self.bandwidth, self.model.network.latency
            )],
            legend: (0..)
                .zip(&curves)
                .map(|(i, (name, _))| (Key::Line(Look::new(i)), name.clone()))
                .collect(),
        };
        page.svg(HIGH, |area| lines.draw(area))
    }
}
