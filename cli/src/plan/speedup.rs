//! `gleaner plan --speedup`: for which models and links a method is faster than dense exchange, by the closed form.

use std::time::Duration;

use gleaner_algorithms::Method;
use gleaner_algorithms::collectives::RoutineError;
use gleaner_algorithms::forecast::{Model, Network, Speed};
use gleaner_charts::{Axis, DrawError, Key, Line, Lines, Look, Page};
use gleaner_units::{self as units, grouped};
use serde::Serialize;

use super::{HIGH, WIDTH};

/// Entries of the models: powers of ten.
const ENTRIES: std::ops::RangeInclusive<u32> = 5..=9;

/// Bits per second of the links: from 10 Mbit/s to 100 Gbit/s, four in each decade.
const RATES: std::ops::RangeInclusive<u32> = 28..=44;

/// So many of them in a decade.
const EACH: u32 = 4;

/// A model; the names are those of the JSON object.
#[derive(Serialize)]
struct Row {
    params: usize,
    /// What one step takes, in seconds, by link.
    seconds: Vec<f64>,
    /// What one step of the fastest dense method takes.
    seconds_dense: Vec<f64>,
    /// The second over the first.
    speedup: Vec<f64>,
}

/// Steps of a method beside those of the fastest dense method.
#[derive(Serialize)]
pub struct Speedup {
    method: String,
    workers: u32,
    seconds_latency: f64,
    speed: String,
    bandwidth_bits_per_second: Vec<f64>,
    rows: Vec<Row>,
    #[serde(skip)]
    density: f64,
}

impl Speedup {
    /// # Errors
    /// Options that the method does not take among so many workers.
    pub fn new(method: &Method, workers: u32, latency: Duration, speed: Speed) -> Result<Self, RoutineError> {
        let bits: Vec<f64> = RATES.map(|power| 10f64.powf(f64::from(power) / f64::from(EACH))).collect();
        let mut rows = Vec::new();
        for n in ENTRIES.map(|power| 10usize.pow(power)) {
            let dense: Vec<Method> = Method::all().filter(|m| !m.collective().is_sparse()).collect();
            let own = method.candidates(workers, n)?;
            let network = Network { latency, bytes_per_second: 1.0 };
            let model = Model::new(network, speed, method, n)?;
            let of = |methods: &[Method], bits: f64| -> Result<f64, RoutineError> {
                let network = Network { latency, bytes_per_second: bits / 8.0 };
                let ranking = Model { network, ..model }.rank_all(methods.to_vec(), workers, n)?;
                Ok(ranking.first().map_or(f64::INFINITY, |fastest| fastest.seconds))
            };
            let times = |methods: &[Method]| -> Result<Vec<f64>, RoutineError> {
                bits.iter().map(|bits| of(methods, *bits)).collect()
            };
            let (seconds, seconds_dense) = (times(&own)?, times(&dense)?);
            let speedup = seconds_dense.iter().zip(&seconds).map(|(dense, own)| dense / own).collect();
            rows.push(Row { params: n, seconds, seconds_dense, speedup });
        }
        let n = 10usize.pow(*ENTRIES.end());
        let density = method.sparsity().k(n).map_or(1.0, |k| k as f64 / n as f64);
        Ok(Self {
            method: method.label(),
            workers,
            seconds_latency: latency.as_secs_f64(),
            speed: speed.to_string(),
            bandwidth_bits_per_second: bits,
            rows,
            density,
        })
    }

    fn heading(&self) -> String {
        format!(
            "{} at density {} among {} workers: speed-up of a step over the fastest dense method",
            self.method, self.density, self.workers
        )
    }

    fn below(&self) -> String {
        format!(
            "closed form; latency {:?}, nanoseconds {}",
            Duration::from_secs_f64(self.seconds_latency),
            self.speed
        )
    }

    pub fn text(&self) -> String {
        let decades = || (0..self.bandwidth_bits_per_second.len()).step_by(EACH as usize);
        let rates = decades().map(|i| format!("{:>12}", bits(self.bandwidth_bits_per_second[i])));
        let row = |row: &Row| {
            let cells: String = decades().map(|i| format!("{:>12.2}", row.speedup[i])).collect();
            format!("{:>14}{cells}\n", grouped(row.params as u64))
        };
        let rows: String = self.rows.iter().map(row).collect();
        let (heading, below, rates) = (self.heading(), self.below(), rates.collect::<String>());
        format!("{heading}\n{below}\n\n{:>14}{rates}\n{rows}", "parameters")
    }

    pub fn svg(&self) -> Result<String, DrawError> {
        let line = |(number, row): (usize, &Row)| {
            let rates = self.bandwidth_bits_per_second.iter().copied();
            Line::exact(number, rates.zip(row.speedup.iter().copied()))
        };
        let name = |(number, row): (usize, &Row)| {
            (Key::Line(Look::new(number)), format!("{} parameters", grouped(row.params as u64)))
        };
        let all = || self.rows.iter().flat_map(|row| &row.speedup).copied();
        let bits = |power: &u32| 10f64.powf(f64::from(*power) / f64::from(EACH));
        let x = Axis::logarithmic(
            "bandwidth of a link, in each direction",
            bits(RATES.start()),
            bits(RATES.end()),
        );
        let lines = Lines {
            x: x.written(self::bits),
            y: Axis::fit("speed-up", all(), false),
            lines: self.rows.iter().enumerate().map(line).collect(),
            marked: Vec::new(),
        };
        let page = Page {
            width: WIDTH,
            heading: self.heading(),
            notes: vec![self.below()],
            legend: self.rows.iter().enumerate().map(name).collect(),
        };
        page.svg(HIGH, |area| lines.draw(area))
    }
}

/// A rate as it is given to an option.
fn bits(bits_per_second: f64) -> String {
    units::Rate::measured(bits_per_second / 8.0).to_string()
}
